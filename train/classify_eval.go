// SPDX-License-Identifier: Apache-2.0

package train

import (
	"context"
	"errors"
	"slices"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// classCounts counts what a classifier of texts gets right: by class how often it was
// found, was told wrongly, and was missed. One count is of a text, of one of the classes
// of a text, or of a word.
type classCounts struct {
	hit, wrong, missed []int64
	seen, right        int64
	pairs              []int64 // [class, told]; nil where there are too many, or several of a text
	loss               float64 // or the sum of squared errors, over texts
}

// evaluate classifies the held-out records, of which every rank takes a share.
func (r *classifyRun) evaluate(ctx context.Context, model any) (Metrics, error) {
	n, rank, ranks, k := r.held.Len(), r.axes.Data.Rank(), r.axes.Data.Size(), len(r.classes)
	cut := int64(0)
	own, err := r.countShare(ctx, model, turnsOf(model, r.axes), n*rank/ranks, n*(rank+1)/ranks)
	if errors.Is(err, errCut) { // the others must hear of it
		cut, err = 1, nil
	}
	if err != nil {
		return nil, err
	}
	counts := tensor.FromInt64(slices.Concat([]int64{cut, own.seen, own.right}, own.hit, own.wrong, own.missed))
	loss := tensor.Full(own.loss, 1)
	for _, t := range []*tensor.Tensor{counts, loss} {
		if err := r.axes.World.AllReduce(ctx, t, dist.Sum); err != nil {
			return nil, err
		}
	}
	all := counts.Int64s()
	if all[0] > 0 {
		return nil, errCut
	}
	sum := classCounts{seen: all[1], right: all[2], hit: all[3 : 3+k], wrong: all[3+k : 3+2*k], missed: all[3+2*k:], loss: loss.Item()}
	return sum.metrics(r.cfg.Kind, n), nil
}

// countShare classifies held-out records from..to-1.
func (r *classifyRun) countShare(ctx context.Context, model any, together turns, from, to int) (classCounts, error) {
	k, batch := len(r.classes), r.cfg.Batch*2
	own, others := newClassCounts(k), newClassCounts(k)
	opts := []nn.CtxOption{r.cfg.autocast(), onDeviceOf(model)}
	for lo := from; ; lo += batch {
		pass, err := together.next(ctx, lo < to)
		if err != nil || !pass {
			return own, err
		}
		lo, hi := min(lo, to), min(lo+batch, to)
		scores, labels := r.perSample()
		b, counts := r.tokens.blank(1, 1, scores, labels), &others
		if lo < hi {
			if b, err = r.held.batch(ctx, r.tokens, lo, hi, 1); err != nil {
				return own, err
			}
			counts = &own
		}
		if err := r.count(ctx, model, b, counts, opts); err != nil {
			return own, err
		}
	}
}

func newClassCounts(k int) classCounts {
	t := classCounts{hit: make([]int64, k), wrong: make([]int64, k), missed: make([]int64, k)}
	if k <= maxConfusion {
		t.pairs = make([]int64, k*k)
	}
	return t
}

// evalClassify evaluates a classifier of texts.
func (at place) evalClassify(ctx context.Context, o EvalOptions) (EvalResult, error) {
	run := DefaultClassify()
	if err := at.recipe(o, &run, &run.TextConfig, &run.SharedConfig); err != nil {
		return EvalResult{}, err
	}
	r := newClassifyRun(run, nil, nil, Discard)
	if _, err := r.prepareFrom(ctx, &SavedRun{Checkpoint: at.checkpoint}, false); err != nil {
		return EvalResult{}, err
	}
	var confusion *Confusion
	result, err := evalHeld(at, o, &r.training, &r.held, run.Data, encoderName(r.model), func() (Metrics, error) {
		t, err := r.countShare(ctx, r.model, turns{}, 0, r.held.Len())
		if t.pairs != nil && (r.cfg.Kind == kindSingle || r.cfg.Kind == kindTags) {
			confusion = &Confusion{r.classes, t.pairs}
		}
		return t.metrics(r.cfg.Kind, r.held.Len()), err
	})
	result.Confusion = confusion
	return result, err
}

// count classifies a batch.
func (r *classifyRun) count(ctx context.Context, model any, b sentenceBatch, t *classCounts, opts []nn.CtxOption) (err error) {
	c := nn.Evaluation(ctx, opts...)
	defer c.Close()
	defer c.Recover(&err)
	logits := c.CallN(model.(nn.ModuleN), b.inputs(c)...)[0].To(tensor.Float32)
	t.loss += r.lossOf(logits, b).Item() * float64(b.N)
	switch r.cfg.Kind {
	case kindRegression:
		t.seen += int64(b.N)
	case kindMulti:
		t.addMarks(logits.Float32s(), b.Scores)
	default:
		t.addClasses(logits.ArgMax(-1).Int64s(), b.Labels)
	}
	return nil
}

// addMarks counts texts of several classes: a class is told where its logit is above 0.
func (t *classCounts) addMarks(logits, marks []float32) {
	k := len(t.hit)
	for lo := 0; lo < len(marks); lo += k {
		right := true
		for i := range k {
			is, told := marks[lo+i] > 0, logits[lo+i] > 0
			switch {
			case is && told:
				t.hit[i]++
			case told:
				t.wrong[i]++
			case is:
				t.missed[i]++
			}
			right = right && is == told
		}
		t.seen++
		if right {
			t.right++
		}
	}
}

// addClasses counts texts, or words, of one class each; a negative label does not count.
func (t *classCounts) addClasses(told, labels []int64) {
	for i, label := range labels {
		switch {
		case label < 0:
			continue
		case label == told[i]:
			t.right++
			t.hit[label]++
		default:
			t.wrong[told[i]]++
			t.missed[label]++
		}
		t.seen++
		if t.pairs != nil {
			t.pairs[int(label)*len(t.hit)+int(told[i])]++
		}
	}
}

// metrics says how good a classifier is on n texts.
func (t classCounts) metrics(kind string, n int) Metrics {
	loss := Metric{Name: "loss", Value: t.loss / float64(n)}
	if kind == kindRegression {
		return Metrics{{Name: "squared_error", Value: t.loss / float64(n)}}
	}
	accuracy := Metric{Name: "accuracy", Value: float64(t.right) / float64(max(1, t.seen)), Higher: true, Unit: "%"}
	f1 := Metric{Name: "macro_f1", Value: t.macroF1(), Higher: true}
	if kind == kindMulti {
		return Metrics{{Name: "micro_f1", Value: t.microF1(), Higher: true}, f1, accuracy, loss}
	}
	return Metrics{accuracy, f1, loss}
}

func f1Of(hit, wrong, missed int64) float64 {
	if hit == 0 {
		return 0
	}
	return 2 * float64(hit) / float64(2*hit+wrong+missed)
}

// macroF1 is the mean of the F1 of the classes that occur or were told.
func (t classCounts) macroF1() float64 {
	sum, n := 0.0, 0
	for i := range t.hit {
		if t.hit[i]+t.wrong[i]+t.missed[i] > 0 {
			sum += f1Of(t.hit[i], t.wrong[i], t.missed[i])
			n++
		}
	}
	return sum / float64(max(1, n))
}

// microF1 is the F1 of all classes together.
func (t classCounts) microF1() float64 {
	var hit, wrong, missed int64
	for i := range t.hit {
		hit, wrong, missed = hit+t.hit[i], wrong+t.wrong[i], missed+t.missed[i]
	}
	return f1Of(hit, wrong, missed)
}
