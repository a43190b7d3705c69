// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/internal/envvar"
	"github.com/cohort-ml/cohort/internal/transport"
	"github.com/cohort-ml/cohort/tensor"
)

// rankRole makes a process of the test binary a rank that trains with the
// optimizer that it names.
const rankRole = "PARALLEL_TEST_RANK"

func TestMain(m *testing.M) {
	if optimizer := os.Getenv(rankRole); optimizer != "" {
		os.Exit(rankMain(optimizer))
	}
	if envvar.Rank.IsSet() {
		fmt.Fprintln(os.Stderr, "a rank must not run the tests")
		os.Exit(4)
	}
	// The ranks of a test are goroutines of one process, and share its cores: each has one thread.
	// What they hold is small, and the most that a collection is for is new.
	if !envvar.NumThreads.IsSet() {
		if err := tensor.SetNumThreads(1); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(400)
	}
	// The threads of the process stay.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/cohort-ml/cohort/internal/work.(*worker).serve"))
}

func rankMain(optimizer string) int {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	err := func() error {
		g, err := dist.Init(ctx)
		if err != nil {
			return err
		}
		if optimizer == killRole {
			return trainUntilKilled(ctx, g)
		}
		if strings.HasPrefix(optimizer, mpiRole) {
			if err := runMPI(ctx, g, optimizer); err != nil {
				return err
			}
			return g.Close()
		}
		m, err := train(ctx, g, optimizer, 50)
		if err != nil {
			return err
		}
		fmt.Println(g.Transport(), digest(m))
		return g.Close()
	}()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
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

// TestProcessesStayEqual: processes get the same bits as each other, and as
// ranks that are goroutines, over shared memory and over TCP.
func TestProcessesStayEqual(t *testing.T) {
	var want string
	err := spawn(t, 2, func(ctx context.Context, g *dist.Group) error {
		m, err := train(ctx, g, "sgd", 50)
		if err == nil && g.Rank() == 0 {
			want = digest(m)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, link := range []string{"shm", "tcp"} {
		t.Run(link, func(t *testing.T) {
			host, port, _ := net.SplitHostPort(freeAddr(t))
			token := transport.NewToken().Text()
			var ranks [2]*exec.Cmd
			var outs, errs [2]bytes.Buffer
			for r := range ranks {
				p := exec.CommandContext(t.Context(), os.Args[0])
				p.Env = append(os.Environ(), rankRole+"=sgd", "GORACE=atexit_sleep_ms=0",
					envvar.Token.Assign(token), envvar.Transport.Assign(link), envvar.NumThreads.Assign("1"),
					envvar.Rank.Assign(strconv.Itoa(r)), envvar.WorldSize.Assign("2"),
					envvar.MasterAddr.Assign(host), envvar.MasterPort.Assign(port))
				p.Stdout, p.Stderr = &outs[r], &errs[r]
				if err := p.Start(); err != nil {
					t.Fatal(err)
				}
				ranks[r] = p
			}
			for r, p := range ranks {
				if err := p.Wait(); err != nil {
					t.Fatalf("rank %d: %v\n%s", r, err, &errs[r])
				}
				if got := strings.TrimSpace(outs[r].String()); got != link+" "+want {
					t.Errorf("rank %d has %q, goroutines have %q", r, got, link+" "+want)
				}
			}
		})
	}
}
