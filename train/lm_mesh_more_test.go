// SPDX-License-Identifier: Apache-2.0

package train

import (
	"context"
	"errors"
	"fmt"
	"github.com/cohort-ml/cohort/checkpoint/storage"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/dist"
)

// TestMeshesCompute: recomputation and bfloat16 on composed meshes have the losses of one rank.
func TestMeshesCompute(t *testing.T) {
	text := writeText(t, 40_000)
	for _, way := range []struct {
		dtype     string
		recompute bool
		tolerance float64
	}{{"float32", true, 1e-5}, {"bfloat16", false, 2e-2}, {"bfloat16", true, 2e-2}} {
		for kind, meshes := range map[string][]string{"gpt2": {"tp2", "pp2", "cp2", "pp2.fsdp2.tp2"}, "moe": {"ep2", "pp2.ep2"}} {
			c := kindOn(t, kind, text)
			c.DType, c.Recompute, c.Steps, c.Layers = way.dtype, way.recompute, 3, 2
			one, err := run(t, 1, c)
			if err != nil {
				t.Fatal(err)
			}
			for _, name := range meshes {
				t.Run(fmt.Sprintf("%s %v %s %s", way.dtype, way.recompute, kind, name), func(t *testing.T) {
					d, ranks := onMesh(t, c, name)
					d.Out += name
					l, err := run(t, ranks, d)
					if err != nil {
						t.Fatal(err)
					}
					closeTo(t, "losses", l.losses, one.losses, way.tolerance)
					closeTo(t, "evaluations", l.evaluations, one.evaluations, way.tolerance)
				})
			}
		}
	}
}

// TestTuneOnMeshes: a model is fine-tuned on a composed mesh, of which each rank reads its part
// only, and --lora is refused by name with ep.
func TestTuneOnMeshes(t *testing.T) {
	text := writeText(t, 20_000)
	for kind, meshes := range map[string][]string{"gpt2": {"tp2", "pp2.fsdp2"}, "llama": {"pp2.tp2", "cp2"}, "moe": {"ep2", "pp2"}} {
		base := kindOn(t, kind, text)
		base.Layers, base.Steps = 2, 2
		if _, err := run(t, 1, base); err != nil {
			t.Fatal(err)
		}
		c := base
		c.InitFrom, c.Out, c.Model, c.Steps = checkpoint.Path(base.Out, 2), base.Out+"-tuned", "", 3
		c.Experts, c.SharedExperts = 0, 0
		c.Vocab, c.Width, c.Heads, c.Layers = 0, 0, 0, 0
		given := []string{"init-from", "out", "steps", "batch", "context", "lr", "save-every", "eval-every", "eval-tokens"}
		one, err := run(t, 1, c, given...)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range meshes {
			t.Run(kind+" "+name, func(t *testing.T) {
				d, ranks := onMesh(t, c, name)
				d.Out += name
				l, err := run(t, ranks, d, given...)
				if err != nil {
					t.Fatal(err)
				}
				closeTo(t, "losses", l.losses, one.losses, 1e-5)
				d.LoRA, d.Ranks = 2, ranks
				if err := check(t, d, given...); d.EP > 1 && (err == nil || !strings.Contains(err.Error(), "--lora trains matrices beside the weights, which the axis ")) {
					t.Errorf("--lora: %v", err)
				}
			})
		}
	}
}

// TestAdaptersOnMeshes: a LoRA is trained on stages, on parts of sequences and on parts of layers as
// on one rank, and goes on on another mesh.
func TestAdaptersOnMeshes(t *testing.T) {
	text := writeText(t, 20_000)
	base := kindOn(t, "llama", text)
	base.Layers, base.Steps = 2, 2
	if _, err := run(t, 1, base); err != nil {
		t.Fatal(err)
	}
	c := base
	c.InitFrom, c.Out, c.Model, c.Steps, c.LoRA, c.Warmup, c.LRFloor = base.Out, base.Out+"-lora", "", 8, 2, 0, 1
	c.Vocab, c.Width, c.Heads, c.Layers = 0, 0, 0, 0
	given := []string{"init-from", "out", "steps", "batch", "context", "lr", "save-every", "eval-every", "eval-tokens", "lora", "warmup", "lr-floor"}
	one, err := run(t, 1, c, given...)
	if err != nil {
		t.Fatal(err)
	}
	for i, name := range []string{"pp2", "tp2", "cp2", "tp2.fsdp2"} {
		d, ranks := onMesh(t, c, name)
		d.Out, d.Steps = c.Out+"-moved", 2*(i+1)
		l, err := run(t, ranks, d, slices.DeleteFunc(slices.Clone(given), func(name string) bool { return name == "batch" })...)
		if err != nil {
			t.Fatal(name, err)
		}
		closeTo(t, name, l.losses, one.losses, 1e-5)
	}
	if _, err := Eval(t.Context(), storage.Dir(c.Out+"-moved"), EvalOptions{}, noNotice(t)); err != nil {
		t.Error(err)
	}
}

// TestNaNOnMeshes: where a parameter that one rank has is not finite, all ranks end with an error
// that names it, or leave the step out.
func TestNaNOnMeshes(t *testing.T) {
	text := writeText(t, 20_000)
	for _, name := range []string{"tp2", "pp2", "pp2.fsdp2"} {
		for _, policy := range []string{nanStop, nanSkip} {
			t.Run(name+" "+policy, func(t *testing.T) {
				c := layered(t, text)
				c.NaN, c.LR, c.Clip, c.Warmup = policy, 1e30, 0, 0
				d, ranks := onMesh(t, c, name)
				l, err := run(t, ranks, d)
				bad := (*NonFiniteError)(nil)
				if !errors.As(err, &bad) && policy == nanStop {
					t.Fatalf("no step fails: %v, losses %v", err, l.losses)
				}
				if policy == nanSkip && (err == nil || l.skipped[len(l.skipped)-1] == 0) && !errors.As(err, &bad) {
					t.Errorf("%v, skipped %v", err, l.skipped)
				}
				if bad != nil && len(bad.Values)+len(bad.Grads) == 0 && !math.IsNaN(bad.Loss) {
					t.Errorf("%v names nothing", bad)
				}
				if bad != nil && policy == nanStop {
					named := slices.Concat(bad.Values, bad.Grads)
					for _, of := range []string{"transformer.h.0.", "transformer.h.3."} { // of both stages
						if !slices.ContainsFunc(named, func(n string) bool { return strings.HasPrefix(n, of) }) {
							t.Errorf("%s is not named by %v", of, bad)
						}
					}
				}
			})
		}
	}
}

// TestUnevenMeshes: a run whose samples ranks cannot share evenly goes on on a composed mesh.
func TestUnevenMeshes(t *testing.T) {
	text := writeText(t, 20_000)
	c := layered(t, text)
	c.Batch, c.Warmup, c.LRFloor = 8, 0, 1
	one, err := run(t, 1, c)
	if err != nil {
		t.Fatal(err)
	}
	for i, name := range []string{"tp2", "replicate3.tp2", "fsdp3.cp2"} {
		d, ranks := onMesh(t, c, name)
		d.Out, d.Steps, d.Batch = c.Out+"-uneven", 2*(i+1), 8
		given := []string{"steps"}
		l, err := run(t, ranks, d, given...)
		if err != nil {
			t.Fatal(name, err)
		}
		closeTo(t, name, l.losses, one.losses, 1e-4)
	}

}

// TestSameCommandAgain: a pipeline divides the batch that it is given into passes, and the same
// command goes on from its checkpoint.
func TestSameCommandAgain(t *testing.T) {
	c := layered(t, writeText(t, 20_000))
	c.Warmup, c.LRFloor = 0, 1
	one, err := run(t, 1, c)
	if err != nil {
		t.Fatal(err)
	}
	for _, steps := range []int{2, 4} {
		d, ranks := onMesh(t, c, "pp2")
		d.Out, d.Steps = c.Out+"-again", steps
		l, err := run(t, ranks, d, "batch", "steps")
		if err != nil {
			t.Fatal(err)
		}
		closeTo(t, "losses", l.losses, one.losses, 1e-5)
		if want := "a step stays 8 sequences on 1 × 2 ranks: --batch 8 becomes 1 a rank in each of 8 passes"; !slices.Contains(l.notices, want) || len(l.losses) != 2 {
			t.Errorf("%d losses, notices %q", len(l.losses), l.notices)
		}
	}
}

// TestStopOnMesh: a signal that one rank of a stage gets stops all of them after the same step, with
// a checkpoint that another mesh goes on from.
func TestStopOnMesh(t *testing.T) {
	c := layered(t, writeText(t, 20_000))
	c.SaveEvery, c.EvalEvery, c.Steps, c.Warmup, c.LRFloor = 0, 0, 8, 0, 1
	one, err := run(t, 1, c)
	if err != nil {
		t.Fatal(err)
	}
	d, ranks := onMesh(t, c, "pp2.tp2")
	d.Out += "-stopped"
	l, stop := newLog(), make(chan struct{})
	l.onStep = func(step int) {
		if step == 3 {
			close(stop)
		}
	}
	told := make([]error, ranks)
	err = dist.Spawn(t.Context(), ranks, func(ctx context.Context, g *dist.Group) error {
		if g.Rank() == 3 {
			mine, cancel := context.WithCancel(ctx)
			defer cancel()
			go func() { <-stop; cancel() }()
			ctx = mine
		}
		told[g.Rank()] = LM(ctx, g, d, nil, l)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for rank, err := range told {
		if !errors.Is(err, ErrStopped) {
			t.Errorf("rank %d: %v", rank, err)
		}
	}
	at := len(l.losses)
	if at < 3 || at > 7 {
		t.Fatalf("stopped after step %d", at)
	}
	again, ranks := onMesh(t, c, "cp2")
	again.Out = d.Out
	rest, err := run(t, ranks, again)
	if err != nil || rest.start.FirstStep != at {
		t.Fatalf("%v, from step %d, stopped at %d", err, rest.start.FirstStep, at)
	}
	maps.Copy(rest.losses, l.losses)
	closeTo(t, "losses", rest.losses, one.losses, 1e-5)
}
