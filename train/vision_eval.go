// SPDX-License-Identifier: Apache-2.0

package train

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/data/vision"
)

// evalVision classifies the test images of a data set, or all of them.
func evalVision(ctx context.Context, ck *checkpoint.Checkpoint, o EvalOptions) (EvalResult, error) {
	if o.Tokens > 0 || o.Context > 0 {
		return EvalResult{}, errors.New("--tokens and --context are about text: a classifier sees images")
	}
	m, err := OpenClassifier(ck)
	if err != nil {
		return EvalResult{}, err
	}
	var recipe VisionConfig
	s := SavedRun{Checkpoint: ck, task: "vision"}
	if s.Progress, err = ck.ReadProgress(); err != nil {
		return EvalResult{}, err
	}
	if err := s.Recipe(&recipe); err != nil {
		return EvalResult{}, err
	}
	own := o.Data == "" || o.Data == recipe.Data
	if own {
		o.Data = recipe.Data
	}
	if o.Batch == 0 {
		o.Batch = max(1, recipe.Batch)
	}
	training, test, err := vision.Open(o.Data)
	if err != nil {
		return EvalResult{}, err
	}
	defer training.Close()
	defer test.Close()
	// The same names, in the same order: a label is no more than a number.
	if got, want := test.Classes(), m.Config.Classes; !slices.Equal(got, want) {
		return EvalResult{}, fmt.Errorf("%s has the %d classes %s, the model knows the %d classes %s", o.Data, len(got), few(got), len(want), few(want))
	}
	sets := []*vision.Set{test}
	if o.All {
		sets = []*vision.Set{training, test}
	}
	var all tally
	for _, set := range sets {
		t, err := m.score(ctx, set, 0, set.Len(), o.Batch, runtime.GOMAXPROCS(0), recipe.OnError == "skip")
		if err != nil {
			return EvalResult{}, err
		}
		all.seen, all.right, all.skipped, all.loss = all.seen+t.seen, all.right+t.right, all.skipped+t.skipped, all.loss+t.loss
	}
	result := EvalResult{Model: m.String(), Data: test.Name() + ", the images for testing", Samples: all.seen, Unit: "images"}
	if o.All {
		result.Data = test.Name() + ", all images"
	}
	if all.skipped > 0 {
		result.Data += fmt.Sprintf(" but %d that cannot be read", all.skipped)
	}
	if own {
		result.changed(ck, training.Fingerprint())
	}
	result.Metrics, err = all.metrics()
	return result, err
}

// few prints the first of many names.
func few(names []string) string {
	if len(names) > 5 {
		return fmt.Sprintf("%q, …", names[:5])
	}
	return fmt.Sprintf("%q", names)
}
