// SPDX-License-Identifier: Apache-2.0

package meeting

import (
	"bytes"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cohort-ml/cohort/dist/internal/backend"
	"github.com/cohort-ml/cohort/dist/store"
)

// lines is what has been written since it was looked at.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lines) take() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer l.b.Reset()
	return l.b.String()
}

// TestWaitingForRanks: who waits long for others to join says for whom, first
// after five seconds, then once a minute, and no more when all have come.
func TestWaitingForRanks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out lines
		mem := store.NewMemory()
		m := &meeting{settings: new(backend.Settings), place: place{rank: 0, worldSize: 4, master: "127.0.0.1:29500"}, store: mem}
		for _, r := range []int{0, 2} {
			if err := mem.Set(t.Context(), entryKey("introduction", r), []byte("{}")); err != nil {
				t.Fatal(err)
			}
		}
		stop := m.waitAloud(t.Context(), &out, m.notJoined)
		check := func(want string) {
			t.Helper()
			synctest.Wait()
			if got := out.take(); got != want {
				t.Errorf("it says %q, want %q", got, want)
			}
		}
		time.Sleep(4900 * time.Millisecond)
		check("")
		time.Sleep(200 * time.Millisecond)
		check("cohort: rank 0 has been waiting for ranks 1, 3 of 4 (127.0.0.1:29500) to join for 5s\n")
		_ = mem.Set(t.Context(), entryKey("introduction", 1), []byte("{}"))
		time.Sleep(50 * time.Second)
		check("")
		time.Sleep(10 * time.Second)
		check("cohort: rank 0 has been waiting for rank 3 of 4 (127.0.0.1:29500) to join for 1m5s\n")
		_ = mem.Set(t.Context(), entryKey("introduction", 3), []byte("{}"))
		time.Sleep(3 * time.Minute)
		check("")
		stop()
		stop = (&meeting{settings: new(backend.Settings), place: place{rank: 1, worldSize: 2, master: "a:1"}}).waitAloud(t.Context(), &out, rankZero)
		time.Sleep(6 * time.Second)
		check("cohort: rank 1 has been waiting for rank 0 of 2 (a:1) to join for 5s\n")
		stop()
	})
}
