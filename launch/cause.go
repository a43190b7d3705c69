// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"regexp"
	"slices"
	"strconv"
)

// A rank that ends because it has lost another may end first: it exits while the
// other one still gives back what it holds, or waits a moment for others to read
// what it has said. What it writes names the one that it lost (packages dist and rpc),
// and tells the two apart.
var (
	blames = regexp.MustCompile(`\brank (\d+)(?: of "[^"]*")?(?: \((?:[^()]*pid (\d+)|host [^(),]*)\))? (?:failed|died|has left|is silent)\b`)
	gone   = regexp.MustCompile(`\(rank (\d+)\)(?:: (?:connection lost|unreachable): | has gone without a Shutdown\b)`)
	missed = regexp.MustCompile(`\b(?:timed out|cancelled)\b.* waiting for (rank .*)`)
	pids   = regexp.MustCompile(`\bpid (\d+)\)`)
)

// causeFirst moves to the front the first failure that does not follow, by its
// last words, from that of another rank.
func causeFirst(failures []Failure) {
	for i := range failures {
		f := &failures[i]
		if f.Stopped {
			return // from here on they ended as they were asked to
		}
		if !slices.ContainsFunc(failures, func(other Failure) bool { return other.PID != f.PID && !other.Stopped && f.follows(&other) }) {
			cause := *f
			copy(failures[1:i+1], failures[:i])
			failures[0] = cause
			return
		}
	}
}

// differs is what a rank says of one that is in another call, or sends what nobody knows,
// in a group with PyTorch ranks: these say then only that a connection was closed.
var differs = regexp.MustCompile(`\brank \d+(?: \([^()]*\))? failed: it (?:\([^()]*\) )?sent .+, but `)

// differs reports whether a rank has ended by itself with words that say how the ranks'
// calls differ.
func (f *Failure) differs() bool {
	return !f.Stopped && (differs.MatchString(firstLine(f.Message)) || slices.ContainsFunc(f.Tail, differs.MatchString))
}

// differsFirst moves such a failure to the front, unless that has none before it but
// its like.
func differsFirst(failures []Failure) (found bool) {
	i := slices.IndexFunc(failures, func(f Failure) bool { return f.differs() })
	if i < 0 || failures[0].struck() {
		return false
	}
	cause := failures[i]
	copy(failures[1:i+1], failures[:i])
	failures[0] = cause
	return true
}

// waited reports whether a rank ended, by its last words, because another did not come.
func (f *Failure) waited() bool {
	return missed.MatchString(firstLine(f.Message)) || slices.ContainsFunc(f.Tail, missed.MatchString)
}

// follows reports whether a rank's last words name another as the cause.
func (f *Failure) follows(other *Failure) bool {
	pid, rank := strconv.Itoa(other.PID), strconv.Itoa(other.Rank)
	for _, line := range f.Tail {
		for _, m := range blames.FindAllStringSubmatch(line, -1) {
			if m[2] == pid || m[2] == "" && m[1] == rank {
				return true
			}
		}
		for _, m := range gone.FindAllStringSubmatch(line, -1) {
			if m[1] == rank {
				return true
			}
		}
		if m := missed.FindStringSubmatch(line); m != nil {
			for _, p := range pids.FindAllStringSubmatch(m[1], -1) {
				if p[1] == pid {
					return true
				}
			}
		}
	}
	return false
}
