// SPDX-License-Identifier: Apache-2.0

package train

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/checkpoint/storage"
	"github.com/cohort-ml/cohort/data"
	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/internal/config"
	"github.com/cohort-ml/cohort/nn"
)

// writeText makes a file of lines of words.
func writeText(t *testing.T, size int) string {
	t.Helper()
	r := rand.New(rand.NewPCG(1, 2))
	words := make([]string, 200)
	for i := range words {
		for range 2 + r.IntN(6) {
			words[i] += string(rune('a' + r.IntN(26)))
		}
	}
	var b strings.Builder
	for b.Len() < size {
		for range 9 {
			b.WriteString(words[r.IntN(len(words))] + " ")
		}
		b.WriteString("\n")
	}
	path := filepath.Join(t.TempDir(), "text.txt")
	if err := os.WriteFile(path, []byte(b.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// tiny is a run of some milliseconds a step.
func tiny(t *testing.T, text string) LMConfig {
	c := DefaultLM()
	c.Data, c.Out = text, filepath.Join(t.TempDir(), "run")
	c.Vocab, c.Context, c.Width, c.Heads, c.Layers = 300, 16, 32, 2, 1
	c.Batch, c.Steps, c.SaveEvery, c.EvalEvery, c.EvalTokens, c.SampleTokens = 2, 12, 5, 6, 128, 5
	return c
}

// log is a Reporter that remembers.
type log struct {
	start       Start
	losses      map[int]float64
	evaluations map[int]float64
	saved       []int
	skipped     []int
	notices     []string
	finish      *Finish
	onStep      func(step int)
}

func newLog() *log { return &log{losses: map[int]float64{}, evaluations: map[int]float64{}} }

func (l *log) Start(s Start)           { l.start = s }
func (l *log) Evaluation(e Evaluation) { l.evaluations[e.Step] = e.Metrics[0].Value }
func (l *log) Saved(s Saved)           { l.saved = append(l.saved, s.Step) }
func (l *log) Notice(text string) {
	// On a busy machine ranks are late, which is no matter of the tests.
	if !strings.Contains(text, " is slow: the others wait ") {
		l.notices = append(l.notices, text)
	}
}
func (l *log) Finish(f Finish) { l.finish = &f }
func (l *log) Step(s Step) {
	l.losses[s.Step] = s.Loss
	l.skipped = append(l.skipped, s.Skipped)
	if l.onStep != nil {
		l.onStep(s.Step)
	}
}

// run trains on ranks that are goroutines.
func run(t *testing.T, numRanks int, c LMConfig, explicit ...string) (*log, error) {
	t.Helper()
	l := newLog()
	return l, runWith(t, numRanks, c, l, explicit...)
}

func runWith(t *testing.T, numRanks int, c LMConfig, l *log, explicit ...string) error {
	t.Helper()
	ctx, cancel := context.WithTimeoutCause(t.Context(), 2*time.Minute, errors.New("the test's limit"))
	defer cancel()
	return spawnLM(ctx, numRanks, c, l, explicit...)
}

func spawnLM(ctx context.Context, numRanks int, c LMConfig, l *log, explicit ...string) error {
	return dist.Spawn(ctx, numRanks, func(ctx context.Context, g *dist.Group) error {
		return LM(ctx, g, c, flags(explicit), l)
	})
}

func flags(names []string) map[string]string {
	m := map[string]string{}
	for _, n := range names {
		m[n] = config.Flag
	}
	return m
}

// modelFile returns the weights of a step.
func modelFile(t *testing.T, out string, step int) string {
	t.Helper()
	return sectionOf(t, checkpoint.Path(out, step), checkpoint.Model)
}

// sectionOf returns the tensors of a section of a checkpoint as text, whatever files they
// are in.
func sectionOf(t *testing.T, dir, section string) string {
	t.Helper()
	ck, err := checkpoint.Open(t.Context(), storage.Dir(dir), "")
	if err != nil {
		t.Fatal(err)
	}
	src, err := ck.Source(section)
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	var text strings.Builder
	for _, info := range src.Infos() {
		data := make([]byte, info.NumBytes())
		if err := src.ReadTensor(info.Name, data); err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&text, "%v %x\n", info, data)
	}
	return text.String()
}

// TestTwoRanksTrainAsOne: two ranks of batch 8 give the losses of one rank of
// batch 16.
func TestTwoRanksTrainAsOne(t *testing.T) {
	text := writeText(t, 40_000)
	t.Run("tiny", func(t *testing.T) { trainAsOne(t, tiny(t, text)) })
	if testing.Short() {
		return
	}
	t.Run("small", func(t *testing.T) {
		c := tiny(t, text)
		c.Context, c.Width, c.Heads, c.Layers, c.LR = 64, 64, 4, 2, 1e-3
		trainAsOne(t, c)
	})
}

func trainAsOne(t *testing.T, c LMConfig) {
	c.Steps, c.SaveEvery, c.EvalEvery = 50, 50, 25
	c.Batch = 16
	one, err := run(t, 1, c)
	if err != nil {
		t.Fatal(err)
	}
	c.Batch, c.Out = 8, c.Out+"-two"
	two, err := run(t, 2, c)
	if err != nil {
		t.Fatal(err)
	}
	worst := 0.0
	for step, want := range one.losses {
		off := math.Abs(two.losses[step]-want) / want
		worst = max(worst, off)
		if !(off < 1e-5) {
			t.Errorf("step %d: loss %v, alone %v", step, two.losses[step], want)
		}
	}
	for step, want := range one.evaluations {
		if off := math.Abs(two.evaluations[step]-want) / want; !(off < 1e-5) {
			t.Errorf("step %d: %v bits per byte, alone %v", step, two.evaluations[step], want)
		}
	}
	if len(one.losses) != 50 || len(two.losses) != 50 || len(two.evaluations) != 2 || one.losses[50] > 0.95*one.losses[1] {
		t.Errorf("%d and %d losses, %d evaluations, loss from %v to %v",
			len(one.losses), len(two.losses), len(two.evaluations), one.losses[1], one.losses[50])
	}
	t.Logf("largest relative difference of a loss: %.1e", worst)
}

// TestResume: a run that is stopped and goes on ends with the same losses and
// the same weights, bit for bit, as one that never stopped.
func TestResume(t *testing.T) {
	text := writeText(t, 20_000)
	c := tiny(t, text)
	c.Keep = 10
	whole, err := run(t, 2, c)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(whole.saved, []int{5, 10, 12}) || whole.finish == nil || whole.finish.Text == "" {
		t.Errorf("saved %v, finish %v", whole.saved, whole.finish)
	}

	// The signal reaches one rank only, which is not rank 0.
	parts := c
	parts.Out = filepath.Join(t.TempDir(), "parts")
	l := newLog()
	stop := make(chan struct{})
	l.onStep = func(step int) {
		if step == 7 {
			close(stop)
		}
	}
	interrupt := errors.New("rank 1 got SIGINT")
	told := make([]error, 2)
	err = dist.Spawn(t.Context(), 2, func(ctx context.Context, g *dist.Group) error {
		if g.Rank() == 1 {
			mine, cancel := context.WithCancelCause(ctx)
			defer cancel(nil)
			go func() { <-stop; cancel(interrupt) }()
			ctx = mine
		}
		told[g.Rank()] = LM(ctx, g, parts, nil, l)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	at := len(l.losses)
	if at < 7 || at > 11 || !slices.Contains(l.saved, at) || l.finish != nil {
		t.Fatalf("stopped after step %d, saved %v", at, l.saved)
	}
	for rank, err := range told {
		if !errors.Is(err, ErrStopped) || !strings.Contains(err.Error(), fmt.Sprintf("at step %d of 12", at)) {
			t.Errorf("rank %d: %v", rank, err)
		}
	}
	if !errors.Is(told[1], interrupt) {
		t.Errorf("the cause is lost: %v", told[1])
	}
	if strings.Contains(told[0].Error(), "nil") {
		t.Errorf("rank 0, which had no signal, says %v", told[0])
	}
	rest, err := run(t, 2, parts)
	if err != nil {
		t.Fatal(err)
	}
	if rest.start.FirstStep != at || rest.start.Resumed != checkpoint.Path(parts.Out, at) {
		t.Errorf("resumed at step %d from %q", rest.start.FirstStep, rest.start.Resumed)
	}
	maps.Copy(l.losses, rest.losses)
	maps.Copy(l.evaluations, rest.evaluations)
	if !maps.Equal(l.losses, whole.losses) || !maps.Equal(l.evaluations, whole.evaluations) {
		t.Errorf("losses\n%v, without a stop\n%v", l.losses, whole.losses)
	}
	if rest.finish.Text != whole.finish.Text || modelFile(t, parts.Out, 12) != modelFile(t, c.Out, 12) {
		t.Error("the weights at the end are not those of the run that never stopped")
	}

	// Another number of ranks with the same sequences a step goes on too, and so
	// does the next from what that has saved. c.Batch is 2 and not explicit: it
	// becomes 4, and of three ranks one takes two sequences.
	for _, ranks := range []int{1, 3, 2} {
		if err := os.RemoveAll(checkpoint.Path(c.Out, 12)); err != nil {
			t.Fatal(err)
		}
		l, err := run(t, ranks, c)
		if err != nil {
			t.Fatal(err)
		}
		for _, step := range []int{11, 12} {
			if got, want := l.losses[step], whole.losses[step]; !(math.Abs(got-want)/want < 1e-5) {
				t.Errorf("step %d on %d ranks: loss %v, on two %v", step, ranks, got, want)
			}
		}
	}
	c.Steps = 14 // from a run whose ranks had uneven shares
	if _, err := run(t, 3, c, "steps"); err != nil {
		t.Fatal(err)
	}
	c.Steps = 16
	if l, err := run(t, 2, c, "steps"); err != nil || len(l.losses) != 2 {
		t.Errorf("%v, losses %v", err, l.losses)
	}
}

func TestCompleteAndExtended(t *testing.T) {
	c := tiny(t, writeText(t, 20_000))
	first, err := run(t, 1, c)
	if err != nil {
		t.Fatal(err)
	}
	again, err := run(t, 1, c)
	if err != nil {
		t.Fatal(err)
	}
	if len(again.losses) != 0 || len(again.saved) != 0 || len(again.notices) != 1 || !strings.Contains(again.notices[0], "complete at step 12") {
		t.Errorf("a complete run did %d steps, saved %v, said %q", len(again.losses), again.saved, again.notices)
	}
	if again.finish == nil || again.finish.Text != first.finish.Text {
		t.Errorf("the sample is another one: %v", again.finish)
	}
	c.Steps = 14
	longer, err := run(t, 1, c, "steps")
	if err != nil {
		t.Fatal(err)
	}
	if len(longer.losses) != 2 || longer.losses[14] == 0 || !slices.Equal(longer.saved, []int{14}) {
		t.Errorf("extended by 2: losses %v, saved %v", longer.losses, longer.saved)
	}
	c.Steps = 3
	if l, err := run(t, 1, c, "steps"); err != nil || len(l.losses) != 0 {
		t.Errorf("fewer steps than there are: %v, losses %v", err, l.losses)
	}
	// The same command, given with every flag, is no conflict: also where the
	// text was too small for the vocabulary that was asked for.
	c = tiny(t, c.Data)
	c.Vocab = 5000
	for range 2 {
		if _, err := run(t, 1, c, "data", "steps", "batch", "seed", "vocab", "context", "width", "heads", "layers", "lr"); err != nil {
			t.Error(err)
		}
	}
}

func TestFlagsAgainstCheckpoint(t *testing.T) {
	c := tiny(t, writeText(t, 20_000))
	if _, err := run(t, 1, c); err != nil {
		t.Fatal(err)
	}
	before := tree(t, c.Out)
	c.Width, c.Seed, c.Layers, c.Batch = 64, 9, 2, 3
	_, err := CheckLM(t.Context(), c, flags([]string{"width", "seed", "layers", "batch"}))
	if err == nil {
		t.Fatal("no error")
	}
	for _, part := range []string{"--width is 64, the checkpoint's 32", "--seed is 9, the checkpoint's 1", "--layers is 2, the checkpoint's 1",
		"ranks × sequences: 2 × 3 = 6 a step, the checkpoint's run has 1 × 2 = 2", c.Out, "another --out"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("the error lacks %q: %v", part, err)
		}
	}
	if got := tree(t, c.Out); !slices.Equal(got, before) {
		t.Errorf("files %v, before %v", got, before)
	}
}

// tree lists the files below a directory with their sizes.
func tree(t *testing.T, dir string) []string {
	t.Helper()
	var all []string
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err == nil && !d.IsDir() {
			all = append(all, fmt.Sprint(path, info.Size(), info.ModTime().UnixNano()))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// TestDamagedCheckpoint: the newest that is whole is used, and the user is
// told which was passed over, and why.
func TestDamagedCheckpoint(t *testing.T) {
	for what, damage := range map[string]func(path string) error{
		"truncated": func(path string) error { return os.Truncate(path, 1000) },
		"changed": func(path string) error {
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			b[len(b)/2] ^= 1
			return os.WriteFile(path, b, 0o644)
		},
		"gone": os.Remove,
	} {
		t.Run(what, func(t *testing.T) {
			c := tiny(t, writeText(t, 20_000))
			whole, err := run(t, 1, c)
			if err != nil {
				t.Fatal(err)
			}
			newest := checkpoint.Path(c.Out, 12)
			if err := damage(filepath.Join(newest, checkpoint.ModelFile)); err != nil {
				t.Fatal(err)
			}
			l, err := run(t, 1, c)
			if err != nil {
				t.Fatal(err)
			}
			if len(l.notices) != 1 || !strings.Contains(l.notices[0], newest) || !strings.Contains(l.notices[0], checkpoint.ModelFile) {
				t.Errorf("notices %q, want one about %s", l.notices, newest)
			}
			if l.start.FirstStep != 10 || l.losses[12] != whole.losses[12] {
				t.Errorf("resumed at %d, losses %v, want from 10 and %v", l.start.FirstStep, l.losses, whole.losses[12])
			}
			if ck, err := checkpoint.Open(t.Context(), storage.Dir(newest), ""); err != nil || ck.Verify(t.Context(), nil) != nil {
				t.Errorf("the damaged checkpoint was not replaced: %v", err)
			}
		})
	}
}

func TestAllCheckpointsDamaged(t *testing.T) {
	c := tiny(t, writeText(t, 20_000))
	if _, err := run(t, 1, c); err != nil {
		t.Fatal(err)
	}
	for _, step := range []int{10, 12} {
		if err := os.Truncate(filepath.Join(checkpoint.Path(c.Out, step), checkpoint.OptimizerFile), 3); err != nil {
			t.Fatal(err)
		}
	}
	before := tree(t, c.Out)
	_, err := run(t, 1, c)
	var damaged *checkpoint.DamagedError
	if !errors.As(err, &damaged) || !strings.Contains(err.Error(), "another --out") {
		t.Errorf("the error is %v", err)
	}
	if !slices.Equal(tree(t, c.Out), before) {
		t.Error("a run that could not begin changed files")
	}
}

// TestCheckpointOfAnotherModel: the recipe fits, the tensors do not; all
// differences are listed at once.
func TestCheckpointOfAnotherModel(t *testing.T) {
	c := tiny(t, writeText(t, 20_000))
	if _, err := run(t, 1, c); err != nil {
		t.Fatal(err)
	}
	ck, _, err := checkpoint.Latest(t.Context(), storage.Dir(c.Out))
	if err != nil {
		t.Fatal(err)
	}
	progress, err := ck.ReadProgress()
	if err != nil {
		t.Fatal(err)
	}
	tok, err := ck.ReadFile(tokenizerFile, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	progress.Step = 99
	other := checkpoint.Whole(nn.StateDict(nn.NewSequential(nn.NewLinear(&nn.Build{}, 3, 4))).All())
	err = checkpoint.Save(t.Context(), nil, storage.Dir(c.Out), 99, checkpoint.State{
		Sections: map[string][]checkpoint.Part{checkpoint.Model: other, checkpoint.Optimizer: other},
		Values:   map[string]any{checkpoint.ProgressValue: progress},
		Files:    func(w *checkpoint.Writer) error { return w.WriteFile(tokenizerFile, tok) },
	})
	if err != nil {
		t.Fatal(err)
	}
	_, err = run(t, 1, c)
	var differs *checkpoint.StateDictError
	if !errors.As(err, &differs) {
		t.Fatalf("the error is %v, want a *checkpoint.StateDictError", err)
	}
	for _, part := range []string{"0.weight", "0.bias", "transformer.wte.weight", "transformer.h.0.mlp.c_fc.bias"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("the error does not list %s: %v", part, err)
		}
	}
}

func TestCheckLM(t *testing.T) {
	good := writeText(t, 20_000)
	dir := t.TempDir()
	empty := filepath.Join(dir, "empty")
	if err := os.Mkdir(empty, 0o755); err != nil {
		t.Fatal(err)
	}
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	short, binary, nothing := file("short", "hello\n"), file("binary", strings.Repeat("\x00\xff", 20_000)), file("nothing", "")
	outs := t.TempDir()
	for _, c := range []struct {
		what string
		set  func(c *LMConfig)
		want []string
	}{
		{"ok", func(c *LMConfig) {}, nil},
		{"missing", func(c *LMConfig) { c.Data = filepath.Join(dir, "no") }, []string{filepath.Join(dir, "no"), "missing", "--data"}},
		{"empty directory", func(c *LMConfig) { c.Data = empty }, []string{empty, "empty", "--data"}},
		{"empty file", func(c *LMConfig) { c.Data = nothing }, []string{nothing, "empty"}},
		{"too short", func(c *LMConfig) { c.Data = short }, []string{short, "too small"}},
		{"not text", func(c *LMConfig) { c.Data = binary }, []string{binary, "not text"}},
		{"no ranks", func(c *LMConfig) { c.Ranks = 0 }, []string{"--ranks is 0"}},
		{"too many ranks", func(c *LMConfig) { c.Ranks = 1 << 30 }, []string{"--ranks is 1073741824"}},
		{"no batch", func(c *LMConfig) { c.Batch = -3 }, []string{"--batch is -3, want 1 to"}},
		{"no steps", func(c *LMConfig) { c.Steps = 0 }, []string{"--steps is 0"}},
		{"heads", func(c *LMConfig) { c.Heads = 5 }, []string{"multiple of its heads", "32 % 5 = 2"}},
		{"dtype", func(c *LMConfig) { c.DType = "float16" }, []string{`--dtype is "float16", want float32 or bfloat16`}},
		{"lr", func(c *LMConfig) { c.LR = math.NaN() }, []string{"--lr is NaN"}},
		{"infinite lr", func(c *LMConfig) { c.LR = math.Inf(1) }, []string{"--lr is +Inf"}},
		{"clip", func(c *LMConfig) { c.Clip = math.NaN() }, []string{"--clip is NaN"}},
		{"weight decay", func(c *LMConfig) { c.WeightDecay = -1 }, []string{"--weight-decay is -1, want a finite number"}},
		{"beta2", func(c *LMConfig) { c.Beta2 = 7 }, []string{"--beta2 is 7, want a number between 0 and 1"}},
		{"warmup", func(c *LMConfig) { c.Warmup = math.NaN() }, []string{"--warmup is NaN, want a share"}},
		{"lr floor", func(c *LMConfig) { c.LRFloor = -5 }, []string{"--lr-floor is -5, want a share"}},
		{"no clipping", func(c *LMConfig) { c.Clip = 0 }, nil},
		{"long", func(c *LMConfig) { c.Context, c.EvalTokens = 100_000, 65_536 }, []string{good, "--context is 100000 tokens"}},
		{"width", func(c *LMConfig) { c.Width, c.Heads = 64, 3 }, []string{"--width is 64 and --heads 3"}},
		{"no out", func(c *LMConfig) { c.Out = " " }, []string{"--out"}},
		{"out is a file", func(c *LMConfig) { c.Out = short }, []string{short, "not a directory", "--out"}},
		{"out below a file", func(c *LMConfig) { c.Out = filepath.Join(short, "run") }, []string{short, "--out"}},
	} {
		cfg := tiny(t, good)
		cfg.Out = filepath.Join(outs, "a", "b")
		c.set(&cfg)
		_, err := CheckLM(t.Context(), cfg, nil)
		if (err != nil) != (c.want != nil) {
			t.Errorf("%s: error %v", c.what, err)
		}
		for _, part := range c.want {
			if err != nil && !strings.Contains(err.Error(), part) {
				t.Errorf("%s: the error lacks %q: %v", c.what, part, err)
			}
		}
		if err != nil && strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: the error has several lines: %v", c.what, err)
		}
	}
	if left := tree(t, outs); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	var source *data.SourceError
	cfg := tiny(t, empty)
	if _, err := run(t, 2, cfg); !errors.As(err, &source) || source.Problem != data.Empty {
		t.Errorf("LM itself gives %v", err)
	}
	if _, err := os.Stat(cfg.Out); err == nil {
		t.Error("a run that could not begin made its directory")
	}
}

// TestTextChanged: another text under the same name is not trained on as if it
// were the same.
func TestTextChanged(t *testing.T) {
	c := tiny(t, writeText(t, 20_000))
	if _, err := run(t, 1, c); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(c.Data, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString("one line more\n"); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	c.Steps++
	_, err = run(t, 1, c, "steps")
	want := "the text in " + c.Data + " has changed since " + checkpoint.Path(c.Out, 12) + " was saved: put it back"
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %q", err, want)
	}
}

func TestUnwritable(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Skip("root may write everywhere and read everything")
	}
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o555); err != nil {
		t.Fatal(err)
	}
	c := tiny(t, writeText(t, 20_000))
	text := c.Data
	c.Out = filepath.Join(dir, "run")
	if _, err := run(t, 1, c); err == nil || !strings.Contains(err.Error(), "cannot be saved in "+c.Out) {
		t.Errorf("an unwritable directory gives %v", err)
	}
	if err := os.Chmod(text, 0); err != nil {
		t.Fatal(err)
	}
	c = tiny(t, text)
	if _, err := CheckLM(t.Context(), c, nil); err == nil || !strings.Contains(err.Error(), "unreadable") || !strings.Contains(err.Error(), text) {
		t.Errorf("an unreadable text gives %v", err)
	}
}

func TestRanksDisagree(t *testing.T) {
	text := writeText(t, 20_000)
	c := tiny(t, text)
	err := dist.Spawn(t.Context(), 3, func(ctx context.Context, g *dist.Group) error {
		mine := c
		if g.Rank() == 2 {
			mine.Seed = 77
		}
		return LM(ctx, g, mine, nil, Discard)
	})
	if err == nil || !strings.Contains(err.Error(), "other data or flags than most ranks: setting.seed is 77, want 1: give all ranks the same; give --seed 1 to these ranks") {
		t.Errorf("another seed on rank 2 gives %v", err)
	}
	// A rank that finds another checkpoint, as on a machine whose directory lacks
	// the newest one, would train another model from its first step on.
	if _, err := run(t, 2, c); err != nil {
		t.Fatal(err)
	}
	c.Steps++
	err = dist.Spawn(t.Context(), 2, func(ctx context.Context, g *dist.Group) error {
		mine := c
		if g.Rank() == 1 {
			mine.Out += "-empty"
		}
		return LM(ctx, g, mine, flags([]string{"steps"}), Discard)
	})
	if err == nil || !strings.Contains(err.Error(), "rank 1 found no checkpoint, rank 0 that of step 12") {
		t.Errorf("a checkpoint that only rank 0 has gives %v", err)
	}
	c.Ranks = 3
	if _, err := run(t, 2, c, "ranks"); err == nil || !strings.Contains(err.Error(), "--ranks is 3, but this job was started with 2") {
		t.Errorf("another number of ranks gives %v", err)
	}
}

// TestDivergence: nothing that is no number is ever saved.
func TestDivergence(t *testing.T) {
	c := tiny(t, writeText(t, 20_000))
	c.LR, c.SaveEvery, c.Warmup = 1e30, 1, 0
	l, err := run(t, 2, c)
	if err == nil || !strings.Contains(err.Error(), "lower --lr (now 1e+30)") {
		t.Fatalf("the error is %v", err)
	}
	for _, step := range l.saved {
		if _, ok := l.losses[step]; !ok || math.IsNaN(l.losses[step]) {
			t.Errorf("saved step %d with loss %v", step, l.losses[step])
		}
	}
}
