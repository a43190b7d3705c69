// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"context"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/dist"
)

func init() { roles["lone"] = roleLone }

// roleLone joins whatever job there is, and joins again if it is alone. (A rank among
// others may come a second time before rank 0 has closed the store of the first time.)
func roleLone(string) int {
	for alone, n := true, 0; alone && n < 2; n++ {
		g, err := dist.Init(context.Background())
		if err != nil {
			say("%v", err)
			return 1
		}
		say("ready %d of %d", g.Rank(), g.Size())
		alone = g.Size() == 1
		g.Close()
	}
	return 0
}

// TestTaskOfScheduler: a program that a scheduler has started several times says once that
// each is alone, with and without a launcher of one machine; ranks say nothing.
func TestTaskOfScheduler(t *testing.T) {
	task := []string{"RANK=", "WORLD_SIZE=", "SLURM_PROCID=1", "SLURM_NTASKS=4"}
	const want = "cohort: this is task 1 of 4 by SLURM_PROCID and SLURM_NTASKS, which Cohort does not use: each of them runs alone."
	for role, ranks := range map[string]string{"lone": "0 of 1", `agent:{"NumRanks":2}`: "1 of 2", `agent:{"NumRanks":1,"Joined":true}`: "0 of 1"} {
		p := startProcess(t, role, append(task, "LAUNCH_TEST_WORKER=lone")...)
		code, _ := p.end(t)
		n := 1
		if strings.Contains(role, "Joined") { // with launchers on other machines
			n = 0
		}
		if all := p.out.String() + p.errs.String(); code != 0 || strings.Count(all, want) != n || strings.Count(all, "by SLURM_PROCID") != n || !strings.Contains(all, ranks) {
			t.Errorf("%s: code %d\n%s", role, code, all)
		}
	}
	p := startProcess(t, "lone", "RANK=", "WORLD_SIZE=", "SLURM_PROCID=0", "SLURM_NTASKS=1")
	if code, _ := p.end(t); code != 0 || p.errs.String() != "" {
		t.Errorf("one task: code %d, %s", code, p.errs.String())
	}
}
