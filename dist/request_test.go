// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"context"
	"testing"

	"github.com/cohort-ml/cohort/tensor"
)

// BenchmarkAllReduce measures a small all-reduce of two goroutines.
func BenchmarkAllReduce(b *testing.B) {
	for _, tc := range []struct {
		name string
		x    func() *tensor.Tensor
	}{
		{"dense", func() *tensor.Tensor { return tensor.Zeros(16) }},
		{"packed", func() *tensor.Tensor { return tensor.Zeros(16, 2).Select(1, 0) }},
	} {
		b.Run(tc.name, func(b *testing.B) {
			b.ReportAllocs()
			err := Spawn(b.Context(), 2, func(ctx context.Context, g *Group) error {
				x := tc.x()
				for range b.N {
					if err := g.AllReduce(ctx, x, Sum); err != nil {
						return err
					}
				}
				return nil
			})
			if err != nil {
				b.Fatal(err)
			}
		})
	}
}
