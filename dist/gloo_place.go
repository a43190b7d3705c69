// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/cohort-ml/cohort/internal/envvar"
	"github.com/cohort-ml/cohort/internal/transport"
)

// glooPlace is where the ranks of a PyTorch job meet and who this one is, as
// PyTorch's init_method says it.
type glooPlace struct {
	rank, worldSize int
	addr            string // host:port of the store; empty with a file or a store given
	file            string // of a store in a file
	// agent says that the launcher serves the store, so that rank 0 does not.
	agent bool
}

// findGlooPlace returns where this process stands in a PyTorch job. As there,
// a rank comes from the URL's query or from WithRank, and else with env:// from
// the environment.
func (o *options) findGlooPlace() (pl glooPlace, err error) {
	text := o.url
	if text == "" {
		text = "env://"
	}
	if o.store != nil {
		if o.url != "" {
			return pl, errors.New("WithURL and WithStore both say where the ranks meet")
		}
		err = o.glooRanks(&pl, nil, text)
		return pl, err
	}
	fail := func(why string) (glooPlace, error) {
		return glooPlace{}, fmt.Errorf("URL %q: %s: want env://, tcp://host:port or file:///path, each with ?rank=R&world_size=N where nothing else says so", text, why)
	}
	u, err := url.Parse(text)
	if err != nil {
		return fail("does not parse")
	}
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return fail("the query does not parse")
	}
	for key, values := range query {
		if key != "rank" && key != "world_size" && key != "use_libuv" {
			return fail(fmt.Sprintf("nothing is known of %q", key))
		}
		if len(values) != 1 {
			return fail(key + " is given more than once")
		}
	}
	if err := o.glooRanks(&pl, query, text); err != nil {
		return glooPlace{}, err
	}
	switch u.Scheme {
	case "env":
		if u.Host != "" || u.Path != "" {
			return fail("there is something between env:// and the query")
		}
		pl.addr, err = masterFromEnv(true)
		pl.agent = envvar.UseAgentStore.Text() == "True"
	case "tcp":
		if u.Hostname() == "" || u.Port() == "" || u.User != nil || u.Path != "" && u.Path != "/" {
			return fail("has no host and port, or more than that")
		}
		if port, err := strconv.ParseUint(u.Port(), 10, 16); err != nil || port == 0 {
			return fail("port out of range")
		}
		pl.addr = net.JoinHostPort(u.Hostname(), u.Port())
		pl.agent = envvar.UseAgentStore.Text() == "True" && pl.addr == net.JoinHostPort(strings.Trim(envvar.MasterAddr.Text(), "[]"), envvar.MasterPort.Text())
	case "file":
		if u.Host != "" || !strings.HasPrefix(u.Path, "/") || u.Path == "/" {
			return fail("has no absolute path")
		}
		pl.file = u.Path
	default:
		return fail(fmt.Sprintf("scheme %q", u.Scheme))
	}
	return pl, err
}

// glooRanks finds out who this rank is.
func (o *options) glooRanks(pl *glooPlace, query url.Values, text string) error {
	if query.Has("rank") || query.Has("world_size") {
		if o.place != nil {
			return fmt.Errorf("URL %q and WithRank both say who this rank is", text)
		}
	} else if o.place != nil {
		pl.rank, pl.worldSize = o.place.rank, o.place.worldSize
		return nil
	}
	var err error
	if pl.worldSize, err = numberIn(query, text, "world_size", envvar.WorldSize, 1, maxWorldSize); err != nil {
		return err
	}
	if pl.rank, err = numberIn(query, text, "rank", envvar.Rank, 0, math.MaxInt32); err != nil {
		return err
	}
	if pl.rank >= pl.worldSize {
		return fmt.Errorf("rank %d of %d ranks: ranks are 0 to %d", pl.rank, pl.worldSize, pl.worldSize-1)
	}
	return nil
}

// WithAdmitted says from which addresses, beside those of this host, processes may
// come to what this rank serves in a PyTorch job: the store, if it is rank 0, and
// its connections to the other ranks, which it takes from the addresses that those have
// published in the store, too. Under cohort run on several nodes, those are let in without
// being named. Where the address at which the ranks meet is localhost for rank 0, or none of
// its machine's, the store is then at all addresses of it. PyTorch's protocols have no
// authentication: who comes in can read and write everything.
func WithAdmitted(from ...netip.Prefix) Option {
	return func(o *options) error {
		for _, p := range from {
			if !p.IsValid() {
				return fmt.Errorf("WithAdmitted: %v is no range of addresses", p)
			}
		}
		o.admitted = slices.Clone(from)
		return o.onlyInit("WithAdmitted")
	}
}

// admittedNodes are the hosts that the launchers of a job on several nodes have told of:
// those on which a launcher runs that has proved that it knows the token.
func admittedNodes(ctx context.Context) ([]netip.Prefix, error) {
	from, err := transport.LookupHosts(ctx, envvar.NodeAddrs.Text())
	if err != nil {
		return nil, fmt.Errorf("%s: %w", envvar.NodeAddrs, err)
	}
	return from, nil
}

// storeAddr returns where rank 0 serves the store: where all meet. If that is localhost, as
// some schedulers tell rank 0 alone, or none of this machine's addresses but that of a
// service, it is the port at all addresses, as of PyTorch's ranks, where others are admitted.
func (j *glooJob) storeAddr(ctx context.Context) string {
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
func (j *glooJob) admitsFrom(a netip.Addr) bool { return transport.Admits(j.admitted, a) }
