// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"fmt"
	"strings"
	"time"

	"github.com/cohort-ml/cohort/dist/operation"
)

// Doing is what a rank was doing while others waited for it, as the rank itself told.
type Doing struct {
	State DoingState // what became of the rank's last call
	// Group is the name of the group of that call, which need not be the group in
	// which the others wait. Key is a number that stands for how the members of the
	// group have met: names may repeat, keys do not.
	Group string
	Key   uint64
	// Call is the call, with the peer or the root by its number in Group. It prints as
	// "all_reduce sum of 4 float32". A barrier with number 0 is the forming of Group.
	Call operation.Call
	Site string        // the line of the call, "path/file.go:88 pkg.Func"; "" if not known
	For  time.Duration // how long the state has lasted
	// ID tells this call from all other calls of the rank.
	ID uint64
	// Blocking says that the goroutine that made the call waits for its end. Solo says
	// that this goroutine has made all calls of its rank: as far as can be told, no
	// other goroutine makes a call meanwhile.
	Blocking, Solo bool
	// Called is how many collectives the rank has called on the group whose member
	// asks. Sent and Received count its messages to that member and from it.
	Called, Sent, Received uint64
	// At is the line at which the rank's program is, and Stack the stack of the
	// goroutine that makes its calls, innermost frame first. Both are "" unless they
	// were asked for.
	At, Stack string
}

// DoingState is what became of a rank's last call.
type DoingState uint8

// The states.
const (
	DoingUnknown  DoingState = iota // the rank did not answer
	DoingNothing                    // it has called nothing
	DoingUnderWay                   // it is in the call
	DoingEnded                      // the call has ended
	DoingFailed                     // the call has ended with an error
	numDoingStates
)

// Valid reports whether s is one of the states.
func (s DoingState) Valid() bool { return s < numDoingStates }

// FormingOp returns what a program has called while its rank forms a group: "init" or
// "new_group". The barrier at the end of the forming is no call of the program's.
func FormingOp(group string) string {
	if group == "world" {
		return "init"
	}
	return "new_group"
}

func (d Doing) String() string {
	var b strings.Builder
	switch d.State {
	case DoingNothing:
		return "it has called nothing"
	case DoingUnderWay:
		b.WriteString("it is in ")
	case DoingEnded, DoingFailed:
		b.WriteString("its last call was ")
	default:
		return ""
	}
	if d.Call.Op == operation.Barrier && d.Call.Seq == 0 {
		fmt.Fprintf(&b, "%s of group %q", FormingOp(d.Group), d.Group)
	} else {
		fmt.Fprintf(&b, "%v, number %d of group %q", d.Call, d.Call.Seq, d.Group)
	}
	if d.Site != "" {
		fmt.Fprintf(&b, ", at %s", d.Site)
	}
	long := d.For.Round(time.Millisecond)
	if long >= 10*time.Second {
		long = long.Round(time.Second)
	}
	switch d.State {
	case DoingUnderWay:
		fmt.Fprintf(&b, ", for %v", long)
	case DoingEnded:
		fmt.Fprintf(&b, ", which ended %v before", long)
	case DoingFailed:
		fmt.Fprintf(&b, ", which failed %v before", long)
	}
	return b.String()
}
