// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cohort-ml/cohort/dist/internal/native"
	"github.com/cohort-ml/cohort/internal/transport"
)

// transportRow is a way in which the tests form a group.
type transportRow struct {
	name string
	run  func(ctx context.Context, n int, main func(context.Context, *Group) error, opts ...Option) error
}

// transports are the ways in which the tests form a group: every test of a
// collective runs over all of them. A new way is a row here.
var transports = []transportRow{
	{"goroutines", func(ctx context.Context, n int, main func(context.Context, *Group) error, opts ...Option) error {
		return spawn(ctx, n, native.GoRanksOptions{}, main, opts)
	}},
	{"staged", func(ctx context.Context, n int, main func(context.Context, *Group) error, opts ...Option) error {
		return spawn(ctx, n, native.GoRanksOptions{Private: true}, main, opts)
	}},
	{"shm", initRanks("shm")},
	{"tcp", initRanks("tcp")},
	{"unix", initRanks("unix")},
	{"tls", initRanks("tls")},
	{"mixed", mixedRanks},
}

// initRanks makes ranks of goroutines that know each other through nothing
// but [Init], as processes would.
func initRanks(kind string) func(ctx context.Context, n int, main func(context.Context, *Group) error, opts ...Option) error {
	return func(ctx context.Context, n int, main func(context.Context, *Group) error, opts ...Option) error {
		port, err := transport.HoldPort("127.0.0.1")
		if err != nil {
			return err
		}
		defer port.Close()
		begun := initialise(n, kind)
		errs := make([]error, n)
		forming, giveUp := context.WithCancelCause(ctx) // who cannot begin is waited for by none
		defer giveUp(nil)
		var wg sync.WaitGroup
		for r := range n {
			wg.Go(func() {
				url := WithURL(fmt.Sprintf("tcp://%s?rank=%d&world_size=%d", port.Addr(), r, n))
				g, err := Init(forming, append([]Option{url}, opts...)...)
				begun()
				if err != nil {
					errs[r] = err
					giveUp(err)
					return
				}
				if n > 1 && g.Transport() != kind {
					errs[r] = fmt.Errorf("the transport is %s, want %s", g.Transport(), kind)
				}
				if err := main(ctx, g); err != nil {
					g.fail(err)
					errs[r] = err
				}
				if err := g.Close(); err != nil && errs[r] == nil {
					errs[r] = fmt.Errorf("close: %w", err)
				}
			})
		}
		wg.Wait()
		return errors.Join(errs...)
	}
}

// initialising is held while ranks are in Init, which reads the environment.
var initialising sync.Mutex

// initialise has n ranks, which now call Init, take a kind of transport, "" for
// what is best; each calls begun when it has returned from there.
func initialise(n int, kind string) (begun func()) {
	initialising.Lock()
	os.Unsetenv("COHORT_TRANSPORT")
	if kind != "" {
		os.Setenv("COHORT_TRANSPORT", kind)
	}
	var left atomic.Int64
	left.Store(int64(n))
	return func() {
		if left.Add(-1) == 0 {
			os.Unsetenv("COHORT_TRANSPORT")
			initialising.Unlock()
		}
	}
}

// freeAddr returns an address of this machine that is kept for the test until it ends, and at
// which nobody listens yet.
func freeAddr(t testing.TB) string {
	t.Helper()
	p, err := transport.HoldPort("127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p.Addr()
}

// onEveryTransport runs a test for every transport and the given world sizes.
func onEveryTransport(t *testing.T, sizes []int, main func(ctx context.Context, g *Group) error) {
	t.Helper()
	for _, tr := range transports {
		for _, n := range sizes {
			t.Run(fmt.Sprintf("%s/%d", tr.name, n), func(t *testing.T) {
				if err := tr.run(t.Context(), n, main); err != nil {
					t.Fatal(err)
				}
			})
		}
	}
}
