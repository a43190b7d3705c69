// SPDX-License-Identifier: Apache-2.0

package train

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/dist/mesh"
	"github.com/cohort-ml/cohort/dist/store"
	"github.com/cohort-ml/cohort/parallel"
	"github.com/cohort-ml/cohort/parallel/islands"
)

// IslandConfig has the settings of a run on islands that a slow link joins. Each island is a run of
// its own with the ranks, samples and directory that its settings say, and the islands exchange
// what they have learned now and then.
type IslandConfig struct {
	DiLoCo    int    `json:"diloco" run:"fixed" group:"Islands" usage:"exchange what islands have learned every {N} steps, and train alone in between (DiLoCo); train lm then has a longer --warmup by default; 0: there are no islands"`
	Islands   int    `json:"islands" run:"fixed" usage:"number of islands"`
	Island    int    `json:"island" run:"fixed" usage:"number of this island, from 0 to --islands - 1"`
	IslandsAt string `json:"-" flag:"islands-at" run:"here" usage:"{HOST:PORT} where the islands meet: that of a cohort store --wire cohort, whose token COHORT_TOKEN has"`

	DiLoCoFragments int     `json:"diloco_fragments" flag:"diloco-fragments" run:"fixed" usage:"parts of the model that are exchanged one after the other; divides --diloco"`
	DiLoCoDelay     int     `json:"diloco_delay" flag:"diloco-delay" usage:"steps after which an exchange is taken, or once it is over if that takes longer; at most --diloco / --diloco-fragments; 0: a fifth of that"`
	DiLoCoLR        float64 `json:"diloco_lr" flag:"diloco-lr" usage:"learning rate of the outer optimizer"`
	DiLoCoMomentum  float64 `json:"diloco_momentum" flag:"diloco-momentum" usage:"Nesterov momentum of the outer optimizer"`
	DiLoCoSilence   float64 `json:"diloco_silence" flag:"diloco-silence" run:"here" usage:"{SECONDS} without a sign of life after which the others go on without an island"`
}

// islandDefaults returns the defaults of these settings.
func islandDefaults() IslandConfig {
	return IslandConfig{DiLoCoFragments: 1, DiLoCoLR: parallel.DefaultOuterLR, DiLoCoMomentum: parallel.DefaultOuterMomentum, DiLoCoSilence: islands.DefaultSilence.Seconds()}
}

// validateIslands reports the first of these settings that makes no sense.
func (c SharedConfig) validateIslands(task string) error {
	fail := func(format string, args ...any) error {
		return fmt.Errorf("train %s: %s", task, fmt.Sprintf(format, args...))
	}
	if c.DiLoCo == 0 {
		if c.Islands != 0 || c.Island != 0 || c.IslandsAt != "" {
			return fail("--islands, --island and --islands-at are for islands: give --diloco too, the number of steps between exchanges")
		}
		return nil
	}
	if c.Islands == 0 {
		return fail("--diloco needs --islands, the number of islands, and --island, the number of this one from 0 on")
	}
	if err := checkWholes(task, []whole{
		{"diloco", c.DiLoCo, 1, 1 << 30}, {"islands", c.Islands, 1, 1 << 10}, {"island", c.Island, 0, c.Islands - 1}, {"diloco-fragments", c.DiLoCoFragments, 1, c.DiLoCo},
	}); err != nil {
		return err
	}
	if c.DiLoCo%c.DiLoCoFragments != 0 {
		return fail("--diloco is %d and --diloco-fragments %d: a fragment is exchanged every %d / %d steps, which must be a whole number", c.DiLoCo, c.DiLoCoFragments, c.DiLoCo, c.DiLoCoFragments)
	}
	if err := checkWholes(task, []whole{{"diloco-delay", c.DiLoCoDelay, 0, c.DiLoCo / c.DiLoCoFragments}}); err != nil {
		return err
	}
	if err := checkNumbers(task, []number{
		{"diloco-lr", c.DiLoCoLR, c.DiLoCoLR > 0 && c.DiLoCoLR <= 10, "a number above 0, at most 10"},
		{"diloco-momentum", c.DiLoCoMomentum, c.DiLoCoMomentum >= 0 && c.DiLoCoMomentum < 1, "a number from 0 to below 1"},
		{"diloco-silence", c.DiLoCoSilence, c.DiLoCoSilence >= 0.1 && c.DiLoCoSilence < 1<<20, "a number of seconds from 0.1 on"},
	}); err != nil {
		return err
	}
	switch {
	case c.IslandsAt == "":
		return fail("--diloco needs --islands-at, the HOST:PORT of a store in which the islands meet: run cohort store --wire cohort on a machine that all islands reach")
	case !isAddress(c.IslandsAt):
		return fail("--islands-at is %q: want the HOST:PORT of a store, such as 10.0.0.1:29500", c.IslandsAt)
	case c.isComposed():
		return fail("--diloco is given with --%s: an island has replicas or --fsdp; leave --%s out", c.composed(), c.composed())
	case c.ZeRO1:
		return fail("--diloco is given with --zero1: an island has replicas with the whole state of the optimizer, or --fsdp, which divides it; leave --zero1 out")
	case c.Hook != "":
		return fail("--diloco is given with --hook: the ranks of an island have a fast network among them; leave --hook out")
	case c.Patience > 0:
		return fail("--diloco is given with --patience: the islands end together, so leave --patience out")
	case c.Prove:
		return fail("--diloco is given with --prove: a step of an island also depends on the others, so a proof cannot do it again; leave --prove out")
	}
	return nil
}

// isAddress reports whether a store can be served at an address.
func isAddress(at string) bool {
	if path, unix := strings.CutPrefix(at, "unix:"); unix {
		return path != ""
	}
	_, port, err := net.SplitHostPort(at)
	n, notNumber := strconv.ParseUint(port, 10, 16)
	return err == nil && notNumber == nil && n > 0
}

// checkIslandSteps refuses a number of steps that exchanges do not fit.
func (c IslandConfig) checkIslandSteps(task string, steps int) error {
	if c.DiLoCo > 0 && steps%c.DiLoCo != 0 {
		return fmt.Errorf("train %s: --diloco is %d, which does not divide the %d steps of the run: the last %d steps would count less than the others; change one of them, such as --steps %d",
			task, c.DiLoCo, steps, steps%c.DiLoCo, (steps/c.DiLoCo+1)*c.DiLoCo)
	}
	return nil
}

// islandWarmup is the share of the steps in which the learning rate of islands rises, by default. A
// step of an island has fewer samples than one of all ranks together, and what islands learn is averaged
// only after many steps: the recipe's rate comes too early for them after 0.05 (docs/data-parallel.md).
const islandWarmup = 0.2

// dataSeed is the seed of the order of the samples: each island has its own.
func (c SharedConfig) dataSeed() int64 { return c.Seed + int64(c.Island)*1_000_003 }

// onIslands makes the strategy of an island out of what spreads the model over its ranks. steps is
// the number of steps of the run.
func onIslands(c SharedConfig, steps int, spread func(ctx context.Context, model any, axes Axes) (parallel.Strategy, error)) func(ctx context.Context, model any, axes Axes) (parallel.Strategy, error) {
	return func(ctx context.Context, model any, axes Axes) (parallel.Strategy, error) {
		var inner parallel.Strategy
		var err error
		switch {
		case spread != nil:
			inner, err = spread(ctx, model, axes)
		case axes.World.Size() == 1:
			inner, err = parallel.NewSingle(model)
		default:
			inner, err = parallel.NewDDP(ctx, model, axes.Data)
		}
		if err != nil {
			return nil, err
		}
		momentum := c.DiLoCoMomentum
		if momentum == 0 {
			momentum = -1
		}
		// Each rank has a connection, because ranks with shards exchange their own.
		phaseOf(ctx).enter("reaching the store of the islands at %s (--islands-at)", c.IslandsAt)
		s, err := store.Dial(ctx, c.IslandsAt, "")
		if err != nil {
			return nil, settled(fmt.Errorf("--islands-at: %w", err))
		}
		phaseOf(ctx).enter("joining the ranks")
		d, err := parallel.NewDiLoCo(inner, axes.World, parallel.DiLoCoOptions{
			Every: c.DiLoCo, Steps: steps, Fragments: c.DiLoCoFragments, Delay: c.DiLoCoDelay, LR: c.DiLoCoLR, Momentum: momentum,
			Islands: islands.Config{Store: s, Island: c.Island, Islands: c.Islands, Silence: time.Duration(c.DiLoCoSilence * float64(time.Second)), OnWait: phaseOf(ctx).tellWait},
		})
		if err != nil {
			_ = s.Close()
			return nil, settled(err)
		}
		d.OnClose(func() { _ = s.Close() })
		return d, nil
	}
}

// outerSection has what an island keeps for the outer optimizer.
const outerSection = "outer"

// joinIslands takes note that the model trains on islands.
func (r *trainer[B]) joinIslands() error {
	d, ok := r.model.(*parallel.DiLoCo)
	if !ok {
		return nil
	}
	r.islands = d
	if every := d.Every(); r.o.Steps%every != 0 {
		return settled(r.errorf("islands exchange every %d steps, which does not divide the %d steps of the run: change one of them", every, r.o.Steps))
	}
	var members []int
	d.OnExchange(func(x parallel.Exchange) {
		if text := tookPart(x, members, d.Islands()); text != "" {
			r.report.Notice(text)
		}
		members = slices.Clone(x.Members)
		if len(x.Late) > 0 {
			r.report.Notice(fmt.Sprintf("exchange %d went on without %s, which did not come in time", x.Number, countIslands(x.Late)))
		}
	})
	return nil
}

// tookPart says which islands took part in an exchange, if others than before did; at first, if not
// all of them. before is nil at first.
func tookPart(x parallel.Exchange, before []int, islands int) string {
	switch {
	case before == nil && len(x.Members) < islands:
		return fmt.Sprintf("exchange %d: %s took part, of %d", x.Number, countIslands(x.Members), islands)
	case before != nil && !slices.Equal(before, x.Members):
		return fmt.Sprintf("exchange %d: %s took part, before %s", x.Number, countIslands(x.Members), countIslands(before))
	}
	return ""
}

// countIslands names islands: "islands 0, 2".
func countIslands(who []int) string {
	return plural(len(who), "island") + " " + strings.Trim(strings.ReplaceAll(fmt.Sprint(who), " ", ", "), "[]")
}

// outerParts returns what a checkpoint has of the outer optimizer, nil without islands.
func (r *trainer[B]) outerParts() []checkpoint.Part {
	if r.islands == nil {
		return nil
	}
	params, at := residences(r.model)
	of := make(map[string]residence)
	for i, p := range params {
		of[p.Name()] = at[i]
	}
	var parts []checkpoint.Part
	for _, t := range r.islands.OuterState() {
		_, name, _ := strings.Cut(t.Name, ".")
		p := of[name]
		if name == "" {
			p.Layout = mesh.Layout{}
		}
		parts = append(parts, part(t, p))
	}
	return parts
}

// savedOuter returns outerParts if a checkpoint has them. If it has none, it says that the outer
// optimizer begins anew.
func (r *trainer[B]) savedOuter(ck *checkpoint.Checkpoint) []checkpoint.Part {
	parts := r.outerParts()
	if parts == nil {
		return nil
	}
	if _, err := ck.Source(outerSection); err != nil {
		r.tellOuterAnew(ck.Step, "has no state of it")
		return nil
	}
	return parts
}

// tellOuterAnew says why the outer optimizer does not go on from the checkpoint of a step.
func (r *trainer[B]) tellOuterAnew(step int, why string) {
	r.report.Notice(fmt.Sprintf("the outer optimizer of the islands begins anew: the checkpoint of step %d %s", step, why))
}

// exchange tells the other islands of a step, and hears of theirs. The last step ends the exchanges.
func (r *trainer[B]) exchange(ctx context.Context) error {
	if r.islands == nil {
		return nil
	}
	err := r.islands.Updated(ctx)
	if err == nil && r.step == r.o.Steps {
		if err = r.islands.Finish(ctx); err == nil {
			r.tellIslands()
		}
	}
	if err != nil {
		return r.errorf("after step %d: %w", r.step, err)
	}
	return nil
}

// settleIslands takes the exchange that is under way, before the state is saved.
func (r *trainer[B]) settleIslands(ctx context.Context) error {
	if r.islands == nil {
		return nil
	}
	if err := r.islands.Settle(ctx); err != nil {
		return r.errorf("after step %d: %w", r.step, err)
	}
	return nil
}

// tellIslands says what the exchanges have cost.
func (r *trainer[B]) tellIslands() {
	s, took := r.islands.Stats(), time.Since(r.islandsBegun)
	r.report.Notice(fmt.Sprintf("%d exchanges with other islands: rank 0 sent %.1f MB and received %.1f MB, and stood still for %.1f s of %.1f s (computed %.1f %% of the time)",
		s.Exchanges, float64(s.SentBytes)/1e6, float64(s.ReceivedBytes)/1e6, s.Waited.Seconds(), took.Seconds(), 100*(1-s.Waited.Seconds()/took.Seconds())))
}

// closeIslands ends what is under way. An island that was stopped says so: the others need not wait.
func (r *trainer[B]) closeIslands(ctx context.Context) {
	if r.islands == nil {
		return
	}
	if r.step < r.o.Steps && r.islands.Stats().Exchanges > 0 {
		r.tellIslands()
	}
	if err := r.islands.Leave(context.WithoutCancel(ctx)); err != nil {
		r.report.Notice(err.Error())
	}
	r.islands.Close()
}
