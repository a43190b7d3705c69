// SPDX-License-Identifier: Apache-2.0

package meeting

import (
	"errors"
	"fmt"
	"math"
	"net"
	"net/url"
	"os"
	"strconv"
	"strings"

	"github.com/cohort-ml/cohort/dist/internal/backend"
	"github.com/cohort-ml/cohort/internal/envvar"
)

// place is where a process stands in its job.
type place struct {
	rank, worldSize int
	master          string // host:port; empty with one rank
}

// findPlace returns where this process stands, from the settings and what they
// leave to the environment.
func findPlace(s *backend.Settings) (place, error) {
	var pl place
	var err error
	switch {
	case s.URL != "" && s.URL != "env://":
		if s.Store != nil || s.WorldSize != 0 {
			return place{}, errors.New("WithURL says where the ranks meet and who this one is: it cannot be together with WithStore or WithRank")
		}
		return placeFromURL(s.URL)
	case s.WorldSize != 0:
		pl = place{rank: s.Rank, worldSize: s.WorldSize}
	default:
		pl, err = ranksFromEnv()
	}
	if err != nil || pl.worldSize == 1 {
		return pl, err
	}
	pl.master, err = MasterFromEnv(s.Store == nil)
	return pl, err
}

// placeFromEnv reads RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT.
func placeFromEnv() (place, error) { return findPlace(new(backend.Settings)) }

// MasterFromEnv reads MASTER_ADDR and MASTER_PORT. Where nobody needs to listen
// there, it is no more than a hint at the network that the ranks share.
func MasterFromEnv(needed bool) (string, error) {
	host, ok := envvar.MasterAddr.Lookup()
	if !ok && needed {
		return "", together(envvar.WorldSize, envvar.MasterAddr)
	}
	if _, hasPort := envvar.MasterPort.Lookup(); !ok || !hasPort {
		if needed {
			return "", together(envvar.WorldSize, envvar.MasterPort)
		}
		return "", nil
	}
	port, err := envvar.MasterPort.Int(1, math.MaxUint16)
	if err != nil {
		return "", err
	}
	return net.JoinHostPort(strings.Trim(host, "[]"), strconv.Itoa(port)), nil
}

// ranksFromEnv reads RANK and WORLD_SIZE. Without either the process is a job
// of one rank, and says so where a scheduler has started several.
func ranksFromEnv() (place, error) {
	_, hasSize := envvar.WorldSize.Lookup()
	_, hasRank := envvar.Rank.Lookup()
	switch {
	case !hasSize && !hasRank:
		envvar.TellTask(os.Stderr)
		return place{0, 1, ""}, nil
	case !hasRank:
		return place{}, together(envvar.WorldSize, envvar.Rank)
	case !hasSize:
		return place{}, together(envvar.Rank, envvar.WorldSize)
	}
	size, err := envvar.WorldSize.Int(1, backend.MaxWorldSize)
	if err != nil {
		return place{}, err
	}
	rank, err := envvar.Rank.Int(0, math.MaxInt32)
	if err != nil {
		return place{}, err
	}
	if rank >= size {
		return place{}, fmt.Errorf("%s is %d, but %s is %d: ranks are 0 to %d", envvar.Rank, rank, envvar.WorldSize, size, size-1)
	}
	return place{rank, size, ""}, nil
}

// together says that a variable makes no sense without another.
func together(set, missing envvar.Var) error {
	return fmt.Errorf("%s is set and %s is not: a rank needs %s, %s, %s and %s, as `cohort run` or torchrun set them (unset all of them to run alone)",
		set, missing, envvar.Rank, envvar.WorldSize, envvar.MasterAddr, envvar.MasterPort)
}

// placeFromURL reads "env://" or "tcp://host:port?rank=R&world_size=N"; what
// the query does not say comes from RANK and WORLD_SIZE.
func placeFromURL(text string) (place, error) {
	if text == "" || text == "env://" {
		return placeFromEnv()
	}
	fail := func(why string) (place, error) {
		return place{}, fmt.Errorf("URL %q: %s: want env:// or tcp://host:port?rank=R&world_size=N", text, why)
	}
	u, err := url.Parse(text)
	if err != nil {
		return fail("does not parse")
	}
	if u.Scheme != "tcp" {
		return fail(fmt.Sprintf("scheme %q", u.Scheme))
	}
	if u.Hostname() == "" || u.Port() == "" || u.User != nil || u.Path != "" && u.Path != "/" {
		return fail("has no host and port, or more than that")
	}
	if port, err := strconv.ParseUint(u.Port(), 10, 16); err != nil || port == 0 {
		return fail("port out of range")
	}
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return fail("the query does not parse")
	}
	for key, values := range query {
		if key != "rank" && key != "world_size" {
			return fail(fmt.Sprintf("nothing is known of %q", key))
		}
		if len(values) != 1 {
			return fail(key + " is given more than once")
		}
	}
	size, err := NumberIn(query, text, "world_size", envvar.WorldSize, 1, backend.MaxWorldSize)
	if err != nil {
		return place{}, err
	}
	rank, err := NumberIn(query, text, "rank", envvar.Rank, 0, size-1)
	if err != nil {
		return place{}, err
	}
	return place{rank, size, u.Host}, nil
}

// NodeID returns what names this node: COHORT_NODE_ID, or what only processes
// have in common that the same running kernel serves in the same network
// namespace (host names are equal by accident). Empty where that is not known:
// then no rank is local to another.
func NodeID(given string) string {
	if given != "" {
		return given
	}
	if id, ok := envvar.NodeID.Lookup(); ok {
		return id
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	space, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(boot)) + "/" + space
}

// NumberIn returns a number that the query of a URL, text, says, or else a variable.
func NumberIn(query url.Values, text, key string, v envvar.Var, lo, hi int) (int, error) {
	if !query.Has(key) {
		return v.Int(lo, hi)
	}
	n, err := envvar.ParseInt(query.Get(key))
	if err != nil || n < lo || n > hi {
		return 0, fmt.Errorf("URL %q: %s is %q: want a number from %d to %d", text, key, query.Get(key), lo, hi)
	}
	return n, nil
}
