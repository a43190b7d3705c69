// SPDX-License-Identifier: Apache-2.0

package store_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/dist/store"
	"github.com/cohort-ml/cohort/dist/store/storetest"
	"github.com/cohort-ml/cohort/internal/envvar"
	"github.com/cohort-ml/cohort/internal/seeded"
	"github.com/cohort-ml/cohort/internal/transport"
)

// Each PyTorch that is found is tested live, both ways. -pythons, or COHORT_TEST_PYTHONS with colons, names more.
var pythons = flag.String("pythons", strings.ReplaceAll(os.Getenv("COHORT_TEST_PYTHONS"), ":", ","), "Python programs that have PyTorch, separated by commas, beside those that are found")

// torch is a process that has PyTorch and does what it is told.
type torch struct {
	python     string
	in         io.WriteCloser
	out        *bufio.Reader
	Version    string `json:"version"`
	Generation store.PyTorchGeneration
	Libuv      bool
	Queues     bool
	Lists      bool
	Port       int
	Keys       int
	Error      string
}

// do has the process do one thing.
func (p *torch) do(what string, args map[string]any) error {
	line := map[string]any{"do": what}
	for k, v := range args {
		line[k] = v
	}
	b, err := json.Marshal(line)
	if err != nil {
		return err
	}
	if _, err := p.in.Write(append(b, '\n')); err != nil {
		return err
	}
	answer, err := p.out.ReadBytes('\n')
	if err != nil {
		return err
	}
	p.Error = ""
	if err := json.Unmarshal(answer, p); err != nil {
		return err
	}
	if p.Error != "" {
		return errors.New(p.Error)
	}
	return nil
}

// minor is the second number of its version.
func (p *torch) minor() int {
	var major, minor int
	_, _ = fmt.Sscanf(p.Version, "%d.%d", &major, &minor)
	return minor
}

// eachTorch runs a test with each PyTorch that is on this machine.
func eachTorch(t *testing.T, test func(t *testing.T, p *torch)) {
	if testing.Short() {
		t.Skip("PyTorch takes seconds to start: not with -short")
	}
	candidates := []string{"python3", "/usr/bin/python3"}
	if *pythons != "" {
		candidates = append(candidates, strings.Split(*pythons, ",")...)
	}
	var paths []string
	for _, c := range candidates {
		if path, err := exec.LookPath(c); err == nil {
			if !slices.Contains(paths, path) {
				paths = append(paths, path)
			}
		} else if c != candidates[0] && c != candidates[1] {
			t.Errorf("-pythons: %v", err)
		}
	}
	t.Run("each", func(t *testing.T) {
		for _, path := range paths {
			t.Run(strings.ReplaceAll(strings.Trim(path, "/"), "/", "_"), func(t *testing.T) {
				t.Parallel()
				p := startTorch(t, path)
				if p == nil {
					t.Skipf("%s has no PyTorch (import torch.distributed)", path)
				}
				t.Logf("PyTorch %s, generation %v", p.Version, p.Generation)
				test(t, p)
			})
		}
	})
}

// startTorch starts a process; nil where there is no PyTorch.
func startTorch(t *testing.T, python string) *torch {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	script, err := filepath.Abs("testdata/pytorch_store.py")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(ctx, python, script)
	cmd.Dir = t.TempDir()
	var stderr strings.Builder
	cmd.Stderr = &stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &torch{python: python, in: in, out: bufio.NewReader(out)}
	err = p.do("versions", nil)
	t.Cleanup(func() {
		in.Close()
		werr := cmd.Wait()
		cancel()
		if err == nil && werr != nil {
			t.Errorf("%s: %v\n%s", python, werr, stderr.String())
		}
		if t.Failed() {
			t.Logf("%s said:\n%s", python, stderr.String())
		}
	})
	if err != nil {
		return nil
	}
	return p
}

// Every PyTorch that is here, one process each, which takes seconds to start.
func TestLivePyTorch(t *testing.T) {
	t.Setenv(string(envvar.Token), transport.NewToken().Text())
	eachTorch(t, func(t *testing.T, p *torch) {
		t.Run("client", func(t *testing.T) { liveClient(t, p) })
		t.Run("server", func(t *testing.T) { liveServer(t, p) })
		t.Run("numbers", func(t *testing.T) { liveNumbers(t, p) })
		t.Run("file", func(t *testing.T) { liveFile(t, p) })
		t.Run("group", func(t *testing.T) { liveGroup(t, p) })
		t.Run("join", func(t *testing.T) { liveJoin(t, p) })
	})
}

// liveClient is PyTorch's client on our server: every operation that it has.
func liveClient(t *testing.T, p *torch) {
	srv, err := store.ListenPyTorch("127.0.0.1:0", store.WithRefusals(func(r *store.PyTorchRefusal) { t.Error(r) }))
	if err != nil {
		t.Fatal(err)
	}
	defer srv.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	s := srv.Store()
	if err := s.Set(ctx, "from go", []byte("value of go")); err != nil {
		t.Fatal(err)
	}
	joined := make(chan error, 1)
	go func() { joined <- srv.Join(ctx, 2) }()
	if err := p.do("client", map[string]any{"port": portOf(t, srv.Addr()), "world": 2}); err != nil {
		t.Fatal(err)
	}
	if err := <-joined; err != nil {
		t.Error(err)
	}
	if g := srv.Generations(); len(g) != 1 || g[0] != p.Generation {
		t.Errorf("PyTorch %s spoke generation %v, want %v", p.Version, g, p.Generation)
	}
	if v, err := s.Get(ctx, "cas"); string(v) != "second" || err != nil {
		t.Errorf("%q, %v of what PyTorch has set", v, err)
	}
	if n, err := s.NumKeys(ctx, ""); n != p.Keys-1 || err != nil {
		t.Errorf("%d keys, %v, PyTorch says %d, with the counter of those who have joined", n, err, p.Keys)
	}
	if n, err := s.NumKeys(ctx, "pre/"); n != 1 || err != nil {
		t.Errorf("%d keys of PyTorch's PrefixStore, %v", n, err)
	}
}

// liveServer is our client on PyTorch's servers: the conformance suite.
func liveServer(t *testing.T, p *torch) {
	for _, libuv := range []bool{false, true} {
		if libuv && (!p.Libuv || p.Generation == store.PyTorch2 && p.minor() < 4) { // it was on trial until 2.3
			continue
		}
		t.Run(fmt.Sprint("libuv=", libuv), func(t *testing.T) {
			without, minor := weak["pytorch"], p.minor()
			switch {
			case p.Generation == store.PyTorch1:
				without = weak["pytorch 1.13"]
			case !libuv || minor < 8: // whose servers with libuv have no queues
				without = weak["pytorch without libuv"]
			case minor < 10:
				without = weak["pytorch before 2.10"]
			}
			// One server, which PyTorch may take seconds to start, and a part of it for each case.
			if err := p.do("serve", map[string]any{"libuv": libuv, "modern": p.Generation == store.PyTorch2}); err != nil {
				t.Fatal(err)
			}
			addr, cases := fmt.Sprint("127.0.0.1:", p.Port), 0
			storetest.Run(t, storetest.Config{Without: without, Open: func(t *testing.T) (a, b store.Store) {
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
				defer cancel()
				cases++
				var views [2]store.Store
				for i := range views {
					c, err := store.DialPyTorch(ctx, addr)
					if err != nil {
						t.Fatal(err)
					}
					t.Cleanup(func() { c.Close() })
					if c.Generation() != p.Generation {
						t.Fatalf("generation %v was found, want %v", c.Generation(), p.Generation)
					}
					if cases == 1 && p.Generation == store.PyTorch2 {
						if from, to, err := c.Releases(ctx); err != nil || minor < from || to != 0 && minor > to {
							t.Errorf("found the releases %d to %d, %v, of %s", from, to, err, p.Version)
						}
					}
					views[i] = store.Prefix(c, fmt.Sprint(cases))
				}
				return views[0], views[1]
			}})
		})
	}
}

// liveNumbers has a server of PyTorch's and one of ours add to the same texts, which are made
// of what numbers are made of.
func liveNumbers(t *testing.T, p *torch) {
	ours, err := store.ListenPyTorch("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ours.Close()
	if err := p.do("serve", map[string]any{"libuv": p.Libuv, "modern": p.Generation == store.PyTorch2}); err != nil {
		t.Fatal(err)
	}
	seed := seeded.Of(t)
	rng := rand.New(rand.NewPCG(seed, 1))
	parts := []string{" ", "\t", "\v", "\r", "-", "+", "0", "7", "12", "9223372036854775807", "922337203685477580", "x", ".", "e", "_", "\x00", "\xa0"}
	add := func(addr, text string, delta int64) (sum int64, hangs bool) {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		c, err := store.DialPyTorch(ctx, addr, store.WithGeneration(p.Generation))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if err := c.Set(ctx, "k", []byte(text)); err != nil {
			t.Fatal(err)
		}
		sum, err = c.Add(ctx, "k", delta)
		if err != nil && ctx.Err() != nil {
			t.Fatal(err)
		}
		return sum, err != nil
	}
	for range 100 {
		text := ""
		for range 1 + rng.IntN(4) {
			text += parts[rng.IntN(len(parts))]
		}
		delta := []int64{1, -1, 0, math.MaxInt64, math.MinInt64}[rng.IntN(5)]
		sum, hangs := add(fmt.Sprint("127.0.0.1:", p.Port), text, delta)
		if have, haveHangs := add(ours.Addr(), text, delta); have != sum || haveHangs != hangs {
			t.Errorf("%q and %d are %d (hangs up: %v), with PyTorch %d (%v)", text, delta, have, haveHangs, sum, hangs)
		}
	}
}

// liveJoin: a PyTorch process that serves the store waits for a Go process to join.
func liveJoin(t *testing.T, p *torch) {
	port, err := transport.HoldPort("127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	defer port.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	hosted := make(chan error, 1)
	go func() { hosted <- p.do("host", map[string]any{"port": port.Port(), "world": 2}) }()
	c, err := store.DialPyTorch(ctx, port.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if n, err := c.Join(ctx); err != nil || n < 1 || n > 2 {
		t.Errorf("%d have joined, %v", n, err)
	}
	if err := <-hosted; err != nil {
		t.Error(err)
	}
	if n, err := c.NumKeys(ctx, ""); n != 0 || err != nil {
		t.Errorf("%d keys, %v; that of those who join is PyTorch's own", n, err)
	}
}

// liveGroup: ranks of Cohort's own kind meet in a store of PyTorch's.
func liveGroup(t *testing.T, p *torch) {
	if err := p.do("serve", map[string]any{"libuv": p.Libuv, "modern": p.Generation == store.PyTorch2}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	const n = 3
	var wg sync.WaitGroup
	for r := range n {
		wg.Go(func() {
			c, err := store.DialPyTorch(ctx, fmt.Sprint("127.0.0.1:", p.Port))
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			g, err := dist.Init(ctx, dist.WithStore(store.Prefix(c, "job")), dist.WithRank(r, n))
			if err != nil {
				t.Error(err)
				return
			}
			defer g.Close()
			if g.Rank() != r || g.Size() != n {
				t.Errorf("rank %d of %d, want %d of %d", g.Rank(), g.Size(), r, n)
			}
			if err := g.Barrier(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

// liveFile: PyTorch's FileStore and ours in one file, which is gone at the end.
func liveFile(t *testing.T, p *torch) {
	path := filepath.Join(t.TempDir(), "store")
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	s, err := store.OpenPyTorchFile(path, 2)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Set(ctx, "from go", []byte("value of go")); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- p.do("file", map[string]any{"path": path, "world": 2}) }()
	if err := s.Wait(ctx, "python done"); err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]string{"text": "abcd", "n": "-2", "cas": "second"} {
		if v, err := s.Get(ctx, key); string(v) != want || err != nil {
			t.Errorf("%s: %q, %v, want %q of PyTorch's", key, v, err, want)
		}
	}
	if n, err := s.NumKeys(ctx, ""); n != 5 || err != nil {
		t.Errorf("%d keys, %v, want 5: gone was deleted, and PyTorch's own do not count", n, err)
	}
	if err := s.Append(ctx, "text", []byte("e")); err != nil {
		t.Error(err)
	}
	if err := s.Set(ctx, "go done", []byte("1")); err != nil {
		t.Error(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the file is still there: %v", err)
	}
}

func portOf(t *testing.T, addr string) int {
	t.Helper()
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	return n
}
