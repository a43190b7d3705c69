// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"fmt"
	"strings"
)

// Member is a rank as errors name it: see [Member.String].
type Member struct {
	Rank int    `json:"rank"`           // by its number in the group of which it is a member
	Host string `json:"host,omitempty"` // what the rank said of itself when the ranks met: see "How a lost rank is named" in the package doc; "" if not known
	PID  int    `json:"pid,omitempty"`  // its process, 0 if not known or if it runs in this process

	group string // the group in which the rank has the number Rank; "" where that is its number in the job too
	job   int    // the number in the job, if group is set
}

// MemberOf returns a rank as a member of a group in which it has a number of its
// own. m is the rank as a member of another group, such as that of the whole job.
func MemberOf(group string, rank int, m Member) Member {
	m.job, m.Rank, m.group = m.JobRank(), rank, group
	if m.job == m.Rank {
		m.job, m.group = 0, ""
	}
	return m
}

// JobRank returns the rank by its number in the job.
func (m Member) JobRank() int {
	if m.group == "" {
		return m.Rank
	}
	return m.job
}

// String returns the name of a rank in every error: `rank 1 (host h, pid 4711)`. Where
// the number in the group is not the number in the job, the name has both:
// `rank 1 of "evens" (rank 2 of the job, host h, pid 4711)`.
func (m Member) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "rank %d", m.Rank)
	var more []string
	if m.group != "" {
		fmt.Fprintf(&b, " of %q", m.group)
		more = append(more, fmt.Sprintf("rank %d of the job", m.job))
	}
	if m.Host != "" {
		more = append(more, "host "+m.Host)
	}
	if m.PID != 0 { // ranks of PyTorch do not tell it
		more = append(more, fmt.Sprintf("pid %d", m.PID))
	}
	if len(more) > 0 {
		fmt.Fprintf(&b, " (%s)", strings.Join(more, ", "))
	}
	return b.String()
}

// Among returns the error of a call on a group with the group's members filled in, so
// that the error knows their numbers in the job. It changes a copy: err itself, which
// other calls may have returned too, stays as it is.
func Among(members []Member, err error) error {
	who := func(rank int) Member {
		if rank >= 0 && rank < len(members) {
			return members[rank]
		}
		return Member{Rank: rank}
	}
	switch e := err.(type) {
	case *RankError:
		// The error may be about another group, in which the number is another rank's.
		if m := who(e.Rank); m.group != "" && m.group == e.Group && e.who.group == "" {
			told := *e
			told.who = m
			return &told
		}
	case *MismatchError:
		here, there := who(e.Here.Rank), who(e.There.Rank)
		if here.group != "" || there.group != "" {
			told := *e
			told.Here.who, told.There.who = here, there
			return &told
		}
	}
	return err
}
