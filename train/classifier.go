// SPDX-License-Identifier: Apache-2.0

package train

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/data"
	"github.com/cohort-ml/cohort/data/vision"
	"github.com/cohort-ml/cohort/models"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// The kinds of models of [Vision].
const (
	visionMLP      = "mlp"
	visionCNN      = "cnn"
	visionResNet18 = "resnet18"
	visionResNet50 = "resnet50"
)

var visionModels = []string{visionMLP, visionCNN, visionResNet18, "resnet34", visionResNet50, "resnet101", "resnet152"}

// resNets are the residual networks by the names of timm and torchvision.
var resNets = map[string]models.ResNetConfig{
	visionResNet18: models.ResNet18Config, "resnet34": models.ResNet34Config, visionResNet50: models.ResNet50Config,
	"resnet101": models.ResNet101Config, "resnet152": models.ResNet152Config,
}

const (
	maxSide      = 4096    // pixels of a side
	maxClasses   = 1 << 16 // as data/vision
	smallImages  = 96      // pixels of a side up to which a ResNet keeps them in its stem
	maxConfusion = 256     // classes up to which mistakes are counted by class
)

// ClassifierConfig describes a trained image classifier, besides its weights. It is
// config.json in checkpoints of [Vision].
type ClassifierConfig struct {
	ModelType string    `json:"model_type"` // mlp, cnn or a resnet such as resnet18
	Size      int       `json:"size"`       // pixels of a side
	Channels  int       `json:"channels"`   // 1 or 3
	Widths    []int     `json:"widths,omitempty"`
	Classes   []string  `json:"classes"` // names
	Mean      []float64 `json:"mean"`    // of the channels, which are 0 to 1
	Std       []float64 `json:"std"`
	Fit       string    `json:"fit,omitempty"` // what becomes of other sizes: "middle" cuts photos, "whole" squeezes
	// Resize is what the shorter side is scaled to before the middle is cut; 0 is Size and a seventh.
	Resize        int    `json:"resize,omitempty"`
	Interpolation string `json:"interpolation,omitempty"` // "bilinear", also "", or "bicubic"
	// Stem is "large" for the first convolution of 7·7 at every size; else a ResNet for images
	// of up to 96 pixels has one of 3·3.
	Stem string `json:"stem,omitempty"`
}

// Classifier predicts the classes of images.
type Classifier struct {
	Config ClassifierConfig
	Model  nn.Module
}

// NewClassifier returns a new classifier. Because a configuration may come from a
// file, one that makes no classifier is an error.
func NewClassifier(b *nn.Build, c ClassifierConfig) (*Classifier, error) {
	if err := c.checkFit(); err != nil {
		return nil, err
	}
	switch {
	case c.Size < 1 || c.Size > maxSide:
		return nil, fmt.Errorf("a classifier of images of %d·%d pixels: want 1 to %d a side", c.Size, c.Size, maxSide)
	case c.Channels != 1 && c.Channels != 3:
		return nil, fmt.Errorf("a classifier of images of %d channels: want 1 or 3", c.Channels)
	case len(c.Classes) < 2 || len(c.Classes) > maxClasses:
		return nil, fmt.Errorf("a classifier of %d classes: want 2 to %d", len(c.Classes), maxClasses)
	}
	if len(c.Widths) > 64 {
		return nil, fmt.Errorf("a classifier of %d layers: want at most 64", len(c.Widths))
	}
	for _, w := range c.Widths {
		if w < 1 || w > 1<<16 {
			return nil, fmt.Errorf("a classifier with a layer of width %d: want 1 to %d", w, 1<<16)
		}
	}
	resnet := func(r models.ResNetConfig) (*Classifier, error) {
		if c.Channels != 3 {
			return nil, fmt.Errorf("a %s of images of %d channels: want 3", c.ModelType, c.Channels)
		}
		r.Classes, r.SmallImages, r.ZeroInitResidual = len(c.Classes), c.hasSmallStem(), true
		return &Classifier{c, models.NewResNet(b, r)}, nil
	}
	switch c.ModelType {
	case visionMLP:
		layers := append([]int{c.Channels * c.Size * c.Size}, c.Widths...)
		return &Classifier{c, models.NewMLP(b, append(layers, len(c.Classes))...)}, nil
	case visionCNN:
		g := models.CNNConfig{Channels: c.Channels, Widths: c.Widths, Classes: len(c.Classes)}
		if err := g.Validate(); err != nil {
			return nil, err
		}
		if c.Size < g.MinSide() {
			return nil, fmt.Errorf("images of %d pixels a side are too small for %d stages, which need %d: give --size or fewer --widths", c.Size, len(c.Widths), g.MinSide())
		}
		return &Classifier{c, models.NewCNN(b, g)}, nil
	}
	if r, ok := resNets[c.ModelType]; ok {
		return resnet(r)
	}
	return nil, fmt.Errorf("no classifier is called %q: there are %s", c.ModelType, strings.Join(visionModels, ", "))
}

// OpenClassifier loads the classifier of a checkpoint of [Vision].
func OpenClassifier(ck *checkpoint.Checkpoint) (*Classifier, error) {
	fail := func(err error) (*Classifier, error) {
		return nil, fmt.Errorf("load a classifier from %s: %w", ck.Path, err)
	}
	if err := wantTask(ck, "vision"); err != nil {
		return fail(err)
	}
	var c ClassifierConfig
	if err := ck.ReadJSON(configFile, &c); err != nil {
		return fail(err)
	}
	// The configuration is only what a file says: nothing is allocated for it
	// before the weights' file agrees.
	plan, err := NewClassifier(&nn.Build{Device: tensor.Meta}, c)
	if err != nil {
		return fail(fmt.Errorf("%s: %w", configFile, err))
	}
	if err := matchModel(ck, plan.Model); err != nil {
		return fail(err)
	}
	m, err := NewClassifier(&nn.Build{}, c)
	if err != nil {
		return fail(err)
	}
	if err := ck.LoadTensors(checkpoint.Model, nn.StateDict(m.Model).All()); err != nil {
		return fail(err)
	}
	return m, nil
}

// String describes the model.
func (m *Classifier) String() string {
	kind := strings.ToUpper(m.Config.ModelType)
	if n, ok := strings.CutPrefix(m.Config.ModelType, "resnet"); ok {
		kind = "ResNet-" + n
	}
	if len(m.Config.Widths) > 0 {
		kind += " of widths " + strings.Trim(fmt.Sprint(m.Config.Widths), "[]")
	}
	channels := "grey"
	if m.Config.Channels == 3 {
		channels = "colour"
	}
	return fmt.Sprintf("%s, %s images of %d·%d pixels", kind, channels, m.Config.Size, m.Config.Size)
}

// Logits runs a model, which may be m.Model in a wrapper, on a batch:
// [n, classes].
func (m *Classifier) Logits(c *nn.Ctx, model nn.Module, b vision.Batch) *tensor.Tensor {
	x := tensor.On(c.Device()).FromFloat32(b.Images, b.N, b.Channels, b.Height, b.Width)
	if m.Config.ModelType == visionMLP {
		x = x.Reshape(b.N, -1)
	}
	return c.Call(model, x)
}

// collate makes batches in the form that the model takes.
func (c ClassifierConfig) collate() func([]vision.Sample) (vision.Batch, error) {
	return vision.Collate(c.Channels, vision.Normalize{Mean: c.Mean, Std: c.Std})
}

// sized returns the transforms that give the images of a set the model's size. Of an
// image in a file of its own they take the middle, as is usual; of any other, all.
func (c ClassifierConfig) sized(set *vision.Set) []vision.Transform {
	h, w, _, ok := set.Shape()
	switch {
	case !ok:
		return c.middle()
	case h != c.Size || w != c.Size:
		return []vision.Transform{vision.ResizeTo{Width: c.Size, Height: c.Size, Cubic: c.isCubic()}}
	}
	return nil
}

// middle returns the transforms that take the middle of a photo.
func (c ClassifierConfig) middle() []vision.Transform {
	return []vision.Transform{vision.Resize{Short: c.short(), Cubic: c.isCubic()}, vision.CenterCrop{Width: c.Size, Height: c.Size}}
}

// short is what the shorter side of a photo is scaled to.
func (c ClassifierConfig) short() int { return cmp.Or(c.Resize, c.Size+c.Size/7) }

func (c ClassifierConfig) isCubic() bool { return c.Interpolation == bicubic }

// hasSmallStem says whether a ResNet begins with a convolution of 3·3.
func (c ClassifierConfig) hasSmallStem() bool { return c.Stem == "" && c.Size <= smallImages }

// varied returns the transforms of images for training.
func (c ClassifierConfig) varied(set *vision.Set, augment string) []vision.Transform {
	shift := vision.RandomCrop{Width: c.Size, Height: c.Size, Pad: max(1, c.Size/8)}
	switch augment {
	case augmentShift:
		return append(c.sized(set), shift)
	case augmentMirror:
		return append(c.sized(set), shift, vision.RandomFlip{})
	case augmentZoom:
		return []vision.Transform{vision.RandomResizedCrop{Width: c.Size, Height: c.Size, Cubic: c.isCubic()}, vision.RandomFlip{}}
	}
	return c.sized(set)
}

// tally counts what a classifier got right.
type tally struct {
	seen, right int
	skipped     int     // images that could not be read
	unread      []error // the first of them
	loss        float64 // summed over the images
	confusion   []int64 // [true class, predicted class]; nil where there are too many
	shown       *shown  // the first images; nil if nobody asks
}

// score classifies images from..to-1 of a set by a model, which may be m.Model in a
// wrapper, a batch at a time. The workers are
// goroutines that read images. With skip, score leaves out images that cannot be
// read. It adds its first images to show, which may be nil.
func (m *Classifier) score(ctx context.Context, model nn.Module, together turns, set *vision.Set, from, to, batch, workers int, skip bool, show *shown, opts ...nn.CtxOption) (t tally, err error) {
	t.shown = show
	if n := len(m.Config.Classes); n <= maxConfusion {
		t.confusion = make([]int64, n*n)
	}
	images, collate := vision.Apply(set, 0, m.Config.sized(set)...), m.Config.collate()
	for lo := from; ; lo += batch {
		if pass, err := together.next(ctx, lo < to); !pass {
			return t, err
		}
		lo, hi := min(lo, to), min(lo+batch, to)
		samples, errs := make([]vision.Sample, hi-lo), make([]error, hi-lo)
		var wg sync.WaitGroup
		for w := range max(1, workers) {
			wg.Go(func() {
				for i := w; i < hi-lo; i += max(1, workers) {
					samples[i], errs[i] = images.Get(ctx, data.Key{Index: lo + i})
				}
			})
		}
		wg.Wait()
		good := samples[:0]
		for i, err := range errs {
			switch {
			case err == nil:
				good = append(good, samples[i])
			case !skip || ctx.Err() != nil:
				return t, fmt.Errorf("image %d of %s: %w", lo+i, set.Name(), err)
			default:
				if t.skipped++; t.skipped <= maxUnread {
					t.unread = append(t.unread, err)
				}
			}
		}
		if len(good) == 0 {
			if together.sharded { // for the others
				if err := m.count(ctx, model, &tally{}, m.Config.blank(), opts); err != nil {
					return t, err
				}
			}
			continue
		}
		b, err := collate(good)
		if err != nil {
			return t, err
		}
		if err := m.count(ctx, model, &t, b, opts); err != nil {
			return t, err
		}
		b.Release()
	}
}

// blank returns a batch of one image that shows nothing.
func (c ClassifierConfig) blank() vision.Batch {
	return vision.Batch{
		N: 1, Channels: c.Channels, Height: c.Size, Width: c.Size, Images: make([]float32, c.Channels*c.Size*c.Size), Labels: []int64{0},
	}
}

// count classifies a batch.
func (m *Classifier) count(ctx context.Context, model nn.Module, t *tally, b vision.Batch, opts []nn.CtxOption) (err error) {
	for _, l := range b.Labels {
		if l < 0 || int(l) >= len(m.Config.Classes) {
			return fmt.Errorf("label %d is outside the %d classes that the model knows", l, len(m.Config.Classes))
		}
	}
	c := nn.Evaluation(ctx, opts...)
	defer c.Close()
	defer c.Recover(&err)
	logits := m.Logits(c, model, b).To(tensor.Float32)
	t.loss += tensor.CrossEntropy(logits, tensor.On(c.Device()).FromInt64(b.Labels, b.N)).Item() * float64(b.N)
	answers := logits.ArgMax(1).Int64s()
	t.shown.add(b, m.Config, answers)
	for i, told := range answers {
		label := b.Labels[i]
		if told == label {
			t.right++
		}
		if t.confusion != nil {
			t.confusion[int(label)*len(m.Config.Classes)+int(told)]++
		}
	}
	t.seen += b.N
	return nil
}

// metrics says how good a classifier is.
func (t tally) metrics() (Metrics, error) {
	if t.seen == 0 {
		return nil, fmt.Errorf("none of the %d images to test on can be read", t.skipped)
	}
	return Metrics{
		{Name: "accuracy", Value: float64(t.right) / float64(t.seen), Higher: true, Unit: "%"},
		{Name: "loss", Value: t.loss / float64(t.seen)},
	}, nil
}

// mistakes lists the most frequent mistakes, one in a line: "5 taken for 9: 1 time"
// says that an image of class 5 was classified as 9. It is "" if there are none.
func (t tally) mistakes(classes []string) string {
	const most = 5
	var b strings.Builder
	left := slices.Clone(t.confusion)
	for range most {
		at, n := -1, int64(0)
		for i, v := range left {
			if i/len(classes) != i%len(classes) && v > n {
				at, n = i, v
			}
		}
		if at < 0 {
			break
		}
		left[at] = 0
		label, predicted := classes[at/len(classes)], classes[at%len(classes)]
		fmt.Fprintf(&b, "%s taken for %s: %d %s\n", label, predicted, n, plural(int(n), "time"))
	}
	return strings.TrimSuffix(b.String(), "\n")
}
