// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"unsafe"

	"github.com/cohort-ml/cohort/internal/seeded"
	"github.com/cohort-ml/cohort/tensor"
)

func newTable(t testing.TB, s Schema) *Table {
	t.Helper()
	if s.Name == "" {
		s.Name = "test"
	}
	table, err := New(s, Options{Dir: t.TempDir()})
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

// bytesOf returns the memory of numbers.
func bytesOf(x []float32) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(x))), 4*len(x))
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
	for _, memory := range []int64{0, 1} { // 1: all but minHot rows lie on disk
		t.Run(fmt.Sprintf("memory=%d", memory), func(t *testing.T) { againstMap(t, memory) })
	}
}

func againstMap(t *testing.T, memory int64) {
	r := rand.New(rand.NewPCG(seeded.Of(t), 0))
	const width = 5
	s := Schema{Name: "map", Width: width, Init: Init{Kind: Uniform, Scale: 0.5, Seed: 9}, Optimizer: Optimizer{LR: -1}, Memory: memory}
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
	if s := table.Stats(); memory > 0 && (s.Hot > minHot || s.Rows == s.Hot || s.ColdReads == 0 || s.DiskProblem != "") {
		t.Errorf("%+v", s)
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

// TestIndexOfLikeTags: keys whose tags are alike fill many buckets behind their home, and the
// part grows for them. Each key is found while others come and go.
func TestIndexOfLikeTags(t *testing.T) {
	x := &index{}
	defer x.memory.close()
	r := rand.New(rand.NewPCG(4, 4))
	// Hash is one to one: take the keys of chosen hashes, by the inverse of its steps.
	inverse := func(h uint64) int64 {
		h ^= h >> 33
		h *= 0x9cb4b2f8129337db
		h ^= h >> 33
		h *= 0x4f74430c22a54005
		h ^= h >> 33
		return int64(h)
	}
	var keys []int64
	for i := range uint64(300) {
		tag := uint64(i%7) << 61 // seven tags, the highest of all among them
		if i%7 == 6 {
			tag = 1<<64 - 1<<32
		}
		keys = append(keys, inverse(tag|i<<10|5))
	}
	in := map[int64]uint32{}
	for range 20000 {
		k := keys[r.IntN(len(keys))]
		hash := Hash(k)
		if hash%NumPartitions != 5 {
			t.Fatalf("the hash of %d is %#x: the inverse is wrong", k, hash)
		}
		b, i := x.find(k, hash)
		slot, there := in[k]
		if there != (b != nil) || there && b.slots[i]-1 != slot {
			t.Fatalf("key %d: found %v, is there %v", k, b != nil, there)
		}
		// The part becomes full and empty by turns.
		if there && (r.IntN(2) == 0 || len(in) > 200) {
			x.part(hash).remove(b, i)
			delete(in, k)
		} else if !there {
			slot := r.Uint32() >> 1
			if err := x.insert(k, hash, slot); err != nil {
				t.Fatal(err)
			}
			in[k] = slot
		}
		if int(x.parts[5].live) != len(in) {
			t.Fatalf("%d keys, want %d", x.parts[5].live, len(in))
		}
	}
	if got := x.parts[5].within(nil, 0, math.MaxUint32); len(got) != len(in) {
		t.Errorf("a walk over all tags finds %d keys of %d", len(got), len(in))
	}
	few := x.parts[5].within(nil, 1<<29, 1<<29)
	want := 0
	for k := range in {
		if tagOf(Hash(k)) == 1<<29 {
			want++
		}
	}
	if len(few) != want || want == 0 {
		t.Errorf("a walk over one tag finds %d keys of %d", len(few), want)
	}
}
