// SPDX-License-Identifier: Apache-2.0

package collective

import (
	"fmt"
	"strings"
	"time"
)

// Doing is what a rank was about while others waited for it.
type Doing struct {
	State DoingState
	// Group is the group of the call, which need not be the one in which the
	// others wait, Key a number that stands for how its members have met.
	Group string
	Key   uint64
	Call  Call   // with the peer or root as its group numbers them; barrier 0: the forming of the group
	Site  string // where it called, "" if not known
	For   time.Duration
	// ID tells this call from all others of the rank.
	ID uint64
	// Blocking says that the goroutine that made the call waits for its end,
	// Solo that it has made all calls of its rank: nobody else will make one
	// meanwhile, as far as can be told.
	Blocking, Solo bool
	// Called is how many collectives the rank has called of the group whose
	// member asks, Sent and Received how many messages to that one and from it.
	Called, Sent, Received uint64
	// At is the line at which the rank's program is, and Stack the stack of the goroutine
	// that makes its calls, innermost first, where that was asked for too.
	At, Stack string
}

// DoingState is what became of a rank's last call.
type DoingState uint8

const (
	DoingUnknown  DoingState = iota // the rank could not be asked
	DoingNothing                    // it has called nothing
	DoingUnderWay                   // it is in the call
	DoingEnded                      // the call has ended
	DoingFailed                     // with an error
	numDoingStates
)

// Valid reports whether s is one of the states.
func (s DoingState) Valid() bool { return s < numDoingStates }

// FormingOp is what the program has called whose rank forms a group: its barrier is
// no call of the program's.
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
	if d.Call.Op == OpBarrier && d.Call.Seq == 0 {
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

// NeedsAll reports whether a call cannot end on a rank before another one has
// made it, whatever way its data take.
func (c *Call) NeedsAll(rank, other int) bool {
	switch c.Op {
	case OpBarrier:
		return true
	case OpAllReduce, OpAllGather, OpReduceScatter, OpAllToAll:
		return c.Layout == 0 && c.Count > 0
	case OpBroadcast, OpScatter:
		return c.Root == other && c.Count > 0
	case OpReduce, OpGather:
		return c.Root == rank && c.Count > 0
	case OpSend, OpRecv:
		return c.Root == other
	}
	return false
}

// KeyNumber is a number that stands for the key by which the members of a group
// have met: FNV-1a.
func KeyNumber(key string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(key) {
		h = (h ^ uint64(key[i])) * 1099511628211
	}
	return h
}
