// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"math"

	"github.com/cohort-ml/cohort/monitor/history"
)

// Verdict answers a question that people ask of a run.
type Verdict struct {
	Question string `json:"question"`
	State    string `json:"state"` // [Good], [Look] or [Unknown]
	Answer   string `json:"answer"`
	Why      string `json:"why,omitempty"` // what the answer follows from, or what to do
}

// States of a verdict.
const (
	Good    = "good"
	Look    = "look" // somebody should look at this
	Unknown = "unknown"
)

// minJudged is how many steps a run must have before its loss is judged.
const minJudged = 20

// Verdicts answers, from the history of a run, whether it learns, whether it overfits, how fast it
// is, which rank is slow and what restarts cost.
func Verdicts(h *history.History) []Verdict {
	if h == nil {
		return []Verdict{{"Is it learning?", Unknown, "no step yet", "the run has not begun to write its history"}}
	}
	s := Summarize(Run{History: h})
	return s.verdicts(h)
}

// verdicts returns the answers that follow from a summary and its history.
func (s *Summary) verdicts(h *history.History) []Verdict {
	return []Verdict{s.learning(), s.overfitting(), s.speed(), slowest(h), restarts(h)}
}

func (s *Summary) learning() Verdict {
	v := Verdict{Question: "Is it learning?"}
	change := fmt.Sprintf("loss %s → %s", number(s.FirstLoss), number(s.LastLoss))
	switch {
	case s.NonFinite > 0:
		v.State, v.Answer, v.Why = Look, fmt.Sprintf("%d of %d steps were not finite", s.NonFinite, s.Done), "lower the learning rate, or clip the gradients; "+change
	case s.Done < minJudged:
		v.State, v.Answer, v.Why = Unknown, "too early to say", change
	case s.LastLoss >= s.FirstLoss:
		v.State, v.Answer, v.Why = Look, "no, the loss does not fall", change+": check the data and the learning rate"
	default:
		v.State, v.Answer, v.Why = Good, "yes, the loss falls", change
	}
	return v
}

func (s *Summary) overfitting() Verdict {
	v := Verdict{Question: "Is it overfitting?", State: Unknown, Answer: "not evaluated", Why: "evaluate on data that it is not trained on (--eval-every)"}
	if s.Validation == nil {
		return v
	}
	last := fmt.Sprintf("%s %s after step %d, best %s after step %d", s.Validation.Name, number(s.Validation.Value), s.Validation.Step, number(s.Validation.Best), s.Validation.BestStep)
	switch {
	case !s.Validation.Value.IsFinite():
		v.Answer, v.Why = "the last evaluation is not finite", last
		v.State = Look
	case s.overfits():
		v.State, v.Answer, v.Why = Look, fmt.Sprintf("yes, since step %d", s.Validation.BestStep), last+": take the best checkpoint, more data, or fewer steps"
	default:
		v.State, v.Answer, v.Why = Good, "no", last
	}
	return v
}

// overfits says whether the metric that counts got worse while the loss falls.
func (s *Summary) overfits() bool {
	v := s.Validation
	if v == nil || !v.Value.IsFinite() || !v.Best.IsFinite() || v.Step <= v.BestStep {
		return false
	}
	return math.Abs(float64(v.Value-v.Best)) > worseBy*math.Abs(float64(v.Best)) && s.LastLoss < s.FirstLoss
}

func (s *Summary) speed() Verdict {
	v := Verdict{Question: "Is it fast?", State: Unknown, Answer: "no step yet"}
	if !s.StepMS.IsFinite() {
		return v
	}
	v.State, v.Answer = Good, number(s.StepMS)+" ms a step"
	if s.Unit != "" {
		v.Answer = fmt.Sprintf("%s %s/s", rate(s.PerSecond), s.Unit)
		v.Why = number(s.StepMS) + " ms a step; "
	}
	if slower := float64(s.NowMS/s.StepMS) - 1; s.Done > minJudged && slower > slowerBy {
		v.State = Look
		v.Answer = fmt.Sprintf("now %s ms a step, %.0f %% slower", number(s.NowMS), 100*slower)
		v.Why = fmt.Sprintf("usually %s ms a step; ", number(s.StepMS))
		if s.Unit != "" {
			v.Answer = fmt.Sprintf("now %s %s/s, %.0f %% slower", rate(s.PerSecond*s.StepMS/s.NowMS), s.Unit, 100*slower)
			v.Why = fmt.Sprintf("usually %s %s/s; a step takes %s ms, usually %s ms; ", rate(s.PerSecond), s.Unit, number(s.NowMS), number(s.StepMS))
		}
	}
	v.Why += s.Time.String()
	if other, total := float64(s.Time.Other), float64(s.Time.Total); s.Done > minJudged && total > 0 && other > slowShare*total {
		v.State = Look
		v.Why += ": evaluate and save less often"
	}
	return v
}

// restarts says what the last restart cost, and all of them.
func restarts(h *history.History) Verdict {
	v := Verdict{Question: "What did restarts cost?", State: Good, Answer: "nothing, there was none"}
	n := h.Restarts()
	if n == 0 {
		return v
	}
	last := LastRestart(h)
	v.Answer = fmt.Sprintf("the last one %s", seconds(last.Cost()))
	v.Why = fmt.Sprintf("%s of steps done again, %s stopped, %s starting, from step %d on", seconds(last.Again), seconds(last.Stopped), seconds(last.Starting), last.Step)
	t := timeOf(h)
	if n > 1 {
		v.Why += fmt.Sprintf("; all %d together %s", n, seconds(t.Again+t.Idle))
	}
	if lost := t.Again + t.Idle; lost > lostShare*float64(t.Total) {
		v.State = Look
		v.Why += ": save more often (--save-every), and look why the processes ended"
	}
	return v
}

// Restart is what a restart cost, in seconds.
type Restart struct {
	Step     int     // from which the run went on
	Again    float64 // in steps that were done again
	Stopped  float64 // in which no process of the run was at work
	Starting float64 // from the start of the process to the beginning of its first step
}

// Cost returns the sum.
func (r Restart) Cost() float64 { return r.Again + r.Stopped + r.Starting }

// LastRestart returns what the last restart of a run cost, the zero value if there was none.
func LastRestart(h *history.History) (r Restart) {
	for i := len(h.Runs) - 1; i > 0; i-- {
		run := h.Runs[i]
		if run.AfterEnd {
			continue
		}
		r.Step = run.FirstStep
		r.Stopped = max(0, float64(run.Time-lastBefore(h, run.Time)))
		for _, l := range h.Lost {
			if l.Time == run.Time {
				r.Again = l.Seconds
			}
		}
		for _, s := range h.Steps {
			if s.Step > run.FirstStep && s.Time >= run.Time {
				r.Starting = max(0, float64(s.Time-run.Time)-s.Seconds)
				break
			}
		}
		break
	}
	return r
}

// rate is a large number for people.
func rate(n history.Number) string {
	switch {
	case n >= 1e7:
		return fmt.Sprintf("%.4gM", float64(n)/1e6)
	case n >= 1e4:
		return fmt.Sprintf("%.4gk", float64(n)/1e3)
	}
	return number(n)
}
