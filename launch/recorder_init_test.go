// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"context"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/dist"
)

// roleLate forms a group, to which rank 1 does not come.
func roleLate(string) int {
	say("ready")
	if rank() == "1" {
		time.Sleep(time.Minute)
	}
	return ExitCode(Spawn(context.Background(), 0, dist.Main(func(context.Context, *dist.Group) error { return nil })))
}

// TestRecordersWhileForming: who does not come to dist.Init is named too.
func TestRecordersWhileForming(t *testing.T) {
	a := startProcess(t, `agent:{"NumRanks":3}`, "LAUNCH_TEST_WORKER=late", "TMPDIR="+t.TempDir())
	a.out.await(t, 3, "ready")
	eventually(t, func() string {
		_ = a.Process.Signal(syscall.SIGUSR1)
		time.Sleep(20 * time.Millisecond)
		if !strings.Contains(a.errs.String(), "cohort: ranks 0, 2 of 3 wait in Init for rank 1\n") {
			return "rank 1 is not named:\n" + a.errs.String()
		}
		return ""
	})
	if want := regexp.MustCompile(`(?m)^cohort: rank 1 \(pid \d+\) does not answer(: it has not called dist\.Init.*)?$`); !want.MatchString(a.errs.String()) {
		t.Errorf("the standard error has no %s:\n%s", want, a.errs.String())
	}
	_ = a.Process.Signal(syscall.SIGINT)
	a.end(t)
}
