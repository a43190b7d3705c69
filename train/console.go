// SPDX-License-Identifier: Apache-2.0

package train

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
	"unicode"

	"golang.org/x/term"

	"github.com/cohort-ml/cohort/monitor/history"
)

// Console reports to a person: on a terminal one line that is written over,
// elsewhere a line every few seconds.
type Console struct {
	w        io.Writer
	terminal bool
	command  string
	now      func() time.Time
	width    func() int // columns of the terminal, 0 if unknown

	steps      int
	firstStep  int
	begun      time.Time
	lastLine   time.Time
	validation string  // the metric that counts
	beside     string  // what it stands beside at the end
	loss       float64 // smoothed
	trail      trail   // of the loss, where there is a terminal
	open       bool    // the live line is on the screen
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
	c := &Console{w: w, terminal: terminal, command: command, now: time.Now, width: func() int { return 0 }}
	if f, ok := w.(*os.File); ok && terminal {
		c.width = func() int {
			columns, _, err := term.GetSize(int(f.Fd()))
			if err != nil {
				return 0
			}
			return columns
		}
	}
	return c
}

// Start describes the run.
func (c *Console) Start(s Start) {
	c.steps, c.firstStep, c.begun = s.Steps, s.FirstStep, c.now()
	size := fmt.Sprintf("%.2f M", float64(s.NumParams)/1e6)
	if s.NumParams < 100_000 {
		size = fmt.Sprint(s.NumParams)
	}
	if s.Model != "" {
		size = s.Model + ": " + size
	}
	fmt.Fprintf(c.w, "model   %s parameters\n", size)
	if s.Data != "" {
		fmt.Fprintf(c.w, "data    %s\n", s.Data)
	}
	fmt.Fprintf(c.w, "ranks   %d of %d %s, transport %s\n", s.Ranks, s.Threads, plural(s.Threads, "thread"), s.Transport)
	if s.Sharding != "" {
		fmt.Fprintf(c.w, "sharded %s\n", s.Sharding)
	}
	if s.Memory != "" {
		fmt.Fprintf(c.w, "memory  %s\n", s.Memory)
	}
	if s.Given != "" {
		fmt.Fprintf(c.w, "given   %s\n", s.Given)
	}
	if s.Interface != "" {
		fmt.Fprintf(c.w, "network %s\n", s.Interface)
	}
	if s.DType != "float32" {
		fmt.Fprintf(c.w, "dtype   %s, with weights of float32\n", s.DType)
	}
	c.beside = s.Beside
	if s.Goal != "" {
		fmt.Fprintf(c.w, "goal    %s\n", s.Goal)
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
	if c.terminal {
		c.trail.add(s.Loss)
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
	left := time.Duration(float64(elapsed) / float64(done) * float64(c.steps-s.Step))
	head := fmt.Sprintf("step %*d/%d  loss %.3f", len(fmt.Sprint(c.steps)), s.Step, c.steps, c.loss)
	text := ""
	if c.validation != "" {
		text += "  validation " + c.validation
	}
	if s.Unit != "" {
		rate := float64(s.Size) * float64(done) / elapsed.Seconds()
		text += fmt.Sprintf("  %s %s/s", thousands(rate), s.Unit)
	}
	if s.Skipped > 0 {
		text += fmt.Sprintf("  %d skipped", s.Skipped)
	}
	if s.Replaced > 0 {
		text += fmt.Sprintf("  %d %s replaced", s.Replaced, plural(s.Replaced, "sample"))
	}
	if done > warmUpSteps {
		text += fmt.Sprintf("  %s left", left.Round(time.Second))
	}
	if c.terminal {
		// A line that goes on in the next row could not be written over.
		width := cmp.Or(c.width(), usualWidth)
		if room := min(width-2-columns(head+text), mostSparks); room >= leastSparks {
			head += " " + c.trail.sparkline(room)
		}
		fmt.Fprintf(c.w, "\r\x1b[K%s", cutToColumns(head+text, width-1))
		c.open = true
	} else {
		fmt.Fprintln(c.w, head+text)
	}
}

// The live line has a small picture of the loss, if there is room.
const (
	leastSparks = 8
	mostSparks  = 24
	usualWidth  = 80  // of a terminal that does not say it
	maxTrail    = 128 // points
)

// trail is how the loss went so far, in at most maxTrail points of as many steps each. The zero value is empty.
type trail struct {
	points []history.Step
	stride int // steps of a point
}

func (t *trail) add(loss float64) {
	t.stride = max(1, t.stride)
	s := history.Step{Steps: 1, Loss: history.Number(loss)}
	if !isFinite(loss) {
		s.NonFinite = 1
	}
	if n := len(t.points); n > 0 && t.points[n-1].Steps < t.stride {
		t.points[n-1] = joined(t.points[n-1], s)
		return
	}
	if len(t.points) == maxTrail {
		for i := range maxTrail / 2 {
			t.points[i] = joined(t.points[2*i], t.points[2*i+1])
		}
		t.points, t.stride = t.points[:maxTrail/2], 2*t.stride
	}
	t.points = append(t.points, s)
}

// joined is a point of the steps of two.
func joined(a, b history.Step) history.Step {
	return history.Step{Steps: a.Steps + b.Steps, NonFinite: a.NonFinite + b.NonFinite, Loss: history.MeanLoss([]history.Step{a, b})}
}

func (t *trail) sparkline(width int) string { return history.Sparkline(t.points, width) }

// columns is how many columns of a terminal a text takes at most: two for a character that is not ASCII, but for
// those of sparklines.
func columns(text string) (n int) {
	for _, r := range text {
		n += columnsOf(r)
	}
	return n
}

func columnsOf(r rune) int {
	if r < 0x80 || r >= '▁' && r <= '█' || r == '×' {
		return 1
	}
	return 2
}

// cutToColumns cuts a text to so many columns.
func cutToColumns(text string, width int) string {
	n := 0
	for i, r := range text {
		if n += columnsOf(r); n > width {
			return text[:i]
		}
	}
	return text
}

func thousands(v float64) string {
	if v < 10_000 {
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.1fk", v/1e3)
}

// Evaluation shows the quality on what was not trained on.
func (c *Console) Evaluation(e Evaluation) {
	c.validation = e.Metrics[0].String()
	c.println("step %d: validation %v", e.Step, e.Metrics)
}

// Saved says where a checkpoint is.
func (c *Console) Saved(s Saved) { c.println("step %d: saved %s", s.Step, s.Path) }

// Notice prints the text.
func (c *Console) Notice(text string) { c.println("note: %s", text) }

// Finish prints what the task ends with and where everything is.
func (c *Console) Finish(f Finish) {
	if f.Text != "" {
		c.println("\n%s:\n\n%s\n", f.Title, f.Text)
	}
	if len(f.Metrics) > 0 {
		beside := ""
		if c.beside != "" {
			beside = fmt.Sprintf(" (%s)", c.beside)
		}
		c.println("validation  %v%s after %d steps, %s", f.Metrics, beside, f.Steps, c.now().Sub(c.begun).Round(time.Second))
	}
	if f.Best != nil {
		c.println("best        %s: %v after step %d", f.Best.Path, f.Best.Metric, f.Best.Step)
	}
	if f.Goodput != nil {
		c.println("time        %v", f.Goodput)
	}
	c.println("checkpoint  %s", f.Checkpoint)
	if f.Next != "" {
		c.println("go on with  %s %s", c.command, f.Next)
	}
}

// quoted returns a shell's word.
func quoted(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// argument makes a path an argument for a shell: as it is where that is the same.
func argument(path string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r > 0x7f && unicode.IsLetter(r) || strings.ContainsRune("/._-+:@%,=", r)
	}
	if path != "" && !strings.ContainsFunc(path, func(r rune) bool { return !plain(r) }) {
		return path
	}
	return quoted(path)
}

// println writes a line, below the live one if there is one.
func (c *Console) println(format string, args ...any) {
	if c.open {
		fmt.Fprintln(c.w)
		c.open = false
	}
	fmt.Fprintf(c.w, format+"\n", args...)
}
