// SPDX-License-Identifier: Apache-2.0

package bench

import "testing"

func BenchmarkStep(b *testing.B) {
	for _, model := range StepModels() {
		b.Run(model, func(b *testing.B) {
			w := newWorkload(StepOptions{Model: model})
			for b.Loop() {
				if _, err := w.run(b.Context(), w.model); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(w.flops*float64(b.N)/b.Elapsed().Seconds()/1e9, "GFLOP/s")
		})
	}
}
