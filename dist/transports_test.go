// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cohort-ml/cohort/dist/internal/native"
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
		begun := initialise(n, kind)
		addr := freeAddr()
		errs := make([]error, n)
		forming, giveUp := context.WithCancelCause(ctx) // who cannot begin is waited for by none
		defer giveUp(nil)
		var wg sync.WaitGroup
		for r := range n {
			wg.Go(func() {
				url := WithURL(fmt.Sprintf("tcp://%s?rank=%d&world_size=%d", addr, r, n))
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

// numPorts is a prime: steps of any length come to all of so many ports. Other
// processes' tests, which look for ports at the same time, take other steps.
const numPorts = 20_011

var (
	firstPort, portStep = rand.IntN(numPorts), 1 + rand.IntN(numPorts-1)
	numAddrs            atomic.Int64
)

// freeAddr returns an address on which nobody listens at the moment, below the
// range from which the system takes ports for connections that go out, and another
// one each time: a test beside this one may not listen on its own yet.
func freeAddr() string {
	for {
		ln, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", 10_000+(firstPort+portStep*int(numAddrs.Add(1)))%numPorts))
		if err != nil {
			continue
		}
		defer ln.Close()
		return ln.Addr().String()
	}
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
