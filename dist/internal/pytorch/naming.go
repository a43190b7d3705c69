// SPDX-License-Identifier: Apache-2.0

package pytorch

import (
	"context"
	"crypto/sha1"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/cohort-ml/cohort/dist/internal/backend"
	"github.com/cohort-ml/cohort/dist/internal/meeting"
	"github.com/cohort-ml/cohort/internal/ctxerr"
)

// naming is how releases of PyTorch name groups. Those that all ranks make have the number
// of groups named before; those that their members alone make, a hash.
type naming int

const (
	// namesByCount hashes the ranks and the number of groups named before: 2.14 and later.
	namesByCount naming = iota
	// namesByOwn hashes the ranks and the number of groups that this rank is in: 2.6 to 2.13.
	namesByOwn
	// namesByRanks hashes the ranks, and the hash again while a group of this rank's has that
	// name: up to 2.5.
	namesByRanks
)

// namings returns how the releases from one to another name groups, the newest first.
func namings(earliest, latest Release) (found []naming) {
	if latest >= 214 || latest == Release1_13 {
		found = append(found, namesByCount)
	}
	if earliest <= 213 && latest >= 206 {
		found = append(found, namesByOwn)
	}
	if earliest <= 205 && latest >= release2_2 {
		found = append(found, namesByRanks)
	}
	return found
}

// groupNames gives a rank's groups the names that PyTorch's ranks give them.
type groupNames struct {
	may     []naming            // those that the others may use, the newest first
	counted int                 // groups that this rank has named
	hashed  int                 // those of them that have a hash, which only namesByCount counts
	own     map[string]struct{} // the names of the groups that this rank is in
	used    map[string]struct{} // and of those that it was in
}

// candidates returns what the next group is named, by each naming that the others may use.
func (n *groupNames) candidates(ranks []int, hashed bool) []string {
	names := make([]string, len(n.may))
	for i, by := range n.may {
		count := n.counted
		if by != namesByCount {
			count -= n.hashed
		}
		if !hashed {
			names[i] = strconv.Itoa(count)
			continue
		}
		var text strings.Builder
		for k, r := range ranks {
			if k > 0 {
				text.WriteByte('_')
			}
			fmt.Fprint(&text, r)
		}
		switch by {
		case namesByCount:
			fmt.Fprintf(&text, "_%d", count)
		case namesByOwn:
			fmt.Fprintf(&text, "_%d", len(n.own))
		}
		names[i] = hash(text.String())
		for by == namesByRanks && has(n.own, names[i]) {
			names[i] = hash(names[i] + "_")
		}
	}
	return names
}

func hash(text string) string {
	sum := sha1.Sum([]byte(text))
	return hex.EncodeToString(sum[:])
}

func has(names map[string]struct{}, name string) bool {
	_, ok := names[name]
	return ok
}

// count counts a group in.
func (n *groupNames) count(hashed bool) {
	n.counted++
	if hashed {
		n.hashed++
	}
}

// settle keeps those namings that give the name that was seen.
func (n *groupNames) settle(candidates []string, seen string) {
	var may []naming
	for i, by := range n.may {
		if candidates[i] == seen {
			may = append(may, by)
		}
	}
	n.may = may
}

// enter notes that this rank is in a group of that name.
func (n *groupNames) enter(name string) {
	if n.own == nil {
		n.own, n.used = map[string]struct{}{}, map[string]struct{}{}
	}
	n.own[name], n.used[name] = struct{}{}, struct{}{}
}

// nextName returns the name of the next group. Where the releases that the others may run
// name it differently, it is the name under which the first of PyTorch's members shows itself.
func (j *job) nextName(ctx context.Context, world *backend.Parent, ranks []int, hashed bool) (string, error) {
	j.mu.Lock()
	candidates := j.names.candidates(ranks, hashed)
	open := slices.DeleteFunc(slices.Clone(candidates), func(name string) bool { return has(j.names.used, name) })
	j.names.count(hashed)
	j.mu.Unlock()
	if len(open) == 0 || open[0] == open[len(open)-1] || !slices.Contains(ranks, world.Rank) {
		return candidates[0], nil
	}
	theirs, err := world.Rules.Foreign(ctx)
	if err != nil {
		return "", err
	}
	theirs = slices.DeleteFunc(theirs, func(r int) bool { return !slices.Contains(ranks, r) })
	if len(theirs) == 0 {
		return candidates[0], nil
	}
	var look looks
	for {
		for _, name := range open {
			for _, r := range theirs {
				if there, err := meeting.IsSet(ctx, j.glooKeys(name), "0/"+strconv.Itoa(slices.Index(ranks, r))); err != nil {
					return "", err
				} else if there {
					j.mu.Lock()
					defer j.mu.Unlock()
					j.names.settle(candidates, name)
					return name, nil
				}
			}
		}
		if !look.next(ctx) {
			return "", fmt.Errorf("no PyTorch rank has come to the group of %v, of its ranks %v: %w", ranks, theirs, ctxerr.Of(ctx))
		}
	}
}
