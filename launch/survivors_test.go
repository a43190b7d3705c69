// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"context"
	"errors"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/tensor"
)

// roleSurvive makes all-reduces; rank 2 sends itself the signal that arg names
// after the third, and the others go on in a group of their own for longer than
// FailGrace. With "+fail", rank 1 ends badly after rank 0 has ended well; with "+wait"
// both wait to be ended.
func roleSurvive(arg string) int {
	how, then, _ := strings.Cut(arg, "+")
	sig := map[string]syscall.Signal{"kill": syscall.SIGKILL, "stop": syscall.SIGSTOP}[how]
	code := ExitCode(Spawn(context.Background(), 0, dist.Main(func(ctx context.Context, world *dist.Group) error {
		x := tensor.Full(1, 1)
		var lost *dist.RankError
		for i := 0; ; i++ {
			if i == 3 && world.Rank() == 2 {
				_ = syscall.Kill(os.Getpid(), sig)
			}
			err := world.AllReduce(ctx, x, dist.Sum)
			if errors.As(err, &lost) {
				break
			}
			if err != nil {
				return err
			}
		}
		g, err := world.NewGroup(ctx, []int{0, 1})
		if err != nil {
			return err
		}
		if then == "wait" {
			<-ctx.Done()
			return context.Cause(ctx)
		}
		for range 30 {
			if err := g.Barrier(ctx); err != nil {
				return err
			}
			time.Sleep(10 * time.Millisecond)
		}
		if g.Rank() == 0 {
			say("went on without rank %d", lost.Rank)
		}
		if then == "fail" && g.Rank() == 1 {
			time.Sleep(1200 * time.Millisecond) // until rank 0 has ended
			return errors.New("the disk is full")
		}
		return nil
	})))
	return code
}

// TestSurvivors: ranks that are left make a new group and go on, and the job
// ends as they do; without the option it ends with the first.
func TestSurvivors(t *testing.T) {
	for _, tc := range []struct {
		arg, config string
		code        int
		want        []string
	}{
		{"kill", `,"Survivors":true`, 0, []string{"ended well without 1 of its 3 ranks: rank 2 was killed by SIGKILL, and the others went on", "all of it: cohort recorder"}},
		{"stop", `,"Survivors":true`, 0, []string{"ended well without 1 of its 3 ranks", "stopped: rank 2", "had been stopped (SIGSTOP)"}},
		{"kill+fail", `,"Survivors":true`, 1, []string{"rank 2", "failed: rank", "rank 1", "the disk is full"}},
		{"kill+wait", "", 1, []string{"failed: rank 2 was killed by SIGKILL"}},
	} {
		t.Run(tc.arg+tc.config, func(t *testing.T) {
			t.Parallel()
			if tc.arg == "stop" && runtime.GOOS != "linux" {
				t.Skip("who is stopped is known on Linux only")
			}
			a := startProcess(t, `agent:{"NumRanks":3,"FailGrace":50000000`+tc.config+`}`,
				"LAUNCH_TEST_WORKER=survive:"+tc.arg, "TMPDIR="+t.TempDir(), "COHORT_SILENCE=1s")
			code, _ := a.end(t)
			text := a.errs.String()
			if code != tc.code {
				t.Errorf("exit code %d, want %d:\n%s", code, tc.code, text)
			}
			if went := strings.Contains(a.out.String(), "went on without rank 2"); went != (tc.config != "") {
				t.Errorf("the others went on: %v\n%s", went, text)
			}
			for _, want := range tc.want {
				if !strings.Contains(text, want) {
					t.Errorf("the report does not say %q:\n%s", want, text)
				}
			}
		})
	}
}
