// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/cohort-ml/cohort/data"
	"github.com/cohort-ml/cohort/data/vision"
	"github.com/cohort-ml/cohort/tensor"
)

// LoaderOptions choose what Loader measures.
type LoaderOptions struct {
	Model    string // of [LoaderModels]
	DType    string
	Workers  int
	Prefetch int // batches made ahead; 0 is the loader's own
	Pairs    int // of blocks of steps, with the loader and with data in memory
	Steps    int // of a block
}

// LoaderModels are the models that Loader has data for.
func LoaderModels() []string { return []string{"gpt", "cnn"} }

const maxLoaderWorkers = 256

// Validate reports the first option that makes no sense.
func (o LoaderOptions) Validate() error {
	if err := oneOf("model", o.Model, LoaderModels()); err != nil {
		return err
	}
	if err := oneOf("dtype", o.DType, []string{"float32", "bfloat16"}); err != nil {
		return err
	}
	if o.Workers < 0 || o.Workers > maxLoaderWorkers || o.Prefetch < 0 || o.Prefetch > maxLoaderWorkers {
		return fmt.Errorf("%d workers, %d batches ahead: want 0 to %d", o.Workers, o.Prefetch, maxLoaderWorkers)
	}
	if o.Pairs < 2 || o.Pairs > maxSteps {
		return fmt.Errorf("%d pairs of blocks: want 2 to %d", o.Pairs, maxSteps)
	}
	return CheckSteps(o.Steps)
}

// Loading is what a loader costs a training step.
type Loading struct {
	Workers      int     `json:"workers"`
	MemoryMicros float64 `json:"memory_us"` // median of a step whose batch is a tensor already
	// SlowerPercent is the median over the pairs of blocks of how much longer
	// steps with the loader take; Low and High bound it with 95 % confidence.
	SlowerPercent float64 `json:"slower_percent"`
	LowPercent    float64 `json:"slower_low_percent"`
	HighPercent   float64 `json:"slower_high_percent"`
	// CPUPercent is the same of the process's processor time, which depends less
	// on what else the machine does.
	CPUPercent     float64 `json:"cpu_percent"`
	CPULowPercent  float64 `json:"cpu_low_percent"`
	CPUHighPercent float64 `json:"cpu_high_percent"`
	Pairs          int     `json:"pairs"`
	Says           string  `json:"says"` // the loader's statistics
}

// writeText writes the result for people.
func (l *Loading) writeText(w io.Writer) {
	fmt.Fprintf(w, "  %2d workers  in memory %s  slower by %.2f %% (95 %%: %.2f to %.2f), more processor time %.2f %% (%.2f to %.2f), %d pairs\n  %s",
		l.Workers, span(l.MemoryMicros), l.SlowerPercent, l.LowPercent, l.HighPercent, l.CPUPercent, l.CPULowPercent, l.CPUHighPercent, l.Pairs, l.Says)
}

// batches delivers the input of steps.
type batches interface {
	next(ctx context.Context) (x, y *tensor.Tensor, err error)
	stats() data.LoaderStats
	close()
}

// Loader measures how much slower training steps are if a loader makes their batches
// than on one batch that is in memory as tensors. Blocks of steps of both kinds take
// turns, and so does the kind that comes first. The first two steps of a block do not
// count, so that the batches that the loader has made ahead do not count either.
//
// The batches are those of the recipes: for gpt, windows of text that are tokenized
// on demand; for cnn, images of 32·32 bytes that are moved, mirrored and normalised.
func Loader(ctx context.Context, o LoaderOptions) (Result, error) {
	if err := o.Validate(); err != nil {
		return Result{}, fmt.Errorf("bench loader: %w", err)
	}
	w := newWorkload(StepOptions{Model: o.Model, DType: o.DType})
	open := loadImages
	if o.Model == "gpt" {
		open = loadWindows
	}
	feed, err := open(ctx, w.batch, data.LoaderConfig{Workers: o.Workers, Prefetch: o.Prefetch})
	if err != nil {
		return Result{}, fmt.Errorf("bench loader: %w", err)
	}
	defer feed.close()
	x, y := w.x, w.y
	block := func(loads bool, numSteps int) (times, float64, error) {
		const settle = 2
		ts := make(times, 0, numSteps)
		cpu := 0.0
		for i := range settle + numSteps {
			start := time.Now()
			w.x, w.y = x, y
			if loads {
				if w.x, w.y, err = feed.next(ctx); err != nil {
					return nil, 0, err
				}
			}
			if _, err := w.run(ctx, w.model); err != nil {
				return nil, 0, err
			}
			if i == settle-1 {
				cpu = readUsage().cpuSeconds
			}
			if i >= settle {
				ts = append(ts, time.Since(start))
			}
		}
		return ts, readUsage().cpuSeconds - cpu, nil
	}
	for _, loads := range []bool{true, false} {
		if _, _, err := block(loads, 1); err != nil {
			return Result{}, err
		}
	}
	var all [2]times
	ratios, cpuRatios := make([]float64, o.Pairs), make([]float64, o.Pairs)
	for pair := range ratios {
		var means, cpus [2]float64
		for turn := range 2 {
			kind := (pair + turn) % 2
			ts, cpu, err := block(kind == 1, o.Steps)
			if err != nil {
				return Result{}, err
			}
			all[kind] = append(all[kind], ts...)
			means[kind], cpus[kind] = ts.trimmedMean(), cpu
		}
		ratios[pair], cpuRatios[pair] = means[1]/means[0]-1, cpus[1]/cpus[0]-1
	}
	hundredths := func(v float64) float64 { return math.Round(1e4*v) / 100 }
	l := &Loading{Workers: o.Workers, MemoryMicros: micros(all[0].median()), Pairs: o.Pairs, Says: feed.stats().String()}
	low, high := medianInterval(ratios)
	l.SlowerPercent, l.LowPercent, l.HighPercent = hundredths(medianOf(ratios)), hundredths(low), hundredths(high)
	low, high = medianInterval(cpuRatios)
	l.CPUPercent, l.CPULowPercent, l.CPUHighPercent = hundredths(medianOf(cpuRatios)), hundredths(low), hundredths(high)
	return Result{
		Bench: "loader", Case: o.Model, DType: o.DType, Threads: tensor.NumThreads(), Batch: w.batch,
		MedianMicros: micros(all[1].median()), Loading: l,
	}, nil
}

// trimmedMean returns the mean in seconds without the slowest tenth, in which other
// processes had the processor.
func (t times) trimmedMean() float64 {
	s := slices.Sorted(slices.Values(t))
	s = s[:len(s)-len(s)/10]
	sum := 0.0
	for _, d := range s {
		sum += d.Seconds()
	}
	return sum / float64(len(s))
}

func medianOf(v []float64) float64 {
	s := slices.Sorted(slices.Values(v))
	return (s[(len(s)-1)/2] + s[len(s)/2]) / 2
}

// medianInterval returns the interval in which the median lies with 95 %
// confidence, by the bootstrap: medians of samples drawn from the sample.
func medianInterval(v []float64) (low, high float64) {
	const draws = 4000
	r := rand.New(rand.NewPCG(1, 2))
	medians := make([]float64, draws)
	drawn := make([]float64, len(v))
	for i := range medians {
		for j := range drawn {
			drawn[j] = v[r.IntN(len(v))]
		}
		medians[i] = medianOf(drawn)
	}
	slices.Sort(medians)
	return medians[draws*25/1000], medians[draws*975/1000]
}

// loaded is a loader with the function that makes tensors of its batches.
type loaded[S, B any] struct {
	*data.Loader[S, B]
	tensors func(b B) (x, y *tensor.Tensor)
}

func (l loaded[S, B]) next(ctx context.Context) (x, y *tensor.Tensor, err error) {
	b, err := l.Next(ctx)
	if err != nil {
		return nil, nil, err
	}
	x, y = l.tensors(b)
	return x, y, nil
}

func (l loaded[S, B]) stats() data.LoaderStats { return l.Stats() }
func (l loaded[S, B]) close()                  { l.Close() }

func loadOf[S, B any](ctx context.Context, ds data.Dataset[S], batch int, collate func([]S) (B, error), tensors func(b B) (x, y *tensor.Tensor), c data.LoaderConfig) (batches, error) {
	order, err := data.NewStream(data.StreamConfig{Len: ds.Len(), Batch: batch, World: 1, Shuffle: true})
	if err != nil {
		return nil, err
	}
	l, err := data.NewLoader(ctx, ds, order, collate, c, data.LoaderState{})
	if err != nil {
		return nil, err
	}
	return loaded[S, B]{l, tensors}, nil
}

// loadWindows loads text in the windows of the gpt.
func loadWindows(ctx context.Context, batch int, c data.LoaderConfig) (batches, error) {
	const time, vocab, model = 128, 1024, 256
	text, err := data.OpenCorpus(ctx, "")
	if err != nil {
		return nil, err
	}
	tok, err := data.TrainTokenizer(ctx, text.Train, vocab)
	if err != nil {
		return nil, err
	}
	ds, err := data.NewWindows(text.Train, tok, time)
	if err != nil {
		return nil, err
	}
	collate := func(windows []data.TokenWindow) (data.TokenBatch, error) {
		b, err := data.CollateTokens(windows)
		for _, ids := range [][]int64{b.Inputs, b.Targets} {
			for i := range ids {
				ids[i] %= model // the recipe's tokenizer has more tokens than the measured model
			}
		}
		return b, err
	}
	return loadOf(ctx, ds, batch, collate, func(b data.TokenBatch) (x, y *tensor.Tensor) {
		return tensor.FromInt64(b.Inputs, b.Rows, b.Length), tensor.FromInt64(b.Targets, b.Rows, b.Length)
	}, c)
}

// loadImages loads images of noise, as many as a fifth of CIFAR.
func loadImages(ctx context.Context, batch int, c data.LoaderConfig) (batches, error) {
	const side, channels, num, classes = 32, 3, 10000, 10
	r := rand.NewChaCha8([32]byte{})
	samples := make([]vision.Sample, num)
	for i := range samples {
		pix := make([]byte, side*side*channels)
		r.Read(pix)
		samples[i] = vision.Sample{Image: vision.Image{Width: side, Height: side, Channels: channels, Pix: pix}, Label: i % classes}
	}
	ds := vision.Apply(data.FromSlice(samples), 1, vision.RandomCrop{Width: side, Height: side, Pad: 4}, vision.RandomFlip{})
	return loadOf(ctx, ds, batch, vision.Collate(channels, vision.ImageNet), func(b vision.Batch) (x, y *tensor.Tensor) {
		return tensor.FromFloat32(b.Images, b.N, b.Channels, b.Height, b.Width), tensor.FromInt64(b.Labels, b.N)
	}, c)
}
