// SPDX-License-Identifier: Apache-2.0

package history

import (
	"math"
	"strings"
)

// MeanLoss returns the mean loss of steps, of those that are finite: NaN if none is.
func MeanLoss(steps []Step) Number {
	sum, n := 0.0, 0
	for _, s := range steps {
		if finite := s.Steps - s.NonFinite; finite > 0 {
			sum, n = sum+float64(s.Loss)*float64(finite), n+finite
		}
	}
	return Number(sum / float64(n))
}

// Sparkline draws the losses of steps in at most so many characters, which have eight heights.
func Sparkline(steps []Step, width int) string {
	heights := []rune("▁▂▃▄▅▆▇█")
	width = max(0, min(width, len(steps)))
	means := make([]float64, width)
	low, high := math.Inf(1), math.Inf(-1)
	for i := range means {
		means[i] = float64(MeanLoss(steps[i*len(steps)/width : (i+1)*len(steps)/width]))
		if !math.IsNaN(means[i]) {
			low, high = min(low, means[i]), max(high, means[i])
		}
	}
	var b strings.Builder
	for _, m := range means {
		switch {
		case math.IsNaN(m):
			b.WriteRune('×')
		case high == low:
			b.WriteRune(heights[0])
		default:
			b.WriteRune(heights[int((m-low)/(high-low)*float64(len(heights)-1)+0.5)])
		}
	}
	return b.String()
}
