// SPDX-License-Identifier: Apache-2.0

package train

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/cohort-ml/cohort/data"
	"github.com/cohort-ml/cohort/data/vision"
	"github.com/cohort-ml/cohort/internal/config"
)

// VisionConfig has the settings of a run of [Vision]: all that decides the run
// besides the images. They are saved with every checkpoint. Each field with a
// usage is a flag of `cohort train vision` and a key of its configuration file;
// package internal/config explains the tags.
type VisionConfig struct {
	Data   string  `json:"data" group:"Run" values:"digits|DIR" usage:"images: the digits that are part of this program, or those in a directory with MNIST's IDX files, CIFAR's binary files, or a directory of JPEG and PNG files for each class"`
	Epochs float64 `json:"epochs" usage:"how many times to train on every image"`

	Model    string   `json:"model" run:"fixed" group:"Model" values:"mlp|cnn|resnet18|resnet34|resnet50|resnet101|resnet152" usage:"kind of model"`
	Widths   []string `json:"widths" run:"fixed" usage:"{WIDTHS} of an mlp's layers or a cnn's stages, such as 32,64; default: what suits the model"`
	InitFrom string   `json:"init_from,omitempty" run:"fixed" usage:"{DIR} of a run whose weights this one begins with, such as a run on fewer images, or a folder or file of a ResNet of timm or torchvision; classes are matched by name"`
	Freeze   []string `json:"freeze,omitempty" run:"fixed" usage:"{NAMES} of layers that stay as they are, such as conv1,bn1,layer1; body: all but the last layer"`

	Size    int    `json:"size" run:"fixed" group:"Image" usage:"scale images to {N} pixels a side; 0: the size of the data, or for JPEG and PNG files 32, 64 or 224, by the model"`
	Augment string `json:"augment" values:"none|shift|mirror|zoom" usage:"how training images are varied; mirror includes shift, and zoom takes a random part and mirrors it; default: what suits the data"`
	OnError string `json:"on_error" values:"fail|skip" usage:"what to do with an image that cannot be read: fail, or skip it and take another one"`

	LR          float64 `json:"lr" group:"Optimizer" usage:"highest learning rate; 0: what suits the model"`
	WeightDecay float64 `json:"weight_decay" usage:"weight decay of the matrices"`
	Warmup      float64 `json:"warmup" usage:"share of the steps, 0 to 1, in which the learning rate rises"`
	LRFloor     float64 `json:"lr_floor" usage:"share of the learning rate, 0 to 1, that is left at the end"`

	SharedConfig
}

// The ways in which training images are varied.
const (
	augmentNone   = "none"
	augmentShift  = "shift"
	augmentMirror = "mirror"
	augmentZoom   = "zoom"
)

var augments = []string{augmentNone, augmentShift, augmentMirror, augmentZoom}

// DefaultVision returns settings that train for some ten seconds on two cores.
func DefaultVision() VisionConfig {
	c := VisionConfig{
		SharedConfig: sharedDefaults("out/vision"), Data: vision.DigitsName, Epochs: 20,
		Model: visionCNN, Widths: []string{}, Freeze: []string{}, OnError: "fail",
		WeightDecay: 0.05, Warmup: 0.1, LRFloor: 0.01,
	}
	c.Batch, c.Clip, c.EvalEvery, c.SaveEvery = 32, 1, 100, 500
	return c
}

// Validate reports the first setting that makes no sense, and what would.
func (c VisionConfig) Validate() error {
	if err := c.validate("vision"); err != nil {
		return err
	}
	if err := c.onlyData("vision", "an image classifier"); err != nil {
		return err
	}
	if err := checkWholes("vision", []whole{{"size", c.Size, 0, maxSide}}); err != nil {
		return err
	}
	if !slices.Contains(visionModels, c.Model) {
		return fmt.Errorf("train vision: --model is %q, want %s", c.Model, strings.Join(visionModels, ", "))
	}
	if c.Augment != "" && !slices.Contains(augments, c.Augment) {
		return fmt.Errorf("train vision: --augment is %q, want %s", c.Augment, strings.Join(augments, ", "))
	}
	if _, err := data.ParseOnError(c.OnError); err != nil {
		return fmt.Errorf("train vision: --on-error is %q, want fail or skip", c.OnError)
	}
	if err := checkNumbers("vision", []number{
		{"epochs", c.Epochs, c.Epochs > 0 && c.Epochs <= 1e6, "a number above 0, at most a million"},
		{"lr", c.LR, c.LR >= 0 && c.LR <= math.MaxFloat32, "a finite number from 0 on"},
		{"weight-decay", c.WeightDecay, c.WeightDecay >= 0 && c.WeightDecay <= math.MaxFloat32, "a finite number from 0 on"},
		{"warmup", c.Warmup, c.Warmup >= 0 && c.Warmup <= 1, "a share of the steps, 0 to 1"},
		{"lr-floor", c.LRFloor, c.LRFloor >= 0 && c.LRFloor <= 1, "a share of the learning rate, 0 to 1"},
	}); err != nil {
		return err
	}
	if c.Data == "" {
		return fmt.Errorf("train vision: --data is empty: name a directory of images, or leave the flag out for the digits")
	}
	if len(c.Widths) > 0 && c.Model != visionMLP && c.Model != visionCNN {
		return fmt.Errorf("train vision: --widths is for mlp and cnn; a %s has its own", c.Model)
	}
	if _, err := widths("widths", c.Widths); err != nil {
		return fmt.Errorf("train vision: %w", err)
	}
	return nil
}

// steps returns how many steps the epochs of n images have.
func (c VisionConfig) steps(n int) int {
	return max(1, int(math.Ceil(c.Epochs*float64(n)/float64(c.size().total()))))
}

// adopt takes the settings of a checkpoint's run; see [SharedConfig].
func (c *VisionConfig) adopt(saved VisionConfig, s *config.Settings, path string) error {
	return conflicting("vision", c.Out, c.SharedConfig.adopt(s, &saved, saved.SharedConfig, path, "images"))
}
