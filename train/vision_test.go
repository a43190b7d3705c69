// SPDX-License-Identifier: Apache-2.0

package train

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"image"
	"image/color"
	"image/jpeg"
	"image/png"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/checkpoint/storage"
	"github.com/cohort-ml/cohort/data/vision"
	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/internal/config"
	"github.com/cohort-ml/cohort/nn"
)

// smallVision is a run of less than a second.
func smallVision(t *testing.T) VisionConfig {
	c := DefaultVision()
	c.Out = filepath.Join(t.TempDir(), "run")
	c.Model, c.Epochs, c.EvalEvery, c.SaveEvery = visionMLP, 2, 30, 10
	return c
}

// trainVision runs a job of goroutines and keeps what rank 0 reported.
func trainVision(ctx context.Context, cfg VisionConfig, given map[string]string, numRanks int, l *log) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	return dist.Spawn(ctx, numRanks, func(ctx context.Context, group *dist.Group) error {
		return Vision(ctx, group, cfg, given, l)
	})
}

// TestVisionReadsDigits: both small models tell more than 97 of 100 digits that
// they have not seen.
func TestVisionReadsDigits(t *testing.T) {
	for _, model := range []string{visionMLP, visionCNN} {
		if model == visionCNN && testing.Short() {
			continue
		}
		c := DefaultVision()
		c.Model, c.Out = model, filepath.Join(t.TempDir(), "run")
		if model == visionCNN {
			c.Epochs = 4
		}
		l := newLog()
		if err := trainVision(t.Context(), c, nil, 2, l); err != nil {
			t.Fatal(err)
		}
		accuracy := l.finish.Metrics[0].Value
		if accuracy < 0.97 || accuracy > 1 {
			t.Errorf("%s: %v", model, l.finish.Metrics)
		}
		// The checkpoint is the model of the last evaluation.
		ck, _, err := checkpoint.Latest(t.Context(), storage.Dir(c.Out))
		if err != nil {
			t.Fatal(err)
		}
		m, err := OpenClassifier(ck)
		if err != nil {
			t.Fatal(err)
		}
		_, test, err := vision.Digits()
		if err != nil {
			t.Fatal(err)
		}
		tally, err := m.score(t.Context(), m.Model, turns{}, test, 0, test.Len(), 100, 2, false, nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := float64(tally.right) / float64(tally.seen); got != accuracy || tally.seen != test.Len() {
			t.Errorf("%s: the checkpoint tells %v of %d, the run said %v", model, got, tally.seen, accuracy)
		}
		e, err := Eval(t.Context(), storage.Dir(c.Out), EvalOptions{}, noNotice(t))
		if err != nil {
			t.Fatal(err)
		}
		if e.Task != "vision" || e.Samples != test.Len() || e.Metrics[0].Value != accuracy || e.Unit != "images" {
			t.Errorf("%s: Eval says %+v", model, e)
		}
		if e, err = Eval(t.Context(), storage.Dir(c.Out), EvalOptions{All: true}, noNotice(t)); err != nil || e.Samples != 1797 {
			t.Errorf("%s: Eval of all says %+v, %v", model, e, err)
		}
		wrong := int64(0)
		for i, n := range tally.confusion {
			if i/10 != i%10 {
				wrong += n
			}
		}
		if int(wrong) != tally.seen-tally.right {
			t.Errorf("%s: %d mistakes counted, %d made", model, wrong, tally.seen-tally.right)
		}
	}
}

// TestVisionRanksDoNotMatter: as many images a step on one rank, two, and three
// after a stop on four train the same model, augmentation included.
func TestVisionRanksDoNotMatter(t *testing.T) {
	var alone *log
	for _, numRanks := range []int{1, 2, 4} {
		c := smallVision(t)
		c.Batch, c.Workers = 64/numRanks, numRanks-1
		l := newLog()
		if numRanks < 4 {
			if err := trainVision(t.Context(), c, nil, numRanks, l); err != nil {
				t.Fatal(err)
			}
		} else {
			ctx, cancel := context.WithCancel(t.Context())
			l.onStep = func(step int) {
				if step == 17 {
					cancel()
				}
			}
			if err := trainVision(ctx, c, nil, 4, l); !errors.Is(err, ErrStopped) {
				t.Fatalf("a run that is stopped returns %v", err)
			}
			l.onStep = nil
			c.Batch = DefaultVision().Batch
			if err := trainVision(t.Context(), c, nil, 3, l); err != nil {
				t.Fatal(err)
			}
		}
		if alone == nil {
			alone = l
			continue
		}
		if len(l.losses) != len(alone.losses) || len(alone.losses) != 46 {
			t.Errorf("%d ranks: %d steps, one: %d", numRanks, len(l.losses), len(alone.losses))
		}
		for step, loss := range alone.losses {
			if d := math.Abs(l.losses[step] - loss); !(d < 1e-4) {
				t.Errorf("%d ranks: the loss of step %d is %v, on one %v", numRanks, step, l.losses[step], loss)
				break
			}
		}
	}
}

// folder writes images of two classes that are told by their colour, as files
// of several sizes.
func folder(t *testing.T, each int) string {
	t.Helper()
	dir := t.TempDir()
	for i := range 2 * each {
		class, c := "blue", color.RGBA{B: byte(200 + i%50), G: byte(i), A: 255}
		if i%2 == 1 {
			class, c = "red", color.RGBA{R: byte(200 + i%50), G: byte(i), A: 255}
		}
		m := image.NewRGBA(image.Rect(0, 0, 20+i%7, 18+i%5))
		for y := range m.Rect.Dy() {
			for x := range m.Rect.Dx() {
				m.SetRGBA(x, y, c)
			}
		}
		var b bytes.Buffer
		path := filepath.Join(dir, class, fmt.Sprintf("%03d.jpg", i))
		err := jpeg.Encode(&b, m, nil)
		if i%3 == 0 {
			b.Reset()
			path, err = path[:len(path)-4]+".png", png.Encode(&b, m)
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// TestVisionFolder: images of files of their own, one of which is torn: that ends
// all ranks with its name, or is left out and counted.
func TestVisionFolder(t *testing.T) {
	dir := folder(t, 30)
	var files []string
	for _, pattern := range []string{"red/*.jpg", "blue/*.jpg"} {
		found, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, found[0])
	}
	small := func() VisionConfig {
		c := smallVision(t)
		c.Data, c.Model, c.Size, c.Batch, c.Epochs, c.Widths = dir, visionCNN, 16, 8, 4, []string{"4", "8"}
		return c
	}
	l := newLog()
	if err := trainVision(t.Context(), small(), nil, 2, l); err != nil {
		t.Fatal(err)
	}
	if accuracy := l.finish.Metrics[0].Value; accuracy != 1 {
		t.Errorf("red and blue are told apart with %v", l.finish.Metrics)
	}
	if _, err := Eval(t.Context(), storage.Dir(l.finish.Out), EvalOptions{Data: vision.DigitsName}, noNotice(t)); err == nil || !strings.Contains(err.Error(), "the model knows the 2 classes") {
		t.Errorf("digits for a model of colours: %v", err)
	}
	for _, f := range files {
		if err := os.Truncate(f, 300); err != nil {
			t.Fatal(err)
		}
	}
	if err := trainVision(t.Context(), small(), nil, 3, newLog()); err == nil || !strings.Contains(err.Error(), "blue") && !strings.Contains(err.Error(), "red") {
		t.Errorf("with a torn image: %v", err)
	} else if !strings.Contains(err.Error(), "--on-error skip") {
		t.Errorf("a torn image without what to do: %v", err)
	}
	// One that is tested on, too: every tenth of a class.
	found, err := filepath.Glob(filepath.Join(dir, "blue", "*"))
	if err != nil {
		t.Fatal(err)
	}
	files = append(files, found[9])
	if err := os.WriteFile(found[9], nil, 0o644); err != nil {
		t.Fatal(err)
	}
	c := small()
	c.OnError = "skip"
	l = newLog()
	if err := trainVision(t.Context(), c, nil, 2, l); err != nil {
		t.Fatal(err)
	}
	notices := strings.Join(l.notices, "\n")
	for _, f := range files {
		if !strings.Contains(notices, f) {
			t.Errorf("nothing is said of %s:\n%s", f, notices)
		}
	}
	if !strings.Contains(notices, "was replaced by") || !strings.Contains(notices, "1 of 6 images to test on cannot be read") {
		t.Errorf("what was left out is not counted:\n%s", notices)
	}
}

// TestVisionFewImages: where there are fewer images than a step takes, that is
// told, as is what the directory has beside images.
func TestVisionFewImages(t *testing.T) {
	c := smallVision(t)
	c.Data, c.Size = folder(t, 20), 16
	for _, name := range []string{"blue/x.webp", "red/notes.txt"} {
		if err := os.WriteFile(filepath.Join(c.Data, name), []byte("RIFF"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	l := newLog()
	if err := trainVision(t.Context(), c, nil, 2, l); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"a step takes 64 images, and there are 36 to train on", "left out, neither JPEG nor PNG: 2 files (1 .txt, 1 .webp)"} {
		if n := strings.Count(strings.Join(l.notices, "\n"), want); n != 1 {
			t.Errorf("%q is told %d times: %q", want, n, l.notices)
		}
	}
	// Images of one of the classes, too few to be parted.
	one := t.TempDir()
	if err := os.Rename(filepath.Join(c.Data, "red"), filepath.Join(one, "red")); err != nil {
		t.Fatal(err)
	}
	for i := range 15 {
		for _, end := range []string{"png", "jpg"} {
			os.Remove(filepath.Join(one, "red", fmt.Sprintf("%03d.%s", 2*i+1, end))) // one of them is there
		}
	}
	if _, err := Eval(t.Context(), storage.Dir(l.finish.Out), EvalOptions{Data: one}, noNotice(t)); err == nil || !strings.Contains(err.Error(), "nothing to test on") || !strings.Contains(err.Error(), "--all") {
		t.Errorf("5 images of one class: %v", err)
	}
	var notes []string
	r, err := Eval(t.Context(), storage.Dir(l.finish.Out), EvalOptions{Data: one, All: true}, func(text string) { notes = append(notes, text) })
	if err != nil || r.Samples != 5 || r.Metrics[0].Value < 0.5 {
		t.Errorf("all 5 images of one class: %+v, %v", r, err)
	}
	if text := strings.Join(notes, "\n"); !strings.Contains(text, "has 1 of the 2 classes that the model knows") || !strings.Contains(text, "1 file (1 .txt)") {
		t.Errorf("notes %q", notes)
	}
}

// TestVisionModels: every model takes a step and comes back from its checkpoint,
// but for ResNet-50, whose checkpoint is large; examples/resnet trains one.
func TestVisionModels(t *testing.T) {
	images := folder(t, 10)
	for _, model := range []string{visionMLP, visionCNN, visionResNet18} {
		c := smallVision(t)
		c.Data, c.Size, c.Model, c.Epochs, c.Batch = images, 8, model, 0.2, 2
		if err := trainVision(t.Context(), c, nil, 1, newLog()); err != nil {
			t.Fatalf("%s: %v", model, err)
		}
		ck, _, err := checkpoint.Latest(t.Context(), storage.Dir(c.Out))
		if err != nil {
			t.Fatal(err)
		}
		m, err := OpenClassifier(ck)
		if err != nil {
			t.Fatal(err)
		}
		if m.Config.Size != 8 || len(m.Config.Classes) != 2 || m.Config.ModelType != model {
			t.Errorf("%s: %+v", model, m.Config)
		}
	}
}

// TestVisionBadInput: what is wrong is said before ranks are started.
func TestVisionBadInput(t *testing.T) {
	for _, c := range []struct {
		want   string
		change func(c *VisionConfig)
	}{
		{"--batch is 0", func(c *VisionConfig) { c.Batch = 0 }},
		{`--model is "vgg", want mlp, cnn`, func(c *VisionConfig) { c.Model = "vgg" }},
		{`--augment is "flip", want none, shift`, func(c *VisionConfig) { c.Augment = "flip" }},
		{`--on-error is "ignore", want fail or skip`, func(c *VisionConfig) { c.OnError = "ignore" }},
		{"--lr is NaN", func(c *VisionConfig) { c.LR = math.NaN() }},
		{"--epochs is 0", func(c *VisionConfig) { c.Epochs = 0 }},
		{"--size is 3: images of fewer than 8", func(c *VisionConfig) { c.Size = 3 }},
		{"--data is empty", func(c *VisionConfig) { c.Data = "" }},
		{"nowhere", func(c *VisionConfig) { c.Data = "nowhere" }},
		{"no data set in it", func(c *VisionConfig) { c.Data = t.TempDir() }},
		{"--widths is for mlp and cnn", func(c *VisionConfig) { c.Model, c.Widths = visionResNet18, []string{"4"} }},
		{`--widths has a layer of "x"`, func(c *VisionConfig) { c.Widths = []string{"x"} }},
		{"too small for 5 stages", func(c *VisionConfig) { c.Model, c.Widths = visionCNN, []string{"4", "4", "4", "4", "4"} }},
	} {
		cfg := smallVision(t)
		c.change(&cfg)
		if _, err := CheckVision(t.Context(), cfg, nil); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, want %q", err, c.want)
		}
		if _, err := os.Stat(cfg.Out); err == nil {
			t.Errorf("%s: the check has left %s", c.want, cfg.Out)
		}
	}
	c := smallVision(t)
	text, err := CheckVision(t.Context(), c, map[string]string{"epochs": config.Flag})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"size = 8", `augment = "shift"`, `widths = ["256", "128"]`, "lr = 0.003"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("the settings have no %s:\n%s", want, text)
		}
	}
	// A step of more images than there are.
	c.Batch = 4000
	if _, err := CheckVision(t.Context(), c, map[string]string{"batch": config.Flag}); err == nil || !strings.Contains(err.Error(), "a step takes 8000 images (2 × 4000 = 8000), and there are 1442 to train on: give a --batch of at most 721") {
		t.Errorf("a step of more images than there are: %v", err)
	}
	c.Batch = 32
	// Fewer images than ranks leave some without any.
	c.Data = folder(t, 10)
	if err := trainVision(t.Context(), c, nil, 19, newLog()); err == nil || !strings.Contains(err.Error(), "18") {
		t.Errorf("18 images on 19 ranks: %v", err)
	}
}

// TestOpenClassifier: a checkpoint whose description does not fit its weights,
// or is none, is an error.
func TestOpenClassifier(t *testing.T) {
	good := ClassifierConfig{ModelType: visionMLP, Size: 4, Channels: 1, Widths: []int{5}, Classes: []string{"a", "b"}}
	m, err := NewClassifier(&nn.Build{}, good)
	if err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(c *ClassifierConfig){
		"no classifier is called": func(c *ClassifierConfig) { c.ModelType = "gpt2" },
		"pixels":                  func(c *ClassifierConfig) { c.Size = 1 << 30 },
		"2 channels":              func(c *ClassifierConfig) { c.Channels = 2 },
		"1 classes":               func(c *ClassifierConfig) { c.Classes = c.Classes[:1] },
		"width -1":                func(c *ClassifierConfig) { c.Widths = []int{-1} },
		"number of stages":        func(c *ClassifierConfig) { c.ModelType, c.Widths = visionCNN, make([]int, 0) },
		"of images of 1 channels": func(c *ClassifierConfig) { c.ModelType = visionResNet18 },
		"0.weight":                func(c *ClassifierConfig) { c.Size = 1000 },
	} {
		config := good
		change(&config)
		dir := t.TempDir()
		err := checkpoint.Save(t.Context(), nil, storage.Dir(dir), 1, checkpoint.State{
			Sections: map[string][]checkpoint.Part{checkpoint.Model: checkpoint.Whole(nn.StateDict(m.Model).All())},
			Files:    func(w *checkpoint.Writer) error { return w.WriteJSON(configFile, config) },
		})
		if err != nil {
			t.Fatal(err)
		}
		bad, _, err := checkpoint.Latest(t.Context(), storage.Dir(dir))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := OpenClassifier(bad); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// TestVisionLabels: one class is nothing to tell apart, and classes without an
// image are told of.
func TestVisionLabels(t *testing.T) {
	dir := folder(t, 11)
	c := smallVision(t)
	c.Data, c.Batch, c.Epochs = dir, 8, 1
	if err := trainVision(t.Context(), c, nil, 1, newLog()); err != nil {
		t.Fatal(err)
	}
	// The same images by another path, and others.
	moved := filepath.Join(t.TempDir(), "moved")
	if err := os.CopyFS(moved, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	for data, want := range map[string]string{moved: "", folder(t, 12): "are not those which"} {
		other := c
		other.Data, other.Epochs = data, 2
		if _, err := CheckVision(t.Context(), other, flags([]string{"data", "epochs"})); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("with images elsewhere: %v, want %q", err, want)
		}
	}
	// An image in place of another of the same name.
	paths, _ := filepath.Glob(filepath.Join(dir, "red", "*.jpg"))
	if err := os.WriteFile(paths[0], []byte("other"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := CheckVision(t.Context(), c, nil); err == nil || !strings.Contains(err.Error(), "have changed (their names, labels or sizes) since") {
		t.Errorf("another image: %v", err)
	}
	c.Out = filepath.Join(t.TempDir(), "run")
	c.Ranks = 100
	if _, err := CheckVision(t.Context(), c, nil); err == nil || !strings.Contains(err.Error(), "samples to train on for 100 ranks") {
		t.Errorf("few images: %v", err)
	}
	if err := os.RemoveAll(filepath.Join(dir, "red")); err != nil {
		t.Fatal(err)
	}
	if _, err := CheckVision(t.Context(), c, nil); err == nil || !strings.Contains(err.Error(), `has one class, "blue": there is nothing to tell apart`) {
		t.Errorf("one class: %v", err)
	}

	// Labels 0 and 200 of IDX files.
	dir = t.TempDir()
	for _, split := range []string{"train", "t10k"} {
		images := append([]byte{0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 8, 0, 0, 0, 8}, make([]byte, 2*64)...)
		for name, b := range map[string][]byte{"images-idx3-ubyte": images, "labels-idx1-ubyte": {0, 0, 8, 1, 0, 0, 0, 2, 0, 200}} {
			if err := os.WriteFile(filepath.Join(dir, split+"-"+name), b, 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	c = smallVision(t)
	c.Data, c.Batch, c.Epochs = dir, 2, 1
	l := newLog()
	if err := trainVision(t.Context(), c, nil, 1, l); err != nil {
		t.Fatal(err)
	}
	if len(l.notices) != 1 || !strings.Contains(l.notices[0], `199 of the 201 classes of `) || !strings.Contains(l.notices[0], `have no image to train on: ["1" "2" "3" "4" "5"], …`) {
		t.Errorf("notices %q", l.notices)
	}
}
