// SPDX-License-Identifier: Apache-2.0

package train

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/data"
	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// notices keeps what the user is told.
type notices struct {
	Reporter
	texts []string
}

func (n *notices) Notice(text string) { n.texts = append(n.texts, text) }

// A run whose samples take longer than its steps says so, once, and the order
// of what it was trained on is proved. Of its samples some cannot be made.
func TestRunTellsThatItWaitsForData(t *testing.T) {
	for _, slow := range []bool{false, true} {
		out := filepath.Join(t.TempDir(), "run")
		said := &notices{Reporter: Discard}
		err := dist.Spawn(t.Context(), 2, func(ctx context.Context, group *dist.Group) error {
			line := nn.NewLinear(&nn.Build{}, 1, 1)
			ds := data.FromFunc(50, func(ctx context.Context, k data.Key) (float32, error) {
				if slow {
					time.Sleep(30 * time.Millisecond) // a step takes less, also on a busy machine
				}
				if k.Index%10 == 0 {
					return 0, context.DeadlineExceeded
				}
				return float32(k.Index) / 50, nil
			})
			task := Task[[]float32]{
				Name: "line", Model: line, Samples: ds.Len(),
				Optimizer: sgd(0.1),
				Loss: func(c *nn.Ctx, model any, b []float32) *tensor.Tensor {
					x := tensor.FromFloat32(b, len(b), 1)
					return tensor.MSE(c.Call(model.(nn.Module), x), x)
				},
				Feed: func(ctx context.Context, from data.LoaderState) (Feed[[]float32], error) {
					order, err := data.NewStream(data.StreamConfig{Len: ds.Len(), Batch: 1, Rank: group.Rank(), World: 2, Shuffle: true})
					if err != nil {
						return nil, err
					}
					keep := func(s []float32) ([]float32, error) { return s, nil }
					return data.NewLoader(ctx, ds, order, keep, data.LoaderConfig{Workers: 1, OnError: data.SkipSample}, from)
				},
				Evaluate: func(context.Context, any) (Metrics, error) { return Metrics{{Name: "of nothing"}}, nil },
			}
			report := Reporter(Discard)
			if group.Rank() == 0 {
				report = said
			}
			return Run(ctx, group, task, Options{Out: out, Steps: 40, Batch: 2, EvalEvery: 10}, report)
		})
		if err != nil {
			t.Fatal(err)
		}
		told := 0
		for _, text := range said.texts {
			if strings.HasPrefix(text, "training waits for data: the loader is the bottleneck, most of all making samples") {
				told++
			}
		}
		if slow && told != 1 {
			t.Errorf("told %d times that it waits, want once: %q", told, said.texts)
		}
		report, err := data.CheckOrder(filepath.Join(out, data.OrderDir), data.CheckOptions{Steps: 40})
		if err != nil {
			t.Fatal(err)
		}
		if report.Err() != nil || report.Steps != 40 || !report.Ended || report.Replaced == 0 {
			t.Errorf("%+v\n%s", report, report)
		}
	}
}
