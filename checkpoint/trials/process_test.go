// SPDX-License-Identifier: Apache-2.0

package trials

import (
	"bufio"
	"bytes"
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/checkpoint/storage"
	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/dist/mesh"
	"github.com/cohort-ml/cohort/internal/envvar"
	"github.com/cohort-ml/cohort/internal/seeded"
	"github.com/cohort-ml/cohort/internal/transport"
)

var savesInto = flag.String("saves-into", "", "be a rank of TestKill, which saves into this directory until it is killed")

func TestMain(m *testing.M) {
	flag.Parse()
	if *savesInto != "" {
		if err := saveForever(*savesInto); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	// The threads of the process stay.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/cohort-ml/cohort/internal/work.(*worker).serve"))
}

// ofStep returns the tensors of a step of TestKill. The first ones are frozen.
func ofStep(step int) []tensorDraw {
	frozen := optimizerOf(0, []int{256, 128})
	for i := range frozen {
		frozen[i].frozen, frozen[i].name = frozen[i].section == checkpoint.Model, "frozen."+frozen[i].name
	}
	frozen = append(frozen, optimizerOf(uint64(step), []int{333, 64}, []int{33}, []int{1009, 3})...)
	for i := range frozen {
		if !frozen[i].frozen {
			frozen[i].data[0] = byte(step)
		}
	}
	return frozen
}

// saveForever is a rank that saves a step after the other. Rank 0 says which ones are there.
func saveForever(path string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	g, err := dist.Init(ctx)
	if err != nil {
		return err
	}
	m, err := mesh.New(ctx, g, mesh.Axis{Name: "fsdp", Size: g.Size()})
	if err != nil {
		return err
	}
	async := strings.HasSuffix(path, "async")
	s, err := checkpoint.NewSaver(ctx, g, storage.Dir(path), checkpoint.SaverOptions{Async: async, Keep: checkpoint.Retention{Last: 2}})
	if err != nil {
		return err
	}
	for step := 1; ; step++ {
		draws := ofStep(step)
		h, err := hold(draws, liesAs(draws, mesh.Shard(0)), m, true)
		if err != nil {
			return err
		}
		if _, err := s.Save(ctx, step, checkpoint.State{Sections: h.sections(), Values: map[string]any{"step": step}}); err != nil {
			return err
		}
		if err := s.Wait(ctx); err != nil {
			return err
		}
		if g.Rank() == 0 {
			fmt.Println(step)
		}
	}
}

// TestKill kills one process or all processes of a job by SIGKILL while they save. The other
// ones end with an error. The newest checkpoint is whole, and not older than the last one that
// the job has said to be there.
//
//	go test ./checkpoint/trials -run TestKill -trials 200 -v
func TestKill(t *testing.T) {
	seed := seeded.Of(t)
	count := make(map[string]int)
	trials(t, 6, func(i int) error {
		r := rand.New(rand.NewPCG(seed, uint64(i)))
		n, how := 1+r.IntN(3), pick(r, "sync", "async")
		victim := -1 // all
		if n > 1 && chance(r, 0.6) {
			victim = r.IntN(n)
		}
		what, err := killJob(t, filepath.Join(t.TempDir(), how), n, victim, time.Duration(r.IntN(60_000))*time.Microsecond)
		count[what]++
		if err != nil {
			return fmt.Errorf("%d ranks, %s, rank %d is killed (-1: all): %w", n, how, victim, err)
		}
		return nil
	})
	for _, what := range sortedKeys(count) {
		t.Logf("%5d %s", count[what], what)
	}
}

// killJob starts n ranks, and kills one or all some time after the first checkpoint.
func killJob(t *testing.T, path string, n, victim int, after time.Duration) (what string, err error) {
	port, err := transport.HoldPort("127.0.0.1")
	if err != nil {
		return "", err
	}
	defer port.Close()
	host, number, err := net.SplitHostPort(port.Addr())
	if err != nil {
		return "", err
	}
	token := transport.NewToken().Text()
	ranks, errs := make([]*exec.Cmd, n), make([]bytes.Buffer, n)
	defer func() {
		for _, p := range ranks {
			if p != nil && p.ProcessState == nil {
				p.Process.Kill()
				p.Wait()
			}
		}
	}()
	var out *bufio.Scanner
	for r := range ranks {
		p := exec.CommandContext(t.Context(), os.Args[0], "-saves-into", path)
		p.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=0",
			envvar.Token.Assign(token), envvar.NumThreads.Assign("1"), envvar.Rank.Assign(strconv.Itoa(r)), envvar.WorldSize.Assign(strconv.Itoa(n)),
			envvar.MasterAddr.Assign(host), envvar.MasterPort.Assign(number))
		p.Stderr = &errs[r]
		if r == 0 {
			pipe, err := p.StdoutPipe()
			if err != nil {
				return "", err
			}
			out = bufio.NewScanner(pipe)
		}
		if err := p.Start(); err != nil {
			return "", err
		}
		ranks[r] = p
	}
	last := 0
	for out.Scan() {
		if _, err := fmt.Sscan(out.Text(), &last); err != nil {
			return "", fmt.Errorf("rank 0 says %q", out.Text())
		}
		if last != 1 {
			continue
		}
		// The moment counts from the first checkpoint, so that there is one however slow the
		// machine is.
		time.AfterFunc(after, func() {
			for r, p := range ranks {
				if victim < 0 || r == victim {
					p.Process.Kill()
				}
			}
		})
	}
	for r, p := range ranks {
		err := p.Wait()
		isVictim := victim < 0 || r == victim
		switch wasKilled := p.ProcessState.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL; {
		case isVictim != wasKilled:
			return "", fmt.Errorf("rank %d ended with %w: %s", r, err, &errs[r])
		case !isVictim && !strings.Contains(errs[r].String(), fmt.Sprint("rank ", victim)):
			return "", fmt.Errorf("rank %d does not name the rank that was killed: %s", r, &errs[r])
		}
	}
	return checkKilled(t.Context(), path, last)
}

// checkKilled looks at what a job has left, which said that the step last is there.
func checkKilled(ctx context.Context, path string, last int) (what string, err error) {
	dir := storage.Dir(path)
	left, err := filepath.Glob(filepath.Join(path, "*.tmp-*"))
	if err != nil {
		return "", err
	}
	what = fmt.Sprintf("%d stages left", len(left))
	c, err := checkpoint.Open(ctx, dir, "")
	if err == nil {
		err = c.Verify(ctx, nil)
	}
	if err != nil {
		return what, err
	}
	draws := ofStep(c.Step)
	h, err := hold(draws, make([]lie, len(draws)), nil, false)
	if err != nil {
		return what, err
	}
	at := 0
	s := checkpoint.State{Sections: h.sections(), Values: map[string]any{"step": &at}}
	step, err := checkpoint.Load(ctx, nil, dir, s)
	if err != nil || step != c.Step || at != step || step < last {
		return what, fmt.Errorf("step %d of %d is loaded, with the value %d; the job had said that step %d is there: %w", step, c.Step, at, last, err)
	}
	if err := h.compare(); err != nil {
		return what, err
	}
	s.Values = map[string]any{"step": step + 1}
	if err := checkpoint.Save(ctx, nil, dir, step+1, s); err != nil {
		return what, err
	}
	if left, err = filepath.Glob(filepath.Join(path, "*.tmp-*")); err != nil || len(left) > 0 {
		return what, fmt.Errorf("the next save leaves %v: %w", left, err)
	}
	return what, nil
}
