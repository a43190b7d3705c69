// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cohort-ml/cohort/internal/agentpipe"
	"github.com/cohort-ml/cohort/internal/envvar"
	"github.com/cohort-ml/cohort/internal/loaded"
	"github.com/cohort-ml/cohort/internal/mpirank"
	"github.com/cohort-ml/cohort/internal/transport"
	"github.com/cohort-ml/cohort/tensor"
)

// rankMain is the variable that makes the test binary a rank: it names the
// function of rankMains to run.
const rankMain = "DIST_TEST_RANK_MAIN"

// rankBackend is the variable that gives the ranks another backend.
const rankBackend = "DIST_TEST_RANK_BACKEND"

// rankNodes is the variable that gives each rank a node: a letter for each.
const rankNodes = "DIST_TEST_RANK_NODES"

var rankMains = map[string]func(ctx context.Context, g *Group) error{
	"oracle":   someOfEverything,
	"messages": messagesRoundTheRing,
	"wait":     waitForever,
	"overlap":  overlap,
	"groups":   groupsAtOnce,
	"barrier":  barrierOnly,
	"stopped":  stoppedRank,
	"outage":   outlast,
	"hang":     hangingRank,
	"busy":     busyRank,
	"idle":     idleRank,
	"survive":  survive,
	"regroup":  regroup,
	"stray":    strayLast,

	"two groups": twoGroups,

	"mpi operations": mpiOperations,
	"mpi sequences":  mpiSequences,
	"mpi wait":       mpiWait,
	"mpi mismatch":   mpiMismatch,
	"mpi signals":    mpiSignals,
	"mpi twice":      mpiTwice,
}

func TestMain(m *testing.M) {
	if os.Getenv(mpiKept) != "" {
		os.Unsetenv(mpiKept)
		k := mpirank.Keeper{Command: os.Args, Grace: mpirank.Grace}
		code, by, err := k.Run(context.Background())
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(99)
		}
		mpirank.Exit(code, by)
	}
	flag.Parse()
	if name := os.Getenv(rankMain); name != "" {
		run := func() error { return runAsRank(rankMains[name]) }
		if name == "chaos" { // which is there before its group, and after
			run = chaosRank
		} else if name == "gloo" {
			run = glooAlone
		}
		if err := run(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if os.Getenv("COHORT_TOKEN") == "" {
		os.Setenv("COHORT_TOKEN", transport.NewToken().Text())
	}
	// A rank that gets no processor for the usual limit, on a machine that does much
	// else, is not silent where silence is not the point.
	if os.Getenv(string(envvar.Silence)) == "" {
		os.Setenv(string(envvar.Silence), "30s")
	}
	// With the race detector, each process would linger for a second at its end.
	os.Setenv("GORACE", "atexit_sleep_ms=0")
	tensor.CPU() // whose threads are then no test's, and in nobody's virtual time
	// Tests that run in parallel wait rather than work.
	if err := flag.Set("test.parallel", strconv.Itoa(max(len(transports), runtime.GOMAXPROCS(0)))); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/cohort-ml/cohort/internal/work.(*worker).serve"))
}

func runAsRank(main func(context.Context, *Group) error) error {
	ctx := context.Background()
	var opts []Option
	if nodes := os.Getenv(rankNodes); nodes != "" {
		rank, err := envvar.Rank.Int(0, len(nodes)-1)
		if err != nil {
			return err
		}
		opts = append(opts, WithNodeID("node "+nodes[rank:rank+1]))
	}
	if name := os.Getenv(rankBackend); name != "" {
		opts = append(opts, WithBackend(name))
	}
	g, err := Init(ctx, opts...)
	if err != nil {
		return err
	}
	if err := main(ctx, g); err != nil {
		return err
	}
	return g.Close()
}

// rankProcess is a started rank.
type rankProcess struct {
	cmd    *exec.Cmd
	agent  *agentpipe.Writer // what an agent would tell the rank
	mu     sync.Mutex
	out    bytes.Buffer
	line   chan struct{} // closed at the first line of output
	waited chan struct{}
	err    error
}

func (p *rankProcess) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.out.Len() == 0 && len(b) > 0 {
		close(p.line)
	}
	return p.out.Write(b)
}

func (p *rankProcess) output() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.out.String()
}

// startRanks starts n processes of this test binary that run a function of
// rankMains, each under the environment that a launcher would give it.
func startRanks(t testing.TB, n int, name string, env ...string) []*rankProcess {
	t.Helper()
	return startRanksBy(t, n, name, nil, env...)
}

// startRanksBy is startRanks with a command that starts each of them, which may
// be nil.
func startRanksBy(t testing.TB, n int, name string, by func(rank int) []string, env ...string) []*rankProcess {
	t.Helper()
	host, port, err := net.SplitHostPort(freeAddr(t))
	if err != nil {
		t.Fatal(err)
	}
	token := transport.NewToken().Text()
	ps := make([]*rankProcess, n)
	for r := range ps {
		args := []string{os.Args[0]}
		if by != nil {
			args = append(by(r), args...)
		}
		p := &rankProcess{cmd: exec.CommandContext(t.Context(), args[0], args[1:]...), line: make(chan struct{}), waited: make(chan struct{})}
		p.cmd.Env = append(os.Environ(), rankMain+"="+name, envvar.Token.Assign(token),
			envvar.Rank.Assign(strconv.Itoa(r)), envvar.WorldSize.Assign(strconv.Itoa(n)),
			envvar.MasterAddr.Assign(host), envvar.MasterPort.Assign(port), envvar.AgentFD.Assign("3"),
			envvar.Transport.Assign("")) // and not that of a test beside this one
		p.cmd.Env = append(p.cmd.Env, env...)
		p.cmd.Stdout, p.cmd.Stderr = p, p
		news, agent, err := agentpipe.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		p.agent = agent
		p.cmd.ExtraFiles = []*os.File{news} // becomes descriptor 3
		err = p.cmd.Start()
		news.Close()
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			p.err = p.cmd.Wait()
			close(p.waited)
		}()
		t.Cleanup(func() {
			_ = p.cmd.Process.Kill()
			<-p.waited
			_ = agent.Close()
		})
		ps[r] = p
	}
	return ps
}

// await waits until a rank has ended and returns how.
func (p *rankProcess) await(t testing.TB, limit time.Duration) error {
	t.Helper()
	select {
	case <-p.waited:
		return p.err
	case <-time.After(limit):
		t.Fatalf("a rank has not ended within %v; its output:\n%s", limit, p.stacks())
		return nil
	}
}

// stacks makes a rank print where its goroutines are, and returns its output.
func (p *rankProcess) stacks() string {
	_ = p.cmd.Process.Signal(syscall.SIGQUIT)
	select {
	case <-p.waited:
	case <-time.After(5 * time.Second):
	}
	return p.output()
}

func TestProcesses(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"oracle", "messages", "groups"} {
		for _, tc := range []struct {
			n         int
			transport string
		}{{2, "shm"}, {3, "shm"}, {2, "tcp"}} {
			t.Run(fmt.Sprintf("%s/%s/%d", name, tc.transport, tc.n), func(t *testing.T) {
				for r, p := range startRanks(t, tc.n, name, envvar.Transport.Assign(tc.transport)) {
					if err := p.await(t, time.Minute); err != nil {
						t.Errorf("rank %d: %v\n%s", r, err, p.output())
					}
				}
			})
		}
	}
}

// waitForever says that it is there and runs collectives until one fails; the
// last rank stops taking part.
func waitForever(ctx context.Context, g *Group) error {
	x := filled(tensor.Float32, 100_000, g.Rank())
	for i := 0; ; i++ {
		if i == 3 {
			fmt.Println("ready")
			if g.Rank() == g.Size()-1 {
				select {}
			}
		}
		if err := g.AllReduce(ctx, x, Max); err != nil {
			return err
		}
	}
}

// TestKilledRank kills one of three ranks: the others end within a second and
// name it, and the signal, which the agent tells them.
func TestKilledRank(t *testing.T) {
	for _, kind := range []string{"shm", "tcp"} {
		for _, victim := range []int{0, 2} {
			t.Run(fmt.Sprintf("%s/rank%d", kind, victim), func(t *testing.T) {
				ps := startRanks(t, 3, "wait", envvar.Transport.Assign(kind))
				for _, p := range ps {
					select {
					case <-p.line:
					case <-time.After(20 * time.Second):
						for _, p := range ps {
							t.Logf("a rank is at:\n%s", p.stacks())
						}
						t.Fatal("a rank is not ready")
					}
				}
				start := time.Now()
				if err := ps[victim].cmd.Process.Kill(); err != nil {
					t.Fatal(err)
				}
				<-ps[victim].waited
				for r, p := range ps {
					if r != victim {
						_ = p.agent.Send(agentpipe.Event{Kind: agentpipe.KindExited, Rank: victim, Code: -1, Signal: "killed"})
					}
				}
				for r, p := range ps {
					if r == victim || r == 2 {
						continue // rank 2 does not wait for anybody
					}
					if err := p.await(t, 10*time.Second); err == nil {
						t.Errorf("rank %d ended as if nothing had happened", r)
					}
					if took := time.Since(start); took > loaded.Allow(time.Second) {
						t.Errorf("rank %d took %v", r, took)
					}
					want := fmt.Sprintf("rank %d (host", victim)
					if out := p.output(); !strings.Contains(out, want) || !strings.Contains(out, "died: signal killed") {
						t.Errorf("rank %d does not name rank %d as killed:\n%s", r, victim, out)
					}
				}
			})
		}
	}
}
