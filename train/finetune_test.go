// SPDX-License-Identifier: Apache-2.0

package train

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"github.com/cohort-ml/cohort/checkpoint/storage"
	"maps"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/checkpoint/safetensors"
	"github.com/cohort-ml/cohort/data"
	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/internal/config"
	"github.com/cohort-ml/cohort/models"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/optim"
	"github.com/cohort-ml/cohort/tensor"
)

var (
	updateInputs = flag.Bool("update", false, "write the inputs of TestFineTuning's golden runs anew; then run testdata/finetune/finetune.py expected")
	python       = flag.String("python", "", "a Python with torch, transformers and peft, for TestPythonOpensWhatWasTuned")
)

// tuned returns a path in the folder of the golden runs.
func tuned(names ...string) string {
	return filepath.Join(append([]string{"testdata", "finetune"}, names...)...)
}

// tuneCase is a golden run: twenty steps of four sequences.
type tuneCase struct {
	name, base string
	numRanks   int
	lora       int
	targets    []string
}

var tuneCases = []tuneCase{
	{name: "gpt2-full", base: "gpt2", numRanks: 2},
	{name: "gpt2-lora", base: "gpt2", numRanks: 1, lora: 4},
	{name: "llama-full", base: "llama", numRanks: 1},
	{name: "llama-lora", base: "llama", numRanks: 2, lora: 2, targets: []string{"q_proj", "v_proj", "down_proj"}},
}

// config is the case's run, and what of it the user has given.
func (tc tuneCase) config(t *testing.T) (LMConfig, map[string]string) {
	c := DefaultLM()
	c.Data, c.Out, c.InitFrom = tuned("text.txt"), filepath.Join(t.TempDir(), "run"), tuned(tc.base)
	c.Ranks, c.Batch, c.Steps, c.Context, c.LR = tc.numRanks, 4/tc.numRanks, 20, 24, 3e-3
	c.EvalEvery, c.EvalTokens, c.SaveEvery, c.SampleTokens = 10, 96, 10, 4
	if c.LoRA, c.LoRATargets = tc.lora, tc.targets; tc.lora > 0 {
		c.LR = 2e-2
	}
	given := "data out init-from batch steps context lr eval-every eval-tokens save-every sample-tokens lora lora-targets"
	return c, flags(strings.Fields(given))
}

// TestFineTuningOnAFewKilobytes: notes of four kilobytes are text enough.
func TestFineTuningOnAFewKilobytes(t *testing.T) {
	text, err := os.ReadFile(tuned("text.txt"))
	if err != nil {
		t.Fatal(err)
	}
	c, given := tuneCases[2].config(t)
	c.Data, c.Steps = filepath.Join(t.TempDir(), "notes.txt"), 2
	if err := os.WriteFile(c.Data, text[:4380], 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := run(t, 1, c, slices.Sorted(maps.Keys(given))...)
	if err != nil || l.finish == nil || l.finish.Steps != 2 {
		t.Errorf("%v: %+v", err, l)
	}
}

// TestUnknownSettingsOfABaseAreTold: once, by rank 0, and by an evaluation.
func TestUnknownSettingsOfABaseAreTold(t *testing.T) {
	c, given := tuneCases[0].config(t)
	dir := filepath.Join(t.TempDir(), "strange")
	if err := os.CopyFS(dir, os.DirFS(c.InitFrom)); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, configFile)
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(strings.Replace(string(text), "{", `{"strange_setting": 3,`, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	c.InitFrom, c.Steps = dir, 2
	l, err := run(t, 2, c, slices.Sorted(maps.Keys(given))...)
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(strings.Join(l.notices, "\n"), "strange_setting"); n != 1 {
		t.Errorf("told %d times: %q", n, l.notices)
	}
	var notices []string
	if _, err := Eval(t.Context(), storage.Dir(dir), EvalOptions{Data: c.Data}, func(text string) { notices = append(notices, text) }); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(strings.Join(notices, "\n"), "strange_setting"); n != 1 {
		t.Errorf("an evaluation tells it %d times: %q", n, notices)
	}
}

// inputs returns what PyTorch needs to do the same steps: their tokens [step,
// sequence, length+1], their learning rates, and a LoRA's first matrices.
func (tc tuneCase) inputs(t *testing.T) map[string]*tensor.Tensor {
	t.Helper()
	c, given := tc.config(t)
	c.Ranks, c.Batch = 1, 4 // the order does not depend on the ranks
	out := make(map[string]*tensor.Tensor)
	err := dist.Spawn(t.Context(), 1, func(ctx context.Context, g *dist.Group) error {
		r := newLMRun(c, given, g, Discard)
		if err := r.cfg.tuneDefaults(given); err != nil {
			return err
		}
		c := r.cfg
		if err := r.openBase(ctx, nil); err != nil {
			return err
		}
		if err := r.openData(ctx, nil); err != nil {
			return err
		}
		if err := r.buildModel(nil); err != nil {
			return err
		}
		feed, err := r.feed(ctx, nil, data.LoaderState{})
		if err != nil {
			return err
		}
		defer feed.Close()
		var tokens []int64
		var rates []float32
		schedule := optim.WarmupCosine(c.numWarmup(), c.Steps, c.LRFloor)
		for step := range c.Steps {
			b, err := feed.Next(ctx)
			if err != nil {
				return err
			}
			for row := range b.Rows {
				tokens = append(tokens, b.Inputs[row*b.Length:(row+1)*b.Length]...)
				tokens = append(tokens, b.Targets[(row+1)*b.Length-1])
			}
			rates = append(rates, float32(schedule(step, c.LR)))
		}
		out["tokens"] = tensor.FromInt64(tokens, c.Steps, 4, c.Context+1)
		out["rates"] = tensor.FromFloat32(rates, len(rates))
		if r.lora != nil {
			for _, s := range r.lora.State() {
				out[s.Name] = s.Tensor
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// settings are those that PyTorch needs beside the inputs.
func (tc tuneCase) settings(t *testing.T) []byte {
	c, given := tc.config(t)
	if err := c.tuneDefaults(given); err != nil {
		t.Fatal(err)
	}
	o := nn.LoRAOptions{Rank: tc.lora, Targets: tc.targets}
	if tc.lora > 0 && len(o.Targets) == 0 {
		o.Targets = []string{"c_attn"}
	}
	text, err := json.MarshalIndent(map[string]any{
		"base": tc.base, "rank": tc.lora, "alpha": 2 * tc.lora, "targets": o.Targets, "weight_decay": c.WeightDecay, "beta2": c.Beta2, "clip": c.Clip,
	}, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	return append(text, '\n')
}

// write puts the inputs where PyTorch finds them.
func (tc tuneCase) write(t *testing.T, inputs map[string]*tensor.Tensor) {
	t.Helper()
	var list nn.NamedTensors
	for name, x := range inputs {
		list = append(list, nn.NamedTensor{Name: name, Tensor: x})
	}
	slices.SortFunc(list, func(a, b nn.NamedTensor) int { return strings.Compare(a.Name, b.Name) })
	var raw []safetensors.Tensor
	infos, err := checkpoint.Describe(list.All())
	if err != nil {
		t.Fatal(err)
	}
	for i, info := range infos {
		raw = append(raw, safetensors.Tensor{Info: info, Data: list[i].Tensor.Contiguous().Buffer().Data})
	}
	if err := os.MkdirAll(tuned(tc.name), 0o777); err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(tuned(tc.name, "inputs.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := safetensors.Write(f, raw, nil); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(tuned(tc.name, "settings.json"), tc.settings(t), 0o666); err != nil {
		t.Fatal(err)
	}
}

// compare holds what a run uses against what PyTorch was given.
func (tc tuneCase) compare(t *testing.T, inputs map[string]*tensor.Tensor) {
	t.Helper()
	f, err := safetensors.Open(tuned(tc.name, "inputs.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if len(f.Infos()) != len(inputs) {
		t.Errorf("%s: PyTorch was given %d tensors, the run uses %d", tc.name, len(f.Infos()), len(inputs))
	}
	for name, x := range inputs {
		had := make([]byte, x.NumElems()*x.DType().Size())
		if err := f.ReadTensor(name, had); err != nil {
			t.Errorf("%s: %v", tc.name, err)
		} else if !slices.Equal(had, x.Contiguous().Buffer().Data) {
			t.Errorf("%s: PyTorch was given other %s than the run uses: run with -update, and then the script", tc.name, name)
		}
	}
}

func readFloats(t *testing.T, path, name string) []float32 {
	t.Helper()
	f, err := safetensors.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	info, ok := f.Lookup(name)
	if !ok {
		t.Fatalf("%s has no %s", path, name)
	}
	x := tensor.New(tensor.CPU(), tensor.Float32, info.Shape...)
	if err := f.ReadTensor(name, x.Buffer().Data); err != nil {
		t.Fatal(err)
	}
	return x.Float32s()
}

// logitsOf returns a model's logits for the tokens 0 to 15, as the script does.
func logitsOf(t *testing.T, m nn.Module) []float32 {
	t.Helper()
	c := nn.Evaluation(t.Context())
	defer c.Close()
	return c.Call(m, tensor.Arange(tensor.CPU(), 16).Reshape(1, 16)).Keep().Float32s()
}

// furthest returns the largest difference, relative to the largest of want.
func furthest(got, want []float32) float64 {
	if len(got) != len(want) {
		return math.Inf(1)
	}
	scale, most := 0.0, 0.0
	for i, w := range want {
		scale = max(scale, math.Abs(float64(w)))
		d := math.Abs(float64(got[i]) - float64(w))
		if math.IsNaN(d) {
			return d
		}
		most = max(most, d)
	}
	return most / scale
}

// TestFineTuning: a GPT-2 and a Llama that transformers made, tuned whole and by
// LoRA on one rank and on two, have its and PEFT's losses in each of twenty
// steps, and at the end, opened from the checkpoint, its logits.
func TestFineTuning(t *testing.T) {
	for _, tc := range tuneCases {
		t.Run(tc.name, func(t *testing.T) {
			inputs := tc.inputs(t)
			if *updateInputs {
				tc.write(t, inputs)
				return
			}
			tc.compare(t, inputs)
			c, given := tc.config(t)
			l := newLog()
			if err := runGiven(t, tc.numRanks, c, l, given); err != nil {
				t.Fatal(err)
			}
			expected := tuned(tc.name, "expected.safetensors")
			want := readFloats(t, expected, "losses")
			for i, w := range want {
				if d := math.Abs(l.losses[i+1]-float64(w)) / float64(w); !(d <= 1e-3) {
					t.Errorf("the loss of step %d is %v, PyTorch's %v: relative difference %.1e", i+1, l.losses[i+1], w, d)
				}
			}
			if len(l.losses) != len(want) || want[len(want)-1] > 0.9*want[0] {
				t.Errorf("%d losses, want %d that fall: %v", len(l.losses), len(want), want)
			}
			m, _, err := LoadLM(t.Context(), storage.Dir(c.Out), noNotice(t))
			if err != nil {
				t.Fatal(err)
			}
			if d := furthest(logitsOf(t, m), readFloats(t, expected, "logits")); !(d <= 2e-3) {
				t.Errorf("the logits of the tuned model differ by %.1e of the largest", d)
			}
		})
	}
}

// runGiven trains on ranks that are goroutines, with the flags that were given.
func runGiven(t *testing.T, numRanks int, c LMConfig, l *log, given map[string]string) error {
	t.Helper()
	return dist.Spawn(t.Context(), numRanks, func(ctx context.Context, g *dist.Group) error {
		return LM(ctx, g, c, given, l)
	})
}

// TestTunedRunsResume: a run that is stopped half way, whole or by LoRA, and goes
// on with another number of ranks ends where one does that was not.
func TestTunedRunsResume(t *testing.T) {
	for _, tc := range []tuneCase{tuneCases[0], tuneCases[3]} {
		c, given := tc.config(t)
		l := newLog()
		if err := runGiven(t, tc.numRanks, c, l, given); err != nil {
			t.Fatal(err)
		}
		whole, _, err := LoadLM(t.Context(), storage.Dir(c.Out), noNotice(t))
		if err != nil {
			t.Fatal(err)
		}
		half := c
		half.Out = filepath.Join(t.TempDir(), "half")
		ctx, stop := context.WithCancel(t.Context())
		again := newLog()
		again.onStep = func(step int) {
			if step == 7 {
				stop()
			}
		}
		err = dist.Spawn(ctx, tc.numRanks, func(ctx context.Context, g *dist.Group) error { return LM(ctx, g, half, given, again) })
		if err == nil {
			t.Fatal("the run did not stop")
		}
		again.onStep = nil
		// As somebody would who has forgotten what it was begun with.
		resumed := DefaultLM()
		resumed.Out = half.Out
		if err := runGiven(t, 4, resumed, again, flags([]string{"out"})); err != nil {
			t.Fatal(err)
		}
		m, _, err := LoadLM(t.Context(), storage.Dir(half.Out), noNotice(t))
		if err != nil {
			t.Fatal(err)
		}
		if d := furthest(logitsOf(t, m), logitsOf(t, whole)); !(d <= 1e-4) {
			t.Errorf("%s: after a stop, the logits differ by %.1e of the largest", tc.name, d)
		}
		for step, loss := range l.losses {
			if d := math.Abs(again.losses[step] - loss); !(d <= 1e-4) {
				t.Errorf("%s: after a stop, the loss of step %d is %v, without %v", tc.name, step, again.losses[step], loss)
			}
		}
	}
}

// TestMergedModels: --merge leaves a model that computes what the adapted one
// does, with the tokenizer and all settings of the model that was begun with.
func TestMergedModels(t *testing.T) {
	tc := tuneCases[1]
	c, given := tc.config(t)
	c.Merge, c.Steps = true, 5
	if err := runGiven(t, 1, c, newLog(), given); err != nil {
		t.Fatal(err)
	}
	adapted, _, err := LoadLM(t.Context(), storage.Dir(c.Out), noNotice(t))
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(c.Out, mergedDir)
	merged, _, err := LoadLM(t.Context(), storage.Dir(dir), noNotice(t))
	if err != nil {
		t.Fatal(err)
	}
	if d := furthest(logitsOf(t, merged), logitsOf(t, adapted)); !(d <= 1e-6) {
		t.Errorf("merged, the logits differ by %.1e of the largest", d)
	}
	// It knows its text, and how long a sequence was.
	var losses [2]Metric
	for i, at := range []string{c.Out, dir} {
		r, err := Eval(t.Context(), storage.Dir(at), EvalOptions{}, noNotice(t))
		if err != nil || !strings.Contains(r.Model, "24 tokens at once") {
			t.Fatalf("%s: %v, %s", at, err, r.Model)
		}
		losses[i] = r.Metrics[0]
	}
	if d := losses[0].Value - losses[1].Value; !(math.Abs(d) < 1e-5) {
		t.Errorf("merged, the loss is %v, before %v", losses[1], losses[0])
	}
	for _, name := range []string{tokenizerFile, tokenizerConfigFile} {
		for _, at := range []string{checkpoint.Path(dir, 5), checkpoint.Path(c.Out, 5)} {
			got, err := os.ReadFile(filepath.Join(at, name))
			want, wantErr := os.ReadFile(tuned("gpt2", name))
			if err != nil || wantErr != nil || string(got) != string(want) {
				t.Errorf("%s in %s is another than that of the model (%v, %v)", name, at, err, wantErr)
			}
		}
	}
	var had, has map[string]any
	for path, into := range map[string]*map[string]any{tuned("gpt2", configFile): &had, filepath.Join(checkpoint.Path(dir, 5), configFile): &has} {
		text, err := os.ReadFile(path)
		if err == nil {
			err = json.Unmarshal(text, into)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	delete(had, "dtype")
	had["torch_dtype"] = "float32"
	if fmt.Sprint(has) != fmt.Sprint(had) {
		t.Errorf("the settings were %v and are %v", had, has)
	}
	// And it is what another run can begin with.
	c.InitFrom, c.Out, c.Merge, c.LoRATargets = dir, filepath.Join(t.TempDir(), "next"), false, []string{allTargets}
	if err := runGiven(t, 1, c, newLog(), given); err != nil {
		t.Error(err)
	}
	// An adapter is not, for another one.
	c.InitFrom, c.Out = checkpoint.Path(c.Out, 5), filepath.Join(t.TempDir(), "third")
	if _, err := CheckLM(t.Context(), c, given); err == nil || !strings.Contains(err.Error(), "itself an adapter") {
		t.Errorf("an adapter of an adapter: %v", err)
	}
}

// TestTuningThatCannotBegin: what cannot work is said before a rank starts, with
// what to change.
func TestTuningThatCannotBegin(t *testing.T) {
	empty := t.TempDir()
	golden := filepath.Join("..", "models", "testdata", "golden")
	other := filepath.Join(t.TempDir(), "other") // a tokenizer of more tokens than the model knows
	if err := os.CopyFS(other, os.DirFS(filepath.Join(golden, "gpt2"))); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(tuned("gpt2", tokenizerFile))
	if err == nil {
		err = os.WriteFile(filepath.Join(other, tokenizerFile), text, 0o666)
	}
	if err != nil {
		t.Fatal(err)
	}
	cut := filepath.Join(t.TempDir(), "cut") // half of the weights
	if err := os.CopyFS(cut, os.DirFS(tuned("llama"))); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(filepath.Join(cut, checkpoint.ModelFile), 40_000); err != nil {
		t.Fatal(err)
	}
	// What would end a run only when its model writes something.
	altered := func(name, file, text string) string {
		dir := filepath.Join(t.TempDir(), name)
		if err := os.CopyFS(dir, os.DirFS(tuned("llama"))); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	share, added := altered("share", generationFile, `{"top_p": 1.5}`), altered("added", "added_tokens.json", `{"<more>": 320}`)
	for _, f := range []struct {
		change func(c *LMConfig)
		flag   string // given besides
		want   []string
	}{
		{func(c *LMConfig) { c.InitFrom = empty }, "", []string{"--init-from", empty, "neither the directory of a run"}},
		{func(c *LMConfig) { c.InitFrom = filepath.Join(empty, "no") }, "", []string{"--init-from", "no", "does not exist"}},
		{func(c *LMConfig) { c.InitFrom = filepath.Join(golden, "gpt2") }, "", []string{tokenizerFile}},
		{func(c *LMConfig) { c.InitFrom = other }, "", []string{"320 tokens, the model knows 61"}},
		{func(c *LMConfig) { c.InitFrom = cut }, "", []string{"cut", checkpoint.ModelFile}},
		{func(c *LMConfig) { c.InitFrom = share }, "", []string{share, generationFile, "top_p is 1.5"}},
		{func(c *LMConfig) { c.InitFrom, c.Prompt = added, "a <more>" }, "", []string{added, `"<more>"`, "knows 320"}},
		{func(c *LMConfig) { c.Model = "llama" }, "model", []string{"--model is llama", "is a gpt2"}},
		{func(c *LMConfig) { c.Model = "mamba" }, "model", []string{`"mamba"`, "gpt2 or llama"}},
		{func(c *LMConfig) { c.Context = 65 }, "", []string{"--context is 65", "takes 64"}},
		{func(c *LMConfig) { c.Width = 64 }, "width", []string{"--width", "--init-from", "decides"}},
		{func(c *LMConfig) { c.Balance = 0.5 }, "balance", []string{"--balance", "--init-from", "config.json"}},
		{func(c *LMConfig) { c.LoRA = -1 }, "", []string{"rank of a LoRA is -1"}},
		{func(c *LMConfig) { c.LoRA = 4; c.LoRATargets = []string{"q_proj"} }, "", []string{"--lora-targets", `"q_proj"`, "c_attn, c_fc, c_proj"}},
		{func(c *LMConfig) { c.LoRA = 4; c.LoRADropout = 1 }, "lora-dropout", []string{"dropout of a LoRA is 1"}},
		{func(c *LMConfig) { c.Merge = true }, "merge", []string{"--merge needs --lora"}},
		{func(c *LMConfig) { c.LoRA, c.InitFrom = 4, "" }, "lora", []string{"--lora needs --init-from"}},
	} {
		c, given := tuneCases[0].config(t)
		if f.change(&c); f.flag != "" {
			given[f.flag] = config.Flag
		}
		_, check := CheckLM(t.Context(), c, given)
		run := runGiven(t, 1, c, newLog(), given)
		for what, err := range map[string]error{"check": check, "run": run} {
			for _, part := range f.want {
				if err == nil || !strings.Contains(err.Error(), part) {
					t.Errorf("%s: %v, want %q", what, err, part)
				}
			}
		}
		if _, err := os.Stat(c.Out); err == nil {
			t.Errorf("%q: the run's directory was made", f.want)
		}
	}
}

// TestTunedRunsAreWhatTheyWere: flags that contradict a run that is resumed, and
// a model that has changed under a LoRA, are errors.
func TestTunedRunsAreWhatTheyWere(t *testing.T) {
	tc := tuneCases[1]
	c, given := tc.config(t)
	base := filepath.Join(t.TempDir(), "base")
	if err := os.CopyFS(base, os.DirFS(tuned(tc.base))); err != nil {
		t.Fatal(err)
	}
	c.InitFrom, c.Steps = base, 2
	if err := runGiven(t, 1, c, newLog(), given); err != nil {
		t.Fatal(err)
	}
	for _, f := range []struct {
		change func(c *LMConfig)
		want   string
	}{
		{func(c *LMConfig) { c.LoRA = 5 }, "--lora is 5, the checkpoint's 4"},
		{func(c *LMConfig) { c.InitFrom = tuned("llama") }, "is not the one that"},
		{func(c *LMConfig) { c.LoRATargets = []string{"c_proj"} }, "--lora-targets is"},
	} {
		other := c
		f.change(&other)
		if _, err := CheckLM(t.Context(), other, given); err == nil || !strings.Contains(err.Error(), f.want) {
			t.Errorf("%v, want %q", err, f.want)
		}
	}
	m, err := models.LoadHuggingFace(base)
	if err != nil {
		t.Fatal(err)
	}
	nn.StateDict(m)[3].Tensor.Fill(0.5)
	if err := os.RemoveAll(base); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(tuned(tc.base, tokenizerFile))
	if err == nil {
		err = models.SaveHuggingFace(base, m, 0, map[string][]byte{tokenizerFile: text})
	}
	if err != nil {
		t.Fatal(err)
	}
	c.Steps = 3
	if err := runGiven(t, 1, c, newLog(), given); err == nil || !strings.Contains(err.Error(), "is not the one that") {
		t.Errorf("with another model under it: %v", err)
	}
}

// TestLlamasAreTrained: --model llama without anything to begin with.
func TestLlamasAreTrained(t *testing.T) {
	c := tiny(t, writeText(t, 20_000))
	c.Model = "llama"
	l, err := run(t, 2, c)
	if err != nil {
		t.Fatal(err)
	}
	if !(l.losses[12] < l.losses[1]) {
		t.Errorf("the loss goes from %v to %v", l.losses[1], l.losses[12])
	}
	m, _, err := LoadLM(t.Context(), storage.Dir(c.Out), noNotice(t))
	if err != nil {
		t.Fatal(err)
	}
	if m.Kind() != "llama" {
		t.Errorf("a %T was trained", m)
	}
	c.Steps = 14
	if l, err = run(t, 1, c); err != nil || l.start.FirstStep != 12 {
		t.Errorf("resumed at step %d: %v", l.start.FirstStep, err)
	}
}

// TestPythonOpensWhatWasTuned: transformers and PEFT open checkpoints and merged
// models, with their tokenizers, and compute the same logits.
//
//	go test ./train -run TestPythonOpensWhatWasTuned -python /path/to/python
func TestPythonOpensWhatWasTuned(t *testing.T) {
	if *python == "" {
		t.Skip("needs -python")
	}
	for _, tc := range tuneCases {
		c, given := tc.config(t)
		c.Merge = tc.lora > 0
		if err := runGiven(t, tc.numRanks, c, newLog(), given); err != nil {
			t.Fatal(err)
		}
		m, _, err := LoadLM(t.Context(), storage.Dir(c.Out), noNotice(t))
		if err != nil {
			t.Fatal(err)
		}
		want, last := logitsOf(t, m), checkpoint.Path(c.Out, 20)
		opened := [][]string{{last}}
		if tc.lora > 0 {
			opened = [][]string{{tuned(tc.base), last}, {checkpoint.Path(filepath.Join(c.Out, mergedDir), 20)}}
		}
		for _, args := range opened {
			cmd := exec.CommandContext(t.Context(), *python, append([]string{tuned("finetune.py"), "open"}, args...)...)
			var stderr strings.Builder
			cmd.Stderr = &stderr
			text, err := cmd.Output()
			if err != nil {
				t.Fatalf("%s: %v: %s", args, err, stderr.String())
			}
			var got []float32
			for _, field := range strings.Fields(string(text)) {
				v, err := strconv.ParseFloat(field, 32)
				if err != nil {
					t.Fatal(err)
				}
				got = append(got, float32(v))
			}
			d := furthest(got, want)
			t.Logf("%s %s: the logits differ by %.1e of the largest", tc.name, filepath.Base(args[0]), d)
			if !(d <= 1e-5) {
				t.Errorf("%s: the logits differ by %.1e of the largest", args, d)
			}
		}
	}
}
