// SPDX-License-Identifier: Apache-2.0

package gloo

import (
	"bufio"
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/dist/internal/collective"
	"github.com/cohort-ml/cohort/dist/operation"
	"github.com/cohort-ml/cohort/dist/store"
	"github.com/cohort-ml/cohort/internal/loaded"
)

// Each PyTorch that is found is tested with; -pythons, or COHORT_TEST_PYTHONS with colons, names more. A process needs two
// seconds to begin, so more than a few jobs take -jobs.
var (
	pythons = flag.String("pythons", strings.ReplaceAll(os.Getenv("COHORT_TEST_PYTHONS"), ":", ","), "Python programs that have PyTorch, separated by commas, beside those that are found")
	allJobs = flag.Bool("jobs", false, "run jobs with Go ranks in all positions")
)

// pytorch is a Python program that has PyTorch.
type pytorch struct {
	program string
	version string
}

// generation is how its ranks meet.
func (p pytorch) generation() Generation {
	if strings.HasPrefix(p.version, "1.") || strings.HasPrefix(p.version, "2.0") {
		return PerPair
	}
	return PerDevice
}

var found = sync.OnceValue(func() (all []pytorch) {
	seen := map[string]bool{}
	for _, name := range append([]string{"python3", "/usr/bin/python3"}, strings.Split(*pythons, ",")...) {
		if name == "" {
			continue
		}
		out, err := exec.Command(name, "-c", "import torch, torch.distributed as d; print(torch.__version__ if d.is_gloo_available() else '')").Output()
		if version := strings.TrimSpace(string(out)); err == nil && version != "" && !seen[version] {
			seen[version] = true
			all = append(all, pytorch{name, version})
		}
	}
	return all
})

// eachPyTorch runs a test with every PyTorch.
func eachPyTorch(t *testing.T, test func(t *testing.T, p pytorch)) {
	if testing.Short() || len(found()) == 0 {
		t.Skip("no Python here has PyTorch with Gloo (python3, /usr/bin/python3, -pythons), or -short")
	}
	for _, p := range found() {
		t.Run("PyTorch"+p.version, func(t *testing.T) { test(t, p) })
	}
}

// peer is a PyTorch rank.
type peer struct {
	cmd    *exec.Cmd
	in     io.WriteCloser
	stderr bytes.Buffer
	lines  []string
	done   chan struct{}
	err    error // once done
}

// start starts a PyTorch rank.
func (p pytorch) start(t *testing.T, addr string, rank, size int, env []string, args ...string) *peer {
	t.Helper()
	at := netip.MustParseAddrPort(addr)
	q := &peer{done: make(chan struct{})}
	q.cmd = exec.Command(p.program, append([]string{"testdata/pytorch_rank.py", at.Addr().String(),
		strconv.Itoa(int(at.Port())), strconv.Itoa(rank), strconv.Itoa(size)}, args...)...)
	q.cmd.Env = append(append(q.cmd.Environ(), "OMP_NUM_THREADS=1", "GLOO_SOCKET_IFNAME=lo"), env...)
	q.cmd.Stderr = &q.stderr
	var err error
	if q.in, err = q.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := q.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := q.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		for s := bufio.NewScanner(out); s.Scan(); {
			q.lines = append(q.lines, s.Text())
		}
		q.err = q.cmd.Wait()
		close(q.done)
	}()
	return q
}

// kill ends a rank, if it has not ended.
func (q *peer) kill() { _ = q.cmd.Process.Kill() }

// wait waits for the end of a rank and returns what it has written.
func (q *peer) wait() (string, error) {
	select {
	case <-q.done:
		err := q.err
		if err == nil && (len(q.lines) == 0 || q.lines[len(q.lines)-1] != "ok") {
			err = fmt.Errorf("it has not come to its end")
		}
		return strings.Join(q.lines, "\n") + "\n" + q.stderr.String(), err
	case <-time.After(60 * time.Second):
		q.kill()
		return q.stderr.String(), fmt.Errorf("it has not ended within a minute")
	}
}

// device reports whether this PyTorch can make the device that an environment asks for.
func (p pytorch) device(env []string) bool {
	cmd := exec.Command(p.program, "-c", "import torch.distributed as d; d.ProcessGroupGloo.create_device(interface='lo')")
	cmd.Env = append(cmd.Environ(), env...)
	return cmd.Run() == nil
}

// prefixFor is where in the job's store the default group of a PyTorch is.
func (p pytorch) prefixFor(s store.Store) store.Store {
	if p.generation() == PerPair {
		return store.Prefix(s, "default_pg/0")
	}
	return store.Prefix(s, "default_pg/0//cpu/")
}

// mixed runs a job of size ranks, of which those in gos are Go ranks that do part and
// the others PyTorch ranks that do a case of pytorch_rank.py.
func mixed(t *testing.T, p pytorch, size int, gos []int, change func(*Config), env []string, part func(b *Communicator, peers []*peer) error, args ...string) []*peer {
	t.Helper()
	server, err := store.ListenPyTorch("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Close() })
	peers := make([]*peer, size)
	isGo := make([]bool, size)
	for _, r := range gos {
		isGo[r] = true
	}
	for r := range size {
		if !isGo[r] {
			peers[r] = p.start(t, server.Addr(), r, size, env, args...)
			t.Cleanup(peers[r].kill)
		}
	}
	var all sync.WaitGroup
	for _, r := range gos {
		all.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
			defer cancel()
			s := store.Store(server.Store())
			if p.generation() == PerPair { // what init_process_group does besides, as PyTorch 1.13 does it
				if r == 0 {
					if err := s.Set(ctx, "default_pg/0/SEQ_NUM_STORE_KEY", make([]byte, 8)); err != nil {
						t.Error(err)
					}
				}
			}
			cfg := config(p.prefixFor(s), p.generation(), r, size)
			cfg.Timeout = 60 * time.Second
			if change != nil {
				change(&cfg)
			}
			b, err := Open(ctx, cfg)
			if err != nil {
				t.Errorf("Go rank %d: %v", r, err)
				return
			}
			defer b.Close()
			if p.generation() == PerPair {
				if _, err := s.Add(ctx, "default_pg/store_based_barrier_key:1", 1); err != nil {
					t.Error(err)
				}
			}
			if err := part(b, peers); err != nil {
				t.Errorf("Go rank %d: %v", r, err)
			}
		})
	}
	all.Wait()
	if t.Failed() {
		for r, q := range peers {
			if q != nil {
				q.kill()
				out, err := q.wait()
				t.Logf("PyTorch rank %d: %v\n%s", r, err, out)
			}
		}
	}
	return peers
}

// TestPyTorchOperations has a Go rank in every position of a job, and then several,
// do all operations.
func TestPyTorchOperations(t *testing.T) {
	t.Parallel()
	eachPyTorch(t, func(t *testing.T, p pytorch) {
		sizes := []int{1, 3, 1000, 300001}
		if p.generation() == PerDevice { // 1.13 divides by zero when it gathers nothing
			sizes = append(sizes, 0)
		}
		var args []string
		for _, s := range sizes {
			args = append(args, strconv.Itoa(s))
		}
		for _, job := range []struct {
			size int
			gos  []int
			more bool
		}{{2, []int{0}, false}, {3, []int{1}, false}, {2, []int{1}, true}, {3, []int{0, 2}, true}, {4, []int{0, 2}, true}, {5, []int{3}, true}, {5, []int{0, 4}, true}} {
			if job.more && !*allJobs {
				continue
			}
			t.Run(fmt.Sprintf("ranks%d/go%v", job.size, job.gos), func(t *testing.T) {
				t.Parallel()
				peers := mixed(t, p, job.size, job.gos, nil, nil, func(b *Communicator, _ []*peer) error {
					for _, n := range sizes {
						if err := everything(b, n); err != nil {
							return err
						}
					}
					return b.Collective(context.Background(), operation.Call{Op: operation.Barrier}, collective.Data{}, collective.Data{})
				}, append([]string{"everything"}, args...)...)
				for r, q := range peers {
					if q != nil {
						if out, err := q.wait(); err != nil {
							t.Errorf("PyTorch rank %d: %v\n%s", r, err, out)
						}
					}
				}
			})
		}
	})
}

// TestPyTorchVariants has PyTorch ranks meet in other ways, with -jobs.
func TestPyTorchVariants(t *testing.T) {
	if !*allJobs {
		t.Skip("-jobs runs these")
	}
	t.Parallel()
	key, cert, ca := certificates(t)
	tcpTLS := []string{"GLOO_DEVICE_TRANSPORT=TCP_TLS", "GLOO_DEVICE_TRANSPORT_TCP_TLS_PKEY=" + key,
		"GLOO_DEVICE_TRANSPORT_TCP_TLS_CERT=" + cert, "GLOO_DEVICE_TRANSPORT_TCP_TLS_CA_FILE=" + ca}
	withTLS := func(cfg *Config) {
		var err error
		if cfg.TLS, err = LoadTLS(key, cert, ca, ""); err != nil {
			t.Error(err)
		}
	}
	eachPyTorch(t, func(t *testing.T, p pytorch) {
		for _, v := range []struct {
			name   string
			since  Generation
			env    []string
			change func(*Config)
		}{
			{"lazy", PerDevice, []string{"TORCH_GLOO_LAZY_INIT=1"}, nil},
			{"both lazy", PerDevice, []string{"TORCH_GLOO_LAZY_INIT=1"}, func(cfg *Config) { cfg.Lazy = true }},
			{"rank as number", PerDevice, []string{"GLOO_ENABLE_RANK_AS_SEQUENCE_NUMBER=1"}, nil},
			{"two contexts", PerPair, []string{"GLOO_SOCKET_IFNAME=lo,lo"}, func(cfg *Config) {
				lo := netip.AddrFrom4([4]byte{127, 0, 0, 1})
				cfg.Addrs = []netip.Addr{lo, lo}
			}},
			{"TLS", PerPair, tcpTLS, withTLS},
		} {
			if p.generation() < v.since {
				continue
			}
			t.Run(v.name, func(t *testing.T) {
				t.Parallel()
				if v.name == "TLS" && !p.device(v.env) {
					t.Skip("this PyTorch is built without OpenSSL in its Gloo")
				}
				peers := mixed(t, p, 3, []int{1}, v.change, v.env, func(b *Communicator, _ []*peer) error {
					if err := everything(b, 1000); err != nil {
						return err
					}
					return b.Collective(context.Background(), operation.Call{Op: operation.Barrier}, collective.Data{}, collective.Data{})
				}, "everything", "1000")
				for r, q := range peers {
					if q != nil {
						if out, err := q.wait(); err != nil {
							t.Errorf("PyTorch rank %d: %v\n%s", r, err, out)
						}
					}
				}
			})
		}
	})
}

// TestPyTorchFaults: a PyTorch rank dies, or is in another call than this one. The error
// names it and what it sent, soon, and it ends with an exception of its own: it is not
// made to abort.
func TestPyTorchFaults(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	reduce := func(elems int) func(b *Communicator, _ []*peer) error {
		return func(b *Communicator, _ []*peer) error {
			data := dataOf(make([]byte, 4*elems), operation.Float32)
			return b.Collective(ctx, operation.Call{Op: operation.AllReduce, DType: operation.Float32, Count: elems, Seq: 1}, data, data)
		}
	}
	eachPyTorch(t, func(t *testing.T, p pytorch) {
		for _, f := range []struct {
			name string
			args []string
			size int
			do   func(b *Communicator, peers []*peer) error
			says string
			more bool
		}{
			{"another collective", []string{"broadcast", "5"}, 2, reduce(5), "broadcast with tag 0", false},
			{"fewer elements", []string{"all_reduce", "3"}, 2, reduce(500), "bytes in all_reduce with tag 0, but this rank", true},
			{"more elements", []string{"all_reduce", "500"}, 2, reduce(3), "bytes in all_reduce with tag 0, but this rank", true},
			{"room for less", []string{"recv", "2", "0"}, 2, func(b *Communicator, _ []*peer) error {
				return b.Send(ctx, operation.Call{Op: operation.Send, Root: 1, DType: operation.Float32, Count: 4}, dataOf(make([]byte, 16), operation.Float32))
			}, "NOTIFY_RECV_READY of 8 bytes in send/recv with tag 0, but this rank has 16 bytes", true},
			{"death", []string{"die"}, 3, func(b *Communicator, peers []*peer) error {
				if err := b.Collective(ctx, operation.Call{Op: operation.Barrier}, collective.Data{}, collective.Data{}); err != nil {
					return err
				}
				time.AfterFunc(100*time.Millisecond, peers[1].kill)
				return reduce(5)(b, nil)
			}, "closed its connection", false},
			{"a late one", []string{"late"}, 3, func(b *Communicator, peers []*peer) error {
				ctx, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
				defer cancel()
				return b.MonitoredBarrier(ctx, operation.Call{Op: operation.Barrier}, true)
			}, "rank 1, rank 2", true},
		} {
			if f.more && !*allJobs {
				continue
			}
			t.Run(f.name, func(t *testing.T) {
				t.Parallel()
				var took time.Duration
				peers := mixed(t, p, f.size, []int{0}, nil, nil, func(b *Communicator, peers []*peer) error {
					begun := time.Now()
					err := f.do(b, peers)
					took = time.Since(begun)
					switch {
					case err == nil:
						return fmt.Errorf("there is no error")
					case !strings.Contains(err.Error(), "rank 1") || !strings.Contains(err.Error(), f.says):
						return fmt.Errorf("%w does not say %q of rank 1", err, f.says)
					}
					t.Log(err)
					return nil
				}, f.args...)
				if took > loaded.Allow(5*time.Second) {
					t.Errorf("the error came after %v", took)
				}
				for r, q := range peers[1:] {
					if f.name == "death" || f.name == "a late one" {
						q.kill()
						continue
					}
					out, err := q.wait()
					if err == nil || strings.Contains(err.Error(), "signal") {
						t.Errorf("PyTorch rank %d ended with %v, want an exception\n%s", r+1, err, out)
					}
				}
			})
		}
	})
}
