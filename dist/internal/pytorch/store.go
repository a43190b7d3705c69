// SPDX-License-Identifier: Apache-2.0

package pytorch

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/cohort-ml/cohort/dist/store"
	"github.com/cohort-ml/cohort/internal/ctxerr"
	"github.com/cohort-ml/cohort/internal/envvar"
	"github.com/cohort-ml/cohort/internal/transport"
)

const (
	firstLookPause = 10 * time.Millisecond
	maxLookPause   = 250 * time.Millisecond
)

// looks spaces a rank's looks at what a store cannot be waited on for: less and less often,
// since every rank looks, at something for every rank.
type looks struct{ pause time.Duration }

// next waits until it is time for another look; it reports false when ctx ends before.
func (l *looks) next(ctx context.Context) bool {
	l.pause = min(max(l.pause+l.pause/4, firstLookPause), maxLookPause)
	timer := time.NewTimer(l.pause)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// awaitCount waits until a counter, which stands at n or more, has come to the number of
// ranks, each of which has added one when it had done something.
func awaitCount(ctx context.Context, keys store.Store, key string, n int64, numRanks int, done string) error {
	var look looks
	for n < int64(numRanks) {
		now, err := keys.Add(ctx, key, 0)
		if err == nil {
			n = now
		}
		switch {
		case n >= int64(numRanks):
		case ctx.Err() != nil || err == nil && !look.next(ctx):
			return fmt.Errorf("%d of %d ranks have %s: %w", n, numRanks, done, ctxerr.Of(ctx))
		case err != nil:
			return err
		}
	}
	return nil
}

// openStore serves PyTorch's store or connects to it, and joins as PyTorch's
// ranks do.
func (j *job) openStore(ctx context.Context) (store.Store, error) {
	switch {
	case j.settings.Store != nil:
		return j.settings.Store, nil
	case j.file != "":
		var err error
		if j.shared, err = store.OpenPyTorchFile(j.file, j.worldSize); err != nil {
			return nil, err
		}
		return j.shared, nil
	case j.rank == 0 && !j.place.agent:
		var err error
		opts := []store.PyTorchServerOption{store.WithRefusals(func(r *store.PyTorchRefusal) { fmt.Fprintf(os.Stderr, "cohort: rank 0: %v\n", r) })}
		if len(j.admitted) > 0 { // beside this host
			opts = append(opts, store.WithAdmission(j.admitsFrom))
		}
		j.server, err = store.ListenPyTorch(j.storeAddr(ctx), opts...)
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(os.Stderr, "cohort: rank 0: %s\n", j.server.Notice())
		return j.server.Store(), nil
	}
	var err error
	if j.client, err = store.DialPyTorch(ctx, j.addr); err != nil {
		return nil, fmt.Errorf("PyTorch's store at %s: %w", j.addr, err)
	}
	if _, err := j.client.Join(ctx); err != nil {
		return nil, err
	}
	return j.client, nil
}

// joinedKey is PyTorch's own count of who has joined, as it stands in a store.
const joinedKey = "\x00pytorch:init/"

// awaitJoined waits until all ranks have joined the store, and so have spoken.
func awaitJoined(ctx context.Context, base store.Store, numRanks int) error {
	return awaitCount(ctx, base, joinedKey, 0, numRanks, "joined the store")
}

// prefixed returns the part of a store that PyTorch's default group has.
func (j *job) prefixed(base store.Store) store.Store {
	if j.settings.Store != nil {
		return base // as PyTorch's store= argument
	}
	if j.apart {
		base = store.Prefix(base, attemptKeys())
	}
	return store.Prefix(base, "default_pg")
}

// glooPrefixes returns the parts of the store that PyTorch's objects have, within that
// of the default group and given the name of a group: those of its Gloo and those
// of the group itself.
func glooPrefixes(p Release, name string) (gloo, group string) {
	switch {
	case p == Release1_13:
		return name, name
	case name == "0":
		group = "0/"
	default:
		group = "0//" + name + "/"
	}
	return group + "/cpu/", group
}

func (j *job) groupKeys(name string) store.Store {
	_, group := glooPrefixes(j.release, name)
	return store.Prefix(j.keys, group)
}

func (j *job) glooKeys(name string) store.Store {
	gloo, _ := glooPrefixes(j.release, name)
	return store.Prefix(j.keys, gloo)
}

// storeBarrier waits until ranks have come in the store: with a last one that says
// so, or by looking at how many have.
func storeBarrier(ctx context.Context, keys store.Store, name string, numRanks int, last bool) error {
	key := "store_based_barrier_key:" + name
	n, err := keys.Add(ctx, key, 1)
	if err != nil {
		return err
	}
	if last {
		if n == int64(numRanks) {
			return keys.Set(ctx, key+":last_worker", []byte("1"))
		}
		return keys.Wait(ctx, key+":last_worker")
	}
	return awaitCount(ctx, keys, key, n, numRanks, "come to the barrier in the store")
}

// storeAddr returns where rank 0 serves the store: where all meet. If that is localhost, as
// some schedulers tell rank 0 alone, or none of this machine's addresses but that of a
// service, it is the port at all addresses, as of PyTorch's ranks, where others are admitted.
func (j *job) storeAddr(ctx context.Context) string {
	_, port, err := net.SplitHostPort(j.addr)
	if err != nil || len(j.admitted) == 0 {
		return j.addr
	}
	if here, err := wayTo(ctx, j.addr); err == nil && (here.IsLoopback() || transport.LeavesHost(ctx, j.addr)) {
		return ":" + port
	}
	return j.addr
}

// admitsFrom reports whether an address may come in, of this host's or one that was
// given.
func (j *job) admitsFrom(a netip.Addr) bool { return transport.Admits(j.admitted, a) }

// admittedNodes are the hosts that the launchers of a job on several nodes have told of:
// those on which a launcher runs that has proved that it knows the token.
func admittedNodes(ctx context.Context) ([]netip.Prefix, error) {
	from, err := transport.LookupHosts(ctx, envvar.NodeAddrs.Text())
	if err != nil {
		return nil, fmt.Errorf("%s: %w", envvar.NodeAddrs, err)
	}
	return from, nil
}
