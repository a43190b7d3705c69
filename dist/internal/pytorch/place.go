// SPDX-License-Identifier: Apache-2.0

package pytorch

import (
	"errors"
	"fmt"
	"math"
	"net"
	"net/url"
	"strconv"
	"strings"

	"github.com/cohort-ml/cohort/dist/internal/backend"
	"github.com/cohort-ml/cohort/dist/internal/meeting"
	"github.com/cohort-ml/cohort/internal/envvar"
)

// place is where the ranks of a PyTorch job meet and who this one is, as
// PyTorch's init_method says it.
type place struct {
	rank, worldSize int
	addr            string // host:port of the store; empty with a file or a store given
	file            string // of a store in a file
	// agent says that the launcher serves the store, so that rank 0 does not.
	agent bool
}

// findPlace returns where this process stands in a PyTorch job. As there,
// a rank comes from the URL's query or from WithRank, and else with env:// from
// the environment.
func findPlace(s *backend.Settings) (pl place, err error) {
	text := s.URL
	if text == "" {
		text = "env://"
	}
	if s.Store != nil {
		if s.URL != "" {
			return pl, errors.New("WithURL and WithStore both say where the ranks meet")
		}
		err = findRanks(s, &pl, nil, text)
		return pl, err
	}
	fail := func(why string) (place, error) {
		return place{}, fmt.Errorf("URL %q: %s: want env://, tcp://host:port or file:///path, each with ?rank=R&world_size=N where nothing else says so", text, why)
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
	if err := findRanks(s, &pl, query, text); err != nil {
		return place{}, err
	}
	switch u.Scheme {
	case "env":
		if u.Host != "" || u.Path != "" {
			return fail("there is something between env:// and the query")
		}
		pl.addr, err = meeting.MasterFromEnv(true)
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

// findRanks finds out who this rank is.
func findRanks(s *backend.Settings, pl *place, query url.Values, text string) error {
	if query.Has("rank") || query.Has("world_size") {
		if s.WorldSize != 0 {
			return fmt.Errorf("URL %q and WithRank both say who this rank is", text)
		}
	} else if s.WorldSize != 0 {
		pl.rank, pl.worldSize = s.Rank, s.WorldSize
		return nil
	}
	var err error
	if pl.worldSize, err = meeting.NumberIn(query, text, "world_size", envvar.WorldSize, 1, backend.MaxWorldSize); err != nil {
		return err
	}
	if pl.rank, err = meeting.NumberIn(query, text, "rank", envvar.Rank, 0, math.MaxInt32); err != nil {
		return err
	}
	if pl.rank >= pl.worldSize {
		return fmt.Errorf("rank %d of %d ranks: ranks are 0 to %d", pl.rank, pl.worldSize, pl.worldSize-1)
	}
	return nil
}
