// SPDX-License-Identifier: Apache-2.0

package link

import (
	"runtime"
	"testing"
)

// TestNotesToNobody: notes for a peer that is not there take a goroutine between them,
// and bounded memory; references to what it had send them for as long as a lease.
func TestNotesToNobody(t *testing.T) {
	e := open(t, "a", []Address{{"a", "unix:" + t.TempDir() + "/a"}, {"b", "unix:" + t.TempDir() + "/b"}}, "")
	p, before := e.byName["b"], runtime.NumGoroutine()
	for range 10000 {
		p.Note("test", make([]byte, 100))
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
