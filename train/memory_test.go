// SPDX-License-Identifier: Apache-2.0

package train

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/internal/memlimit"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// TestStateKeepsToLimits: what does not fit is refused with the numbers, who sets the limit, and
// the smallest number of shards that fits.
func TestStateKeepsToLimits(t *testing.T) {
	const mb = 1_000_000
	state := modelState{params: 75 * mb, held: 75 * mb, bytes: 1200 * mb, ranks: 4, parts: 1}
	own := bound{memlimit.Limit{Bytes: 500 * mb, Used: 100 * mb, Source: "ulimit"}, 1}
	shared := bound{memlimit.Limit{Bytes: 2500 * mb, Source: "cgroup", Scope: "x"}, 4}
	for _, c := range []struct {
		bounds []bound
		shards int
		want   []string
	}{
		{[]bound{own}, 1, []string{"7.5e+07 parameters", "takes 1200.0 MB on each rank", "there are 500.0 MB, of which 100.0 MB are used (ulimit)", "(--fsdp 4)"}},
		{[]bound{own, shared}, 4, nil},
		{[]bound{shared}, 1, []string{"takes 4800.0 MB on 4 ranks, and there are 2500.0 MB (cgroup)", "over 2 ranks (--fsdp 2)"}},
		{[]bound{{memlimit.Limit{Bytes: 200 * mb, Source: "ulimit"}, 1}}, 1, []string{"(--fsdp 6 --ranks 6)"}},
		{[]bound{{memlimit.Limit{Bytes: 200 * mb, Source: "cgroup", Scope: "x"}, 4}}, 1, []string{"over the ranks of several machines"}},
		{[]bound{{memlimit.Limit{Bytes: 500 * mb, Source: "ulimit", Mapped: true}, 1}}, 2, []string{"takes 750.0 MB on each rank", "(--fsdp 5 --ranks 5)"}},
		{nil, 1, nil},
	} {
		err := state.check(c.bounds, c.shards)
		if (err == nil) != (c.want == nil) {
			t.Errorf("%+v in %d shards: %v", c.bounds, c.shards, err)
		}
		for _, w := range c.want {
			if err == nil || !strings.Contains(err.Error(), w) {
				t.Errorf("%v lacks %q", err, w)
			}
		}
	}
}

// TestStateOfComposedMeshes: the axes tp and pp cut the state of a model, ep that of experts, and
// cp and replicate nothing. What is advised has the ranks of these axes too.
func TestStateOfComposedMeshes(t *testing.T) {
	c := DefaultLM()
	c.Experts = 8
	m := c.newModel(&nn.Build{Device: tensor.Meta}, 300)
	whole := stateOf("lm", m, 1, MeshConfig{})
	experts := float64(c.Layers * c.Experts * 3 * c.Width * c.mixture(300).Hidden)
	for _, c := range []struct {
		mesh MeshConfig
		held float64
	}{
		{MeshConfig{TP: 2, PP: 3}, whole.held / 6},
		{MeshConfig{CP: 2, Replicate: 2}, whole.held},
		{MeshConfig{EP: 4}, whole.held - experts*3/4},
		{MeshConfig{EP: 2, TP: 2}, (whole.held - experts/2) / 2},
	} {
		if s := stateOf("lm", m, 24, c.mesh); s.held != c.held || s.bytes != c.held*adamBytes || s.parts*s.ranks != 24 {
			t.Errorf("%+v: %+v, want %v parameters a rank", c.mesh, s, c.held)
		}
	}
	state := modelState{params: 100, held: 50, bytes: 800e6, ranks: 1, parts: 2}
	want := "(--fsdp 2 --ranks 4)"
	if err := state.check([]bound{{memlimit.Limit{Bytes: 500e6, Source: "ulimit"}, 1}}, 1); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %q", err, want)
	}
}

// TestRanksTellOfMemory: a model that no machine holds is refused on every rank, before any
// memory is taken.
func TestRanksTellOfMemory(t *testing.T) {
	if len(memlimit.Limits()) == 0 {
		t.Skip("nobody says how much memory there is")
	}
	const width = 1 << 20
	model := nn.NewLinear(&nn.Build{Device: tensor.Meta}, width, width)
	err := dist.Spawn(t.Context(), 3, func(ctx context.Context, g *dist.Group) error {
		err := checkRanksMemory(ctx, "lm", model, SharedConfig{}, g)
		if err == nil || !strings.HasPrefix(err.Error(), "train lm: rank 0: out of memory: ") || !strings.Contains(err.Error(), "--fsdp") {
			return fmt.Errorf("rank %d: %v", g.Rank(), err)
		}
		return checkRanksMemory(ctx, "lm", nn.NewLinear(&nn.Build{Device: tensor.Meta}, 3, 3), SharedConfig{}, g)
	})
	if err != nil {
		t.Error(err)
	}
}

// TestAdviceOnMemory: an allocation that fails ends a recipe with an error that says what to do.
func TestAdviceOnMemory(t *testing.T) {
	for name, f := range map[string]func() error{
		"panic": func() error { panic(&tensor.Error{Op: "allocate", Msg: "out of memory"}) },
		"error": func() error { return fmt.Errorf("step: %w", &tensor.Error{Op: "allocate", Msg: "out of memory"}) },
	} {
		if err := withAdvice("lm", f); !errors.Is(err, tensor.ErrOutOfMemory) || !strings.Contains(err.Error(), "(--fsdp)") {
			t.Errorf("%s: %v", name, err)
		}
	}
	other := errors.New("other")
	if err := withAdvice("lm", func() error { return other }); err != other {
		t.Errorf("another error is %v", err)
	}
}
