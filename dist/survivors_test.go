// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/internal/envvar"
	"github.com/cohort-ml/cohort/internal/loaded"
	"github.com/cohort-ml/cohort/tensor"
)

// survive runs collectives until a rank fails, and goes on in a group of the
// others, again and again, until two ranks are left.
func survive(ctx context.Context, g *Group) error {
	world := g
	alive := make([]int, g.Size())
	for r := range alive {
		alive[r] = r
	}
	x := private(tensor.Int64, 20_000)
	for i := 0; ; i++ {
		fill(x, func(int) float64 { return 1 })
		err := g.AllReduce(ctx, x, Sum)
		if err == nil {
			if err := check("the sum of the group", x, func(int) int64 { return int64(len(alive)) }); err != nil {
				return err
			}
			if i == 10 {
				fmt.Printf("ready %d\n", len(alive))
			}
			if i > 10 && len(alive) == 2 {
				return nil
			}
			continue
		}
		var re *RankError
		if !errors.As(err, &re) || !errors.Is(err, ErrDied) && !errors.Is(err, ErrSilent) {
			return err
		}
		for err != nil { // another one may be lost meanwhile
			if !errors.As(err, &re) || !errors.Is(err, ErrDied) && !errors.Is(err, ErrSilent) {
				return err
			}
			fmt.Printf("lost %d: %d ns\n", alive[re.Rank], time.Now().UnixNano())
			alive = slices.Delete(alive, re.Rank, re.Rank+1)
			g, err = world.NewGroup(ctx, alive)
		}
		i = 0
		fmt.Printf("formed %d: %d ns\n", len(alive), time.Now().UnixNano())
	}
}

// survivorSilence is the limit of silence of ranks of which some are stopped.
const survivorSilence = time.Second

// startSurvivors starts n ranks that survive a signal to others of them.
func startSurvivors(t *testing.T, n, kind int, signal syscall.Signal) []*rankProcess {
	t.Helper()
	env := []string{envvar.Transport.Assign(silenceKinds[kind].transport)}
	if signal == syscall.SIGSTOP { // else silence is not the point
		env = append(env, envvar.Silence.Assign(survivorSilence.String()))
	}
	if nodes := silenceKinds[kind].nodes; nodes != "" {
		env = append(env, rankNodes+"="+nodes)
	}
	return startRanks(t, n, "survive", env...)
}

// TestSurvivors kills, or stops, one of the ranks after the other, that with
// the store and the hub first: the others name it and go on in a new group.
func TestSurvivors(t *testing.T) {
	const n = 4
	for i, kind := range silenceKinds {
		for j, how := range []string{"killed", "stopped"} {
			if !*silenceTable && (i%2 != j || i > 0 && i < 3) {
				continue // some of them, to be quick
			}
			signal := []syscall.Signal{syscall.SIGKILL, syscall.SIGSTOP}[j]
			t.Run(kind.name+"/"+how, func(t *testing.T) {
				ps := startSurvivors(t, n, i, signal)
				alive := []int{0, 1, 2, 3}
				for len(alive) > 2 {
					for _, r := range alive {
						ps[r].saidLine(t, fmt.Sprintf("ready %d", len(alive)), 30*time.Second)
					}
					victim := alive[0]
					if len(alive) < n {
						victim = alive[len(alive)-1]
					}
					begun := time.Now()
					if err := ps[victim].cmd.Process.Signal(signal); err != nil {
						t.Fatal(err)
					}
					alive = slices.DeleteFunc(alive, func(r int) bool { return r == victim })
					var told, formed int64
					for _, r := range alive {
						var at int64
						said := ps[r].saidLine(t, fmt.Sprintf("lost %d: ", victim), 10*time.Second)
						if _, err := fmt.Sscan(strings.TrimSuffix(said, " ns"), &at); err != nil {
							t.Fatal(err)
						}
						told = max(told, at)
						said = ps[r].saidLine(t, fmt.Sprintf("formed %d: ", len(alive)), 10*time.Second)
						if _, err := fmt.Sscan(strings.TrimSuffix(said, " ns"), &at); err != nil {
							t.Fatal(err)
						}
						formed = max(formed, at)
					}
					notice, form := time.Duration(told-begun.UnixNano()), time.Duration(formed-told)
					t.Logf("rank %d %s: noticed by all after %v, a group of %d formed %v after that", victim, how,
						notice.Round(100*time.Microsecond), len(alive), form.Round(100*time.Microsecond))
					most := loaded.Allow(time.Second)
					soon := most
					if signal == syscall.SIGSTOP {
						soon += survivorSilence
					}
					if notice > soon || form > most {
						t.Errorf("that is more than %v and %v", soon, most)
					}
				}
				for _, r := range alive {
					if err := ps[r].await(t, 10*time.Second); err != nil {
						t.Errorf("rank %d: %v\n%s", r, err, ps[r].output())
					}
				}
			})
		}
	}
}

// TestSurvivorsOfTwo loses two ranks at once, that with the store and the hub
// among them: the others, who may hear first of the one or of the other, come
// together all the same.
func TestSurvivorsOfTwo(t *testing.T) {
	t.Parallel()
	for i, kind := range silenceKinds {
		for j, signal := range []syscall.Signal{syscall.SIGKILL, syscall.SIGSTOP} {
			if !*silenceTable && (i%2 != j || i > 0 && i < 3) {
				continue // some of them, to be quick
			}
			t.Run(fmt.Sprintf("%s/%v", kind.name, signal), func(t *testing.T) {
				ps := startSurvivors(t, 4, i, signal)
				for _, p := range ps {
					p.saidLine(t, "ready 4", 30*time.Second)
				}
				begun := time.Now()
				for _, r := range []int{0, 3} {
					if err := ps[r].cmd.Process.Signal(signal); err != nil {
						t.Fatal(err)
					}
				}
				formed := begun
				for _, r := range []int{1, 2} {
					var ns int64
					if _, err := fmt.Sscan(strings.TrimSuffix(ps[r].saidLine(t, "formed 2: ", 20*time.Second), " ns"), &ns); err != nil {
						t.Fatal(err)
					}
					if at := time.Unix(0, ns); at.After(formed) {
						formed = at
					}
					if err := ps[r].await(t, 20*time.Second); err != nil {
						t.Errorf("rank %d: %v\n%s", r, err, ps[r].output())
					}
				}
				t.Logf("two ranks went on after %v and ended after %v", formed.Sub(begun).Round(time.Millisecond), time.Since(begun).Round(time.Millisecond))
			})
		}
	}
}
