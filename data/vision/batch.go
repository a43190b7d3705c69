// SPDX-License-Identifier: Apache-2.0

package vision

import (
	"fmt"
	"sync"

	"github.com/cohort-ml/cohort/internal/kernel"
)

// Batch is samples as a model takes them.
type Batch struct {
	Images                     []float32 // [N, Channels, Height, Width]
	Labels                     []int64   // [N]
	N, Channels, Height, Width int
	memory                     *[]float32
}

// batches are the Images of batches that were released.
var batches sync.Pool

// Release lets the next batch have the memory of this one's Images, which must
// not be used after it. [data.Loader] calls it.
func (b Batch) Release() {
	if b.memory != nil {
		batches.Put(b.memory)
	}
}

// newImages takes memory for n floats.
func (b *Batch) newImages(n int) {
	b.memory, _ = batches.Get().(*[]float32)
	if b.memory == nil {
		b.memory = new([]float32)
	}
	*b.memory = sized(*b.memory, n)
	b.Images = *b.memory
}

// Normalize says what becomes of the bytes of an image: channel c is
// (byte/255 - Mean[c]) / Std[c]. One number stands for all channels; none means
// 0 and 1.
type Normalize struct {
	Mean, Std []float64
}

// ImageNet is the normalisation that torchvision's models were trained with.
var ImageNet = Normalize{Mean: []float64{0.485, 0.456, 0.406}, Std: []float64{0.229, 0.224, 0.225}}

// line returns what byte v of a channel becomes as scale·v + shift.
func (n Normalize) line(channel int) (scale, shift float32, err error) {
	of := func(s []float64, otherwise float64) (float64, error) {
		switch {
		case len(s) == 0:
			return otherwise, nil
		case len(s) == 1:
			return s[0], nil
		case channel < len(s):
			return s[channel], nil
		}
		return 0, fmt.Errorf("vision: normalisation of %d channels for an image with more", len(s))
	}
	mean, err := of(n.Mean, 0)
	if err != nil {
		return 0, 0, err
	}
	std, err := of(n.Std, 1)
	if err != nil {
		return 0, 0, err
	}
	if !(std > 0) {
		return 0, 0, fmt.Errorf("vision: normalisation by a deviation of %v", std)
	}
	return float32(1 / (255 * std)), float32(-mean / std), nil
}

// Collate returns the function that makes batches for a [data.Loader]. All
// images of a batch must be of one size; grey ones get as many equal channels as
// channels says. 0 channels are those of the images.
func Collate(channels int, n Normalize) func([]Sample) (Batch, error) {
	return func(samples []Sample) (Batch, error) {
		if len(samples) == 0 {
			return Batch{}, fmt.Errorf("vision: a batch of no samples")
		}
		first := samples[0].Image
		b := Batch{N: len(samples), Channels: channels, Height: first.Height, Width: first.Width, Labels: make([]int64, len(samples))}
		if b.Channels == 0 {
			b.Channels = first.Channels
		}
		if b.Channels != 1 && b.Channels != 3 {
			return Batch{}, fmt.Errorf("vision: a batch of %d channels, want 1 or 3", b.Channels)
		}
		var scale, shift [3]float32
		for c := range b.Channels {
			var err error
			if scale[c], shift[c], err = n.line(c); err != nil {
				return Batch{}, err
			}
		}
		plane := b.Height * b.Width
		b.newImages(b.N * b.Channels * plane)
		for i, s := range samples {
			m := s.Image
			if err := m.check(); err != nil {
				return Batch{}, err
			}
			if m.Width != b.Width || m.Height != b.Height || m.Channels != first.Channels || m.Channels != b.Channels && m.Channels != 1 {
				return Batch{}, fmt.Errorf("vision: image %d of a batch is %d·%d with %d channels, the batch is of %d·%d with %d: resize or crop to one size",
					i, m.Width, m.Height, m.Channels, b.Width, b.Height, b.Channels)
			}
			b.Labels[i] = int64(s.Label)
			if m.Channels == 3 {
				kernel.BytesToPlanes(b.Images[3*i*plane:3*(i+1)*plane], m.Pix, &scale, &shift)
				continue
			}
			for c := range b.Channels {
				dst := b.Images[(i*b.Channels+c)*plane:][:plane]
				for p, v := range m.Pix {
					dst[p] = float32(float32(v)*scale[c]) + shift[c] // not fused: the same everywhere
				}
			}
		}
		return b, nil
	}
}
