// SPDX-License-Identifier: Apache-2.0

package nn

import (
	"fmt"
	"testing"

	"github.com/cohort-ml/cohort/tensor"
)

// BenchmarkRecurrent is a training pass over 64 steps of a batch of 32.
func BenchmarkRecurrent(b *testing.B) {
	for _, hidden := range []int{128, 512} {
		for name, build := range map[string]func(b *Build) Module{
			"lstm": func(b *Build) Module { return NewLSTM(b, hidden, hidden, RNNOptions{}) },
			"gru":  func(b *Build) Module { return NewGRU(b, hidden, hidden, RNNOptions{}) },
		} {
			b.Run(fmt.Sprintf("%s %d", name, hidden), func(b *testing.B) {
				m, x := build(&Build{}), tensor.Zeros(64, 32, hidden)
				tensor.NewGenerator(1).Uniform(x, -1, 1)
				for b.Loop() {
					for _, p := range Parameters(m) {
						p.ZeroGrad()
					}
					if _, err := Backward(b.Context(), func(c *Ctx) *tensor.Tensor { return c.Call(m, x).Sum() }); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
