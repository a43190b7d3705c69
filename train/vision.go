// SPDX-License-Identifier: Apache-2.0

package train

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/data"
	"github.com/cohort-ml/cohort/data/vision"
	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/internal/config"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/optim"
	"github.com/cohort-ml/cohort/tensor"
)

// visionRun makes the task of [Vision] on one rank.
type visionRun struct {
	cfg      VisionConfig
	settings *config.Settings // of cfg
	axes     Axes
	report   Reporter

	training, test *vision.Set
	classifier     *Classifier
	source         source            // whose weights it begins with
	was            *ClassifierConfig // its classifier's; of a run that goes on its own
	pretrained     *pretrainedImages // the same, of timm or torchvision; nil for none
	last           tally             // of all ranks, in the last evaluation
	unread         []string          // what this rank could not read, for rank 0 to tell
}

// Vision trains an image classifier on all ranks of a group. Each rank calls Vision
// with the same configuration. given has the settings that the user gave; see [LM].
// Vision uses report on rank 0. If the run's directory has a checkpoint, Vision
// resumes from it.
func Vision(ctx context.Context, group *dist.Group, cfg VisionConfig, given map[string]string, report Reporter) error {
	report = reporterOf(group, report)
	if err := cfg.join("vision", group, given); err != nil {
		return err
	}
	return begins(ctx, "vision", report, func(ctx context.Context, report Reporter) error {
		return newVisionRun(cfg, given, group, report).run(ctx)
	})
}

// CheckVision reports, before any rank is started, the errors of settings,
// checkpoints and names of files that [Vision] would report on every rank. It changes
// no files, and returns the settings of the run as TOML.
func CheckVision(ctx context.Context, cfg VisionConfig, given map[string]string) (resolved []byte, err error) {
	r := newVisionRun(cfg, given, nil, Discard)
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if err := CheckOut("vision", cfg.Out); err != nil {
		return nil, err
	}
	saved, err := r.findRun(ctx)
	if err != nil {
		return nil, err
	}
	defer r.close()
	if err := r.openSource(ctx, saved); err != nil {
		return nil, err
	}
	if err := r.resolve(); err != nil {
		return nil, err
	}
	if saved != nil && !saved.isOf(r.training) {
		return nil, fmt.Errorf("train vision: %w", r.changed(saved))
	}
	if err := r.checkSize(saved); err != nil {
		return nil, err
	}
	described := r.describe()
	if err := r.keepsSource(&described); err != nil {
		return nil, err
	}
	plan, err := NewClassifier(&nn.Build{Device: tensor.Meta}, described)
	if err != nil {
		return nil, fmt.Errorf("train vision: %w", err)
	}
	if err := freeze(plan, r.cfg.Freeze); err != nil {
		return nil, err
	}
	if err := checkMemory("vision", plan.Model, r.cfg.SharedConfig); err != nil {
		return nil, err
	}
	return r.config(), nil
}

// checkSize looks at what a step of a new run takes.
func (r *visionRun) checkSize(saved *SavedRun) error {
	if saved != nil {
		return nil
	}
	note, err := r.cfg.size().check(r.training.Len(), r.settings, "images")
	if err != nil {
		return fmt.Errorf("train vision: %w", err)
	}
	if note != "" {
		r.report.Notice(note)
	}
	r.cfg.size().tellSteps(r.report, r.cfg.Epochs, r.training.Len(), r.settings.Given(), "images")
	return nil
}

func newVisionRun(cfg VisionConfig, given map[string]string, group *dist.Group, report Reporter) *visionRun {
	r := &visionRun{cfg: cfg, axes: dataParallel(group), report: report}
	r.settings = config.New(&r.cfg)
	r.settings.SetGiven(given)
	return r
}

// findRun returns the newest checkpoint of the run's directory, nil if there is
// none, and takes over its settings.
func (r *visionRun) findRun(ctx context.Context) (*SavedRun, error) {
	was := VisionConfig{SharedConfig: sharedBefore()}
	return adoptRun(ctx, r.axes.World, "vision", r.cfg.SharedConfig, r.cfg.Data, r.cfg.InitFrom, r.settings, r.report, was, r.cfg.adopt)
}

// config is what config.toml says.
func (r *visionRun) config() []byte { return settingsText("vision", r.settings, r.cfg.size()) }

// resolve opens the data and fills in the settings that it and the model decide.
func (r *visionRun) resolve() (err error) {
	c := &r.cfg
	if r.training, r.test, err = vision.Open(c.Data); err != nil {
		return fmt.Errorf("train vision: %w", err)
	}
	if classes := r.training.Classes(); len(classes) < 2 {
		return fmt.Errorf("train vision: %s has one class, %q: there is nothing to tell apart; want two or more", r.training.Name(), classes[0])
	}
	h, w, channels, fixed := r.training.Shape()
	fill := func(name, text, from string) error { return r.settings.Field(name).SetText(text, from) }
	if c.Size == 0 {
		size, from := max(h, w), "the data"
		if !fixed {
			size, from = cmp.Or(map[string]int{visionMLP: 32, visionCNN: 64}[c.Model], 224), "the model"
		}
		if err := fill("size", strconv.Itoa(size), from); err != nil {
			return err
		}
	}
	if least := minSide; c.Size < least {
		if fixed {
			least = min(least, max(h, w))
		}
		if c.Size < least {
			return fmt.Errorf("train vision: --size is %d: images of fewer than %d pixels a side show nothing", c.Size, least)
		}
	}
	if c.Augment == "" {
		augment := augmentShift // grey images are mostly of characters, which have no mirror
		switch {
		case !fixed:
			augment = augmentZoom
		case channels == 3:
			augment = augmentMirror
		}
		if err := fill("augment", augment, "the data"); err != nil {
			return err
		}
	}
	if c.LR == 0 {
		lr := cmp.Or(map[string]string{visionMLP: "0.003", visionCNN: "0.005", visionResNet18: "0.002"}[c.Model], "0.001")
		if r.pretrained != nil {
			lr = "0.0003" // what it knows is worth keeping
		}
		if err := fill("lr", lr, "the model"); err != nil {
			return err
		}
	}
	if err := checkDecay("vision", c.LR, c.WeightDecay); err != nil {
		return err
	}
	if len(c.Widths) == 0 {
		if text := map[string]string{visionMLP: "256,128", visionCNN: "32,64"}[c.Model]; text != "" {
			return fill("widths", text, "the model")
		}
	}
	return nil
}

func (r *visionRun) close() {
	if r.pretrained != nil {
		r.pretrained.close()
	}
	for _, s := range []*vision.Set{r.training, r.test} {
		if s != nil {
			s.Close() // opened for reading alone
		}
	}
}

// describe returns the classifier's configuration, without what only pixels
// tell.
func (r *visionRun) describe() ClassifierConfig {
	_, _, channels, fixed := r.training.Shape()
	if _, resnet := resNets[r.cfg.Model]; !fixed || resnet {
		channels = 3
	}
	layers, _ := widths("widths", r.cfg.Widths) // Validate has seen them
	fit := fitWhole
	if !fixed {
		fit = fitMiddle
	}
	return ClassifierConfig{
		ModelType: r.cfg.Model, Size: r.cfg.Size, Channels: channels, Widths: layers, Classes: r.training.Classes(),
		Mean: vision.ImageNet.Mean, Std: vision.ImageNet.Std, Fit: fit,
	}
}

// run makes the task and does it.
func (r *visionRun) run(ctx context.Context) error {
	defer r.close()
	saved, err := r.prepare(ctx)
	if err != nil {
		return settled(err)
	}
	r.cfg.size().tell(r.report, r.cfg.StepShare, r.settings.Given(), "images", r.cfg.copies())
	r.cfg.begin(r.cfg.size())
	recipe, err := json.Marshal(r.cfg)
	if err != nil {
		return fmt.Errorf("train vision: save the recipe: %w", err)
	}
	o := r.cfg.options(saved)
	o.Epochs, o.Recipe, o.Config = r.cfg.Epochs, recipe, r.config()
	ranks, err := r.cfg.arrangeRanks(ctx, "vision", r.axes.World)
	if err != nil {
		return err
	}
	defer ranks.close()
	r.axes = ranks.axes
	return runOn(ctx, spreading{cfg: r.cfg.SharedConfig, ranks: ranks}, r.task(saved), o, r.report)
}

// prepare finds and makes what the task consists of, and the run to go on with.
func (r *visionRun) prepare(ctx context.Context) (*SavedRun, error) {
	saved, err := r.findRun(ctx)
	if err != nil {
		return nil, err
	}
	if err := r.cfg.Validate(); err != nil {
		return nil, err
	}
	if err := r.openSource(ctx, saved); err != nil {
		return nil, err
	}
	if err := r.resolve(); err != nil {
		return nil, err
	}
	for _, text := range slices.Concat(r.training.Notes(), unseen(r.training)) {
		r.report.Notice(text)
	}
	if err := r.checkSize(saved); err != nil {
		return nil, err
	}
	phaseOf(ctx).enter("looking at the images of %s", r.training.Name())
	described := r.describe()
	if err := r.keepsSource(&described); err != nil {
		return nil, err
	}
	if _, _, _, fixed := r.training.Shape(); fixed && r.was == nil {
		if err := r.measure(ctx, &described); err != nil {
			return nil, fmt.Errorf("train vision: %w", err)
		}
	}
	phaseOf(ctx).enter("making the model")
	if r.classifier, err = NewClassifier(r.cfg.newBuild(saved == nil && r.was != nil), described); err != nil {
		return nil, fmt.Errorf("train vision: %w", err)
	}
	if err := freeze(r.classifier, r.cfg.Freeze); err != nil {
		return nil, err
	}
	if saved == nil && r.was != nil {
		return nil, r.carry()
	}
	return saved, nil
}

// unseen says which classes have no image to train on, if some do not.
func unseen(s *vision.Set) []string {
	seen := make([]bool, len(s.Classes()))
	for i := range s.Len() {
		seen[s.Label(i)] = true
	}
	var without []string
	for i, class := range s.Classes() {
		if !seen[i] {
			without = append(without, class)
		}
	}
	if without == nil {
		return nil
	}
	return []string{fmt.Sprintf("%d of the %d classes of %s have no image to train on: %s; is a label wrong?", len(without), len(seen), s.Name(), few(without))}
}

// minSide is the smallest side that larger images are scaled to.
const minSide = 8

// measured is how many images the mean and the deviation are taken of.
const measured = 2000

// measure sets the normalisation by the first training images, which all are of
// one size.
func (r *visionRun) measure(ctx context.Context, c *ClassifierConfig) error {
	_, _, channels, _ := r.training.Shape()
	sum, squares, n := make([]float64, channels), make([]float64, channels), 0.0
	for i := range min(r.training.Len(), measured) {
		s, err := r.training.Get(ctx, data.Key{Index: i})
		if err != nil {
			return err
		}
		for j, v := range s.Image.Pix {
			x := float64(v) / 255
			sum[j%channels] += x
			squares[j%channels] += x * x
		}
		n += float64(len(s.Image.Pix) / channels)
	}
	c.Mean, c.Std = nil, nil
	for i := range channels {
		mean := sum[i] / n
		std := math.Sqrt(max(squares[i]/n-mean*mean, 0))
		if std < 1e-3 { // a constant channel says nothing, however it is scaled
			std = 1
		}
		c.Mean, c.Std = append(c.Mean, mean), append(c.Std, std)
	}
	return nil
}

// task is what there is to know about training a classifier.
func (r *visionRun) task(saved *SavedRun) Task[vision.Batch] {
	numSteps := r.cfg.steps(r.training.Len())
	return Task[vision.Batch]{
		Name: "vision", Model: r.classifier.Model, Axes: r.axes,
		Optimizer: func(params []*nn.Parameter) optim.Optimizer {
			return adamW(params, optim.AdamWOptions{LR: r.cfg.LR, WeightDecay: r.cfg.WeightDecay})
		},
		About: About{
			Given: r.settings.Summary(),
			Model: r.classifier.String(),
			Data: fmt.Sprintf("%s: %d images to train on (augment: %s), %d to test, %d classes", r.training.Name(), r.training.Len(), r.cfg.Augment,
				r.test.Len(), len(r.training.Classes())),
		},
		Schedule: optim.WarmupCosine(int(r.cfg.Warmup*float64(numSteps)), numSteps, r.cfg.LRFloor),
		Loss: func(c *nn.Ctx, model any, b vision.Batch) *tensor.Tensor {
			return tensor.CrossEntropy(r.classifier.Logits(c, model.(nn.Module), b), tensor.On(c.Device()).FromInt64(b.Labels, b.N))
		},
		Blank: func() vision.Batch {
			c, n := r.classifier.Config, r.cfg.Batch
			return vision.Batch{Images: make([]float32, n*c.Channels*c.Size*c.Size), Labels: make([]int64, n), N: n, Channels: c.Channels, Height: c.Size, Width: c.Size}
		},
		Feed: func(ctx context.Context, from data.LoaderState) (Feed[vision.Batch], error) {
			return r.feed(ctx, saved, from)
		},
		Contents: r.training.Contents,
		Samples:  r.training.Len(),
		Size:     func(b vision.Batch) int { return b.N }, Unit: "images",
		Evaluate: r.evaluate, Files: r.files, Finish: r.finish,
	}
}

// changed says that the images are others than those of a saved run. The settings
// have been compared.
func (r *visionRun) changed(saved *SavedRun) error {
	var was VisionConfig
	if err := saved.Recipe(&was); err == nil && was.Data != r.cfg.Data {
		return fmt.Errorf("the images of %s are not those which %s was saved with, of %s: drop --data, or %s",
			r.training.Name(), saved.Checkpoint.Path, was.Data, carryOver("vision", r.cfg.Out, r.cfg.Data))
	}
	return fmt.Errorf("the images of %s have changed (their names, labels or sizes) since %s was saved: put them back as they were, or %s",
		r.training.Name(), saved.Checkpoint.Path, carryOver("vision", r.cfg.Out, r.cfg.Data))
}

// feed starts making batches, from where the saved run was.
func (r *visionRun) feed(ctx context.Context, saved *SavedRun, from data.LoaderState) (Feed[vision.Batch], error) {
	sampler, err := data.NewStream(data.StreamConfig{
		Len: r.training.Len(), Total: r.cfg.size().pass(), Rank: r.axes.Data.Rank(), World: r.axes.Data.Size(), Shuffle: true, Seed: r.cfg.dataSeed(),
	})
	if err != nil {
		return nil, err
	}
	policy, err := data.ParseOnError(r.cfg.OnError)
	if err != nil {
		return nil, err
	}
	c := r.classifier.Config
	images := advised{vision.Apply(r.training, r.cfg.Seed, c.varied(r.training, r.cfg.Augment)...), policy}
	loader, err := data.NewLoader(ctx, images, sampler, c.collate(), data.LoaderConfig{
		Workers: r.cfg.Workers, OnError: policy, OnSkip: func(s data.Skip) { r.tell(s.String()) },
	}, from)
	if other := (*data.ResumeError)(nil); errors.As(err, &other) {
		return nil, r.changed(saved)
	}
	if err != nil {
		return nil, err
	}
	return loader, nil
}

// advised are images whose errors say how to do without them.
type advised struct {
	data.Dataset[vision.Sample]
	policy data.OnError
}

func (a advised) Get(ctx context.Context, key data.Key) (vision.Sample, error) {
	s, err := a.Dataset.Get(ctx, key)
	if a.policy == data.Fail {
		err = advise(err)
	}
	return s, err
}

// Fingerprint is that of the images.
func (a advised) Fingerprint() string {
	return a.Dataset.(interface{ Fingerprint() string }).Fingerprint()
}

// advise says what can be done about an image that cannot be read.
func advise(err error) error {
	if bad := (*vision.Error)(nil); errors.As(err, &bad) {
		return fmt.Errorf("%w (--on-error skip leaves out what cannot be read)", err)
	}
	return err
}

// maxUnread is how many images that cannot be read a rank names between two
// evaluations. All are counted.
const maxUnread = 20

// tell has rank 0 say what this rank could not read: at once if it is rank 0,
// else with the next evaluation.
func (r *visionRun) tell(text string) {
	if r.axes.World.Rank() == 0 {
		r.report.Notice(text)
	} else if len(r.unread) < maxUnread {
		r.unread = append(r.unread, fmt.Sprintf("rank %d: %s", r.axes.World.Rank(), text))
	}
}

// evaluate classifies the test images, of which every rank takes a share.
func (r *visionRun) evaluate(ctx context.Context, model any) (Metrics, error) {
	n, rank, ranks := r.test.Len(), r.axes.Data.Rank(), r.axes.Data.Size()
	from, to := n*rank/ranks, n*(rank+1)/ranks
	var show *shown
	if r.axes.World.Rank() == 0 {
		show = &shown{}
	}
	own, err := r.classifier.score(ctx, model.(nn.Module), turnsOf(model, r.axes), r.test, from, to, r.cfg.Batch*4, r.cfg.Workers, r.cfg.OnError == "skip", show, r.cfg.autocast(), onDeviceOf(model))
	cut := int64(0)
	if errors.Is(err, errCut) { // the others must hear of it
		cut, err = 1, nil
	}
	if err != nil {
		if r.cfg.OnError == data.Fail.String() {
			err = advise(err)
		}
		return nil, err
	}
	for _, err := range own.unread {
		r.tell("left out: " + err.Error())
	}
	unread, err := dist.GatherObject(ctx, r.axes.World, r.unread, 0)
	if err != nil {
		return nil, err
	}
	r.unread = nil
	for _, text := range slices.Concat(unread...) {
		r.report.Notice(text)
	}
	counts := tensor.FromInt64(append([]int64{int64(own.seen), int64(own.right), int64(own.skipped), cut}, own.confusion...))
	loss := tensor.Full(own.loss, 1)
	for _, t := range []*tensor.Tensor{counts, loss} {
		if err := r.axes.World.AllReduce(ctx, t, dist.Sum); err != nil {
			return nil, err
		}
	}
	all, copies := counts.Int64s(), int64(r.axes.copies())
	if all[3] > 0 {
		return nil, errCut
	}
	for i := range all {
		all[i] /= copies
	}
	show.log(ctx)
	r.last = tally{seen: int(all[0]), right: int(all[1]), skipped: int(all[2]), loss: loss.Item() / float64(copies)}
	if own.confusion != nil {
		r.last.confusion = all[4:]
	}
	if r.last.skipped > 0 {
		r.report.Notice(fmt.Sprintf("%d of %d images to test on cannot be read and were left out", r.last.skipped, n))
	}
	return r.last.metrics()
}

// files writes what is to know besides the weights.
func (r *visionRun) files(w *checkpoint.Writer) error {
	return w.WriteJSON(configFile, r.classifier.Config.file())
}

// finish says what the classifier gets wrong.
func (r *visionRun) finish(context.Context, any) (Ending, error) {
	end := Ending{Next: "eval --from " + argument(cmp.Or(r.cfg.SaveTo, r.cfg.Out))}
	if r.axes.World.Rank() == 0 && r.last.confusion != nil {
		if err := r.draw(); err != nil {
			return Ending{}, err
		}
	}
	if text := r.last.mistakes(r.classifier.Config.Classes); text != "" {
		end.Title, end.Text, end.Key = "the most frequent mistakes", text, "mistakes"
	}
	return end, nil
}

// draw writes the confusion matrix of the last evaluation into the run's directory.
func (r *visionRun) draw() error {
	path := filepath.Join(r.cfg.Out, "confusion.svg")
	f, err := os.Create(path)
	if errors.Is(err, fs.ErrNotExist) { // its checkpoints are elsewhere
		return nil
	}
	if err != nil {
		return fmt.Errorf("train vision: %w", err)
	}
	c := Confusion{r.classifier.Config.Classes, r.last.confusion}
	if err := errors.Join(c.WriteSVG(f), f.Close()); err != nil {
		return fmt.Errorf("train vision: %s: %w", path, err)
	}
	return nil
}
