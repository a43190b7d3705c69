// SPDX-License-Identifier: Apache-2.0

package trials

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/checkpoint/storage"
	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/internal/seeded"
	"github.com/cohort-ml/cohort/parallel"
	"github.com/cohort-ml/cohort/tensor"
)

// TestResumes: a run that is resumed from a checkpoint is the run that was not disturbed:
// bit for bit on the same mesh, and within 1e-6 on another one.
func TestResumes(t *testing.T) {
	seed := seeded.Of(t)
	numRefused := 0
	trials(t, 16, func(i int) error {
		for k := uint64(0); ; k++ {
			err := resume(t, seed<<32+uint64(i)+k<<24)
			if err == nil || !isRefused(err) {
				return err
			}
			numRefused++
		}
	})
	t.Logf("%d draws were refused and drawn again", numRefused)
}

// isRefused says whether package parallel does not split a model so.
func isRefused(err error) bool {
	for _, words := range []string{"channels on a rank can be a part of", "cannot share the"} {
		if strings.Contains(err.Error(), words) {
			return true
		}
	}
	return false
}

// outcome is what a run came to.
type outcome struct {
	losses       []float64 // after the checkpoint
	saved, ended collected // the state at the checkpoint and at the end
}

func resume(t *testing.T, seed uint64) error {
	d := drawModel(seed)
	r := rand.New(rand.NewPCG(seed, 3))
	from, to := d.drawSizes(r), d.drawSizes(r)
	async, dir := chance(r, 0.5), storage.Dir(t.TempDir())
	var want, same, other outcome
	err := d.run(t, from, &want, func(ctx context.Context, t *trainer) error {
		for range d.before {
			if err := t.step(ctx); err != nil {
				return err
			}
		}
		if err := want.saved.add(t.parts()); err != nil {
			return err
		}
		saver, err := checkpoint.NewSaver(ctx, t.group, dir, checkpoint.SaverOptions{Async: async})
		if err != nil {
			return err
		}
		if _, err := saver.Save(ctx, d.before, t.state()); err != nil {
			return err
		}
		return errors.Join(t.steps(ctx), saver.Close(ctx)) // it trains on while a saver that is async writes
	})
	if err != nil {
		return fmt.Errorf("%v on %+v: %w", d, from, err)
	}
	for _, to := range []struct {
		sizes parallel.Sizes
		into  *outcome
	}{{from, &same}, {to, &other}} {
		err := d.run(t, to.sizes, to.into, func(ctx context.Context, t *trainer) error {
			if err := t.resume(ctx, dir, to.sizes == from); err != nil {
				return err
			}
			if err := to.into.saved.add(t.parts()); err != nil {
				return err
			}
			return t.steps(ctx)
		})
		if err != nil {
			return fmt.Errorf("%v from %+v to %+v: %w", d, from, to.sizes, err)
		}
	}
	if err := same.equals(&want); err != nil {
		return fmt.Errorf("%v resumed on the same %+v: %w", d, from, err)
	}
	if err := other.near(&want); err != nil {
		return fmt.Errorf("%v from %+v to %+v: %w", d, from, to, err)
	}
	return nil
}

// run runs the ranks of a training.
func (d modelDraw) run(t *testing.T, z parallel.Sizes, out *outcome, main func(ctx context.Context, t *trainer) error) error {
	return spawn(t, ranksOf(z), func(ctx context.Context, g *dist.Group) error {
		run, err := d.start(ctx, g, z, int64(d.seed))
		if err != nil {
			return err
		}
		defer run.loader.Close()
		defer run.mesh.Close()
		defer run.parallel.Close()
		if err := main(ctx, run); err != nil {
			return err
		}
		if g.Rank() == 0 {
			out.losses = run.losses[len(run.losses)-d.after:]
		}
		return out.ended.add(run.parts())
	})
}

// steps trains for the steps behind the checkpoint.
func (t *trainer) steps(ctx context.Context) error {
	for range t.draw.after {
		if err := t.step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// resume takes over a checkpoint. On a mesh like that of the checkpoint it has the generators too.
func (t *trainer) resume(ctx context.Context, from storage.Storage, same bool) error {
	// The model's values are others than those of the checkpoint.
	for _, parts := range t.parts() {
		for _, p := range parts {
			if !p.Away && p.Local.DType() == tensor.Float32 {
				p.Local.Fill(float64(t.group.Rank()) + 0.25)
			}
		}
	}
	var at progress
	var random []byte
	s := checkpoint.State{Sections: t.parts(), Values: map[string]any{"progress": &at}}
	if same {
		s.RankValues = map[string]any{"random": &random}
	}
	step, err := checkpoint.Load(ctx, t.group, from, s)
	if err != nil {
		return err
	}
	if step != t.draw.before || at.Step != step {
		return fmt.Errorf("resumed at step %d of progress %+v, want %d", step, at, t.draw.before)
	}
	t.opt.SetNumSteps(step)
	t.loader.Close()
	if same {
		want := tensor.NewGenerator(int64(t.draw.seed) + int64(t.group.Rank()))
		for range step {
			want.Float64()
		}
		if !bytes.Equal(random, want.State()) {
			return fmt.Errorf("the random state of rank %d is another one", t.group.Rank())
		}
	}
	return t.load(ctx, at.Loader)
}

// equals compares two runs bit for bit.
func (o *outcome) equals(want *outcome) error {
	if !slices.Equal(o.losses, want.losses) {
		return fmt.Errorf("losses %v, want %v", o.losses, want.losses)
	}
	if err := o.saved.equals(&want.saved); err != nil {
		return fmt.Errorf("as loaded: %w", err)
	}
	if err := o.ended.equals(&want.ended); err != nil {
		return fmt.Errorf("at the end: %w", err)
	}
	return nil
}

func (c *collected) equals(want *collected) error {
	if got, want := slices.Sorted(maps.Keys(c.of)), slices.Sorted(maps.Keys(want.of)); !slices.Equal(got, want) {
		return fmt.Errorf("tensors %q, want %q", got, want)
	}
	for name, w := range want.of {
		if got := c.of[name]; !slices.Equal(got.shape, w.shape) || !bytes.Equal(got.data, w.data) {
			return fmt.Errorf("%s of shape %v has other bytes than that of shape %v", name, got.shape, w.shape)
		}
	}
	return nil
}

// near compares two runs that round otherwise. What was loaded is equal bit for bit.
func (o *outcome) near(want *outcome) error {
	if err := o.saved.equals(&want.saved); err != nil {
		return fmt.Errorf("as loaded: %w", err)
	}
	const limit = 1e-6
	for i, l := range o.losses {
		if d := math.Abs(l - want.losses[i]); !(d <= limit*max(1, math.Abs(l))) {
			return fmt.Errorf("loss %d behind the checkpoint is %v, want %v: %.1e away", i, l, want.losses[i], d)
		}
	}
	for name, w := range want.ended.of {
		got := o.ended.of[name]
		if w.dtype != tensor.Float32 || !strings.HasPrefix(name, checkpoint.Model) {
			continue
		}
		a, b := floats(got), floats(w)
		diff, norm := 0.0, 0.0
		for i := range b {
			diff, norm = diff+(a[i]-b[i])*(a[i]-b[i]), norm+b[i]*b[i]
		}
		if diff, norm = math.Sqrt(diff), math.Sqrt(norm); !(diff <= limit*max(1, norm)) {
			return fmt.Errorf("%s is %.1e away at the end, of %.1e", name, diff, norm)
		}
	}
	return nil
}

// floats returns the values of a float32 tensor.
func floats(w wholeTensor) []float64 {
	t := tensor.Empty(w.dtype, w.shape...)
	copy(t.Buffer().Data, w.data)
	var out []float64
	for _, x := range t.Reshape(-1).Float32s() {
		out = append(out, float64(x))
	}
	return out
}
