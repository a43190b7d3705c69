// SPDX-License-Identifier: Apache-2.0

package collective

import (
	"bytes"
	_ "embed"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/dist/fault"
	"github.com/cohort-ml/cohort/dist/operation"
)

var allReduceOps = []operation.ReduceOp{operation.Sum, operation.Product, operation.Min, operation.Max, operation.Avg, operation.BAnd, operation.BOr, operation.BXor, operation.PremulSum(0.5)}

// TestWhatIsReduced holds the table of reductions against PyTorch's rules.
func TestWhatIsReduced(t *testing.T) {
	for dtype := operation.DType(1); dtype < numDTypes; dtype++ {
		float := dtype == operation.Float32 || dtype == operation.Float64 || dtype == operation.BFloat16 || dtype == operation.Float16
		for _, op := range allReduceOps {
			want := true
			switch op.Kind() {
			case operation.BAnd, operation.BOr, operation.BXor:
				want = !float
			case operation.KindPremulSum:
				want = float
			case operation.Avg:
				want = dtype != operation.Bool
			}
			r, err := ReductionFor(op, dtype, 3)
			if want != (err == nil) {
				t.Errorf("%v of %v: %v", op, dtype, err)
			}
			var refused *fault.ReduceError
			if err != nil && (!errors.As(err, &refused) || refused.DType != dtype || refused.Op != op ||
				!strings.Contains(err.Error(), dtype.String()) || !strings.Contains(err.Error(), op.String())) {
				t.Errorf("%v of %v: the error is %#v", op, dtype, err)
			}
			if err == nil && (r.NeedsPrepare() != (op.Kind() == operation.KindPremulSum) || r.NeedsFinish() != (op == operation.Avg)) {
				t.Errorf("%v of %v: prepares %v, finishes %v", op, dtype, r.NeedsPrepare(), r.NeedsFinish())
			}
		}
	}
	for _, bad := range []struct {
		op    operation.ReduceOp
		dtype operation.DType
		ranks int
	}{{operation.Sum, 0, 2}, {operation.Sum, numDTypes, 2}, {numReduceOps, operation.Float32, 2}, {operation.Sum | 1<<8, operation.Float32, 2}, {operation.Avg, operation.Float32, 0}} {
		if _, err := ReductionFor(bad.op, bad.dtype, bad.ranks); err == nil {
			t.Errorf("%+v is accepted", bad)
		}
	}
}

// bytesOf returns what float32 are in memory.
func bytesOf(xs ...float32) []byte {
	var b []byte
	for _, x := range xs {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(x))
	}
	return b
}

// TestSteps runs the steps by pairs and at once.
func TestSteps(t *testing.T) {
	for _, c := range []struct {
		op   operation.ReduceOp
		want []byte
	}{
		{operation.Sum, bytesOf(111, 9)}, {operation.Avg, bytesOf(37, 3)}, {operation.Max, bytesOf(100, 9)},
		{operation.Min, bytesOf(1, -2)}, {operation.Product, bytesOf(1000, -36)}, {operation.PremulSum(0.5), bytesOf(55.5, 4.5)},
	} {
		r, err := ReductionFor(c.op, operation.Float32, 3)
		if err != nil {
			t.Fatal(err)
		}
		var srcs [][]byte
		for _, b := range [][]byte{bytesOf(1, 2), bytesOf(10, 9), bytesOf(100, -2)} {
			prepared := make([]byte, len(b))
			r.Prepare(prepared, b)
			r.Prepare(b, b)
			if !bytes.Equal(prepared, b) {
				t.Errorf("%v: prepared in place it is another", c.op)
			}
			srcs = append(srcs, b)
		}
		all, to := make([]byte, 8), [][]byte{make([]byte, 8), make([]byte, 8)}
		r.All(all, srcs)
		r.AllTo(to, srcs)
		pairs, partial := bytes.Clone(srcs[0]), make([]byte, 8)
		r.Into(pairs, srcs[1])
		r.Into(pairs, srcs[2])
		r.Finish(pairs)
		part := r.Partial()
		part.All(partial, srcs[:2])
		part.All(partial, [][]byte{partial, srcs[2]})
		part.Finish(partial)
		for i, got := range [][]byte{all, to[0], to[1], pairs, partial} {
			if !bytes.Equal(got, c.want) {
				t.Errorf("%v, way %d: %x, want %x", c.op, i, got, c.want)
			}
		}
	}
}

// TestBooleans: whatever the operation, bytes 0 and 1 come out.
func TestBooleans(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	const n, ranks = 101, 3
	srcs := make([][]byte, ranks)
	for r := range srcs {
		srcs[r] = make([]byte, n)
		for i := range srcs[r] {
			srcs[r][i] = byte(rng.IntN(2))
		}
	}
	for op, want := range map[operation.ReduceOp]func(ones int) bool{
		operation.Sum: func(ones int) bool { return ones > 0 }, operation.Max: func(ones int) bool { return ones > 0 }, operation.BOr: func(ones int) bool { return ones > 0 },
		operation.Product: func(ones int) bool { return ones == ranks }, operation.Min: func(ones int) bool { return ones == ranks }, operation.BAnd: func(ones int) bool { return ones == ranks },
		operation.BXor: func(ones int) bool { return ones%2 == 1 },
	} {
		r, err := ReductionFor(op, operation.Bool, ranks)
		if err != nil {
			t.Fatal(err)
		}
		got := make([]byte, n)
		r.All(got, srcs)
		for i, b := range got {
			ones := int(srcs[0][i] + srcs[1][i] + srcs[2][i])
			if (b == 1) != want(ones) || b > 1 {
				t.Fatalf("%v of %d of %d is %d", op, ones, ranks, b)
			}
		}
	}
}

// TestIntegers: overflow wraps around, averages are cut off towards zero.
func TestIntegers(t *testing.T) {
	for _, c := range []struct {
		op   operation.ReduceOp
		want []int8
	}{
		{operation.Sum, []int8{-56, -7, -5, -128}}, {operation.Avg, []int8{-28, -3, -2, -64}}, {operation.Product, []int8{16, 12, -36, 0}},
		{operation.Max, []int8{100, -3, 4, -64}}, {operation.Min, []int8{100, -4, -9, -64}},
		{operation.BXor, []int8{0, 1, -13, 0}},
	} {
		r, err := ReductionFor(c.op, operation.Int8, 2)
		if err != nil {
			t.Fatal(err)
		}
		as := func(xs ...int8) (b []byte) {
			for _, x := range xs {
				b = append(b, byte(x))
			}
			return b
		}
		dst := make([]byte, 4)
		r.All(dst, [][]byte{as(100, -3, 4, -64), as(100, -4, -9, -64)})
		if want := as(c.want...); !bytes.Equal(dst, want) {
			t.Errorf("%v is %v, want %v", c.op, dst, want)
		}
	}
}

// TestRoundedOnce: sums of 16 bits keep what each step would lose.
func TestRoundedOnce(t *testing.T) {
	as := func(h uint16) []byte { return binary.LittleEndian.AppendUint16(nil, h) }
	for _, c := range []struct {
		dtype            operation.DType
		one, tiny, total uint16 // tiny is a quarter of a unit at one
	}{
		{operation.BFloat16, 0x3f80, 0x3b00, 0x3f81}, // 1, 2^-9, 1 + 2^-7
		{operation.Float16, 0x3c00, 0x0c00, 0x3c01},  // 1, 2^-12, 1 + 2^-10
	} {
		r, err := ReductionFor(operation.Sum, c.dtype, 5)
		if err != nil {
			t.Fatal(err)
		}
		dst := make([]byte, 2)
		r.All(dst, [][]byte{as(c.one), as(c.tiny), as(c.tiny), as(c.tiny), as(c.tiny)})
		if got := binary.LittleEndian.Uint16(dst); got != c.total {
			t.Errorf("%v: at once %#x, want %#x", c.dtype, got, c.total)
		}
		pairs := as(c.one)
		for range 4 {
			r.Into(pairs, as(c.tiny))
		}
		if got := binary.LittleEndian.Uint16(pairs); got != c.one {
			t.Errorf("%v: by pairs %#x, want %#x", c.dtype, got, c.one)
		}
	}
}

//go:embed testdata/reduction.json
var goldenReductions []byte

// TestAsInPyTorch compares bits with what PyTorch's ranks get from each other
// (testdata/reduction.py), those of NaNs aside.
func TestAsInPyTorch(t *testing.T) {
	var cases []struct {
		DType, Op string
		In        []string
		Out       string
	}
	if err := json.Unmarshal(goldenReductions, &cases); err != nil {
		t.Fatal(err)
	}
	if len(cases) < 48 {
		t.Fatalf("%d cases", len(cases))
	}
	decode := func(text string) []byte {
		b, err := hex.DecodeString(text)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	for _, c := range cases {
		var dtype operation.DType
		for d := operation.Float32; d < numDTypes; d++ {
			if d.String() == c.DType {
				dtype = d
			}
		}
		op := numReduceOps
		for _, o := range allReduceOps {
			if o.String() == c.Op {
				op = o
			}
		}
		r, err := ReductionFor(op, dtype, len(c.In))
		if err != nil {
			t.Fatal(err)
		}
		var srcs [][]byte
		for _, in := range c.In {
			srcs = append(srcs, decode(in))
		}
		got, want := make([]byte, len(srcs[0])), decode(c.Out)
		r.All(got, srcs)
		compareBits(t, c.DType+" "+c.Op, dtype, got, want, srcs)
		if len(srcs) == 2 {
			for _, first := range []int{0, 1} {
				pair := bytes.Clone(srcs[first])
				r.Into(pair, srcs[1-first])
				compareBits(t, c.DType+" "+c.Op+" by pairs", dtype, pair, want, srcs)
			}
		}
	}
}

func compareBits(t *testing.T, what string, dtype operation.DType, got, want []byte, srcs [][]byte) {
	t.Helper()
	size := dtype.Size()
	isNaN := func(b []byte) bool {
		switch dtype {
		case operation.Float32:
			x := math.Float32frombits(binary.LittleEndian.Uint32(b))
			return x != x
		case operation.Float64:
			return math.IsNaN(math.Float64frombits(binary.LittleEndian.Uint64(b)))
		case operation.BFloat16:
			return binary.LittleEndian.Uint16(b)&0x7fff > 0x7f80
		case operation.Float16:
			return binary.LittleEndian.Uint16(b)&0x7fff > 0x7c00
		}
		return false
	}
	for i := 0; i < len(want); i += size {
		g, w := got[i:i+size], want[i:i+size]
		if !bytes.Equal(g, w) && !(isNaN(g) && isNaN(w)) {
			t.Errorf("%s: element %d is %x of %x and %x…, want %x", what, i/size, g, srcs[0][i:i+size], srcs[1][i:i+size], w)
			return
		}
	}
}

// TestReductionAllocatesNothing: reductions run on every call of a collective.
func TestReductionAllocatesNothing(t *testing.T) {
	a, b := make([]byte, 4000), make([]byte, 4000)
	srcs := [][]byte{a, b}
	if got := testing.AllocsPerRun(20, func() {
		r, err := ReductionFor(operation.Avg, operation.BFloat16, 2)
		if err != nil {
			t.Fatal(err)
		}
		r.Prepare(a, b)
		r.Into(a, b)
		r.All(a, srcs)
		r.AllTo(srcs, srcs)
		r.Finish(b)
	}); got != 0 {
		t.Errorf("%v allocations", got)
	}
}
