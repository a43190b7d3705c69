// SPDX-License-Identifier: Apache-2.0

package browser

import (
	"bytes"
	"fmt"
	"image"
	"image/png"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/monitor/dashboard"
	"github.com/cohort-ml/cohort/monitor/history"
	"github.com/cohort-ml/cohort/monitor/report"
)

// recorded is a run as a job of many ranks would have written it: rank slow waits for its data
// from the middle on, the model overfits, and a restart has cost 95 s.
type recorded struct {
	w     *history.Writer
	job   *dashboard.Job
	ranks int
	slow  int
	step  int
	now   float64
	r     *rand.Rand
}

const recordedSteps = 1200

func begin(ranks, first int, at float64) history.Run {
	return history.Run{Time: history.Seconds(at), Task: "lm", Model: "GPT, 12 layers of width 768, 1024 tokens of context", Data: "a corpus of 9.1 GB", NumParams: 124e6, DType: "bf16", Ranks: ranks, Threads: 4,
		Strategy: fmt.Sprintf("FSDP over %d ranks", ranks), Transport: "tcp", Unit: "tokens", FirstStep: first, Steps: 3000}
}

func record(t *testing.T, dir string, ranks int) *recorded {
	t.Helper()
	p := &recorded{ranks: ranks, slow: ranks * 3 / 4, now: float64(time.Now().Unix()) - 1400, r: rand.New(rand.NewPCG(1, uint64(ranks)))}
	inner := 8
	if ranks < 64 {
		inner = 1
	}
	p.job = dashboard.NewJob("cohort train lm", []report.Axis{{Name: "replicate", Size: ranks / inner}, {Name: "fsdp", Size: inner}})
	p.open(t, dir, 0)
	for p.step < 540 {
		p.do()
	}
	p.w.Close(time.Minute)
	p.now += 80 // nothing runs
	p.open(t, dir, 500)
	p.job.Begin(0, ranks)
	for i := range ranks {
		p.job.Started(i, i%8, 4000+i, fmt.Sprintf("node%02d", i/8))
		p.job.Line(i, false, fmt.Appendf(nil, "rank %d is ready\n", i))
	}
	p.job.Line(p.slow, true, []byte("warning: the loader waits for \x1b[1mnfs\x1b[0m: 240 ms a batch\n"))
	for p.step < recordedSteps {
		p.do()
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) { // until the file has it
		if h, err := history.ReadDir(dir); err == nil && h.Done() == p.step && len(h.Ranks) > 0 && h.Ranks[len(h.Ranks)-1].Step == p.step {
			return p
		} else if time.Now().After(end) {
			t.Fatalf("the history is not written: %v", err)
		}
	}
}

// open begins a process of the run.
func (p *recorded) open(t *testing.T, dir string, first int) {
	t.Helper()
	w, aside, err := history.Create(dir, begin(p.ranks, first, p.now))
	if err != nil || aside != "" {
		t.Fatal(err, aside)
	}
	p.w, p.step = w, first
	p.now += 12 // the start
}

// do does a step.
func (p *recorded) do() {
	p.step++
	wait := 0.0
	if p.step > 800 {
		wait = 0.24
	}
	seconds := 0.8 + 0.05*p.r.Float64() + wait
	p.now += seconds
	at := history.Seconds(p.now)
	loss := 1.2 + 8*math.Pow(float64(p.step)+10, -0.45) + 0.05*p.r.NormFloat64()
	if p.step == 633 {
		loss += 2 // it jumps
	}
	p.w.Step(history.Step{Step: p.step, Time: at, Loss: history.Number(loss), LearningRate: history.Number(6e-4 * min(1, float64(p.step)/200)), GradNorm: history.Number(0.4 + 0.1*p.r.ExpFloat64()), Size: 1024 * p.ranks, Seconds: seconds, Epoch: history.Number(float64(p.step) / 400)})
	if p.step%5 == 0 {
		p.w.Value(history.Value{Step: p.step, Time: at, Name: "accuracy", Value: history.Number(1 - 0.7*math.Exp(-float64(p.step)/400) + 0.02*p.r.NormFloat64())})
		p.w.Value(history.Value{Step: p.step, Time: at, Name: "experts/busiest", Value: history.Number(1.2 + 0.1*p.r.Float64())})
	}
	if p.step%50 == 0 {
		p.logged(at)
	}
	if p.step%100 == 0 {
		valid := loss + 0.1
		if p.step > 700 {
			valid += 0.0008 * float64(p.step-700)
		}
		p.w.Evaluation(history.Evaluation{Step: p.step, Time: at, Metrics: []history.Metric{{Name: "loss", Value: history.Number(valid), Unit: "nats a token"}}})
		p.w.Saved(history.Saved{Step: p.step, Time: at, Path: fmt.Sprintf("out/lm/step-%08d", p.step)})
	}
	if p.step%4 == 0 {
		p.w.Ranks(p.where(at, 4*seconds, 4*wait))
	}
}

// logged logs a histogram, a text and a picture.
func (p *recorded) logged(at history.Seconds) {
	h := &history.Histogram{Count: 1000, Min: -3, Max: 3 + float64(p.step)/400}
	for i := range 41 {
		edge := h.Min + (h.Max-h.Min)*float64(i)/40
		h.Edges = append(h.Edges, edge)
		if i < 40 {
			h.Counts = append(h.Counts, math.Round(200*math.Exp(-(edge-float64(p.step)/800)*(edge-float64(p.step)/800)/2)))
		}
	}
	m := image.NewGray(image.Rect(0, 0, 160, 24))
	for i := range m.Pix {
		m.Pix[i] = uint8(i*7 + p.step)
	}
	var picture bytes.Buffer
	_ = png.Encode(&picture, m)
	for _, s := range []history.Sample{
		{Name: "logits", Histogram: h}, {Name: "sample", Text: fmt.Sprintf("Once upon a time there was a king <b>&amp;\x1b who had %d horses, and each of them had a name of its own.", p.step)},
		{Name: "classified", PNG: picture.Bytes(), Text: "1: cat; 2: dog, taken for cat"},
	} {
		s.Step, s.Time = p.step, at
		_ = p.w.Sample(s)
	}
}

// where is where the time of the ranks went.
func (p *recorded) where(at history.Seconds, seconds, wait float64) history.Ranks {
	r := history.Ranks{Step: p.step, Steps: 4, Time: at, Seconds: seconds, Phases: map[string]history.Column{}, Late: make(history.Column, p.ranks), For: make([]int, p.ranks), ForSeconds: make(history.Column, p.ranks)}
	for _, name := range []string{"data", "forward", "backward", "optimizer", "communication", "waiting", "other"} {
		r.Phases[name] = make(history.Column, p.ranks)
	}
	for i := range p.ranks {
		left := seconds
		take := func(name string, s float64) {
			s = min(left, s)
			r.Phases[name][i] += s
			left -= s
		}
		take("data", 0.01)
		r.For[i] = -1
		if i == p.slow {
			take("data", wait)
		} else if wait > 0 {
			take("waiting", wait)
			r.For[i], r.ForSeconds[i] = p.slow, wait
			r.Late[p.slow] += wait
		}
		take("communication", 0.06*seconds*(0.8+0.4*p.r.Float64()))
		take("optimizer", 0.05*seconds)
		take("forward", 0.26*seconds)
		take("other", 0.01*seconds)
		take("backward", left)
		r.Resident = append(r.Resident, int64(5<<30)+int64(p.r.IntN(1<<28)))
		r.Tensors = append(r.Tensors, 4<<30)
		r.Heap = append(r.Heap, 300<<20)
	}
	return r
}
