// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/dist/flightlog"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/optim"
	"github.com/cohort-ml/cohort/tensor"
)

// mlp and branches are the models of testdata/ddp_pytorch.py: [batch, 8] to
// [batch, 4].
type mlp struct {
	FC1  *nn.Linear
	Norm *nn.BatchNorm1d
	FC2  *nn.Linear
}

func (m *mlp) Forward(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
	return c.Call(m.FC2, c.Call(m.Norm, c.Call(m.FC1, x)).ReLU())
}

type branches struct {
	FC1, Never, Sometimes, FC2 *nn.Linear

	on bool
}

func (m *branches) Forward(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
	x = c.Call(m.FC1, x).ReLU()
	if m.on {
		x = c.Call(m.Sometimes, x)
	}
	return c.Call(m.FC2, x)
}

func newMLP(b *nn.Build) *mlp {
	return &mlp{nn.NewLinear(b, 8, 6), nn.NewBatchNorm1d(b, 6, nn.BatchNormOptions{}), nn.NewLinear(b, 6, 4)}
}

func newBranches(b *nn.Build) *branches {
	return &branches{FC1: nn.NewLinear(b, 8, 6), Never: nn.NewLinear(b, 6, 6), Sometimes: nn.NewLinear(b, 6, 6), FC2: nn.NewLinear(b, 6, 4)}
}

// recordedCase is a case of testdata/ddp_pytorch.py: what its ranks do.
type recordedCase struct {
	model  string
	o      PyTorchOptions
	more   func(version string) []DDPOption
	script []string
	counts [2]int // steps inside join; negative: only the third is synchronised
	join   []JoinOption
}

func tiny(version string) []DDPOption {
	if version == "1.13" {
		return []DDPOption{WithBucketBytes(1<<20, 100)}
	}
	return []DDPOption{WithBucketBytes(100, 100)}
}

func keep(string) []DDPOption { return []DDPOption{WithLocalBuffers()} }

var recordedCases = map[string]recordedCase{
	"mlp":                 {script: []string{"step", "step", "step"}},
	"keep buffers":        {script: []string{"step", "step", "step"}, more: keep},
	"eval":                {script: []string{"step", "eval", "eval", "step", "nosync", "after", "step"}},
	"nosync first":        {script: []string{"nosync", "after", "step", "step"}},
	"frozen":              {script: []string{"step", "step", "step"}, model: "frozen"},
	"unused":              {script: []string{"step", "on", "step", "step", "off", "step"}, model: "branches", o: PyTorchOptions{FindUnused: true}},
	"unused nosync":       {script: []string{"on", "nosync", "off", "after", "step"}, model: "branches", o: PyTorchOptions{FindUnused: true}},
	"static":              {script: []string{"step", "step", "step", "step"}, model: "branches", o: PyTorchOptions{StaticGraph: true}},
	"tiny":                {script: []string{"step", "step", "step"}, model: "narrow", more: tiny},
	"tiny unused":         {script: []string{"step", "step", "step"}, model: "branches", o: PyTorchOptions{FindUnused: true}, more: tiny},
	"join":                {script: []string{"join"}, counts: [2]int{2, 4}},
	"join from the start": {script: []string{"join"}, counts: [2]int{0, 3}, join: []JoinOption{WithDivideByLive()}},
	"join nosync":         {script: []string{"join"}, counts: [2]int{-1, -3}},
	"join unused":         {script: []string{"join"}, counts: [2]int{1, 3}, model: "branches", o: PyTorchOptions{FindUnused: true}},
	"join keep buffers":   {script: []string{"join"}, counts: [2]int{1, 2}, more: keep},
	"init buffers":        {script: []string{"step", "step", "step"}, more: keep, o: PyTorchOptions{InitBuffers: true}},
	"join init buffers":   {script: []string{"join"}, counts: [2]int{1, 2}, more: keep, o: PyTorchOptions{InitBuffers: true}},
	"join throw":          {script: []string{"join"}, counts: [2]int{1, 3}, join: []JoinOption{WithErrorOnEarlyEnd()}},
}

// recorder notes what a rank did and what it called in between.
type recorder struct {
	g     *dist.Group
	lines []string
	seen  int
}

// calls adds the calls of the group since the last time.
func (r *recorder) calls() error {
	var b bytes.Buffer
	if err := r.g.Dump(&b); err != nil {
		return err
	}
	d, err := flightlog.Read(&b)
	if err != nil {
		return err
	}
	for _, e := range d.Entries[r.seen:] {
		line := e.Op
		count := e.Count
		switch e.Op {
		case "init":
			continue
		case "all_reduce":
			line += " " + e.Reduce
		case "broadcast":
			line += fmt.Sprint(" ", *e.Root)
		}
		r.lines = append(r.lines, fmt.Sprint(line, " ", e.DType, " ", count))
	}
	r.seen = len(d.Entries)
	return nil
}

func (r *recorder) mark(what string) error {
	err := r.calls()
	r.lines = append(r.lines, "# "+what)
	return err
}

// play does what the script of a case says.
func (c recordedCase) play(ctx context.Context, g *dist.Group, version string) ([]string, error) {
	r := &recorder{g: g}
	b := &nn.Build{Generator: tensor.NewGenerator(int64(g.Rank()))}
	var model nn.Module
	var parts *branches
	switch c.model {
	case "branches":
		parts = newBranches(b)
		model = parts
	case "narrow":
		model = nn.NewSequential(nn.NewLinear(b, 8, 1), nn.NewLinear(b, 1, 20))
	default:
		m := newMLP(b)
		m.FC1.Weight.Frozen = c.model == "frozen"
		model = m
	}
	c.o.Version = version
	opts := []DDPOption{WithPyTorch(c.o)}
	if c.more != nil {
		opts = append(opts, c.more(version)...)
	}
	ddp, err := NewDDP(ctx, model, g, opts...)
	if err != nil {
		return nil, err
	}
	opt := optim.NewSGD(nn.Parameters(model), optim.SGDOptions{LR: 0.1})
	input := func() *tensor.Tensor {
		x := tensor.Zeros(5, 8)
		b.Generator.Uniform(x, -1, 1)
		return x
	}
	pass := func() (err error) {
		c := nn.Training(ctx)
		defer c.Close()
		defer c.Recover(&err)
		y := c.Call(ddp, input())
		return y.Mul(y).Mean().Backward(ctx)
	}
	step := func(sync, after bool) error {
		if !after {
			opt.ZeroGrad()
		}
		if !sync {
			return ddp.NoSync(pass)
		}
		if err := pass(); err != nil {
			return err
		}
		opt.Step(nil)
		return nil
	}
	for _, what := range c.script {
		if err := r.mark(what); err != nil {
			return nil, err
		}
		var err error
		switch what {
		case "step", "after":
			err = step(true, what == "after")
		case "nosync":
			err = step(false, false)
		case "eval":
			func() {
				c := nn.Evaluation(ctx)
				defer c.Close()
				defer c.Recover(&err)
				c.Call(ddp, input())
			}()
		case "on", "off":
			parts.on = what == "on" && g.Rank() == 1
		case "join":
			n := c.counts[g.Rank()]
			err = ddp.Join(ctx, func() error {
				for i := range max(n, -n) {
					if err := step(n > 0 || i == 2, false); err != nil {
						return err
					}
				}
				return r.mark("end")
			}, c.join...)
			if early := new(EarlyEndError); errors.As(err, &early) {
				err = r.mark("error")
			}
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", what, err)
		}
	}
	return r.lines, r.calls()
}

// TestPyTorchsCollectives holds the collectives of a DDP that keeps step with
// PyTorch's against those that PyTorch has issued on the same occasions.
func TestPyTorchsCollectives(t *testing.T) {
	for _, version := range []string{"1.13", "2.15"} {
		text, err := os.ReadFile("testdata/ddp_pytorch_" + version + ".json")
		if err != nil {
			t.Fatal(err)
		}
		var recorded struct{ Cases map[string][2][]string }
		if err := json.Unmarshal(text, &recorded); err != nil {
			t.Fatal(err)
		}
		if len(recorded.Cases) < 16 {
			t.Errorf("PyTorch %s was recorded in %d cases, want 16 or more", version, len(recorded.Cases))
		}
		for name, want := range recorded.Cases {
			t.Run(version+" "+name, func(t *testing.T) {
				var got [2][]string
				err := spawn(t, 2, func(ctx context.Context, g *dist.Group) (err error) {
					got[g.Rank()], err = recordedCases[name].play(ctx, g, version)
					return err
				})
				if err != nil {
					t.Fatal(err)
				}
				for rank := range got {
					if !slices.Equal(got[rank], want[rank]) {
						t.Errorf("rank %d:\n got %q\nwant %q", rank, got[rank], want[rank])
					}
				}
			})
		}
	}
}
