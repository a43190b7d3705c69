// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/cohort-ml/cohort/tensor"
)

func newTable(t testing.TB, s Schema) *Table {
	t.Helper()
	if s.Name == "" {
		s.Name = "test"
	}
	table, err := New(s, Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := table.Close(); err != nil {
			t.Error(err)
		}
	})
	return table
}

// values are the rows of keys in float32.
func values(t testing.TB, table *Table, keys []int64) []float32 {
	t.Helper()
	out := make([]float32, len(keys)*table.schema.Width)
	if err := table.Gather(bytesOf(out), tensor.Float32, keys); err != nil {
		t.Fatal(err)
	}
	return out
}

func sameBits(a, b []float32) error {
	if len(a) != len(b) {
		return fmt.Errorf("%d values, want %d", len(a), len(b))
	}
	for i := range a {
		if math.Float32bits(a[i]) != math.Float32bits(b[i]) {
			return fmt.Errorf("value %d is %v, want %v", i, a[i], b[i])
		}
	}
	return nil
}

// TestAgainstMap plays random pushes, removals and pulls against a map.
func TestAgainstMap(t *testing.T) {
	const seed = 5
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	const width = 5
	s := Schema{Name: "map", Width: width, Init: Init{Kind: Uniform, Scale: 0.5, Seed: 9}, Optimizer: Optimizer{LR: -1}}
	table := newTable(t, s)
	want := map[int64][]float32{}
	rowOf := func(k int64) []float32 {
		if v, ok := want[k]; ok {
			return v
		}
		v := make([]float32, width)
		s.First(v, k)
		return v
	}
	key := func() int64 {
		k := int64(r.ExpFloat64() * 3000)
		if k%2 == 1 {
			k = -k << 40
		}
		return k
	}
	for lsn := uint64(1); lsn <= 400; lsn++ {
		keys := map[int64]bool{}
		for range r.IntN(300) {
			keys[key()] = true
		}
		var list []int64
		for k := range keys {
			list = append(list, k)
		}
		if r.IntN(4) == 0 {
			table.Remove(Mark{LSN: lsn, Step: lsn}, list)
			for _, k := range list {
				delete(want, k)
			}
		} else {
			grad := make([]float32, width*len(list))
			for i := range grad {
				grad[i] = float32(r.IntN(9) - 4)
			}
			if err := table.Check(list, grad); err != nil {
				t.Fatal(err)
			}
			c, err := table.Update(Mark{LSN: lsn, Step: lsn}, list, grad)
			if err != nil || c.Changed != len(list) || c.Older != 0 {
				t.Fatalf("%d keys: %+v, %v", len(list), c, err)
			}
			for i, k := range list {
				v := rowOf(k)
				for j := range v {
					v[j] += grad[i*width+j]
				}
				want[k] = v
			}
		}
		for range 20 {
			list = append(list, key(), int64(r.Uint64()))
		}
		got := values(t, table, list)
		for i, k := range list {
			if err := sameBits(got[i*width:(i+1)*width], rowOf(k)); err != nil {
				t.Fatalf("entry %d: key %d: %v", lsn, k, err)
			}
		}
		if table.Len() != len(want) {
			t.Fatalf("%d rows, want %d", table.Len(), len(want))
		}
	}
	seen := map[int64]int{}
	if err := table.Scan(0, func(r Record) error { seen[r.Key]++; return nil }); err != nil {
		t.Fatal(err)
	}
	for k := range want {
		if seen[k] != 1 {
			t.Fatalf("Scan gave key %d %d times", k, seen[k])
		}
	}
	if len(seen) != len(want) {
		t.Fatalf("Scan gave %d keys of %d", len(seen), len(want))
	}
}

func TestErrors(t *testing.T) {
	table := newTable(t, Schema{Width: 2, Rows: 4})
	nan := float32(math.NaN())
	for _, c := range []struct {
		kind Kind
		err  error
	}{
		{KindKey, table.Check([]int64{4}, make([]float32, 2))},
		{KindKey, table.Check([]int64{-1}, make([]float32, 2))},
		{KindKey, table.Check([]int64{1, 2, 1}, make([]float32, 6))},
		{KindGradient, table.Check([]int64{1, 2}, make([]float32, 3))},
		{KindGradient, table.Check([]int64{1, 2}, []float32{0, 0, 0, nan})},
		{KindGradient, table.Check([]int64{1, 2}, []float32{0, 0, 0, float32(math.Inf(-1))})},
		{KindKey, table.Gather(make([]byte, 8), tensor.Float32, []int64{4})},
		{KindDType, table.Gather(make([]byte, 8), tensor.Int64, []int64{1})},
		{KindDType, table.Gather(make([]byte, 7), tensor.Float32, []int64{1})},
	} {
		var e *Error
		if !errors.As(c.err, &e) || e.Kind != c.kind {
			t.Errorf("%v: want an error of kind %q", c.err, c.kind)
		}
	}
	if err := table.Check([]int64{1, 2}, []float32{0, math.MaxFloat32, -math.MaxFloat32, 1e-45}); err != nil {
		t.Error(err)
	}
}
