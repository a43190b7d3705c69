// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/cohort-ml/cohort/dist/store"
	"github.com/cohort-ml/cohort/internal/transport"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// openers are the ways to a store, each to a new one.
func openers(t *testing.T) map[string]Opener {
	mem := store.NewMemory()
	token := transport.NewToken().Text()
	server, err := store.Listen("127.0.0.1:0", token)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Close() })
	return map[string]Opener{
		"memory": func(context.Context) (*Opened, error) {
			return &Opened{Store: mem, Close: func() {}, Lasting: true}, nil
		},
		"file": openFile(filepath.Join(t.TempDir(), "meeting")),
		"tcp":  dialStore(server.Addr(), token),
	}
}

// TestStoreClient: what one storeClient writes the other reads, and of two that swap one wins.
func TestStoreClient(t *testing.T) {
	for name, open := range openers(t) {
		t.Run(name, func(t *testing.T) {
			ctx := t.Context()
			a, b := newStoreClient(open, "job", 5*time.Second), newStoreClient(open, "job", 5*time.Second)
			defer a.close()
			defer b.close()
			other := newStoreClient(open, "other", 5*time.Second)
			defer other.close()

			if e := a.do(ctx, Peek{}).(Read); !e.OK || e.State != nil {
				t.Fatalf("an empty store has %+v", e)
			}
			first := someState()
			first.Version = 1
			if e := a.do(ctx, Swap{nil, first}).(Swapped); !e.OK || !e.Won {
				t.Fatalf("the first state: %+v", e)
			}
			if e := b.do(ctx, Swap{nil, first}).(Swapped); !e.OK || e.Won || e.State == nil || e.State.Version != 1 {
				t.Errorf("the first state twice: %+v", e)
			}
			if e := other.do(ctx, Peek{}).(Read); !e.OK || e.State != nil {
				t.Errorf("another job has %+v", e)
			}

			card := Card{Node: first.Members[0], Min: 1, Max: 2, Beat: 7, Status: Busy}
			if e := a.do(ctx, Write{card}).(Put); !e.OK || e.Sent.IsZero() {
				t.Errorf("write: %+v", e)
			}
			for range 2 {
				if e := a.do(ctx, Arrive{someID}).(Arrived); !e.OK {
					t.Errorf("arrive: %+v", e)
				}
			}
			e := b.do(ctx, Look{IDs: []string{someID}, List: true}).(Looked)
			if !e.OK || len(e.Cards) != 1 || e.Cards[0] != card || !slices.Equal(e.List, []string{someID, someID}) {
				t.Errorf("look: %+v", e)
			}

			// Whoever follows hears of every version from where it begins, or of later ones.
			const last = 40
			heard := make(chan uint64, last)
			follow, stop := context.WithCancel(ctx)
			var following sync.WaitGroup
			following.Go(func() {
				b.follow(follow, func(e Event) { heard <- e.(Read).State.Version })
			})
			for s := first; s.Version < last; {
				next := s.clone()
				next.Version++
				if e := a.do(ctx, Swap{s, next}).(Swapped); !e.Won {
					t.Fatalf("version %d: %+v", next.Version, e)
				}
				s = next
			}
			for v := uint64(0); v < last; {
				next := <-heard
				if next <= v {
					t.Errorf("version %d after %d", next, v)
				}
				v = next
			}
			stop()
			following.Wait()
		})
	}
}

// TestUnreadableCard: a node whose card the others cannot read, such as one of
// another version, is refused, and holds up nobody else.
func TestUnreadableCard(t *testing.T) {
	mem := store.NewMemory()
	l := newStoreClient(func(context.Context) (*Opened, error) {
		return &Opened{Store: mem, Close: func() {}, Lasting: true}, nil
	}, "job", time.Second)
	defer l.close()
	s := someState()
	good, strange := Card{Node: s.Members[0], Min: s.Min, Max: s.Max, MaxRestarts: s.MaxRestarts, Beat: 1, Status: Ready}, "00000000deadbeef"
	l.do(t.Context(), Write{good})
	l.do(t.Context(), Arrive{strange})
	if err := mem.Set(t.Context(), "rendezvous/job/"+keyCard+strange, []byte(`{"mood":"new"}`)); err != nil {
		t.Fatal(err)
	}
	e := l.do(t.Context(), Look{IDs: []string{strange, good.Node.ID}, List: true}).(Looked)
	if !e.OK || len(e.Cards) != 2 || e.Cards[1] != good {
		t.Fatalf("look: %+v", e)
	}
	d, now := newDecider(&Settings{Timing: DefaultTiming()}), time.Now()
	s.Arrived = 0
	d.arrivals(s, e.List)
	d.look(now, e.Cards)
	next := d.decide(now, s, len(e.List))
	if next == nil || len(next.Refused) == 0 || next.has(strange) {
		t.Fatalf("the decision is %+v", next)
	}
	if r := next.Refused[len(next.Refused)-1]; r.ID != strange || !strings.Contains(r.Text, "another version") {
		t.Errorf("refused: %+v", r)
	}
}

// TestStoreClientFailures: a store that does not answer is a failure in time, and the storeClient
// finds its way back.
func TestStoreClientFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem, broken := store.NewMemory(), true
		opened := 0
		l := newStoreClient(func(ctx context.Context) (*Opened, error) {
			if opened++; broken {
				<-ctx.Done()
				return nil, fmt.Errorf("nobody there: %w", ctx.Err())
			}
			return &Opened{Store: mem, Close: func() {}}, nil
		}, "job", 20*time.Millisecond)
		defer l.close()
		if e := l.do(t.Context(), Peek{}).(Read); e.OK {
			t.Errorf("a store that is not there says %+v", e)
		}
		if _, err := l.failure(); err == nil {
			t.Error("no failure is known")
		}
		broken = false
		if e := l.do(t.Context(), Peek{}).(Read); !e.OK {
			t.Error("the store is there, and not found")
		}
		if _, err := l.failure(); err != nil {
			t.Errorf("the failure stays: %v", err)
		}
		// A look at a card that nobody has written ends in time, and the connection,
		// which may be at fault, is made anew.
		if e := l.do(t.Context(), Look{IDs: []string{someID}}).(Looked); e.OK {
			t.Errorf("a card that is not there: %+v", e)
		}
		if e := l.do(t.Context(), Peek{}).(Read); !e.OK || opened != 3 {
			t.Errorf("%+v, opened %d times, want 3", e, opened)
		}
		// What somebody else has put there is a failure, not a state.
		if err := store.Prefix(mem, l.prefix).Set(t.Context(), keyState, []byte(`{"version":1}`)); err != nil {
			t.Fatal(err)
		}
		if e := l.do(t.Context(), Peek{}).(Read); e.OK || e.State != nil {
			t.Errorf("a state that is none: %+v", e)
		}
		if _, err := decodeArrivals([]byte(someID + "\n" + someID)); err == nil {
			t.Error("half a line is read as an arrival")
		}
	})
}

// TestStoreClientOpening: while a store is being opened that does not answer, nobody waits
// who only asks how it is, and those who want it wait no longer than for an answer.
func TestStoreClientOpening(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		opening := make(chan struct{})
		l := newStoreClient(func(ctx context.Context) (*Opened, error) {
			close(opening)
			<-ctx.Done()
			return nil, ctx.Err()
		}, "job", time.Second)
		defer l.close()
		began := time.Now()
		var waiting sync.WaitGroup
		waiting.Go(func() { _ = l.wait(t.Context(), "key") })
		<-opening
		if l.failure(); time.Since(began) > 0 {
			t.Errorf("how the store is was known after %v", time.Since(began))
		}
		if waiting.Wait(); time.Since(began) != time.Second {
			t.Errorf("the store was given up after %v, want 1s", time.Since(began))
		}
	})
}

// TestConfigure: the settings of torchrun's --rdzv-conf, and those that are none.
func TestConfigure(t *testing.T) {
	for _, c := range []struct {
		key, value string
		want       func(t *Timing) bool
	}{
		{"join_timeout", "60", func(t *Timing) bool { return t.Join == time.Minute }},
		{"timeout", "90", func(t *Timing) bool { return t.Join == 90*time.Second }},
		{"last_call_timeout", "0", func(t *Timing) bool { return t.LastCall == 0 }},
		{"close_timeout", "2.5", func(t *Timing) bool { return t.Close == 2500*time.Millisecond }},
		{"keep_alive_interval", "5", func(t *Timing) bool { return t.Beat == 5*time.Second && t.Lost() == 25*time.Second }},
		{"keep_alive_max_attempt", "3", func(t *Timing) bool { return t.Lost() == 1500*time.Millisecond && t.Call <= t.Lost()/2 }},
		{"heartbeat_timeout", "0.5", func(t *Timing) bool { return t.Call == 500*time.Millisecond }},
		{"read_timeout", "9", func(t *Timing) bool { return t.Read == 9*time.Second }},
		{"keep_alive_max_attempt", "1", nil}, {"keep_alive_interval", "0", nil}, {"join_timeout", "-1", nil},
		{"close_timeout", "NaN", nil}, {"read_timeout", "1e300", nil}, {"last_call_timeout", "", nil},
	} {
		timing := DefaultTiming()
		conf := map[string]string{c.key: c.value, "store_type": "tcp"}
		err := timing.Configure(conf)
		switch {
		case c.want == nil && err == nil:
			t.Errorf("%s=%s is taken: %+v", c.key, c.value, timing)
		case c.want != nil && (err != nil || !c.want(&timing) || len(conf) != 1):
			t.Errorf("%s=%s: %v, %+v, left %v", c.key, c.value, err, timing, conf)
		}
	}
}
