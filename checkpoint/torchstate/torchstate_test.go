// SPDX-License-Identifier: Apache-2.0

package torchstate

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/checkpoint/dcp"
	"github.com/cohort-ml/cohort/checkpoint/internal/boxes"
	"github.com/cohort-ml/cohort/checkpoint/internal/torchtest"
	"github.com/cohort-ml/cohort/checkpoint/pickle"
	"github.com/cohort-ml/cohort/checkpoint/safetensors"
	"github.com/cohort-ml/cohort/checkpoint/storage"
	"github.com/cohort-ml/cohort/checkpoint/torchsave"
	"github.com/cohort-ml/cohort/dist/mesh"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/optim"
	"github.com/cohort-ml/cohort/parallel"
	"github.com/cohort-ml/cohort/tensor"
)

// job is the perceptron of mlp.py.
type job struct {
	model  *nn.Sequential
	spread parallel.Strategy
	opt    *optim.AdamW
}

// newJob makes the job with other first values than mlp.py, which loading must replace.
func newJob() *job {
	b := &nn.Build{Generator: tensor.NewGenerator(7)}
	j := &job{model: nn.NewSequential(nn.NewLinear(b, 6, 10), &nn.Tanh{}, nn.NewLinear(b, 10, 7), &nn.Tanh{}, nn.NewLinear(b, 7, 3))}
	j.spread = &parallel.Single{Model: j.model}
	j.optimize()
	return j
}

// optimize makes the optimizer.
func (j *job) optimize() {
	var weights, biases []*nn.Parameter
	for _, p := range nn.Parameters(j.model) {
		if strings.HasSuffix(p.Name(), "weight") {
			weights = append(weights, p)
		} else {
			biases = append(biases, p)
		}
	}
	o := optim.AdamWOptions{LR: 0.01, Beta1: 0.8, Beta2: 0.95, WeightDecay: 0.1}
	j.opt = optim.NewAdamW(weights, o)
	o.WeightDecay = 0
	j.opt.AddGroup(biases, o)
}

// values are those of mlp.py.
func values(n, salt int) []float32 {
	out := make([]float32, n)
	for i := range out {
		bits := (uint64(i+1+1000*salt) * 2654435761) % (1 << 32)
		out[i] = float32(bits>>8)/(1<<24) - 0.5
	}
	return out
}

// train returns the loss of each step.
func (j *job) train(ctx context.Context, from, to int) (losses []float64, err error) {
	for n := from; n < to; n++ {
		c := nn.Training(ctx)
		j.opt.ZeroGrad()
		x, y := tensor.FromFloat32(values(30, n), 5, 6), tensor.FromFloat32(values(15, n+500), 5, 3)
		loss := tensor.MSE(c.Call(j.spread, x), y)
		if err := loss.Backward(ctx); err != nil {
			return nil, err
		}
		losses = append(losses, loss.Item())
		j.opt.Step(nil)
		c.Close()
	}
	return losses, nil
}

func (j *job) losses(t *testing.T, from, to int) []float64 {
	t.Helper()
	losses, err := j.train(t.Context(), from, to)
	if err != nil {
		t.Fatal(err)
	}
	return losses
}

// load fills the job from a state.
func (j *job) load(t *testing.T, s *State) {
	t.Helper()
	if err := checkpoint.LoadTensors(s.Model, named(nn.StateDict(j.model))); err != nil {
		t.Fatal(err)
	}
	if err := checkpoint.LoadTensors(s.Optimizer, named(j.opt.State())); err != nil {
		t.Fatal(err)
	}
}

func named(list nn.NamedTensors) checkpoint.Tensors {
	return func(yield func(string, *tensor.Tensor) bool) {
		for _, t := range list {
			if !yield(t.Name, t.Tensor) {
				return
			}
		}
	}
}

// halves is a source of float32 tensors that stores each in two boxes.
type halves struct {
	infos []safetensors.Info
	data  map[string][]byte
}

func halvesOf(list nn.NamedTensors) *halves {
	h := &halves{data: map[string][]byte{}}
	for _, t := range list {
		h.infos = append(h.infos, safetensors.Info{Name: t.Name, DType: safetensors.F32, Shape: t.Tensor.Shape()})
		h.data[t.Name] = bytes.Clone(t.Tensor.Contiguous().Buffer().Data)
	}
	return h
}

func (h *halves) Name() string              { return "memory" }
func (h *halves) Infos() []safetensors.Info { return h.infos }

func (h *halves) ReadTensor(name string, dst []byte) error { return h.ReadRange(name, dst, 0) }

func (h *halves) ReadRange(name string, dst []byte, offset int64) error {
	copy(dst, h.data[name][offset:])
	return nil
}

func (h *halves) info(name string) safetensors.Info {
	return h.infos[slices.IndexFunc(h.infos, func(i safetensors.Info) bool { return i.Name == name })]
}

func (h *halves) Boxes(name string) []mesh.Box {
	shape := h.info(name).Shape
	if len(shape) == 0 {
		return nil
	}
	var list []mesh.Box
	for rank := range 2 {
		b, err := mesh.Boxes(shape, []int{2}, []mesh.Placement{mesh.Shard(0)}, []int{rank})
		if err != nil {
			panic(err)
		}
		list = append(list, b...)
	}
	return list
}

func (h *halves) ReadBox(name string, start, shape []int, dst []byte) error {
	from := boxes.Strides(h.info(name).Shape, 4)
	c := boxes.Copy{Shape: shape, Size: 4, From: boxes.Offset(start, from), FromStrides: from, ToStrides: boxes.Strides(shape, 4)}
	return c.Read(bytes.NewReader(h.data[name]), dst)
}

// near compares losses.
func near(t *testing.T, what string, got, want []float64) {
	t.Helper()
	if err := isNear(got, want); err != nil || len(want) == 0 {
		t.Errorf("%s: %v", what, err)
	}
}

func fromDCP(t *testing.T, dir string) *State {
	t.Helper()
	c, err := dcp.Open(t.Context(), storage.Dir(dir), "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if err := c.Check(); err != nil {
		t.Fatal(err)
	}
	s, err := FromDCP(c)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// A Cohort job goes on from a job of PyTorch, and PyTorch's from Cohort's, with the same next
// losses, optimizer included, whatever the model is sharded over.
func TestJobsGoOn(t *testing.T) {
	python := torchtest.Python(t, os.Getenv("COHORT_TEST_PYTHONS"), imports)
	// run runs commands of mlp.py with one import of PyTorch, and returns the losses of each.
	run := func(commands ...[]string) (losses [][]float64) {
		var args []string
		for i, c := range commands {
			if i > 0 {
				args = append(args, "--")
			}
			args = append(args, c...)
		}
		for line := range strings.Lines(torchtest.Run(t, python, "../../dcp/testdata/mlp.py", args...)) {
			var list []float64
			if err := json.Unmarshal([]byte(line), &list); err != nil {
				t.Fatal(err, line)
			}
			losses = append(losses, list)
		}
		if len(losses) != len(commands) {
			t.Fatalf("%d lines of losses of %d commands", len(losses), len(commands))
		}
		return losses
	}
	dir := t.TempDir()
	fsdp, both := filepath.Join(dir, "fsdp"), filepath.Join(dir, "fsdp+tp")
	for i, want := range run([]string{"2", "save", "fsdp", fsdp}, []string{"4", "save", "fsdp+tp", both}) {
		at := []string{fsdp, both}[i]
		s := fromDCP(t, at)
		j := newJob()
		j.load(t, s)
		// The hyperparameters are kept: this job has the same.
		checkGroups(t, s.Groups, optim.ParamGroups(j.opt))
		if s.Others["extra.epoch"] != any(int64(3)) || len(s.OtherTensors) > 0 {
			t.Errorf("what belongs to nobody is %v and %v", s.Others, s.OtherTensors)
		}
		near(t, "PyTorch to Cohort, "+filepath.Base(at), j.losses(t, 3, 6), want)
	}

	// And back: in two boxes a tensor.
	j := newJob()
	j.losses(t, 0, 3)
	at := filepath.Join(dir, "cohort")
	items, err := Items(halvesOf(nn.StateDict(j.model)), halvesOf(j.opt.State()), throughJSON(t, optim.ParamGroups(j.opt)))
	if err != nil {
		t.Fatal(err)
	}
	if err := dcp.Write(t.Context(), storage.Dir(at), "", items); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "cohort.pt")
	v, err := Value(halvesOf(nn.StateDict(j.model)), halvesOf(j.opt.State()), throughJSON(t, optim.ParamGroups(j.opt)))
	if err != nil {
		t.Fatal(err)
	}
	if err := torchsave.Save(file, v); err != nil {
		t.Fatal(err)
	}
	want := j.losses(t, 3, 6)
	kinds := [][]string{{"1", "load", "plain", at}, {"2", "load", "fsdp", at}, {"2", "load", "tp", at}, {"4", "load", "fsdp+tp", at}, {"4", "load", "hsdp", at}, {"1", "file", "plain", file}}
	for i, got := range run(kinds...) {
		near(t, "Cohort to PyTorch, "+strings.Join(kinds[i][:3], " "), got, want)
	}
}

// throughJSON returns groups as a manifest gives them back.
func throughJSON(t *testing.T, groups []optim.ParamGroup) (out []optim.ParamGroup) {
	t.Helper()
	text, err := json.Marshal(groups)
	if err == nil {
		err = json.Unmarshal(text, &out)
	}
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// checkGroups compares groups of PyTorch with those of Cohort. initial_lr is only there where a
// schedule is.
func checkGroups(t *testing.T, got, want []optim.ParamGroup) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%d groups, want %d: %+v", len(got), len(want), got)
	}
	for i, w := range want {
		if !slices.Equal(got[i].Params, w.Params) {
			t.Errorf("group %d has the parameters %v, want %v", i, got[i].Params, w.Params)
		}
		for name, option := range w.Options {
			if have, ok := got[i].Options[name]; name != "initial_lr" && (!ok || !reflect.DeepEqual(have, option)) {
				t.Errorf("group %d: %s is %v, want %v", i, name, have, option)
			}
		}
	}
}

// A file of torch.save of Cohort's state comes back.
func TestFilesComeBack(t *testing.T) {
	j := newJob()
	j.losses(t, 0, 2)
	for _, groups := range [][]optim.ParamGroup{optim.ParamGroups(j.opt), nil} {
		v, err := Value(halvesOf(nn.StateDict(j.model)), halvesOf(j.opt.State()), groups)
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(t.TempDir(), "x.pt")
		if err := torchsave.Save(path, v); err != nil {
			t.Fatal(err)
		}
		f, err := torchsave.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		s, err := FromFile(f)
		if err != nil {
			t.Fatal(err)
		}
		other := newJob()
		other.load(t, s)
		if got, want := other.losses(t, 2, 4), slices.Clone(j.copyOf(t).losses(t, 2, 4)); !slices.Equal(got, want) {
			t.Errorf("the losses are %v, want %v", got, want)
		}
		if groups != nil {
			checkGroups(t, s.Groups, groups)
		}
	}
}

// copyOf returns a job in the same state.
func (j *job) copyOf(t *testing.T) *job {
	t.Helper()
	other := newJob()
	j2 := &State{Model: halvesOf(nn.StateDict(j.model)), Optimizer: halvesOf(j.opt.State())}
	other.load(t, j2)
	return other
}

// form is a state dict for TestForms.
func form(t *testing.T, v any) (*State, error) {
	t.Helper()
	var b bytes.Buffer
	if err := torchsave.Write(&b, v); err != nil {
		t.Fatal(err)
	}
	f, err := torchsave.NewFile(bytes.NewReader(b.Bytes()), int64(b.Len()), "x.pt", torchsave.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	return FromFile(f)
}

func zeros(shape ...int) *torchsave.Tensor {
	return torchsave.NewTensor(safetensors.Info{DType: safetensors.F32, Shape: shape}, func([]byte, int64) error { return nil })
}

type dictOf = map[string]any

func numbered(entries ...any) *pickle.Dict {
	d := &pickle.Dict{}
	for i, e := range entries {
		d.Entries = append(d.Entries, pickle.Entry{Key: int64(i), Value: e})
	}
	return d
}

func nameList(src checkpoint.Source) []string {
	var out []string
	if src != nil {
		for _, i := range src.Infos() {
			out = append(out, i.Name)
		}
	}
	slices.Sort(out)
	return out
}

// State dicts of many forms, as jobs save them.
func TestForms(t *testing.T) {
	adam := func(shape ...int) dictOf {
		return dictOf{"step": zeros(), "exp_avg": zeros(shape...), "exp_avg_sq": zeros(shape...)}
	}
	ids := func(n int) []any {
		var out []any
		for i := range n {
			out = append(out, i)
		}
		return out
	}
	ab := dictOf{"a.w": zeros(2, 3), "b.w": zeros(3)}
	abNames := []string{"exp_avg.a.w", "exp_avg.b.w", "exp_avg_sq.a.w", "exp_avg_sq.b.w", "step.a.w", "step.b.w"}
	batchNorm := dictOf{"a.weight": zeros(3), "b.bias": zeros(3), "b.running_mean": zeros(3), "b.num_batches_tracked": zeros()}
	tied := zeros(4, 2)
	for _, c := range []struct {
		name             string
		value            any
		model, optimizer []string
		says             string
	}{
		{name: "a state dict alone", value: ab, model: []string{"a.w", "b.w"}},
		{name: "keys that begin with model", value: dictOf{"model.a": zeros(1), "lm_head": zeros(1)}, model: []string{"lm_head", "model.a"}},
		{name: "in model", value: dictOf{"model": ab, "epoch": 3}, model: []string{"a.w", "b.w"}},
		{name: "in state_dict, of Lightning", value: dictOf{"state_dict": dictOf{"model.w": zeros(1)}, "loops": dictOf{"n": 1}}, model: []string{"model.w"}},
		{name: "by names", value: dictOf{"model": ab, "optim": dictOf{"state": dictOf{"a.w": adam(2, 3), "b.w": adam(3)}, "param_groups": []any{dictOf{"lr": 0.1, "params": []any{"a.w", "b.w"}}}}},
			model: []string{"a.w", "b.w"}, optimizer: abNames},
		{name: "in app", value: dictOf{"app": dictOf{"model": ab, "optim": dictOf{"state": dictOf{"a.w": adam(2, 3), "b.w": adam(3)}}}}, model: []string{"a.w", "b.w"}, optimizer: abNames},
		{name: "flat, of torchtitan", value: dictOf{"a.w": zeros(2, 3), "b.w": zeros(3), "optimizer": dictOf{"state.a.w.exp_avg": zeros(2, 3), "state.b.w.exp_avg": zeros(3), "param_groups.a.w.lr": 0.1, "param_groups.b.w.lr": 0.1}},
			model: []string{"a.w", "b.w"}, optimizer: []string{"exp_avg.a.w", "exp_avg.b.w", "step.a.w", "step.b.w"}},
		{name: "by numbers", value: dictOf{"model_state_dict": ab, "optimizer_state_dict": dictOf{"state": numbered(adam(2, 3), adam(3)), "param_groups": []any{dictOf{"params": ids(2)}}}},
			model: []string{"a.w", "b.w"}, optimizer: abNames},
		{name: "by numbers, with a batch norm", value: dictOf{"model": batchNorm, "optimizer": dictOf{"state": numbered(dictOf{"momentum_buffer": zeros(3)}, dictOf{"momentum_buffer": zeros(3)}), "param_groups": []any{dictOf{"params": ids(2)}}}},
			model: []string{"a.weight", "b.bias", "b.num_batches_tracked", "b.running_mean"}, optimizer: []string{"momentum_buffer.a.weight", "momentum_buffer.b.bias", "step.a.weight", "step.b.bias"}},
		{name: "by numbers, tied", value: dictOf{"model": dictOf{"emb": tied, "head": tied, "out": zeros(1)}, "optimizer": dictOf{"state": numbered(adam(4, 2), adam(1)), "param_groups": []any{dictOf{"params": ids(2)}}}},
			model: []string{"emb", "head", "out"}, optimizer: []string{"exp_avg.emb", "exp_avg.out", "exp_avg_sq.emb", "exp_avg_sq.out", "step.emb", "step.out"}},
		{name: "by numbers, in another order", value: dictOf{"model": ab, "optimizer": dictOf{"state": numbered(adam(3), adam(2, 3)), "param_groups": []any{dictOf{"params": ids(2)}}}}, says: "order is another one"},
		{name: "by numbers, too many", value: dictOf{"model": ab, "optimizer": dictOf{"state": numbered(adam(3)), "param_groups": []any{dictOf{"params": ids(1)}}}}, says: "1 numbered parameters and a model of 2"},
		{name: "two optimizers", value: dictOf{"model": ab, "o1": dictOf{"state": dictOf{"a.w": adam(2, 3)}}, "o2": dictOf{"state": dictOf{"b.w": adam(3)}}}, says: "two optimizers"},
		{name: "an optimizer without its model", value: dictOf{"model": ab, "optim": dictOf{"state": dictOf{"c.w": adam(3)}}}, says: "no model with all of them"},
		{name: "an average beside the model", value: dictOf{"model": ab, "ema": ab, "optim": dictOf{"state": dictOf{"a.w": adam(2, 3), "b.w": adam(3)}}}, model: []string{"a.w", "b.w"}, optimizer: abNames},
		{name: "a module called state", value: dictOf{"model": dictOf{"state.w": zeros(2)}}, model: []string{"state.w"}},
		{name: "steps as numbers, of PyTorch 1", value: dictOf{"model": dictOf{"w": zeros(2)}, "optim": dictOf{"state": dictOf{"w": dictOf{"step": 5, "exp_avg": zeros(2)}}}}, model: []string{"w"}, optimizer: []string{"exp_avg.w", "step.w"}},
	} {
		s, err := form(t, c.value)
		if c.says != "" {
			if err == nil || !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), "x.pt") {
				t.Errorf("%s: %v, want %q", c.name, err, c.says)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if got := nameList(s.Model); !slices.Equal(got, c.model) {
			t.Errorf("%s: the model has %v, want %v", c.name, got, c.model)
		}
		if got := nameList(s.Optimizer); !slices.Equal(got, c.optimizer) {
			t.Errorf("%s: the optimizer has %v, want %v", c.name, got, c.optimizer)
		}
		for _, info := range s.Model.Infos() {
			if err := s.Model.ReadTensor(info.Name, make([]byte, info.NumBytes())); err != nil {
				t.Errorf("%s: %v", c.name, err)
			}
		}
		if strings.HasPrefix(c.name, "steps as numbers") {
			var b [4]byte
			if err := s.Optimizer.ReadTensor("step.w", b[:]); err != nil || b != [4]byte{0, 0, 0xa0, 0x40} {
				t.Errorf("the count of 5 steps is %v (%v)", b, err)
			}
		}
	}
}

// What cannot be read is listed, and nothing else is lost with it.
func TestRefused(t *testing.T) {
	f, err := torchsave.Open("../torchsave/testdata/odd-2.15.pt")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	s, err := FromFile(f)
	if err != nil {
		t.Fatal(err)
	}
	if e := s.Refused["refused.complex128"]; e == nil || !strings.Contains(e.Error(), "complex128") || len(s.Refused) != 5 {
		t.Errorf("refused are %v", s.Refused)
	}
}
