// SPDX-License-Identifier: Apache-2.0

package native

import (
	"net"
	"testing"

	"github.com/cohort-ml/cohort/dist/operation"
	"github.com/cohort-ml/cohort/internal/transport"
)

// TestJoinedBeforeTheHubGivesUp has a rank join when the others have been told already
// why the group cannot be made: it hears of that too, and not that the hub has left.
func TestJoinedBeforeTheHubGivesUp(t *testing.T) {
	configOf := func(rank int) *Config { return &Config{Group: "test", Rank: rank, Members: members(3)} }
	heard := make(chan [2]int, 4)
	hub := newStar(configOf(0), func(int, uint32, string) {}, func(int) {})
	spoke := newStar(configOf(1), func(rank int, kind uint32, _ string) { heard <- [2]int{rank, int(kind)} },
		func(rank int) { heard <- [2]int{rank, int(kindLeft)} })
	here, there := net.Pipe()
	if err := spoke.join(0, transport.NewConn(there, "the hub"), nil); err != nil {
		t.Fatal(err)
	}
	if err := hub.join(1, transport.NewConn(here, "a spoke"), nil); err != nil {
		t.Fatal(err)
	}
	hub.giveUp(hub.cfg.reason(hub.cfg.faultError(&operation.Call{}, 2, kindDied, "")))
	hub.close()
	if got, want := <-heard, [2]int{2, int(kindDied)}; got != want {
		t.Errorf("the spoke heard of rank %d, kind %d first, want rank %d, kind %d", got[0], got[1], want[0], want[1])
	}
	spoke.close()
}
