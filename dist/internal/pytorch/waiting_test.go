// SPDX-License-Identifier: Apache-2.0

package pytorch

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cohort-ml/cohort/dist/internal/backend"
	"github.com/cohort-ml/cohort/dist/internal/meeting"
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

// TestGlooWaitsAloud: in a PyTorch job, too, who waits long for others says for whom.
func TestGlooWaitsAloud(t *testing.T) {
	for _, p := range []Release{Release1_13, release2} {
		synctest.Test(t, func(t *testing.T) {
			var out lines
			mem := store.NewMemory()
			j := &job{place: place{rank: 0, worldSize: 4, file: "/tmp/f"}, keys: mem, release: p}
			for _, r := range []int{0, 2} {
				if err := mem.Set(t.Context(), p.firstKey(r), []byte("x")); err != nil {
					t.Fatal(err)
				}
			}
			after := func(what func(context.Context) string, want string) {
				t.Helper()
				stop := meeting.WaitAloud(t.Context(), &out, j.rank, what)
				defer stop()
				time.Sleep(6 * time.Second)
				synctest.Wait()
				if got := out.take(); got != want {
					t.Errorf("it says %q, want %q", got, want)
				}
			}
			after(j.notPublished, "cohort: rank 0 has been waiting for ranks 1, 3 of 4 (/tmp/f) to join for 5s\n")
			for _, r := range []int{1, 3} {
				if err := mem.Set(t.Context(), p.firstKey(r), []byte("x")); err != nil {
					t.Fatal(err)
				}
			}
			after(j.notPublished, "")
			after(j.notJoined(mem), "cohort: rank 0 has been waiting for another rank of 4 (/tmp/f) to join for 5s\n")
			j.file, j.addr, j.client = "", "a:1", new(store.PyTorchClient)
			if _, err := mem.Add(t.Context(), joinedKey, 3); err != nil {
				t.Fatal(err)
			}
			after(j.notJoined(mem), "cohort: rank 0 has been waiting for 1 more rank of 4 (a:1) to join for 5s\n")
			// PyTorch serves the store, and its rank 0 waits for all to join.
			served := &job{place: place{rank: 1, worldSize: 3, addr: "a:1"}, keys: store.NewMemory(), release: p, alone: true}
			if err := served.keys.Set(t.Context(), p.firstKey(1), []byte("x")); err != nil {
				t.Fatal(err)
			}
			after(served.notPublished, map[Release]string{
				Release1_13: "cohort: rank 0 has been waiting for rank 2 of 3 (a:1, PyTorch 1.13's store: a rank that runs 2.x would not get in) to join for 5s\n",
				release2:    "cohort: rank 0 has been waiting for rank 2 of 3 (a:1, PyTorch 2's store: a rank that runs 1.13 would not get in) to join for 5s\n",
			}[p])
			if err := served.waits(t.Context(), served.notPublished, func() error {
				time.Sleep(6 * time.Second)
				return store.ErrClosed
			}); !errors.Is(err, store.ErrClosed) || !strings.Contains(err.Error(), "; it had been waiting for rank 2 of 3 (a:1, ") {
				t.Errorf("it ends with %v", err)
			}
			after(j.notServed, "cohort: rank 0 has been waiting for rank 0 of 4 (a:1) to join for 5s\n")
			j.place.agent = true
			after(j.notServed, "cohort: rank 0 has been waiting for the launcher's store at a:1 for 5s\n")
		})
	}
}

// TestGlooSilence: what nobody could keep is not promised.
func TestGlooSilence(t *testing.T) {
	if _, err := new(job).NewGroup(t.Context(), nil, &backend.Parent{IsWorld: true}, &backend.Wish{Ranks: []int{0}, SilenceSet: true}); !errors.Is(err, errNoBeats) {
		t.Errorf("NewGroup says %v", err)
	}
}

// TestGlooLate: who gives up on a store that says nothing of its clients says how many have
// come, and where, whichever call of it took too long.
func TestGlooLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := store.NewMemory()
		if _, err := mem.Add(t.Context(), "default_pg/cohort/ranks", 1); err != nil { // another Go rank
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		j := &job{settings: new(backend.Settings), place: place{rank: 0, worldSize: 4, file: "/tmp/f"}}
		_, err := j.seePyTorch(ctx, mem)
		if !errors.Is(err, context.DeadlineExceeded) || !strings.HasPrefix(err.Error(), "2 of 4 ranks have come to /tmp/f: ") {
			t.Errorf("%v", err)
		}
	})
}
