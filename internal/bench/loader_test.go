// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"bytes"
	"math/rand/v2"
	"strings"
	"testing"
)

func TestLoader(t *testing.T) {
	for _, model := range LoaderModels() {
		if model == "gpt" && testing.Short() {
			continue // the cnn's steps are shorter
		}
		r, err := Loader(t.Context(), LoaderOptions{Model: model, DType: "float32", Workers: 2, Pairs: 2, Steps: 1})
		if err != nil {
			t.Fatal(err)
		}
		if r.MedianMicros <= 0 || r.MemoryMicros <= 0 || r.LowPercent > r.SlowerPercent || r.SlowerPercent > r.HighPercent {
			t.Errorf("%s: %+v, %+v", model, r, r.Loading)
		}
		var text bytes.Buffer
		if err := r.WriteText(&text); err != nil || !strings.Contains(text.String(), "bottleneck") {
			t.Errorf("%v: %s", err, &text)
		}
	}
	for _, change := range []func(*LoaderOptions){
		func(o *LoaderOptions) { o.Model = "mlp" },
		func(o *LoaderOptions) { o.DType = "float16" },
		func(o *LoaderOptions) { o.Workers = -1 },
		func(o *LoaderOptions) { o.Prefetch = -1 },
		func(o *LoaderOptions) { o.Pairs = 1 },
		func(o *LoaderOptions) { o.Steps = 0 },
	} {
		o := LoaderOptions{Model: "gpt", DType: "float32", Pairs: 2, Steps: 1}
		change(&o)
		if o.Validate() == nil {
			t.Errorf("%+v was accepted", o)
		}
	}
}

// Of a hundred intervals that are made of 30 draws of a known law, about 95
// have its median.
func TestMedianInterval(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 0))
	held := 0
	for range 100 {
		v := make([]float64, 30)
		for i := range v {
			v[i] = 3 + r.NormFloat64()
		}
		low, high := medianInterval(v)
		if low <= 3 && 3 <= high {
			held++
		}
		if m := medianOf(v); m < low || m > high {
			t.Fatalf("median %v is not in %v to %v", m, low, high)
		}
	}
	if held < 85 {
		t.Errorf("the median was in %d of 100 intervals", held)
	}
}
