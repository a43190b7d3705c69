// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"math"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/dist/store"
	"github.com/cohort-ml/cohort/internal/loaded"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/optim"
	"github.com/cohort-ml/cohort/tensor"
)

// With -positions, a Go rank takes every place in jobs of two to five ranks.
var positions = flag.Bool("positions", false, "train beside PyTorch with Go ranks in every position of 2 to 5 ranks")

// torchRank is a process of testdata/ddp_live.py.
type torchRank struct {
	cmd     *exec.Cmd
	in      io.WriteCloser
	out     *bufio.Scanner
	version string
	ended   bool
}

func startTorch(path string) (*torchRank, error) {
	r := &torchRank{cmd: exec.Command(path, "-u", "-W", "ignore", "testdata/ddp_live.py")}
	r.cmd.Stderr = os.Stderr
	// What is about this test's own ranks is not for PyTorch's.
	r.cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, "TORCH") || strings.HasPrefix(v, "MASTER_") || strings.HasPrefix(v, "GLOO_")
	})
	var err error
	if r.in, err = r.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := r.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := r.cmd.Start(); err != nil {
		return nil, err
	}
	r.out = bufio.NewScanner(out)
	r.out.Buffer(nil, 1<<24)
	var hello struct{ Version string }
	if err := r.read(&hello); err != nil {
		r.end()
		return nil, err
	}
	r.version = hello.Version
	return r, nil
}

func (r *torchRank) read(answer any) error {
	if !r.out.Scan() {
		return errors.Join(r.out.Err(), errors.New("the PyTorch rank ended"))
	}
	return json.Unmarshal(r.out.Bytes(), answer)
}

func (r *torchRank) end() {
	if r.ended {
		return
	}
	r.ended = true
	r.in.Close()
	_ = r.cmd.Process.Kill()
	_ = r.cmd.Wait()
}

// pythons are the interpreters with PyTorch that were found, with processes that
// wait for a job: to import PyTorch takes longer than most tests. They end with
// this process, which is their standard input.
var pythons = sync.OnceValue(func() map[string][]*torchRank {
	found := map[string][]*torchRank{}
	for _, name := range append([]string{"python3", "/usr/bin/python3"}, filepath.SplitList(os.Getenv("COHORT_TEST_PYTHONS"))...) {
		path, err := exec.LookPath(name)
		if err != nil || found[path] != nil || exec.Command(path, "-c", "import torch.distributed").Run() != nil {
			continue
		}
		found[path] = []*torchRank{}
	}
	return found
})

// eachTorch runs a test with n processes of each PyTorch here, those listed in
// COHORT_TEST_PYTHONS too.
func eachTorch(t *testing.T, n int, test func(t *testing.T, ranks []*torchRank)) {
	if testing.Short() {
		t.Skip("-short leaves PyTorch out")
	}
	all := pythons()
	if len(all) == 0 {
		t.Skip("no python3 here has PyTorch (Debian's package python3-torch, or list interpreters in COHORT_TEST_PYTHONS)")
	}
	for _, path := range slices.Sorted(maps.Keys(all)) {
		ranks := make([]*torchRank, n)
		errs := make([]error, n)
		var starting sync.WaitGroup
		for i := range ranks {
			if idle := all[path]; len(idle) > 0 {
				ranks[i], all[path] = idle[0], idle[1:]
				continue
			}
			starting.Go(func() { ranks[i], errs[i] = startTorch(path) })
		}
		starting.Wait()
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
		if t.Run("torch-"+ranks[0].version, func(t *testing.T) { test(t, ranks) }) {
			all[path] = append(all[path], slices.DeleteFunc(ranks, func(r *torchRank) bool { return r.ended })...)
			continue
		}
		for _, r := range ranks { // who knows what they are at
			r.end()
		}
	}
}

// liveCase is a case of testdata/ddp_live.py, in its own words.
type liveCase struct {
	Model      string         `json:"model"`
	DDP        map[string]any `json:"ddp,omitempty"`
	Optimizer  string         `json:"optimizer"`
	Options    map[string]any `json:"options"`
	Steps      []int          `json:"steps"` // rank r trains Steps[r % len]
	Join       map[string]any `json:"join"`
	Accumulate int            `json:"accumulate,omitempty"`
	Eval       bool           `json:"eval,omitempty"`
	On         bool           `json:"on,omitempty"`
	Hook       string         `json:"hook,omitempty"`

	onStep func(step int) // of a Go rank
}

type object = map[string]any

// smallMiB is a bucket_cap_mb of 100 bytes.
const smallMiB = 100.0 / (1 << 20)

var liveCases = map[string]liveCase{
	"mlp":           {Model: "mlp", Optimizer: "SGD", Options: object{"lr": 0.1}},
	"momentum":      {Model: "mlp", Optimizer: "SGD", Options: object{"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}},
	"dampened":      {Model: "mlp", Optimizer: "SGD", Options: object{"lr": 0.07, "momentum": 0.8, "dampening": 0.3}},
	"nesterov":      {Model: "mlp", Optimizer: "SGD", Options: object{"lr": 0.03, "momentum": 0.9, "nesterov": true, "weight_decay": 0.1}},
	"adamw":         {Model: "mlp", Optimizer: "AdamW", Options: object{"lr": 0.01, "weight_decay": 0.01}},
	"eval":          {Model: "mlp", Optimizer: "SGD", Options: object{"lr": 0.1}, Eval: true},
	"accumulate":    {Model: "mlp", Optimizer: "SGD", Options: object{"lr": 0.1, "momentum": 0.9}, Accumulate: 3},
	"own buffers":   {Model: "mlp", Optimizer: "SGD", Options: object{"lr": 0.1}, DDP: object{"broadcast_buffers": false}},
	"views":         {Model: "mlp", Optimizer: "SGD", Options: object{"lr": 0.1, "momentum": 0.9}, DDP: object{"gradient_as_bucket_view": true}},
	"unused":        {Model: "branches", Optimizer: "SGD", Options: object{"lr": 0.1}, DDP: object{"find_unused_parameters": true}},
	"unused, more":  {Model: "branches", Optimizer: "SGD", Options: object{"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}, DDP: object{"find_unused_parameters": true}, Accumulate: 2},
	"unused, adamw": {Model: "branches", Optimizer: "AdamW", Options: object{"lr": 0.01, "weight_decay": 0.01}, DDP: object{"find_unused_parameters": true}},
	"small buckets": {Model: "mlp", Optimizer: "SGD", Options: object{"lr": 0.1, "momentum": 0.9}, DDP: object{"bucket_cap_mb": smallMiB}},
	"small, unused": {Model: "branches", Optimizer: "SGD", Options: object{"lr": 0.1}, DDP: object{"find_unused_parameters": true, "bucket_cap_mb": smallMiB}},
	"large":         {Model: "large", Optimizer: "SGD", Options: object{"lr": 0.01, "momentum": 0.9}, Steps: []int{4}},
	"static":        {Model: "branches", Optimizer: "SGD", Options: object{"lr": 0.1, "momentum": 0.9}, DDP: object{"static_graph": true}, On: true},
	"bf16":          {Model: "mlp", Optimizer: "SGD", Options: object{"lr": 0.1, "momentum": 0.9}, DDP: object{"bucket_cap_mb": smallMiB}, Hook: "bf16"},
	"fp16":          {Model: "branches", Optimizer: "SGD", Options: object{"lr": 0.1}, DDP: object{"find_unused_parameters": true}, Hook: "fp16"},
	"bf16, join":    {Model: "mlp", Optimizer: "SGD", Options: object{"lr": 0.1}, Steps: []int{9, 3}, Join: object{}, Hook: "bf16"},
	"join":          {Model: "mlp", Optimizer: "SGD", Options: object{"lr": 0.1, "momentum": 0.9}, Steps: []int{12, 20, 7, 20, 1}, Join: object{}},
	"join, live":    {Model: "mlp", Optimizer: "SGD", Options: object{"lr": 0.1}, Steps: []int{9, 3}, Join: object{"divide_by_initial_world_size": false}},
	"join, unused":  {Model: "branches", Optimizer: "SGD", Options: object{"lr": 0.1}, DDP: object{"find_unused_parameters": true}, Steps: []int{4, 9, 6}, Join: object{}},
}

// number reads an option.
func number(o object, name string) float64 { v, _ := o[name].(float64); return v }

func is(o object, name string) bool { v, _ := o[name].(bool); return v }

// play is what ddp_live.py does, on a Go rank.
func (c liveCase) play(ctx context.Context, g *dist.Group, version string) ([][]float32, error) {
	b := build(int64(100 + g.Rank()))
	var model nn.Module
	var parts *branches
	switch c.Model {
	case "mlp":
		model = newMLP(b)
	case "branches":
		parts = newBranches(b)
		model = parts
	case "linears":
		model = nn.NewSequential(nn.NewLinear(b, 8, 6), nn.NewLinear(b, 6, 6), nn.NewLinear(b, 6, 4))
	case "large":
		model = nn.NewSequential(nn.NewLinear(b, 8, 600), nn.NewLinear(b, 600, 600), nn.NewLinear(b, 600, 600), nn.NewLinear(b, 600, 4))
	case "wide":
		m := newMLP(b)
		m.FC2 = nn.NewLinear(b, 6, 5)
		model = m
	default:
		model = newNamedDTypes(strings.Fields(c.Model)[1:], g.Rank())
	}
	opts := []DDPOption{WithPyTorch(PyTorchOptions{FindUnused: is(c.DDP, "find_unused_parameters"), StaticGraph: is(c.DDP, "static_graph")})}
	switch c.Hook {
	case "bf16":
		opts = append(opts, WithHook(BF16Hook()))
	case "fp16":
		opts = append(opts, WithHook(FP16Hook()))
	}
	if keep, given := c.DDP["broadcast_buffers"]; given && keep == false {
		opts = append(opts, WithLocalBuffers())
	}
	if mib := number(c.DDP, "bucket_cap_mb"); mib != 0 {
		first := int(mib * (1 << 20))
		var major, minor int
		if _, _ = fmt.Sscanf(version, "%d.%d", &major, &minor); major == 1 || minor < 4 {
			first = 1 << 20
		}
		opts = append(opts, WithBucketBytes(first, int(mib*(1<<20))))
	}
	ddp, err := NewDDP(ctx, model, g, opts...)
	if err != nil {
		return nil, err
	}
	var opt interface {
		ZeroGrad()
		Step(scale *tensor.Tensor)
	}
	if named, ok := model.(*namedDTypes); ok {
		opt = named
	} else if c.Optimizer == "SGD" {
		opt = optim.NewSGD(nn.Parameters(model), optim.SGDOptions{LR: number(c.Options, "lr"), Momentum: number(c.Options, "momentum"),
			Dampening: number(c.Options, "dampening"), WeightDecay: number(c.Options, "weight_decay"), Nesterov: is(c.Options, "nesterov")})
	} else {
		opt = optim.NewAdamW(nn.Parameters(model), optim.AdamWOptions{LR: number(c.Options, "lr"), WeightDecay: number(c.Options, "weight_decay")})
	}
	loop := func() error {
		for step := range c.Steps[g.Rank()%len(c.Steps)] {
			if c.onStep != nil {
				c.onStep(step)
			}
			if parts != nil {
				parts.on = c.On || step%2 == 0 && (g.Rank()+step)%3 == 0
			}
			opt.ZeroGrad()
			for i := range max(c.Accumulate, 1) {
				pass := func() error { return passOf(ctx, ddp, b.Generator) }
				if i < c.Accumulate-1 {
					err = ddp.NoSync(pass)
				} else {
					err = pass()
				}
				if err != nil {
					return fmt.Errorf("step %d: %w", step, err)
				}
			}
			opt.Step(nil)
			if c.Eval {
				if err := evaluate(ctx, ddp, b.Generator); err != nil {
					return err
				}
			}
		}
		return nil
	}
	if c.Join != nil {
		divide, given := c.Join["divide_by_initial_world_size"]
		var opts []JoinOption
		if given && divide == false {
			opts = append(opts, WithDivideByLive())
		}
		err = ddp.Join(ctx, loop, opts...)
	} else {
		err = loop()
	}
	if err != nil {
		return nil, err
	}
	var out [][]float32
	for _, p := range nn.Parameters(model) {
		values := p.Data().Float32s()
		if c.Model == "large" {
			sum := int64(0)
			for i, v := range values {
				sum += int64(i+1) * int64(int32(math.Float32bits(v)))
			}
			values = []float32{math.Float32frombits(uint32(sum)), math.Float32frombits(uint32(sum >> 32))}
		}
		out = append(out, values)
	}
	return out, nil
}

func evaluate(ctx context.Context, m nn.Module, g *tensor.Generator) (err error) {
	x := tensor.Zeros(5, 8)
	g.Uniform(x, -1, 1)
	c := nn.Evaluation(ctx)
	defer c.Close()
	defer c.Recover(&err)
	c.Call(m, x)
	return nil
}

// liveJob runs cases on ranks as layout says: T is one of PyTorch's, G one of
// this process, which play ofGo instead. It returns what each rank has for each case.
func liveJob(t *testing.T, torch []*torchRank, layout string, cases, ofGo []liveCase) ([][][][]float32, []error) {
	t.Helper()
	server, err := store.ListenPyTorch("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	host, port, err := net.SplitHostPort(server.Addr())
	if err != nil {
		t.Fatal(err)
	}
	env := map[string]string{"WORLD_SIZE": fmt.Sprint(len(layout)), "MASTER_ADDR": host, "MASTER_PORT": port,
		"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0"}
	for k, v := range env {
		t.Setenv(k, v)
	}
	ctx, cancel := context.WithTimeoutCause(t.Context(), time.Minute, errors.New("the test's limit"))
	defer cancel()
	results, errs := make([][][][]float32, len(layout)), make([]error, len(layout))
	met := make(chan error, 1)
	go func() { met <- server.Meet(ctx, len(layout)) }()
	defer func() {
		cancel()
		<-met
	}()
	var ranks sync.WaitGroup
	taken := 0
	for rank, kind := range layout {
		if kind == 'G' {
			ranks.Go(func() { results[rank], errs[rank] = liveRank(ctx, rank, len(layout), torch[0].version, ofGo) })
			continue
		}
		r := torch[taken]
		taken++
		own := maps.Clone(env)
		own["RANK"] = fmt.Sprint(rank)
		ranks.Go(func() { results[rank], errs[rank] = r.play(own, cases) })
	}
	ranks.Wait()
	return results, errs
}

func liveRank(ctx context.Context, rank, size int, version string, cases []liveCase) (out [][][]float32, err error) {
	g, err := dist.Init(ctx, dist.WithBackend("gloo"), dist.WithRank(rank, size))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, g.Close()) }()
	for _, c := range cases {
		params, err := c.play(ctx, g, version)
		if err != nil {
			return nil, err
		}
		out = append(out, params)
	}
	return out, nil
}

// play has a PyTorch rank play cases.
func (r *torchRank) play(env map[string]string, cases []liveCase) ([][][]float32, error) {
	job, err := json.Marshal(object{"env": env, "cases": cases})
	if err != nil {
		return nil, err
	}
	if _, err := r.in.Write(append(job, '\n')); err != nil {
		return nil, err
	}
	var answer struct {
		Error string
		Cases [][][]int32
	}
	if err := r.read(&answer); err != nil {
		return nil, err
	}
	if answer.Error != "" {
		return nil, errors.New(answer.Error)
	}
	out := make([][][]float32, len(answer.Cases))
	for i, c := range answer.Cases {
		for _, p := range c {
			values := make([]float32, len(p))
			for j, bits := range p {
				values[j] = math.Float32frombits(uint32(bits))
			}
			out[i] = append(out[i], values)
		}
	}
	return out, nil
}

// TestBesidePyTorch trains models on ranks of both kinds: after 20 steps all have
// the same parameters, bit for bit where the optimizer is SGD, to 1e-6 where
// it is AdamW.
func TestBesidePyTorch(t *testing.T) {
	names := slices.Sorted(maps.Keys(liveCases))
	var cases []liveCase
	for _, name := range names {
		c := liveCases[name]
		if c.Steps == nil {
			c.Steps = []int{20}
		}
		// As they come from JSON, for Go's ranks too.
		text, err := json.Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		c = liveCase{}
		if err := json.Unmarshal(text, &c); err != nil {
			t.Fatal(err)
		}
		if liveCases[name].Join != nil && c.Join == nil {
			c.Join = object{}
		}
		cases = append(cases, c)
	}
	layouts, most := []string{"GT", "TGGT"}, 2
	if *positions {
		layouts, most = []string{"GT", "TG", "GTT", "TGT", "TTG", "GTTG", "TGGT", "TGTG", "GTTTT", "TGTTT", "TTGTT", "TTTGT", "TTTTG", "GGTGG"}, 4
	}
	eachTorch(t, most, func(t *testing.T, torch []*torchRank) {
		for _, layout := range layouts {
			t.Run(layout, func(t *testing.T) {
				names, cases := names, cases
				if strings.HasPrefix(torch[0].version, "1.13") { // whose hook wants NCCL
					names, cases = withoutBF16(names, cases)
				}
				results, errs := liveJob(t, torch, layout, cases, cases)
				if err := errors.Join(errs...); err != nil {
					t.Fatal(err)
				}
				for i, name := range names {
					worst, differ := 0.0, 0
					for rank := range layout {
						for p, values := range results[rank][i] {
							for j, v := range values {
								first := results[0][i][p][j]
								if math.Float32bits(v) != math.Float32bits(first) {
									differ++
									worst = max(worst, math.Abs(float64(v)-float64(first)))
								}
							}
						}
					}
					if !(worst <= 1e-6) || differ > 0 && cases[i].Optimizer == "SGD" {
						t.Errorf("%s: %d parameters differ from rank 0's, by up to %.1e", name, differ, worst)
					}
					if cases[i].Optimizer != "SGD" {
						t.Logf("%s: %d parameters differ from rank 0's, by up to %.1e", name, differ, worst)
					}
				}
			})
		}
	})
}

// withoutBF16 leaves the cases whose hook sends bfloat16 out.
func withoutBF16(names []string, cases []liveCase) (left []string, of []liveCase) {
	for i, c := range cases {
		if c.Hook != "bf16" {
			left, of = append(left, names[i]), append(of, c)
		}
	}
	return left, of
}

// TestOtherModelBesidePyTorch: ranks of PyTorch with another model get an error
// of theirs, and go on with the next job: none is sent what would abort it.
func TestOtherModelBesidePyTorch(t *testing.T) {
	sgd := object{"lr": 0.1}
	of := func(model string) []liveCase {
		return []liveCase{{Model: model, Optimizer: "SGD", Options: sgd, Steps: []int{1}}}
	}
	eachTorch(t, 1, func(t *testing.T, torch []*torchRank) {
		for _, c := range []struct{ layout, torch, ofGo, want string }{
			{"TG", "mlp", "branches", "rank 0 trains 6 parameters and this rank 8"},
			{"GT", "mlp", "branches", "rank 1 trains 6 parameters and this rank 8"},
			{"TG", "wide", "mlp", "rank 0 sent the sizes and strides [5 6 6 1] where this rank has fc2.weight with [4 6 6 1]"},
			{"GT", "wide", "mlp", ""}, // PyTorch's rank finds it
			{"TG", "mlp", "linears", "rank 0"},
			{"GT", "mlp", "linears", "rank 1"}, // more sizes than PyTorch's rank has room for
		} {
			t.Run(c.layout+" "+c.torch+" "+c.ofGo, func(t *testing.T) {
				_, errs := liveJob(t, torch, c.layout, of(c.torch), of(c.ofGo))
				g := strings.Index(c.layout, "G")
				if errs[g] == nil || !strings.Contains(errs[g].Error(), c.want) {
					t.Errorf("the Go rank: %v, want %q", errs[g], c.want)
				}
				if errs[1-g] == nil || !strings.Contains(errs[1-g].Error(), "Error: ") {
					t.Errorf("the PyTorch rank: %v, want an exception of its own", errs[1-g])
				}
				t.Logf("Go: %v\nPyTorch: %v", errs[g], errs[1-g])
				if _, errs := liveJob(t, torch, c.layout, of("mlp"), of("mlp")); errors.Join(errs...) != nil {
					t.Errorf("the next job: %v", errs)
				}
			})
		}
	})
}

// TestDeathBesidePyTorch: a PyTorch rank that is killed while the ranks train is
// named by the Go ranks, at once.
func TestDeathBesidePyTorch(t *testing.T) {
	eachTorch(t, 1, func(t *testing.T, torch []*torchRank) {
		var killed time.Time
		kill := sync.OnceFunc(func() {
			killed = time.Now()
			_ = torch[0].cmd.Process.Kill()
		})
		cases := []liveCase{{Model: "mlp", Optimizer: "SGD", Options: object{"lr": 0.1}, Steps: []int{1 << 20}, onStep: func(step int) {
			if step == 100 {
				kill()
			}
		}}}
		_, errs := liveJob(t, torch, "GTG", cases, cases)
		took := time.Since(killed)
		torch[0].end()
		for _, rank := range []int{0, 2} {
			var failed *dist.RankError
			if !errors.As(errs[rank], &failed) || failed.Rank != 1 {
				t.Errorf("rank %d: %v, want a *dist.RankError of rank 1", rank, errs[rank])
			}
		}
		if took > loaded.Allow(2*time.Second) {
			t.Errorf("it took %v", took)
		}
		t.Logf("after %v: %v", took, errs[0])
	})
}
