// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"context"
	"math"
	"strings"
	"testing"
)

// TestClassParts: parts of the classes, put together as their users do, give the loss and the
// gradient of all classes.
func TestClassParts(t *testing.T) {
	const rows, classes = 6, 7
	g := NewGenerator(1)
	logits := Zeros(rows, classes)
	g.Normal(logits, 0, 3)
	targets := FromInt64([]int64{3, 6, IgnoreIndex, 0, 2, 4}, 2, 3)
	for _, dtype := range []DType{Float32, BFloat16} {
		x := logits.To(dtype)
		tape := NewTape(true)
		leaf := tape.Leaf(x)
		want := CrossEntropy(leaf.Reshape(2, 3, classes), targets, CrossEntropyOptions{Reduction: ReduceSum})
		grads, err := want.Grad(context.Background(), nil, []*Tensor{leaf})
		if err != nil {
			t.Fatal(err)
		}
		cuts := []int{0, 3, 3, 7} // the second part is empty
		var parts []*ClassPart
		lse := make([]float64, rows)
		target := make([]float64, rows)
		for i := range len(cuts) - 1 {
			p := NewClassPart(x.Narrow(1, cuts[i], cuts[i+1]-cuts[i]).Reshape(2, 3, cuts[i+1]-cuts[i]), targets, cuts[i], classes, nil)
			parts = append(parts, p)
			for r := range rows {
				lse[r] += float64(p.Sum.Float32s()[r]) * math.Exp(float64(p.Top.Float32s()[r]))
				target[r] += float64(p.Target.Float32s()[r])
			}
		}
		sum, whole := 0.0, Zeros(rows)
		whole.WithFloat32s(func(to []float32) {
			for r := range rows {
				to[r] = float32(math.Log(lse[r]))
				sum += (math.Log(lse[r]) - target[r]) * float64(parts[0].Counts.Float32s()[r])
			}
		})
		if got := want.Item(); math.Abs(got-sum) > 1e-4 {
			t.Errorf("%v: the parts give the loss %v, all classes %v", dtype, sum, got)
		}
		for i, p := range parts {
			if n := 1 / p.PerValid.Item(); n != 5 {
				t.Errorf("%v rows count, want 5", n)
			}
			got := p.Grad(whole, Full(1, rows))
			if got.NumElems() == 0 {
				continue
			}
			if off := got.To(Float32).Sub(grads[0].Untracked().Narrow(1, cuts[i], cuts[i+1]-cuts[i]).To(Float32)).Abs().AMax().Item(); off > 1e-2 || dtype == Float32 && off > 1e-6 {
				t.Errorf("%v: the gradient of part %d is off by %v", dtype, i, off)
			}
		}
		tape.Close()
	}
	defer func() {
		err, ok := recover().(*Error)
		if !ok || !strings.Contains(err.Error(), "target 7 of row 0 is not one of the 7 classes") {
			t.Errorf("got %v, want an error that names the target", err)
		}
	}()
	NewClassPart(logits, FromInt64([]int64{7, 0, 0, 0, 0, 0}), 0, classes, nil)
}

// TestAdopt: a tape frees what it has adopted, and a value that is untracked belongs to none.
func TestAdopt(t *testing.T) {
	tape := NewTape(true)
	x := Full(2, 3)
	y := tape.Adopt(x)
	if y.Tape() != tape || y.NeedsGrad() || tape.LiveBytes() != 12 {
		t.Errorf("the adopted value is under %p and the tape has %d bytes, want %p and 12", y.Tape(), tape.LiveBytes(), tape)
	}
	if u := y.AddScalar(1).Untracked().MulScalar(2); u.Tape() != nil || u.Float32s()[0] != 6 {
		t.Errorf("an untracked value is under %p and gives %v", u.Tape(), u)
	}
	tape.Adopt(x) // again: it has its owner
	tape.Close()
	defer func() {
		if recover() == nil {
			t.Error("the memory is still there after Close")
		}
	}()
	x.Float32s()
}
