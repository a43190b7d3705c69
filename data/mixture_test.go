// SPDX-License-Identifier: Apache-2.0

package data

import (
	"math"
	"testing"
)

// TestMixture: sources come in their shares, each sample of a source once in each of its epochs.
func TestMixture(t *testing.T) {
	c := MixtureConfig{Sources: []MixtureSource{{500, 3}, {40, 1}, {7, 0.001}}, Total: 1, World: 1, Seed: 4}
	m, err := NewMixture(c)
	if err != nil {
		t.Fatal(err)
	}
	const n = 50_000
	count := make([]int, 3)
	seen := map[Key]int{}
	for p := range int64(n) {
		k := m.At(p)
		seen[k]++
		switch {
		case k.Index < 500:
			count[0]++
		case k.Index < 540:
			count[1]++
		default:
			count[2]++
		}
	}
	for i, want := range []float64{0.749, 0.25, 0.001} { // in blocks of 1,000
		if got := float64(count[i]) / n; math.Abs(got-want) > 1e-3 {
			t.Errorf("source %d has the share %v, want %v", i, got, want)
		}
	}
	for k, times := range seen {
		if times != 1 {
			t.Fatalf("%v came %d times", k, times)
		}
	}
	// Epochs of a source are whole, one after the other.
	for first, end := range map[int][2]int{500: {540, count[1] / 40}, 540: {547, count[2] / 7}} {
		for epoch := range end[1] {
			for i := first; i < end[0]; i++ {
				if seen[Key{epoch, i}] != 1 {
					t.Fatalf("sample %d of epoch %d did not come", i, epoch)
				}
			}
		}
	}
	for _, bad := range []MixtureConfig{
		{}, {Sources: c.Sources, Total: 1, World: 2}, {Sources: []MixtureSource{{0, 1}}, Total: 1, World: 1}, {Sources: []MixtureSource{{1, math.NaN()}}, Total: 1, World: 1},
		{Sources: []MixtureSource{{1, math.MaxFloat64}, {1, math.MaxFloat64}}, Total: 1, World: 1}, {Sources: make([]MixtureSource, maxSources+1), Total: 1, World: 1},
	} {
		if _, err := NewMixture(bad); err == nil {
			t.Errorf("%+v is no error", bad)
		}
	}
}
