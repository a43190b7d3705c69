// SPDX-License-Identifier: Apache-2.0

package proof

import (
	"math/rand/v2"
	"testing"

	"github.com/cohort-ml/cohort/internal/seeded"
	"github.com/cohort-ml/cohort/tensor"
)

// batch has the forms in which samples come.
type batch struct {
	Rows    int
	Tokens  []int64     // [rows, 3]
	Pixels  []float32   // [rows, 5]
	Columns [][]int64   // [2][rows]
	Texts   []string    // [rows]
	Lists   [][]float64 // [rows][…]
	Nested  *tensor.Tensor
	hidden  []int64
}

// batchOf makes a batch of samples, each of which depends on its id alone.
func batchOf(ids []ID) batch {
	b := batch{Rows: len(ids), Columns: make([][]int64, 2), hidden: []int64{rand.Int64()}}
	var nested []float32
	for _, id := range ids {
		v := id.Epoch*1000 + id.Index
		b.Tokens = append(b.Tokens, int64(v), int64(v+1), int64(v%7))
		b.Pixels = append(b.Pixels, float32(v), 1, 2, float32(v)/3, 0)
		b.Columns[0], b.Columns[1] = append(b.Columns[0], int64(v)), append(b.Columns[1], int64(-v))
		b.Texts = append(b.Texts, string(rune('a'+v%20)))
		b.Lists = append(b.Lists, make([]float64, v%3, 4))
		nested = append(nested, float32(v), 3)
	}
	b.Nested = tensor.FromFloat32(nested, len(ids), 2)
	return b
}

// The samples of a step have the same checksums in any order and in any division.
func TestSamplesDivided(t *testing.T) {
	rng := rand.New(rand.NewPCG(seeded.Of(t), 0))
	ids := make([]ID, 24)
	for i := range ids {
		ids[i] = ID{Epoch: i % 2, Index: rng.IntN(100)}
	}
	want := SamplesOf(batchOf(ids), ids)
	if want.Count != 24 {
		t.Fatalf("%d samples, want 24", want.Count)
	}
	for _, size := range []int{1, 4, 8, 12} {
		rng.Shuffle(len(ids), func(i, j int) { ids[i], ids[j] = ids[j], ids[i] })
		var got Samples
		for i := 0; i < len(ids); i += size {
			got.Add(SamplesOf(batchOf(ids[i:i+size]), ids[i:i+size]))
		}
		if got != want {
			t.Errorf("in batches of %d: %+v, want %+v", size, got, want)
		}
	}
	if b, again := batchOf(ids), batchOf(ids); SamplesOf(b, nil) != SamplesOf(again, nil) || SamplesOf(b, nil).Contents == 0 {
		t.Error("a batch without ids has no checksum")
	}
}

// A change of any part of a sample changes the contents, and another sample the ids.
func TestSamplesSeeChanges(t *testing.T) {
	ids := []ID{{0, 4}, {0, 7}, {1, 2}, {1, 9}}
	was := SamplesOf(batchOf(ids), ids)
	for name, change := range map[string]func(*batch){
		"tokens":  func(b *batch) { b.Tokens[5]++ },
		"pixels":  func(b *batch) { b.Pixels[19] = -b.Pixels[19] },
		"columns": func(b *batch) { b.Columns[1][3]++ },
		"texts":   func(b *batch) { b.Texts[0] += "x" },
		"lists":   func(b *batch) { b.Lists[2] = []float64{7} },
		"nested":  func(b *batch) { b.Nested.Fill(3) },
		"exchanged": func(b *batch) {
			b.Tokens[0], b.Tokens[3] = b.Tokens[3], b.Tokens[0]
		},
	} {
		b := batchOf(ids)
		change(&b)
		if got := SamplesOf(b, ids); got.Contents == was.Contents || got.IDs != was.IDs {
			t.Errorf("%s: %+v, was %+v", name, got, was)
		}
	}
	ids[1].Index++
	if got := SamplesOf(batchOf(ids), ids); got.IDs == was.IDs {
		t.Error("another sample has the same id")
	}
}
