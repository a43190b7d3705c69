// SPDX-License-Identifier: Apache-2.0

package history_test

import (
	"bytes"
	"errors"
	"io/fs"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/internal/seeded"
	"github.com/cohort-ml/cohort/monitor/history"
)

const patience = time.Minute

func run(first int) history.Run {
	return history.Run{Time: 100, Task: "lm", DType: "float32", Ranks: 2, Threads: 1, Unit: "tokens", FirstStep: first, Steps: 1000}
}

func step(n int) history.Step {
	return history.Step{Step: n, Time: history.Seconds(100 + n), Loss: history.Number(1 / float64(n)), LearningRate: 0.1, GradNorm: history.Number(n % 7), Size: 64, Seconds: 0.5, Epoch: history.Number(n) / 10}
}

// create begins a history that must have nothing to set aside.
func create(t *testing.T, dir string, r history.Run) *history.Writer {
	t.Helper()
	w, aside, err := history.Create(dir, r)
	if err != nil || aside != "" {
		t.Fatal(err, aside)
	}
	return w
}

func read(t *testing.T, dir string) *history.History {
	t.Helper()
	h, err := history.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// TestWhatWasNotedIsRead: all kinds of records come back as they were.
func TestWhatWasNotedIsRead(t *testing.T) {
	dir := t.TempDir()
	w := create(t, dir, run(0))
	w.Step(step(1))
	bad := step(2)
	bad.Loss, bad.GradNorm = history.Number(math.NaN()), history.Number(math.Inf(1))
	w.Step(bad)
	e := history.Evaluation{Step: 2, Time: 103, Metrics: []history.Metric{{Name: "loss", Value: 2.5, Unit: "nats a token"}, {Name: "accuracy", Value: 0.5, Higher: true}}}
	w.Evaluation(e)
	saved := history.Saved{Step: 2, Time: 104, Path: "out/step-2"}
	w.Saved(saved)
	note := history.Note{Step: 2, Time: 105, Text: "a \"note\"\nof two lines \x00 and \xff"}
	w.Note(note)
	end := history.End{Step: 2, Time: 106, Checkpoint: "out/step-2", Best: "out/best/step-1", BestStep: 1}
	w.End(end)
	w.Close(patience)
	if err := w.Err(); err != nil {
		t.Fatal(err)
	}

	h := read(t, dir)
	one := step(1)
	one.Steps = 1
	if len(h.Steps) != 2 || h.Steps[0] != one || h.Steps[1].NonFinite != 1 || !math.IsNaN(float64(h.Steps[1].Loss)) || h.Steps[1].Size != 64 {
		t.Errorf("got the steps %+v", h.Steps)
	}
	if len(h.Notes) != 1 || h.Notes[0].Text != strings.ToValidUTF8(note.Text, "\ufffd") {
		t.Errorf("got the notes %+v", h.Notes)
	}
	for _, c := range []struct{ got, want any }{
		{h.Evaluations, []history.Evaluation{e}}, {h.Saved, []history.Saved{saved}}, {*h.End, end}, {h.Done(), 2}, {h.Restarts(), 0},
		{h.Runs[0].Version, history.Version}, {len(h.Lost), 0},
	} {
		if !reflect.DeepEqual(c.got, c.want) {
			t.Errorf("got %+v, want %+v", c.got, c.want)
		}
	}
}

// TestSumsOverThinning: however many steps there are, the sums over the records are those over
// the steps, the file stays small, and the means weigh each step the same.
func TestSumsOverThinning(t *testing.T) {
	r := rand.New(rand.NewPCG(seeded.Of(t), 0))
	for _, n := range []int{history.MaxSteps, history.MaxSteps + 1, 3*history.MaxSteps + 5, 100_000} {
		dir := t.TempDir()
		w := create(t, dir, run(0))
		var loss, seconds, norm float64
		finite := 0
		for i := 1; i <= n; i++ {
			s := step(i)
			s.Loss = history.Number(r.Float64())
			s.GradNorm = history.Number(r.ExpFloat64())
			if r.IntN(50) == 0 {
				s.Loss = history.Number(math.Inf(1))
			} else {
				loss += float64(s.Loss)
				finite++
			}
			seconds += s.Seconds
			norm = max(norm, float64(s.GradNorm))
			w.Step(s)
		}
		w.Close(patience)
		h := read(t, dir)
		if len(h.Steps) > history.MaxSteps || len(h.Steps) < history.MaxSteps/2 {
			t.Errorf("%d steps have %d records", n, len(h.Steps))
		}
		steps, size, good, gotNorm, gotLoss, gotSeconds := 0, 0, 0, 0.0, 0.0, 0.0
		for _, s := range h.Steps {
			steps, size, good = steps+s.Steps, size+s.Size, good+s.Steps-s.NonFinite
			if s.NonFinite < s.Steps {
				gotLoss += float64(s.Loss) * float64(s.Steps-s.NonFinite)
			}
			gotNorm, gotSeconds = max(gotNorm, float64(s.GradNorm)), gotSeconds+s.Seconds
		}
		if steps != n || size != 64*n || good != finite || gotNorm != norm || math.Abs(gotLoss-loss) > 1e-6*loss || math.Abs(gotSeconds-seconds) > 1e-6*seconds || h.Done() != n {
			t.Errorf("%d steps: got %d of %d samples, %d finite, loss %v, norm %v, %v s; want %d, %v, %v, %v", n, steps, size, good, gotLoss, gotNorm, gotSeconds, finite, loss, norm, seconds)
		}
		info, err := os.Stat(filepath.Join(dir, history.FileName))
		if err != nil || info.Size() > 300*history.MaxSteps {
			t.Errorf("%d steps: %d bytes, %v", n, info.Size(), err)
		}
	}
}

// TestOthersAreBounded: of 10,000 records of a kind the newest are kept; of evaluations every
// second, so that a curve stays whole.
func TestOthersAreBounded(t *testing.T) {
	dir := t.TempDir()
	w := create(t, dir, run(0))
	for i := 1; i <= 10_000; i++ {
		w.Evaluation(history.Evaluation{Step: i})
		w.Saved(history.Saved{Step: i})
		w.Note(history.Note{Step: i, Text: strings.Repeat("x", 2*history.MaxSteps)})
	}
	w.Close(patience)
	h := read(t, dir)
	for _, n := range []int{len(h.Evaluations), len(h.Saved), len(h.Notes)} {
		if n > history.MaxOthers || n < history.MaxOthers/2 {
			t.Errorf("got %d records, want up to %d", n, history.MaxOthers)
		}
	}
	if first, last := h.Evaluations[0].Step, h.Saved[len(h.Saved)-1].Step; first > 32 || last != 10_000 {
		t.Errorf("the first evaluation is that of step %d, the last checkpoint that of step %d", first, last)
	}
}

// TestGoesOn: a process goes on from a checkpoint. What the one before has done since is lost,
// with its seconds, and nothing else is.
func TestGoesOn(t *testing.T) {
	dir := t.TempDir()
	w := create(t, dir, run(0))
	for i := 1; i <= 30; i++ {
		w.Step(step(i))
	}
	w.Evaluation(history.Evaluation{Step: 20})
	w.Saved(history.Saved{Step: 20})
	w.Evaluation(history.Evaluation{Step: 30})
	w.Close(patience)

	again := run(20)
	again.Time = 500
	w = create(t, dir, again)
	w.Step(step(21))
	w.Close(patience)

	h := read(t, dir)
	if want := []history.Lost{{Time: 500, Step: 20, Until: 30, Last: 130, Seconds: 5, Times: 1}}; !reflect.DeepEqual(h.Lost, want) {
		t.Errorf("got %+v, want %+v", h.Lost, want)
	}
	if len(h.Steps) != 21 || h.Done() != 21 || h.Restarts() != 1 || len(h.Evaluations) != 1 || len(h.Saved) != 1 {
		t.Errorf("got %d steps up to %d, %d restarts, %d evaluations, %d checkpoints", len(h.Steps), h.Done(), h.Restarts(), len(h.Evaluations), len(h.Saved))
	}
}

// TestAfterTheEnd: a process that goes on with a run that had ended is no restart.
func TestAfterTheEnd(t *testing.T) {
	dir := t.TempDir()
	w := create(t, dir, run(0))
	w.Step(step(1))
	w.End(history.End{Step: 1})
	w.Close(patience)
	w = create(t, dir, run(1))
	w.Close(patience)
	if h := read(t, dir); h.Restarts() != 0 || !h.Runs[1].AfterEnd || h.Runs[0].AfterEnd || h.End != nil {
		t.Errorf("got %d restarts, runs %+v, end %v", h.Restarts(), h.Runs, h.End)
	}
}

// TestKilledWhileWriting: a last line without its end is left out, and the next process goes on.
func TestKilledWhileWriting(t *testing.T) {
	dir := t.TempDir()
	w := create(t, dir, run(0))
	w.Step(step(1))
	w.Step(step(2))
	w.Close(patience)
	path := filepath.Join(dir, history.FileName)
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, text[:len(text)-10], 0o644); err != nil {
		t.Fatal(err)
	}
	if h := read(t, dir); h.Done() != 1 {
		t.Errorf("got %d steps, want 1", h.Done())
	}
	w = create(t, dir, run(1))
	w.Step(step(2))
	w.Close(patience)
	if h := read(t, dir); h.Done() != 2 || len(h.Lost) != 0 {
		t.Errorf("got %d steps, lost %v", h.Done(), h.Lost)
	}
}

// TestOthersFile: a file that is no history of this version is kept under another name.
func TestOthersFile(t *testing.T) {
	for name, text := range map[string]string{
		"text": "hello\n", "empty": "", "newer": `{"kind":"run","version":2,"first_step":0}` + "\n", "other kind": `{"kind":"run","version":1}` + "\n" + `{"kind":"what"}` + "\n",
		"step back": `{"kind":"run","version":1}` + "\n" + `{"kind":"step","step":2,"steps":1}` + "\n" + `{"kind":"step","step":2,"steps":1}` + "\n",
		"long line": `{"kind":"run","version":1,"model":"` + strings.Repeat("x", 2<<20) + `"}` + "\n", "step first": `{"kind":"step","step":2,"steps":1}` + "\n",
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, history.FileName)
			if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
			w, aside, err := history.Create(dir, run(0))
			if err != nil || !strings.Contains(aside, path+".unread-1") {
				t.Fatalf("got %q, %v", aside, err)
			}
			w.Close(patience)
			kept, err := os.ReadFile(path + ".unread-1")
			if err != nil || string(kept) != text {
				t.Errorf("what was there is not kept: %v", err)
			}
			if h := read(t, dir); len(h.Runs) != 1 {
				t.Errorf("got %d runs", len(h.Runs))
			}
		})
	}
}

// TestDirectoryGoes: training goes on without the file, and is told once.
func TestDirectoryGoes(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	if err := os.Mkdir(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	w := create(t, dir, run(0))
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	w.Step(step(1))
	w.Close(patience)
	if err := w.Err(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v", err)
	}
	if err := w.Err(); err != nil {
		t.Errorf("told twice: %v", err)
	}
}

func FuzzRead(f *testing.F) {
	dir := f.TempDir()
	w, _, err := history.Create(dir, run(0))
	if err != nil {
		f.Fatal(err)
	}
	w.Step(step(1))
	w.End(history.End{Step: 1})
	w.Close(patience)
	text, err := os.ReadFile(filepath.Join(dir, history.FileName))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add([]byte(`{"kind":"run","version":1}` + "\n" + `{"kind":"lost","times":-1}` + "\n" + `{"kind":"eval","metrics":[{}]}` + "\n"))
	f.Add([]byte(`{"kind":"run","version":1}` + "\n" + `{"kind":"ranks","step":2,"steps":1,"seconds":1,"phases":{"data":[1,2],"forward":[3,4]},"hidden":[0,0],"for":[1,-1],"late":[0,1],"slow":{"rank":1}}` + "\n" + `{"kind":"value","name":"x","value":null}` + "\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		h, err := history.Read(bytes.NewReader(text))
		if err == nil && (len(h.Runs) == 0 || h.Done() < 0 && h.Runs[0].FirstStep >= 0) {
			t.Errorf("a history of %d runs and %d steps", len(h.Runs), h.Done())
		}
	})
}
