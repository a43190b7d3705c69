// SPDX-License-Identifier: Apache-2.0

package native

import (
	"io"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/internal/loaded"
	"github.com/cohort-ml/cohort/internal/transport"
)

// A member that speaks to a group which is not there, and goes, leaves nothing behind,
// whatever it has said: but for its leave, which the group is to hear of when it is made.
func TestLyingMembersGo(t *testing.T) {
	for _, c := range []struct {
		name string
		said []byte
		stay bool
	}{
		{"nothing", nil, false},
		{"a byte", []byte{1}, false},
		{"garbage", []byte("garbage, of more than a header"), false},
		{"data", frame(frameData, make([]byte, 100)), false},
		{"data without an end", make([]byte, 1<<20), false},
		{"a fault", frame(frameFault, encodeFault(1, kindFailed, "why")), true},
		{"leave", frame(frameBye, nil), true},
	} {
		fabric := NewFabric(transport.NewToken(), transport.EncryptControl)
		near, far := transport.Pipe(Proto)
		handled := make(chan struct{})
		go func() { fabric.handle(near); close(handled) }()
		go func() { _, _ = io.Copy(io.Discard, far) }()
		h := hello{purpose: forControl, rank: 1, group: "unknown"}
		if err := far.WriteFrame(frameHello, h.encode()); err != nil {
			t.Fatal(err)
		}
		_, _ = far.Write(c.said)
		far.Close()
		limit := loaded.Allow(10 * time.Second)
		if c.stay {
			limit = 50 * time.Millisecond
		}
		select {
		case <-handled:
			if c.stay {
				t.Errorf("%s: it is forgotten", c.name)
			}
		case <-time.After(limit):
			if !c.stay {
				t.Errorf("%s: it is still waited for", c.name)
			}
		}
		if err := fabric.Close(); err != nil {
			t.Error(err)
		}
		<-handled
	}
}
