// SPDX-License-Identifier: Apache-2.0

package gloo

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/dist/internal/collective"
	"github.com/cohort-ml/cohort/dist/operation"
	"github.com/cohort-ml/cohort/dist/store"
)

// Measurements: jobs of processes of this test binary, of PyTorch, and of both, one
// after the other and again:
//
//	go test ./dist/internal/gloo -run TestSpeed -speed 3 -v -pythons /path/to/python
var (
	speed     = flag.Int("speed", 0, "how often to measure all-reduces of Go and PyTorch processes")
	speedOf   = flag.String("speed-ranks", "2,4", "with how many ranks")
	speedRank = flag.String("speed-rank", "", "be a rank of a measurement: generation,address,rank,size")
)

// speedSizes are how many floats are reduced, and how often.
var speedSizes = []struct{ elems, times int }{{1, 1000}, {1 << 14, 300}, {1 << 18, 60}, {1 << 24, 6}}

// TestSpeedRank is a rank of TestSpeed.
func TestSpeedRank(t *testing.T) {
	if *speedRank == "" {
		t.Skip("a rank of TestSpeed")
	}
	args := strings.Split(*speedRank, ",")
	g, _ := strconv.Atoi(args[0])
	rank, _ := strconv.Atoi(args[2])
	size, _ := strconv.Atoi(args[3])
	ctx := context.Background()
	c, err := store.DialPyTorch(ctx, args[1])
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	p := pytorch{version: "2.9"}
	if Generation(g) == PerPair {
		p.version = "1.13"
	}
	b, err := Open(ctx, config(p.prefixFor(c), Generation(g), rank, size))
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if Generation(g) == PerPair {
		if rank == 0 {
			_ = c.Set(ctx, "default_pg/0/SEQ_NUM_STORE_KEY", make([]byte, 8))
		}
		_, _ = c.Add(ctx, "default_pg/store_based_barrier_key:1", 1)
	}
	for _, s := range speedSizes {
		data := dataOf(make([]byte, 4*s.elems), operation.Float32)
		call := operation.Call{Op: operation.AllReduce, DType: operation.Float32, Count: s.elems}
		one := func() {
			if err := b.Collective(ctx, call, data, data); err != nil {
				t.Fatal(err)
			}
		}
		for range s.times/10 + 2 {
			one()
		}
		begun := time.Now()
		for range s.times {
			one()
		}
		fmt.Printf("took %d %d\n", 4*s.elems, time.Since(begun).Nanoseconds()/int64(s.times))
	}
	if err := b.Collective(ctx, operation.Call{Op: operation.Barrier}, collective.Data{}, collective.Data{}); err != nil {
		t.Fatal(err)
	}
}

const speedScript = `
import sys, time, datetime, torch, torch.distributed as dist
host, port, me, n = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
torch.set_num_threads(1)
store = dist.PrefixStore("default_pg", dist.TCPStore(host, port, n, False))
dist.init_process_group("gloo", store=store, rank=me, world_size=n)
for arg in sys.argv[5:]:
    elems, times = map(int, arg.split(","))
    v = torch.zeros(elems)
    for _ in range(times // 10 + 2):
        dist.all_reduce(v)
    begun = time.perf_counter()
    for _ in range(times):
        dist.all_reduce(v)
    print("took", 4 * elems, int((time.perf_counter() - begun) / times * 1e9), flush=True)
dist.barrier()
`

// TestSpeed compares all-reduces of Go ranks, of PyTorch ranks and of both.
func TestSpeed(t *testing.T) {
	if *speed == 0 {
		t.Skip("-speed 3 measures")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	took := map[string][]time.Duration{}
	for range *speed {
		for _, size := range []int{2, 4} {
			if !slices.Contains(strings.Split(*speedOf, ","), strconv.Itoa(size)) {
				continue
			}
			for _, p := range append([]pytorch{{version: "none"}}, found()...) {
				job := func(name string, isGo func(rank int) bool, g Generation) {
					server, err := store.ListenPyTorch("127.0.0.1:0")
					if err != nil {
						t.Fatal(err)
					}
					defer server.Close()
					at := netip.MustParseAddrPort(server.Addr())
					var cmds []*exec.Cmd
					for r := range size {
						args := []string{self, "-test.run=TestSpeedRank", fmt.Sprintf("-speed-rank=%d,%s,%d,%d", g, server.Addr(), r, size)}
						if !isGo(r) {
							args = []string{p.program, "-c", speedScript, at.Addr().String(), strconv.Itoa(int(at.Port())), strconv.Itoa(r), strconv.Itoa(size)}
							for _, s := range speedSizes {
								args = append(args, fmt.Sprintf("%d,%d", s.elems, s.times))
							}
						}
						cmd := exec.Command(args[0], args[1:]...)
						cmd.Env = append(cmd.Environ(), "GLOO_SOCKET_IFNAME=lo", "OMP_NUM_THREADS=1")
						cmds = append(cmds, cmd)
					}
					out, err := cmds[0].StdoutPipe()
					if err != nil {
						t.Fatal(err)
					}
					for _, cmd := range cmds {
						cmd.Stderr = os.Stderr
						if err := cmd.Start(); err != nil {
							t.Fatal(err)
						}
					}
					for s := bufio.NewScanner(out); s.Scan(); {
						var bytes, ns int64
						if n, _ := fmt.Sscanf(s.Text(), "took %d %d", &bytes, &ns); n == 2 {
							key := fmt.Sprintf("%d ranks %9d B %s", size, bytes, name)
							took[key] = append(took[key], time.Duration(ns))
						}
					}
					for _, cmd := range cmds {
						if err := cmd.Wait(); err != nil {
							t.Logf("%s: %v", name, err) // PyTorch 2.15 aborts at times while it exits
						}
					}
				}
				if p.version == "none" {
					job("Go", func(int) bool { return true }, PerDevice)
					continue
				}
				job("PyTorch "+p.version, func(int) bool { return false }, p.generation())
				job("Go and PyTorch "+p.version, func(r int) bool { return r%2 == 0 }, p.generation())
			}
		}
	}
	var keys []string
	for k := range took {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	for _, k := range keys {
		slices.Sort(took[k])
		t.Logf("%-50s %12v (best %v)", k, took[k][len(took[k])/2], took[k][0])
	}
}
