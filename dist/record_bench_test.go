// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"context"
	"testing"
)

// BenchmarkRecorder is a whole collective, of a group of one rank, with its
// recorder and without: the difference is what the recorder costs.
func BenchmarkRecorder(b *testing.B) {
	for _, tc := range []struct {
		name string
		with bool
	}{{"with", true}, {"without", false}} {
		b.Run(tc.name, func(b *testing.B) {
			g := alone(b)
			if !tc.with {
				g.log = nil
			}
			b.ReportAllocs()
			for b.Loop() {
				if err := g.Barrier(context.Background()); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
