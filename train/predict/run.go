// SPDX-License-Identifier: Apache-2.0

package predict

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"sync"

	"github.com/cohort-ml/cohort/train"
)

// Summary is what came of a pass over inputs.
type Summary struct {
	Done    int // inputs
	Skipped int // inputs that could not be used
	Cut     int // texts that were too long and lost their end
}

// String tells people of it; unit names the inputs.
func (s Summary) String() string {
	text := fmt.Sprintf("%d inputs", s.Done)
	if s.Done == 1 {
		text = "1 input"
	}
	if s.Skipped > 0 {
		text += fmt.Sprintf(", %d left out", s.Skipped)
	}
	if s.Cut > 0 {
		text += fmt.Sprintf(", %d were too long and lost their end", s.Cut)
	}
	return text
}

// Run predicts all inputs of a source, and hands them to w in their order.
func Run(ctx context.Context, m *train.Model, src Source, o Options, w Writer) (Summary, error) {
	if err := m.Predicts(); err != nil {
		return Summary{}, err
	}
	return each(ctx, m, src, o, func(items []Item, ready []train.Prepared) error {
		told, err := m.Run(ctx, ready, o.Batch)
		if err != nil {
			return err
		}
		return w.Write(items, told)
	})
}

// Embed computes the vectors of all texts of a source, and hands them to w in their order.
func Embed(ctx context.Context, m *train.Model, src Source, o Options, w VectorWriter) (Summary, error) {
	if m.Vectors == nil {
		return Summary{}, fmt.Errorf("%s is a model of the task %q, which makes no vectors of texts: want an encoder, such as a run of cohort train embed, or a folder of sentence-transformers", m.Path, m.Task)
	}
	if o.Prompt != nil {
		if err := m.Vectors.SetPrompt(*o.Prompt); err != nil {
			return Summary{}, err
		}
	}
	return each(ctx, m, src, o, func(items []Item, ready []train.Prepared) error {
		vectors, err := m.Vectors.EmbedPrepared(ctx, ready, o.Batch)
		if err != nil {
			return err
		}
		return w.Write(items, vectors)
	})
}

const (
	defaultWindow  = 256 // inputs that are read before they are computed
	batchesAhead   = 8   // or so many batches, if somebody chooses
	maxWindowBytes = 64 << 20
	maxTold        = 20 // inputs left out that are named
)

// each reads windows of inputs, prepares them on all processors, and calls use with those
// that can be used.
func each(ctx context.Context, m *train.Model, src Source, o Options, use func([]Item, []train.Prepared) error) (sum Summary, err error) {
	window := defaultWindow
	if o.Batch > 0 {
		window = o.Batch * batchesAhead
	}
	skip := func(err error) error {
		if !o.Skip {
			return fmt.Errorf("%w (--on-error skip leaves out what cannot be used)", err)
		}
		if sum.Skipped++; sum.Skipped <= maxTold && o.Notice != nil {
			o.Notice("left out: " + err.Error())
		}
		return nil
	}
	for last := false; !last; {
		if err := context.Cause(ctx); err != nil {
			return sum, err
		}
		var items []Item
		var failed error // after the inputs before it
		for size := 0; len(items) < window && size < maxWindowBytes && !last; {
			item, err := src.Next()
			final := (*finalError)(nil)
			switch {
			case errors.Is(err, io.EOF):
				last = true
			case errors.As(err, &final):
				failed, last = final.error, true
			case err != nil:
				if failed = skip(err); failed != nil {
					last = true
				}
			default:
				items = append(items, item)
				size += item.size
			}
		}
		ready, errs := prepare(m, items)
		good, at := items[:0], 0
		for i, item := range items {
			if errs[i] != nil {
				if err := skip(errs[i]); err != nil {
					failed, last = err, true
					break
				}
				continue
			}
			if ready[i].Cut() {
				sum.Cut++
			}
			good, ready[at] = append(good, item), ready[i]
			at++
		}
		if len(good) > 0 {
			if err := use(good, ready[:at]); err != nil {
				return sum, err
			}
		}
		sum.Done += len(good)
		if failed != nil {
			return sum, failed
		}
	}
	return sum, nil
}

// prepare loads and prepares inputs on all processors.
func prepare(m *train.Model, items []Item) ([]train.Prepared, []error) {
	ready, errs := make([]train.Prepared, len(items)), make([]error, len(items))
	var wg sync.WaitGroup
	workers := runtime.GOMAXPROCS(0)
	for w := range workers {
		wg.Go(func() {
			for i := w; i < len(items); i += workers {
				in, err := items[i].load()
				if err == nil {
					ready[i], err = m.Prepare(in)
				}
				if err != nil {
					errs[i] = items[i].at(err)
				}
			}
		})
	}
	wg.Wait()
	return ready, errs
}
