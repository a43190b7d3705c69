// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"fmt"
	"strings"

	"github.com/cohort-ml/cohort/dist/operation"
)

// MismatchError says that two ranks called different things with one number, or that
// each is in a call that waits for the other's next call: their programs have taken
// different paths.
type MismatchError struct {
	Group string   // the group's name
	Seq   uint64   // the number of the call in the group
	Here  RankCall // what this rank called, or the first of two other ranks
	There RankCall // what the other rank called
	// Parcel is set where the two calls agree but for a number of elements: what one
	// rank has for the other.
	Parcel *Parcel
}

// Parcel is what one rank has for another one in a mismatched call.
type Parcel struct {
	From, To int // the ranks, by their numbers in the group
	Have     int // how many elements From has
	Want     int // how many elements To expects
}

func (e *MismatchError) Error() string {
	var b strings.Builder
	here, there := e.Here.Call.Op, e.There.Call.Op
	apart := e.Here.Group != "" || e.There.Group != "" || here.Message() != there.Message() || here.Message() && here == there
	if apart {
		fmt.Fprintf(&b, "dist: group %q: ranks wait for each other in calls that do not meet: ", e.Group)
	} else {
		fmt.Fprintf(&b, "dist: group %q, call %d: ranks called different things: ", e.Group, e.Seq)
	}
	for i, rc := range []*RankCall{&e.Here, &e.There} {
		if i > 0 {
			b.WriteString("; ")
		}
		b.WriteString(rc.String())
		if apart || rc.Call.Seq != e.Seq {
			fmt.Fprintf(&b, ", its call %d", rc.Call.Seq)
		}
	}
	if p := e.Parcel; p != nil {
		fmt.Fprintf(&b, "; rank %d has %s for rank %d, which expects %d", p.From, elements(p.Have), p.To, p.Want)
	} else if i := differing(&e.Here.Call, &e.There.Call); i >= 0 {
		fmt.Fprintf(&b, "; the part of rank %d has %s, %d for rank %d", i, elements(e.Here.Call.Parts[i]), e.There.Call.Parts[i], e.There.Rank)
	}
	return b.String()
}

func elements(n int) string {
	if n == 1 {
		return "1 element"
	}
	return fmt.Sprint(n, " elements")
}

// differing returns the first rank whose parts differ in two calls in which all
// ranks should know them alike, -1 if there is none or one's are not known.
func differing(here, there *operation.Call) int {
	if here.Op == there.Op && (here.Op == operation.AllGather || here.Op == operation.ReduceScatter) && len(here.Parts) == len(there.Parts) {
		for i := range here.Parts {
			if here.Parts[i] != there.Parts[i] {
				return i
			}
		}
	}
	return -1
}
