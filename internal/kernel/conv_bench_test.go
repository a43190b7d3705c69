// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/cohort-ml/cohort/internal/work"
)

// convLayer is a convolution and how often a model has it.
type convLayer struct {
	count int
	s     Conv2dShape
}

// resNet50Layers are the convolutions of ResNet-50 at 224×224, and cnnLayers
// those of bench step's cnn.
func resNet50Layers(batch int) []convLayer {
	layers := []convLayer{{1, squareConv(batch, 3, 224, 64, 7, 2, 3, 1, 1)}}
	in, size := 64, 56
	for stage, blocks := range []int{3, 4, 6, 3} {
		width := 64 << stage
		stride := min(2, stage+1)
		layers = append(layers,
			convLayer{1, squareConv(batch, in, size, width, 1, 1, 0, 1, 1)},
			convLayer{1, squareConv(batch, width, size, width, 3, stride, 1, 1, 1)},
			convLayer{1, squareConv(batch, in, size, 4*width, 1, stride, 0, 1, 1)})
		size /= stride
		layers = append(layers,
			convLayer{blocks, squareConv(batch, width, size, 4*width, 1, 1, 0, 1, 1)},
			convLayer{blocks - 1, squareConv(batch, 4*width, size, width, 1, 1, 0, 1, 1)},
			convLayer{blocks - 1, squareConv(batch, width, size, width, 3, 1, 1, 1, 1)})
		in = 4 * width
	}
	return layers
}

func cnnLayers(batch int) []convLayer {
	return []convLayer{
		{1, squareConv(batch, 3, 32, 32, 3, 1, 1, 1, 1)},
		{1, squareConv(batch, 32, 32, 64, 3, 2, 1, 1, 1)},
		{1, squareConv(batch, 64, 16, 128, 3, 2, 1, 1, 1)},
		{1, squareConv(batch, 128, 8, 128, 3, 1, 1, 1, 1)},
	}
}

// BenchmarkConv2d runs the layers of ResNet-50 at batch 4 and of the CNN at
// batch 64; x is how often the model has the layer.
//
//	go test -bench Conv2d -run '^$' ./internal/kernel
func BenchmarkConv2d(b *testing.B) {
	for _, threads := range []int{1, 2} {
		p := work.New(threads)
		defer p.Close()
		for _, l := range append(resNet50Layers(4), cnnLayers(64)...) {
			s := l.s
			r := rand.New(rand.NewPCG(1, 1))
			x, w, g := randomFloats(r, s.inputElems()), randomFloats(r, s.weightElems()), randomFloats(r, s.outputElems())
			y, dx, dw := make([]float32, len(g)), make([]float32, len(x)), make([]float32, len(w))
			low := func(x []float32) Mixed {
				m := Mixed{BF16: make([]uint16, len(x))}
				ToBF16(nil, m.BF16, x)
				return m
			}
			lowX, lowG, lowY, lowDX := low(x), low(g), low(y), low(dx)
			name := fmt.Sprintf("threads=%d/%dx%dx%d-%d-k%ds%d/x%d", threads, s.Batch, s.In, s.Height, s.Out, s.KernelH, s.StrideH, l.count)
			for pass, run := range map[string]func(){
				"forward": func() { Conv2d(p, s, y, x, w, nil) },
				"input":   func() { Conv2dBackwardInput(p, s, dx, g, w) },
				"weight":  func() { Conv2dBackwardWeight(p, s, dw, g, x, 0) },
				// As under autocast.
				"forward/bf16": func() { Conv2dBF16(p, s, lowY, lowX, Mixed{F32: w}, nil) },
				"input/bf16":   func() { Conv2dBackwardInputBF16(p, s, lowDX, lowG, Mixed{F32: w}) },
				"weight/bf16":  func() { Conv2dBackwardWeightBF16(p, s, Mixed{F32: dw}, lowG, lowX, 0) },
			} {
				b.Run(name+"/"+pass, func(b *testing.B) {
					for b.Loop() {
						run()
					}
					reportFlops(b, 2*s.outputElems()*s.In/s.Groups*s.taps())
				})
			}
		}
	}
}
