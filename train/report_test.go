// SPDX-License-Identifier: Apache-2.0

package train

import (
	"bufio"
	"bytes"
	"encoding/json"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/cohort-ml/cohort/monitor/history"
)

// clock is a time that a test sets.
type clock struct{ t time.Time }

func (c *clock) now() time.Time { return c.t }

// drive reports a run of four steps, two seconds each.
func drive(r Reporter, c *clock) {
	metrics := Metrics{{Name: "bits_per_byte", Value: 2.125, Unit: "bits per byte"}}
	r.Start(Start{
		About: About{
			Model: "GPT, small", Data: "text.txt: 9.5 MB to train on, 0.5 MB to validate",
			Goal: "fewer bits per byte of validation text than gzip -9: 2.500", Beside: "gzip -9: 2.500",
		},
		DType: "bfloat16", NumParams: 1_234_567, Ranks: 2, Threads: 1, Transport: "shm", Steps: 14, FirstStep: 10, Resumed: "out/step-00000010",
	})
	for step := 11; step <= 14; step++ {
		c.t = c.t.Add(2 * time.Second)
		r.Step(Step{Step: step, Loss: 5 - float64(step)/10, Size: 4000, Unit: "tokens", Duration: 2 * time.Second})
		if step == 13 {
			r.Evaluation(Evaluation{Step: 13, Metrics: metrics})
			r.Notice("something odd")
		}
	}
	r.Saved(Saved{Step: 14, Path: "out/step-00000014"})
	ending := Ending{
		Title: "the model writes", Text: "func main() {}\nvar x", Key: "sample", Next: "generate --from out --prompt 'func main() {'",
	}
	r.Finish(Finish{Ending: ending, Steps: 14, Metrics: metrics, Checkpoint: "out/step-00000014", Out: "out"})
}

func TestConsoleWithoutTerminal(t *testing.T) {
	var b bytes.Buffer
	c := &clock{time.Unix(1000, 0)}
	console := NewConsole(&b, false, "cohort")
	console.now = c.now
	drive(console, c)
	want := `model   GPT, small: 1.23 M parameters
data    text.txt: 9.5 MB to train on, 0.5 MB to validate
ranks   2 of 1 thread, transport shm
dtype   bfloat16, with weights of float32
goal    fewer bits per byte of validation text than gzip -9: 2.500
resumed at step 10 from out/step-00000010
step 11/14  loss 3.900  2000 tokens/s
step 13: validation 2.125 bits per byte
note: something odd
step 14/14  loss 3.844  validation 2.125 bits per byte  2000 tokens/s  0s left
step 14: saved out/step-00000014

the model writes:

func main() {}
var x

validation  2.125 bits per byte (gzip -9: 2.500) after 14 steps, 8s
checkpoint  out/step-00000014
go on with  cohort generate --from out --prompt 'func main() {'
`
	if got := b.String(); got != want {
		t.Errorf("printed\n%s\nwant\n%s", got, want)
	}
}

func TestConsoleOnTerminal(t *testing.T) {
	var b bytes.Buffer
	c := &clock{time.Unix(1000, 0)}
	console := NewConsole(&b, true, "cohort")
	console.now = c.now
	drive(console, c)
	got := b.String()
	if n := strings.Count(got, "\r\x1b[K"); n != 4 {
		t.Errorf("the live line was written %d times in 4 steps:\n%q", n, got)
	}
	for _, line := range []string{"0s left\nstep 14: saved", "left\nstep 13: validation"} {
		if !strings.Contains(got, line) {
			t.Errorf("a line did not begin below the live one: no %q in\n%q", line, got)
		}
	}
}

// TestConsoleOnNarrowTerminal: the live line stays in its row, where it can be
// written over.
func TestConsoleOnNarrowTerminal(t *testing.T) {
	for _, width := range []int{1, 20, 48, 80} {
		var b bytes.Buffer
		c := &clock{time.Unix(1000, 0)}
		console := NewConsole(&b, true, "cohort")
		console.now, console.width = c.now, func() int { return width }
		drive(console, c)
		live := strings.Split(b.String(), "\r\x1b[K")[1:]
		for _, line := range live {
			if line, _, _ = strings.Cut(line, "\n"); utf8.RuneCountInString(line) >= width || !utf8.ValidString(line) {
				t.Errorf("%d columns: the line %q", width, line)
			}
		}
		if spark := "loss 3.890 █▁  2000"; strings.Contains(b.String(), spark) != (width >= 48) {
			t.Errorf("%d columns: a sparkline is there or not:\n%q", width, b.String())
		}
		if want := "step 11/14  loss 3.900"[:min(22, width-1)]; !strings.HasPrefix(live[0], want) {
			t.Errorf("%d columns: %q, want %q", width, live[0], want)
		}
	}
}

// TestTrail: a long run keeps few points, whose mean is that of all losses, and the picture falls as the loss does.
func TestTrail(t *testing.T) {
	var tr trail
	sum := 0.0
	for i := range 10_000 {
		loss := 5 - float64(i)/4000
		sum += loss
		if tr.add(loss); i%100 == 0 {
			tr.add(math.NaN())
		}
	}
	if mean := float64(history.MeanLoss(tr.points)); len(tr.points) > maxTrail || math.Abs(mean-sum/10_000) > 1e-9 {
		t.Errorf("%d points with a mean of %v, want %v", len(tr.points), mean, sum/10_000)
	}
	if got := tr.sparkline(8); got != "█▇▆▅▄▃▂▁" {
		t.Errorf("got %s", got)
	}
	if got := cutToColumns("step 1  日本語 ▁▂▃", 13); got != "step 1  日本" || columns(got) != 12 {
		t.Errorf("got %q of %d columns", got, columns(got))
	}
}

// TestConsoleOfAnyTask: what there is of a task that counts images and has
// several metrics.
func TestConsoleOfAnyTask(t *testing.T) {
	var b bytes.Buffer
	c := &clock{time.Unix(1000, 0)}
	console := NewConsole(&b, false, "cohort")
	console.now = c.now
	console.Start(Start{About: About{Model: "a CNN", Data: "digits", Given: "lr = 0.1 (flag)"}, DType: "float32", NumParams: 2_000_000, Ranks: 1, Threads: 2, Transport: "none", Steps: 20})
	c.t = c.t.Add(time.Second)
	console.Step(Step{Step: 1, Loss: 2, Size: 64, Unit: "images", Duration: time.Second, Replaced: 1})
	console.Evaluation(Evaluation{Step: 1, Metrics: Metrics{{Name: "accuracy", Value: 0.975, Higher: true, Unit: "%"}, {Name: "top_5", Value: 1.0 / 3}}})
	console.Finish(Finish{
		Steps: 20, Checkpoint: "out/step-00000020",
		Best: &Best{Step: 1, Metric: Metric{Name: "accuracy", Value: 0.975, Unit: "%"}, Path: "out/best"},
	})
	want := `model   a CNN: 2.00 M parameters
data    digits
ranks   1 of 2 threads, transport none
given   lr = 0.1 (flag)
step  1/20  loss 2.000  64 images/s  1 sample replaced
step 1: validation accuracy 97.50 %, top 5 0.3333
best        out/best: accuracy 97.50 % after step 1
checkpoint  out/step-00000020
`
	if got := b.String(); got != want {
		t.Errorf("printed\n%s\nwant\n%s", got, want)
	}
}

func TestJSONLines(t *testing.T) {
	var b, notices bytes.Buffer
	c := &clock{}
	drive(NewJSONLines(&b, &notices), c)
	var kinds []string
	lines := bufio.NewScanner(&b)
	for lines.Scan() {
		var v map[string]any
		if err := json.Unmarshal(lines.Bytes(), &v); err != nil {
			t.Fatalf("%q: %v", lines.Text(), err)
		}
		keys := slices.Sorted(maps.Keys(v))
		kinds = append(kinds, strings.Join(keys, " "))
		if v["step"] == 12.0 && (math.Abs(v["loss"].(float64)-3.8) > 1e-12 || v["tokens_per_s"] != 2000.0) {
			t.Errorf("step 12 is %v", v)
		}
	}
	step := "loss step tokens_per_s"
	want := []string{step, step, step, "step val_bits_per_byte", step, "checkpoint step", "checkpoint sample step"}
	if !slices.Equal(kinds, want) {
		t.Errorf("objects with keys %q, want %q", kinds, want)
	}
	b.Reset()
	NewJSONLines(&b, &notices).Step(Step{Step: 3, Loss: math.NaN(), Size: 10, Unit: "tokens", Duration: time.Second, Skipped: 2})
	if want := `{"step":3,"loss":null,"tokens_per_s":10,"skipped":2}` + "\n"; b.String() != want {
		t.Errorf("a step that was left out is %q, want %q", b.String(), want)
	}
	b.Reset()
	j := NewJSONLines(&b, &notices)
	j.Step(Step{Step: 3, Loss: 1, Duration: time.Second, Replaced: 4})
	j.Evaluation(Evaluation{Step: 3, Metrics: Metrics{{Name: "accuracy", Value: 0.5}, {Name: "loss", Value: math.Inf(1)}}})
	j.Finish(Finish{Steps: 9, Checkpoint: "c", Best: &Best{Step: 3, Path: "out/best"}})
	want = []string{
		`{"step":3,"loss":1,"replaced":4}`, `{"val_accuracy":0.5,"val_loss":null,"step":3}`,
		`{"best":"out/best","best_step":3,"checkpoint":"c","step":9}`,
	}
	if got := strings.Split(strings.TrimSpace(b.String()), "\n"); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if notices.String() != "something odd\n" {
		t.Errorf("notices %q", notices.String())
	}
}
