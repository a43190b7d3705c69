// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/internal/envvar"
	"github.com/cohort-ml/cohort/internal/loaded"
	"github.com/cohort-ml/cohort/internal/transport"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// killRole makes a process of the test binary a rank that trains sharded parameters until rank 1
// is killed in the middle of a pass.
const killRole = "killed in a gather"

// dying kills its process in the call of a block.
type dying struct{ block *mazeBlock }

func (i dying) InterceptCall(c *nn.Ctx, module any, x []*tensor.Tensor, next func(*nn.Ctx, []*tensor.Tensor) []*tensor.Tensor) []*tensor.Tensor {
	if module == any(i.block) {
		self, _ := os.FindProcess(os.Getpid()) // which is there
		_ = self.Kill()
		select {}
	}
	return next(c, x)
}

func (dying) InterceptParam(c *nn.Ctx, _ *nn.Parameter, next func(c *nn.Ctx) *tensor.Tensor) *tensor.Tensor {
	return next(c)
}

// trainUntilKilled is the program of such a rank. The others print when and how they end.
func trainUntilKilled(ctx context.Context, g *dist.Group) error {
	m := newMaze(0, g.Rank(), 0, 1, 2)
	f, err := sharded(ctx, g, m, 1)
	if err != nil {
		return err
	}
	in := newBatches(g.Rank(), g.Size(), 5)
	for step := 0; ; step++ {
		c := nn.Training(ctx)
		if step == 3 && g.Rank() == 1 {
			c = c.With(dying{m.Blocks[1]})
		}
		ids, targets := in.next()
		began := time.Now()
		_, err := lossOf(c, f, ids, targets)
		c.Close()
		if err == nil {
			continue
		}
		fmt.Printf("%d %v held: %v\n", time.Since(began).Milliseconds(), err, nothingHeld(f))
		return nil
	}
}

// TestKilledInGather: when a rank's process is killed in the middle of a pass, the others end with
// its name within a second, and hold nothing.
func TestKilledInGather(t *testing.T) {
	const n = 3
	host, port, _ := net.SplitHostPort(freeAddr(t))
	token := transport.NewToken().Text()
	var ranks [n]*exec.Cmd
	var outs, errs [n]bytes.Buffer
	for r := range ranks {
		p := exec.CommandContext(t.Context(), os.Args[0])
		p.Env = append(os.Environ(), rankRole+"="+killRole, "GORACE=atexit_sleep_ms=0",
			envvar.Token.Assign(token), envvar.NumThreads.Assign("1"),
			envvar.Rank.Assign(strconv.Itoa(r)), envvar.WorldSize.Assign(strconv.Itoa(n)),
			envvar.MasterAddr.Assign(host), envvar.MasterPort.Assign(port))
		p.Stdout, p.Stderr = &outs[r], &errs[r]
		if err := p.Start(); err != nil {
			t.Fatal(err)
		}
		ranks[r] = p
	}
	for r, p := range ranks {
		err := p.Wait()
		if r == 1 {
			continue
		}
		if err != nil {
			t.Fatalf("rank %d: %v\n%s%s", r, err, &outs[r], &errs[r])
		}
		millis, said, _ := strings.Cut(strings.TrimSpace(outs[r].String()), " ")
		took, _ := strconv.Atoi(millis)
		if limit := loaded.Allow(time.Second); time.Duration(took)*time.Millisecond > limit ||
			!strings.Contains(said, "fsdp: ") || !strings.Contains(said, "rank 1") || !strings.HasSuffix(said, "held: <nil>") {
			t.Errorf("rank %d ended after %s ms, of at most %v, with %s", r, millis, limit, said)
		}
	}
}
