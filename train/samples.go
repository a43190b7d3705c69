// SPDX-License-Identifier: Apache-2.0

package train

import (
	"context"
	"errors"
	"fmt"
	"image"
	"image/color"
	"strings"
	"time"

	"github.com/cohort-ml/cohort/data/vision"
)

// Bounds of what evaluations show of the model.
const (
	evaluationTokens  = 64 // of a text that the model writes at an evaluation
	evaluationShare   = 10 // a text takes at most this part of the evaluation's time
	shownImages       = 8  // classified images of an evaluation
	shownImageSize    = 64 // pixels of a side; larger images are made smaller
	shownImageMargin  = 2
	shownImageVerdict = 4 // rows of pixels below an image, green or red
)

// errLongEnough ends a text.
var errLongEnough = errors.New("long enough")

// showText logs what the model makes of the recipe's prompt by now. Rank 0 writes alone: a sharded model writes
// at the end of the run only. took is how long the evaluation took, and the text takes a tenth of that at most.
func (r *lmRun) showText(ctx context.Context, model any, took time.Duration) {
	if r.axes.World.Rank() != 0 || isSharded(model) || r.cfg.EvalEvery == 0 {
		return
	}
	until := time.Now().Add(took / evaluationShare)
	text, err := r.write(ctx, model, min(r.cfg.SampleTokens, evaluationTokens), func() bool { return time.Now().Before(until) })
	if err == nil && text != "" { // what cannot be written is told at the end of the run
		Log(ctx).Text("sample", text)
	}
}

// add draws the first images of a batch, and keeps what they were taken for.
func (s *shown) add(b vision.Batch, c ClassifierConfig, told []int64) {
	if s == nil {
		return
	}
	for i := 0; i < b.N && s.n < shownImages; i++ {
		size := b.Channels * b.Height * b.Width
		s.draw(c, b.Images[i*size:(i+1)*size], b.Channels, b.Height, b.Width, b.Labels[i] == told[i])
		text := c.Classes[b.Labels[i]]
		if told[i] != b.Labels[i] {
			text += ", taken for " + c.Classes[told[i]]
		}
		s.texts = append(s.texts, text)
	}
}

// shown are the first images of an evaluation beside each other, each above a line that is green if its class
// was found and red if not.
type shown struct {
	n       int
	picture *image.RGBA
	texts   []string // of each image
}

// draw draws a further image of [channels, height, width].
func (s *shown) draw(c ClassifierConfig, pixels []float32, channels, height, width int, right bool) {
	h, w := min(height, shownImageSize), min(width, shownImageSize)
	if s.picture == nil {
		s.picture = image.NewRGBA(image.Rect(0, 0, shownImages*(w+shownImageMargin)-shownImageMargin, h+shownImageMargin+shownImageVerdict))
	}
	left := s.n * (w + shownImageMargin)
	of := func(numbers []float64, channel int, otherwise float64) float64 {
		if len(numbers) == 0 {
			return otherwise
		}
		return numbers[min(channel, len(numbers)-1)]
	}
	value := func(channel, y, x int) uint8 {
		channel = min(channel, channels-1)
		v := float64(pixels[(channel*height+y*height/h)*width+x*width/w])
		v = v*of(c.Std, channel, 1) + of(c.Mean, channel, 0)
		return uint8(255*min(1, max(0, v)) + 0.5)
	}
	for y := range h {
		for x := range w {
			s.picture.SetRGBA(left+x, y, color.RGBA{value(0, y, x), value(1, y, x), value(2, y, x), 255})
		}
	}
	verdict := color.RGBA{0x1e, 0x9e, 0x5a, 255}
	if !right {
		verdict = color.RGBA{0xd0, 0x34, 0x2c, 255}
	}
	for y := range shownImageVerdict {
		for x := range w {
			s.picture.SetRGBA(left+x, h+shownImageMargin+y, verdict)
		}
	}
	s.n++
}

// log logs the picture, with what is in it.
func (s *shown) log(ctx context.Context) {
	if s == nil || s.n == 0 {
		return
	}
	lines := make([]string, len(s.texts))
	for i, text := range s.texts {
		lines[i] = fmt.Sprintf("%d: %s", i+1, text)
	}
	_ = Log(ctx).image("classified", s.picture, strings.Join(lines, "; ")) // eight small images are never too large
}
