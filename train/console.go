// SPDX-License-Identifier: Apache-2.0

package train

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"
)

// Console reports to a person: on a terminal one line that is written over,
// elsewhere a line every few seconds.
type Console struct {
	w        io.Writer
	terminal bool
	command  string
	now      func() time.Time

	steps       int
	firstStep   int
	begun       time.Time
	lastLine    time.Time
	bitsPerByte float64
	gzip        float64 // bits per byte, the figure to beat
	loss        float64 // smoothed
	open        bool    // the live line is on the screen
}

// plainInterval is the time between lines where there is no terminal;
// liveInterval that between two pictures of the live line.
const (
	plainInterval = 5 * time.Second
	liveInterval  = 100 * time.Millisecond
)

// warmUpSteps is how many steps it takes until their speed tells how long the
// rest will take.
const warmUpSteps = 2

// NewConsole returns a reporter that writes to w, a terminal or not. command is
// how the user calls cohort, for the hint at the end.
func NewConsole(w io.Writer, terminal bool, command string) *Console {
	return &Console{w: w, terminal: terminal, command: command, now: time.Now}
}

// Start describes the run.
func (c *Console) Start(s Start) {
	c.steps, c.firstStep, c.begun = s.Steps, s.FirstStep, c.now()
	fmt.Fprintf(c.w, "model   %s: %.2f M parameters\n", s.Model, float64(s.NumParams)/1e6)
	fmt.Fprintf(c.w, "data    %s: %.1f MB to train on, %.1f MB to validate\n", s.Data, float64(s.TrainBytes)/1e6, float64(s.ValidationBytes)/1e6)
	fmt.Fprintf(c.w, "ranks   %d of %d %s, transport %s\n", s.Ranks, s.Threads, plural(s.Threads, "thread"), s.Transport)
	if s.Interface != "" {
		fmt.Fprintf(c.w, "network %s\n", s.Interface)
	}
	if s.DType != "float32" {
		fmt.Fprintf(c.w, "dtype   %s, with weights of float32\n", s.DType)
	}
	if s.GzipBitsPerByte > 0 {
		c.gzip = s.GzipBitsPerByte
		fmt.Fprintf(c.w, "goal    fewer bits per byte of validation text than gzip -9: %.3f\n", s.GzipBitsPerByte)
	}
	if s.Resumed != "" {
		fmt.Fprintf(c.w, "resumed at step %d from %s\n", s.FirstStep, s.Resumed)
	}
}

func plural(n int, noun string) string {
	if n == 1 {
		return noun
	}
	return noun + "s"
}

// Step shows how far the run is.
func (c *Console) Step(s Step) {
	if c.loss == 0 && isFinite(s.Loss) {
		c.loss = s.Loss
	}
	if isFinite(s.Loss) {
		c.loss += 0.1 * (s.Loss - c.loss)
	}
	interval := plainInterval
	if c.terminal {
		interval = liveInterval
	}
	first := s.Step == c.firstStep+1
	if now := c.now(); first || s.Step == c.steps || now.Sub(c.lastLine) >= interval {
		c.lastLine = now
		c.line(s, now)
	}
}

func (c *Console) line(s Step, now time.Time) {
	done := s.Step - c.firstStep
	elapsed := now.Sub(c.begun)
	if done == 1 {
		elapsed = s.Duration
	}
	rate := float64(s.Tokens) * float64(done) / elapsed.Seconds()
	left := time.Duration(float64(elapsed) / float64(done) * float64(c.steps-s.Step))
	text := fmt.Sprintf("step %*d/%d  loss %.3f", len(fmt.Sprint(c.steps)), s.Step, c.steps, c.loss)
	if c.bitsPerByte > 0 {
		text += fmt.Sprintf("  validation %.3f bits/byte", c.bitsPerByte)
	}
	text += fmt.Sprintf("  %s tokens/s", thousands(rate))
	if s.Skipped > 0 {
		text += fmt.Sprintf("  %d skipped", s.Skipped)
	}
	if done > warmUpSteps {
		text += fmt.Sprintf("  %s left", left.Round(time.Second))
	}
	if c.terminal {
		fmt.Fprintf(c.w, "\r\x1b[K%s", text)
		c.open = true
	} else {
		fmt.Fprintln(c.w, text)
	}
}

func thousands(v float64) string {
	if v < 10_000 {
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.1fk", v/1e3)
}

// Evaluation shows the quality on validation text.
func (c *Console) Evaluation(e Evaluation) {
	c.bitsPerByte = e.BitsPerByte
	c.println("step %d: validation %.3f bits per byte", e.Step, e.BitsPerByte)
}

// Saved says where a checkpoint is.
func (c *Console) Saved(s Saved) { c.println("step %d: saved %s", s.Step, s.Path) }

// Notice prints the text.
func (c *Console) Notice(text string) { c.println("note: %s", text) }

// Finish prints what the model writes and where everything is.
func (c *Console) Finish(f Finish) {
	if f.Sample != "" {
		c.println("\nthe model writes:\n\n%s\n", f.Sample)
	}
	if f.BitsPerByte > 0 {
		beside := ""
		if c.gzip > 0 {
			beside = fmt.Sprintf(" (gzip -9: %.3f)", c.gzip)
		}
		c.println("validation  %.3f bits per byte%s after %d steps, %s", f.BitsPerByte, beside, f.Steps, c.now().Sub(c.begun).Round(time.Second))
	}
	c.println("checkpoint  %s", f.Checkpoint)
	c.println("go on with  %s generate --from %s --prompt %s", c.command, f.Out, quoted(f.Prompt))
}

// quoted returns a shell's word.
func quoted(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// println writes a line, below the live one if there is one.
func (c *Console) println(format string, args ...any) {
	if c.open {
		fmt.Fprintln(c.w)
		c.open = false
	}
	fmt.Fprintf(c.w, format+"\n", args...)
}

// JSONLines reports to a program: one object a line on Out. What people should
// know goes to Notices.
type JSONLines struct {
	out     *json.Encoder
	notices io.Writer
}

// NewJSONLines returns a reporter that writes objects to out.
func NewJSONLines(out, notices io.Writer) *JSONLines {
	return &JSONLines{json.NewEncoder(out), notices}
}

// encode writes one object. A reader that has gone must not end the training.
func (j *JSONLines) encode(v any) { _ = j.out.Encode(v) }

// Start writes nothing: the first object is that of the first step.
func (j *JSONLines) Start(Start) {}

// number returns what JSON has for v: null if it is not finite.
func number(v float64) *float64 {
	if !isFinite(v) {
		return nil
	}
	return &v
}

// Step writes {"step", "loss", "tokens_per_s"}, and "skipped", the number of
// steps that were left out, as soon as there are any. The loss is null where it
// is not finite.
func (j *JSONLines) Step(s Step) {
	j.encode(struct {
		Step         int      `json:"step"`
		Loss         *float64 `json:"loss"`
		TokensPerSec float64  `json:"tokens_per_s"`
		Skipped      int      `json:"skipped,omitempty"`
	}{s.Step, number(s.Loss), float64(s.Tokens) / s.Duration.Seconds(), s.Skipped})
}

// Evaluation writes {"val_bits_per_byte", "step"}.
func (j *JSONLines) Evaluation(e Evaluation) {
	j.encode(struct {
		BitsPerByte *float64 `json:"val_bits_per_byte"`
		Step        int      `json:"step"`
	}{number(e.BitsPerByte), e.Step})
}

// Saved writes {"checkpoint", "step"}.
func (j *JSONLines) Saved(s Saved) {
	j.encode(struct {
		Path string `json:"checkpoint"`
		Step int    `json:"step"`
	}{s.Path, s.Step})
}

// Finish writes {"sample", "checkpoint", "step"}.
func (j *JSONLines) Finish(f Finish) {
	j.encode(struct {
		Sample string `json:"sample"`
		Path   string `json:"checkpoint"`
		Step   int    `json:"step"`
	}{f.Sample, f.Checkpoint, f.Steps})
}

// Notice prints the text for people.
func (j *JSONLines) Notice(text string) { fmt.Fprintln(j.notices, text) }
