// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"runtime"
	"testing"

	"github.com/cohort-ml/cohort/rpc/internal/agenttest"
)

// TestNotesToNobody: notes for a peer that is not there take a goroutine between them,
// and bounded memory; references to what it had send them for as long as a lease.
func TestNotesToNobody(t *testing.T) {
	list := []PeerAddr{{"a", "unix:" + t.TempDir() + "/a"}, {"b", "unix:" + t.TempDir() + "/b"}}
	a, err := Init(t.Context(), "a", WithToken(agenttest.Token), WithPeers(list))
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	p, before := a.Peer("b"), runtime.NumGoroutine()
	for range 10000 {
		p.note("test", make([]byte, 100))
	}
	if n := runtime.NumGoroutine() - before; n > 10 {
		t.Errorf("%d goroutines wait", n)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := len(p.notes.list); n != maxWaitingNotes {
		t.Errorf("%d notes wait, want %d", n, maxWaitingNotes)
	}
}
