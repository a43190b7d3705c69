// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"errors"
	"testing"

	"github.com/cohort-ml/cohort/dist/store"
	"github.com/cohort-ml/cohort/internal/transport"
)

// TestGoingStore: a store that goes between the first and the last word of who comes
// is that of a job that has just ended, and no reason to fail.
func TestGoingStore(t *testing.T) {
	token := transport.NewToken()
	port, err := transport.Listen("127.0.0.1:0", token)
	if err != nil {
		t.Fatal(err)
	}
	defer port.Close()
	port.Handle("store", func(c *transport.Conn) { _ = c.Close() })
	meeting := &Meeting{Addr: port.Addr()}
	m := &startedMeeting{open: dialStore(meeting.Addr, token.Text())}
	var left *staleStore
	if err := m.greet(t.Context(), meeting, &Nodes{Settings: Settings{Job: "job"}}); !errors.As(err, &left) || left.strange || !errors.Is(err, store.ErrLost) {
		t.Errorf("%v, want a store that was there and has gone", err)
	}
}
