// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/internal/envvar"
	"github.com/cohort-ml/cohort/tensor"
)

// afterOutage is in what call ranks have seen an outage, fewTries is how often systems
// try a line before they give it up where that is to come soon.
const (
	afterOutage = DefaultSilence / 2
	fewTries    = 8
)

// outlast is at rest for a while, where it is told for how long, and runs collectives
// until one has taken as long as an outage, and one more. Then it waits for its end.
func outlast(ctx context.Context, g *Group) error {
	x := filled(tensor.Float32, 50_000, 0)
	agreed := time.Now() // when the ranks last began to agree on whether they have seen the outage
	for i := 0; ; i++ {
		if i == 10 {
			agreed = time.Now()
			fmt.Println("ready")
			if long, err := time.ParseDuration(os.Getenv(busyFor)); err == nil {
				time.Sleep(long)
			}
		}
		if err := g.AllReduce(ctx, x, Max); err != nil {
			fmt.Printf("over: %v\n", err)
			return err
		}
		seen := []int64{0}
		if i >= 10 && time.Since(agreed) > afterOutage {
			seen[0] = 1
		}
		agreed = time.Now()
		all, err := g.gatherNumbers(ctx, agreed, seen...)
		if err != nil {
			fmt.Printf("over: %v\n", err)
			return err
		}
		for _, s := range all {
			if s != 0 {
				fmt.Println("over: outlasted")
				select {} // who left now might do so before its last data had come to the others
			}
		}
	}
}

// TestOutage cuts lines for a little less than the silence limit: nobody is given up for
// the time for which the system pauses before it tries a line again, nor, where the limit is long,
// because the system gives the line up.
func TestOutage(t *testing.T) {
	for _, tc := range []struct {
		name  string
		ports []int
		rest  time.Duration
		limit time.Duration
	}{
		{"a rank", []int{2}, 0, DefaultSilence},
		{"the hub", []int{0}, 0, DefaultSilence},
		{"the hub of ranks at rest", []int{0}, 2 * DefaultSilence, DefaultSilence},
		{"between two", []int{1, 2}, 0, DefaultSilence},
		{"between two after a rest", []int{1, 2}, DefaultSilence / 2, DefaultSilence},
		{"the hub for long", []int{0}, 0, 4 * DefaultSilence},
	} {
		for _, kind := range []string{"tcp", "tls"} {
			if !*silenceTable && (kind == "tls" || tc.name == "a rank") {
				continue // to be quick
			}
			t.Run(tc.name+"/"+kind, func(t *testing.T) {
				t.Parallel() // most of it is waiting
				m := newMachines(t, 3)
				if tc.limit > DefaultSilence {
					m.tune(t, "net/ipv4/tcp_retries2", strconv.Itoa(fewTries))
				}
				env := []string{envvar.MasterAddr.Assign(m.addr(0)), envvar.MasterPort.Assign("29500"), rankNodes + "=abc",
					envvar.Transport.Assign(kind), envvar.Silence.Assign(tc.limit.String())}
				if tc.rest > 0 {
					env = append(env, busyFor+"="+tc.rest.String())
				}
				ps := startRanksBy(t, 3, "outage", m.enter, env...)
				for _, p := range ps {
					p.saidLine(t, "ready", time.Minute)
				}
				begun := time.Now()
				m.cut(t, tc.ports...)
				over := time.NewTimer(tc.limit * 9 / 10)
				<-over.C
				m.mend(t, tc.ports...)
				if took := time.Since(begun); took >= tc.limit {
					t.Skipf("the lines were cut for %v: this machine has too much else to do", took)
				}
				for r, p := range ps {
					if said := p.saidLine(t, "over: ", time.Minute); said != "outlasted" {
						t.Errorf("rank %d: %s", r, said)
					}
				}
			})
		}
	}
}
