// SPDX-License-Identifier: Apache-2.0

package train

import (
	"bytes"
	"context"
	"fmt"
	"image"
	"image/png"
	"math"

	"github.com/cohort-ml/cohort/internal/event"
)

// Limits of what a program logs.
const (
	maxLoggedText  = 64 << 10 // bytes of a text; the rest is cut off
	maxLoggedName  = 200      // bytes of a name
	maxLoggedImage = 1 << 20  // bytes of a PNG; a larger picture is left out
)

// Logger logs values of a program beside those of the training itself. What rank 0 logs is in the
// run's history (numbers) and in its TensorBoard file (all). Logging never waits: a rank keeps
// its last thousand values until it has done the step, and what is more is left out and told once.
type Logger struct{ stream *event.Stream }

// Log returns the logger of a run, by a context of it: the carrier of Task.Loss, or the context of
// Task.Evaluate. With another context nothing is logged. The step of a value is the number of
// steps that were done before it.
//
//	train.Log(c).Scalar("accuracy", 0.5)
func Log(ctx context.Context) Logger { return Logger{event.From(ctx)} }

// Scalar logs a number.
func (l Logger) Scalar(name string, value float64) {
	l.stream.Emit(event.Event{Kind: event.Value, Name: cutTo(name, maxLoggedName), Value: value})
}

// Text logs a text, of which TensorBoard shows Markdown.
func (l Logger) Text(name, text string) {
	l.stream.Emit(event.Event{Kind: event.Text, Name: cutTo(name, maxLoggedName), Text: cutTo(text, maxLoggedText)})
}

// Histogram logs how values are distributed. It counts them before it returns.
func (l Logger) Histogram(name string, values []float32) {
	if l.stream == nil {
		return
	}
	l.stream.Emit(event.Event{Kind: event.Histogram, Name: cutTo(name, maxLoggedName), Data: bucketsOf(values)})
}

// Image logs a picture. It encodes the picture before it returns. A picture whose PNG has more than
// 1 MiB is an error and left out.
func (l Logger) Image(name string, m image.Image) error { return l.image(name, m, "") }

// image logs a picture, and says what is in it.
func (l Logger) image(name string, m image.Image, about string) error {
	if l.stream == nil {
		return nil
	}
	var b bytes.Buffer
	if err := png.Encode(&b, m); err != nil {
		return fmt.Errorf("log image %s: %w", name, err)
	}
	if b.Len() > maxLoggedImage {
		return fmt.Errorf("log image %s: its PNG has %d bytes, at most %d are allowed: scale it down", name, b.Len(), maxLoggedImage)
	}
	size := m.Bounds().Size()
	l.stream.Emit(event.Event{Kind: event.Image, Name: cutTo(name, maxLoggedName), Text: "image/png", Data: &picture{size.X, size.Y, b.Bytes(), about}})
	return nil
}

// picture is a logged image.
type picture struct {
	width, height int
	png           []byte
	about         string // what is in it, if somebody says so
}

// cutTo cuts a text to so many bytes.
func cutTo(text string, most int) string {
	if len(text) > most {
		return text[:most]
	}
	return text
}

const (
	// Buckets lie between ±10^k, of which each decade has bucketsPerDecade, and one is around zero.
	leastDecade, mostDecade, bucketsPerDecade = -9, 9, 5
)

// bucketsOf counts values. Those that are not finite are counted apart.
func bucketsOf(values []float32) *event.Buckets {
	const half = (mostDecade-leastDecade)*bucketsPerDecade + 1
	b := &event.Buckets{Min: math.Inf(1), Max: math.Inf(-1), Edges: make([]float64, 2*half+1), Counts: make([]float64, 2*half+1)}
	for i := range half {
		edge := math.Pow(10, leastDecade+float64(i)/bucketsPerDecade)
		b.Edges[half+i], b.Edges[half-1-i] = edge, -edge
	}
	b.Edges[2*half] = math.MaxFloat64
	for _, v32 := range values {
		v := float64(v32)
		if math.IsNaN(v) || math.IsInf(v, 0) {
			b.NonFinite++
			continue
		}
		b.Count++
		b.Min, b.Max, b.Sum, b.Squares = min(b.Min, v), max(b.Max, v), b.Sum+v, b.Squares+v*v
		at := half // the bucket around zero
		if d := math.Abs(v); d > b.Edges[half] {
			at += int(math.Ceil((math.Log10(d)-leastDecade)*bucketsPerDecade - 1e-9))
			at = min(at, 2*half)
		}
		if v < 0 {
			at = 2*half - at
		}
		b.Counts[at]++
	}
	if b.Count == 0 {
		b.Min, b.Max = 0, 0
	}
	return b
}
