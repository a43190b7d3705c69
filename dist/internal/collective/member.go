// SPDX-License-Identifier: Apache-2.0

package collective

import (
	"fmt"
	"strings"
)

// Member is a rank as errors name it.
type Member struct {
	Rank int    `json:"rank"` // in the group that it is a member of
	Host string `json:"host,omitempty"`
	PID  int    `json:"pid,omitempty"`

	group string // of which Rank is the number, "" where it is that in the job too
	job   int    // the number in the job, if group is set
}

// MemberOf returns a rank as a member of a group, in which it has a number of
// its own.
func MemberOf(group string, rank int, m Member) Member {
	m.job, m.Rank, m.group = m.JobRank(), rank, group
	if m.job == m.Rank {
		m.job, m.group = 0, ""
	}
	return m
}

// JobRank returns the rank's number among all ranks of the job.
func (m Member) JobRank() int {
	if m.group == "" {
		return m.Rank
	}
	return m.job
}

// String returns `rank 1 (host h, pid 4711)`, and where the number is not that
// in the job `rank 1 of "evens" (rank 2 of the job, host h, pid 4711)`.
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

// Among returns an error that a call on a group has ended with, told of who the
// group's members are: what they are in the job. The error itself, which others
// may have too, stays as it is.
func Among(members []Member, err error) error {
	who := func(rank int) Member {
		if rank >= 0 && rank < len(members) {
			return members[rank]
		}
		return Member{Rank: rank}
	}
	switch e := err.(type) {
	case *RankError:
		// It may be about another group, in which the number is somebody else's.
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
