// SPDX-License-Identifier: Apache-2.0

package train

import (
	"context"
	"errors"
	"fmt"
	"runtime"

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
	var sets []*vision.Set // the first is for training, if there are two
	var training *vision.Set
	if own || !o.All {
		var test *vision.Set
		if training, test, err = vision.Open(o.Data); err != nil {
			if rest, all := vision.OpenAll(o.Data); all == nil { // it is the parting that fails
				closeAll(rest)
				err = fmt.Errorf("%w; or take all of it (--all)", err)
			}
			return EvalResult{}, err
		}
		sets = []*vision.Set{training, test}
	} else if sets, err = vision.OpenAll(o.Data); err != nil {
		return EvalResult{}, err
	}
	defer closeAll(sets)
	var notes []string
	seen := map[string]bool{}
	for i, set := range sets {
		notes = append(notes, set.Notes()...)
		for _, c := range set.Classes() {
			seen[c] = true
		}
		// A label is no more than a number: the names say which class of the model it is.
		mapped, err := set.WithClasses(m.Config.Classes)
		if err != nil {
			return EvalResult{}, fmt.Errorf("%w; the model knows the %d classes %s", err, len(m.Config.Classes), few(m.Config.Classes))
		}
		sets[i] = mapped
	}
	if n := len(seen); n < len(m.Config.Classes) {
		notes = append(notes, fmt.Sprintf("%s has %d of the %d classes that the model knows", o.Data, n, len(m.Config.Classes)))
	}
	name := sets[len(sets)-1].Name()
	if !o.All {
		sets = sets[1:]
	}
	var all tally
	for _, set := range sets {
		t, err := m.score(ctx, set, 0, set.Len(), o.Batch, runtime.GOMAXPROCS(0), recipe.OnError == "skip")
		if err != nil {
			return EvalResult{}, err
		}
		all.seen, all.right, all.skipped, all.loss = all.seen+t.seen, all.right+t.right, all.skipped+t.skipped, all.loss+t.loss
	}
	result := EvalResult{Model: m.String(), Data: name + ", the images for testing", Samples: all.seen, Unit: "images", notes: notes}
	if o.All {
		result.Data = name + ", all images"
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

// closeAll closes sets that were opened for reading alone.
func closeAll(sets []*vision.Set) {
	for _, s := range sets {
		s.Close()
	}
}

// few prints the first of many names.
func few(names []string) string {
	if len(names) > 5 {
		return fmt.Sprintf("%q, …", names[:5])
	}
	return fmt.Sprintf("%q", names)
}
