// SPDX-License-Identifier: Apache-2.0

package train

import (
	"context"
	"errors"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// maxEvalTexts bounds the held-out records that are evaluated on.
const maxEvalTexts = 2000

// evaluate says how well the held-out texts find their partners or, where they have scores,
// how well the cosines follow them. Every rank computes the vectors of a share.
func (r *embedRun) evaluate(ctx context.Context, model any) (Metrics, error) {
	n, rank, ranks := min(r.held.Len(), maxEvalTexts), r.axes.Data.Rank(), r.axes.Data.Size()
	vectors, err := r.vectors(ctx, model, turnsOf(model, r.axes), n, n*rank/ranks, n*(rank+1)/ranks)
	vectors = append(vectors, 0)
	if errors.Is(err, errCut) { // the others must hear of it
		vectors[len(vectors)-1], err = 1, nil
	}
	if err != nil {
		return nil, err
	}
	sum := tensor.FromFloat32(vectors, len(vectors))
	if err := r.axes.World.AllReduce(ctx, sum, dist.Sum); err != nil {
		return nil, err
	}
	if vectors = sum.Float32s(); vectors[len(vectors)-1] > 0 {
		return nil, errCut
	}
	return r.metrics(vectors[:len(vectors)-1], n)
}

// metrics says how good the vectors of n held-out pairs are: those of the first texts, and
// then those of the second.
func (r *embedRun) metrics(vectors []float32, n int) (Metrics, error) {
	width := r.model.Width()
	x, y := unitRows(vectors[:n*width], width), unitRows(vectors[n*width:], width)
	if r.cfg.Score != "" {
		return r.correlation(x, y)
	}
	return r.retrieval(x, y)
}

// vectors computes those of pairs from..to-1 of n held-out ones; the others stay 0.
func (r *embedRun) vectors(ctx context.Context, model any, together turns, n, from, to int) ([]float32, error) {
	width, batch := r.model.Width(), r.cfg.Batch*2
	vectors := make([]float32, 2*n*width, 2*n*width+1)
	opts := []nn.CtxOption{r.cfg.autocast(), onDeviceOf(model)}
	for lo := from; ; lo += batch {
		pass, err := together.next(ctx, lo < to)
		if err != nil || !pass {
			return vectors, err
		}
		lo, hi := min(lo, to), min(lo+batch, to)
		b := r.tokens.blank(1, 2, 1, 0)
		if lo < hi {
			if b, err = r.held.batch(ctx, r.tokens, lo, hi, 2); err != nil {
				return vectors, err
			}
		}
		if err := embedPass(ctx, model, b, opts, func(k int, rows []float32) {
			if lo < hi {
				copy(vectors[(k*n+lo)*width:], rows)
			}
		}); err != nil {
			return vectors, err
		}
	}
}

// evalEmbed evaluates an encoder of texts.
func (at place) evalEmbed(ctx context.Context, o EvalOptions) (EvalResult, error) {
	run := DefaultEmbed()
	if err := at.recipe(o, &run, &run.TextConfig, &run.SharedConfig); err != nil {
		return EvalResult{}, err
	}
	r := newEmbedRun(run, nil, nil, Discard)
	if _, err := r.prepareFrom(ctx, &SavedRun{Checkpoint: at.checkpoint}, false); err != nil {
		return EvalResult{}, err
	}
	return evalHeld(at, o, &r.training, &r.held, run.Data, encoderName(r.model.Encoder), func() (Metrics, error) {
		n := min(r.held.Len(), maxEvalTexts)
		vectors, err := r.vectors(ctx, r.model, turns{}, n, 0, n)
		if err != nil {
			return nil, err
		}
		return r.metrics(vectors, n)
	})
}

// embedPass computes the vectors of each column of a batch.
func embedPass(ctx context.Context, model any, b sentenceBatch, opts []nn.CtxOption, use func(column int, rows []float32)) (err error) {
	c := nn.Evaluation(ctx, opts...)
	defer c.Close()
	defer c.Recover(&err)
	for k, v := range c.CallN(model.(nn.ModuleN), b.inputs(c)...) {
		use(k, v.To(tensor.Float32).Float32s())
	}
	return nil
}

// unitRows scales rows to length 1.
func unitRows(x []float32, width int) [][]float32 {
	var rows [][]float32
	for row := range slices.Chunk(x, width) {
		sum := 0.0
		for _, v := range row {
			sum += float64(v) * float64(v)
		}
		scale := float32(1 / max(math.Sqrt(sum), 1e-12))
		out := make([]float32, width)
		for i, v := range row {
			out[i] = v * scale
		}
		rows = append(rows, out)
	}
	return rows
}

func dotOf(x, y []float32) float64 {
	sum := float32(0)
	for i, v := range x {
		sum += v * y[i]
	}
	return float64(sum)
}

// bestRanks is how many texts that were found count.
const bestRanks = 10

// retrieval says where the partner of each first text stands among all second texts, by
// nDCG@10 and recall. A second text that is there several times counts once.
func (r *embedRun) retrieval(x, y [][]float32) (Metrics, error) {
	texts := make([]string, len(y))
	first := make(map[string]int) // the place of a text
	var corpus []int
	for i := range y {
		text, err := r.held.records.text(r.held.at[i], r.columns[1])
		if err != nil {
			return nil, err
		}
		texts[i] = text
		if _, seen := first[text]; !seen {
			first[text] = i
			corpus = append(corpus, i)
		}
	}
	ndcg, one, ten := 0.0, 0.0, 0.0
	for i, q := range x {
		right := first[texts[i]]
		score, before := dotOf(q, y[right]), 0
		for _, k := range corpus {
			if k != right && dotOf(q, y[k]) >= score {
				before++
			}
		}
		if before < bestRanks {
			ndcg += 1 / math.Log2(float64(before)+2)
			ten++
		}
		if before == 0 {
			one++
		}
	}
	n := float64(len(x))
	return Metrics{
		{Name: "ndcg_at_10", Value: ndcg / n, Higher: true}, {Name: "recall_at_1", Value: one / n, Higher: true, Unit: "%"},
		{Name: "recall_at_10", Value: ten / n, Higher: true, Unit: "%"},
	}, nil
}

// correlation is Spearman's of the cosines and the scores.
func (r *embedRun) correlation(x, y [][]float32) (Metrics, error) {
	cosines, scores := make([]float64, len(x)), make([]float64, len(x))
	for i := range x {
		cosines[i] = dotOf(x[i], y[i])
		s, err := r.held.records.number(r.held.at[i], r.cfg.Score)
		if err != nil {
			return nil, err
		}
		scores[i] = s
	}
	return Metrics{{Name: "spearman", Value: spearman(cosines, scores), Higher: true}}, nil
}

// spearman is the correlation of the ranks of values; equal values share theirs. It is 0
// where all values of one kind are equal.
func spearman(x, y []float64) float64 { return pearson(ranksOf(x), ranksOf(y)) }

func ranksOf(x []float64) []float64 {
	order := make([]int, len(x))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		switch {
		case x[a] < x[b]:
			return -1
		case x[a] > x[b]:
			return 1
		}
		return 0
	})
	ranks := make([]float64, len(x))
	for lo := 0; lo < len(order); {
		hi := lo
		for hi < len(order) && x[order[hi]] == x[order[lo]] {
			hi++
		}
		for _, i := range order[lo:hi] {
			ranks[i] = float64(lo+hi-1) / 2
		}
		lo = hi
	}
	return ranks
}

func pearson(x, y []float64) float64 {
	mx, my := 0.0, 0.0
	for i := range x {
		mx += x[i] / float64(len(x))
		my += y[i] / float64(len(x))
	}
	xy, xx, yy := 0.0, 0.0, 0.0
	for i := range x {
		xy += (x[i] - mx) * (y[i] - my)
		xx += (x[i] - mx) * (x[i] - mx)
		yy += (y[i] - my) * (y[i] - my)
	}
	if xx == 0 || yy == 0 {
		return 0
	}
	return xy / math.Sqrt(xx*yy)
}

// removeExport removes a folder that an earlier end of the run wrote.
func removeExport(dir string) error {
	if _, err := os.Stat(filepath.Join(dir, configFile)); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return os.RemoveAll(dir)
}
