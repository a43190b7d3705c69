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

// evalVision classifies the test images of a data set, or all of its images.
func evalVision(ctx context.Context, ck *checkpoint.Checkpoint, o EvalOptions) (EvalResult, error) {
	if o.Tokens > 0 || o.Context > 0 {
		return EvalResult{}, errors.New("--tokens and --context are about text: a classifier sees images")
	}
	m, err := OpenClassifier(ck)
	if err != nil {
		return EvalResult{}, err
	}
	recipe, err := visionRecipe(ck)
	if err != nil {
		return EvalResult{}, err
	}
	images, err := openTestImages(recipe, m, o)
	if err != nil {
		return EvalResult{}, err
	}
	defer closeAll(images.opened)
	batch := o.Batch
	if batch == 0 {
		batch = max(1, recipe.Batch)
	}
	var all tally
	for _, set := range images.scored {
		t, err := m.score(ctx, m.Model, turns{}, set, 0, set.Len(), batch, runtime.GOMAXPROCS(0), recipe.OnError == "skip", nil)
		if err != nil {
			return EvalResult{}, err
		}
		all.seen, all.right, all.skipped, all.loss = all.seen+t.seen, all.right+t.right, all.skipped+t.skipped, all.loss+t.loss
		if all.confusion == nil {
			all.confusion = t.confusion
			continue
		}
		for i, n := range t.confusion {
			all.confusion[i] += n
		}
	}
	result := EvalResult{Model: m.String(), Data: images.name, Samples: all.seen, Unit: "images", notes: images.notes}
	if all.skipped > 0 {
		result.Data += fmt.Sprintf(", without %d that cannot be read", all.skipped)
	}
	if images.trained != "" {
		result.changed(ck, images.trained)
	}
	result.Metrics, err = all.metrics()
	if all.confusion != nil {
		result.Confusion = &Confusion{m.Config.Classes, all.confusion}
	}
	return result, err
}

// visionRecipe returns the settings of the run that a checkpoint is of.
func visionRecipe(ck *checkpoint.Checkpoint) (recipe VisionConfig, err error) {
	s := SavedRun{Checkpoint: ck, task: "vision"}
	if s.Progress, err = ck.ReadProgress(); err != nil {
		return recipe, err
	}
	return recipe, s.Recipe(&recipe)
}

// testImages are the images that a classifier is evaluated on.
type testImages struct {
	name    string        // for people
	scored  []*vision.Set // with the classifier's classes
	opened  []*vision.Set // to be closed
	trained string        // fingerprint of the images for training; "" if the data are not the run's own
	notes   []string
}

// openTestImages opens the images that an evaluation is asked for, by default
// those for testing of the run's own data.
func openTestImages(recipe VisionConfig, m *Classifier, o EvalOptions) (images testImages, err error) {
	own := o.Data == "" || o.Data == recipe.Data
	if own {
		o.Data = recipe.Data
	}
	if own || !o.All {
		training, test, err := vision.Open(o.Data)
		if err != nil {
			if rest, all := vision.OpenAll(o.Data); all == nil { // it is the division that fails
				closeAll(rest)
				err = fmt.Errorf("%w; or take all of it (--all)", err)
			}
			return images, err
		}
		images.opened = []*vision.Set{training, test}
		if own {
			images.trained = training.Fingerprint()
		}
	} else if images.opened, err = vision.OpenAll(o.Data); err != nil {
		return images, err
	}
	classes := m.Config.Classes
	seen := map[string]bool{}
	for _, set := range images.opened {
		images.notes = append(images.notes, set.Notes()...)
		for _, c := range set.Classes() {
			seen[c] = true
		}
		// A label is no more than a number: the names say which class of the model it is.
		mapped, err := set.WithClasses(classes)
		if err != nil {
			closeAll(images.opened)
			return images, fmt.Errorf("%w; the model knows the %d classes %s", err, len(classes), few(classes))
		}
		images.scored = append(images.scored, mapped)
	}
	if n := len(seen); n < len(classes) {
		images.notes = append(images.notes, fmt.Sprintf("%s has %d of the %d classes that the model knows", o.Data, n, len(classes)))
	}
	last := len(images.scored) - 1
	images.name = images.scored[last].Name() + ", all images"
	if !o.All {
		images.name, images.scored = images.scored[last].Name()+", the images for testing", images.scored[last:]
	}
	return images, nil
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
