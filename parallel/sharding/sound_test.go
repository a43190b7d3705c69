// SPDX-License-Identifier: Apache-2.0

package sharding

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"testing"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/dist/mesh"
	"github.com/cohort-ml/cohort/internal/seeded"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// The tests of this file play the ranks of an axis one after the other. They give
// each operand each placement, run the operation on what each rank then has, and put
// the results together as the type of the result says. Where the type is not refused,
// that must be what the operation makes of the whole operands.

const numRanks = 2

// program is an operation, or a few, on operands of these global shapes.
type program struct {
	name   string
	shapes [][]int
	run    func(x []*tensor.Tensor) *tensor.Tensor
	ids    int // the operand that has ids below 4, -1 for none
	keeps  []string
}

// programs lists what the rules are for. keeps has some types that must not be
// refused, as "operands: result".
var programs = []program{
	{"add", [][]int{{4, 6}, {4, 6}}, func(x []*tensor.Tensor) *tensor.Tensor { return x[0].Add(x[1]) }, -1,
		[]string{"Partial(sum) Partial(sum): Partial(sum)", "Shard(0) Shard(0): Shard(0)"}},
	{"add a row", [][]int{{4, 6}, {6}}, func(x []*tensor.Tensor) *tensor.Tensor { return x[0].Add(x[1]) }, -1,
		[]string{"Shard(0) Replicate: Shard(0)", "Shard(1) Shard(0): Shard(1)"}},
	{"sub neg", [][]int{{4, 6}, {4, 6}}, func(x []*tensor.Tensor) *tensor.Tensor { return x[0].Sub(x[1].Neg()) }, -1,
		[]string{"Partial(sum) Partial(sum): Partial(sum)"}},
	{"mul", [][]int{{4, 6}, {4, 1}}, func(x []*tensor.Tensor) *tensor.Tensor { return x[0].Mul(x[1]) }, -1,
		[]string{"Partial(sum) Replicate: Partial(sum)", "Replicate Partial(sum): Partial(sum)", "Shard(1) Replicate: Shard(1)"}},
	{"div", [][]int{{4, 6}, {4, 6}}, func(x []*tensor.Tensor) *tensor.Tensor { return x[0].Div(x[1].Square().AddScalar(1)) }, -1,
		[]string{"Partial(sum) Replicate: Partial(sum)", "Shard(1) Shard(1): Shard(1)"}},
	{"scalars", [][]int{{4, 6}}, func(x []*tensor.Tensor) *tensor.Tensor { return x[0].MulScalar(3).DivScalar(2) }, -1,
		[]string{"Partial(sum): Partial(sum)"}},
	{"add scalar", [][]int{{4, 6}}, func(x []*tensor.Tensor) *tensor.Tensor { return x[0].AddScalar(1) }, -1, []string{"Shard(1): Shard(1)"}},
	{"gelu", [][]int{{4, 6}}, func(x []*tensor.Tensor) *tensor.Tensor { return x[0].GELU() }, -1, []string{"Shard(0): Shard(0)"}},
	{"swiglu", [][]int{{4, 6}, {4, 6}}, func(x []*tensor.Tensor) *tensor.Tensor { return tensor.SwiGLU(x[0], x[1]) }, -1, []string{"Shard(1) Shard(1): Shard(1)"}},
	{"maximum", [][]int{{4, 6}, {6}}, func(x []*tensor.Tensor) *tensor.Tensor { return x[0].Maximum(x[1]) }, -1, nil},
	{"where", [][]int{{4, 6}, {4, 6}, {4, 6}}, func(x []*tensor.Tensor) *tensor.Tensor { return tensor.Where(x[0].GtScalar(0), x[1], x[2]) }, -1,
		[]string{"Replicate Partial(sum) Partial(sum): Partial(sum)", "Shard(0) Shard(0) Shard(0): Shard(0)"}},
	{"reshape", [][]int{{4, 6}}, func(x []*tensor.Tensor) *tensor.Tensor { return x[0].Reshape(x[0].Dim(0), x[0].Dim(1)/3, 3) }, -1,
		[]string{"Shard(0): Shard(0)", "Shard(1): Shard(1)", "Partial(max): Partial(max)"}},
	{"flatten", [][]int{{2, 4, 6}}, func(x []*tensor.Tensor) *tensor.Tensor { return x[0].Flatten(0, 1) }, -1,
		[]string{"Shard(0): Shard(0)", "Shard(1): StridedShard(0, 2)", "Shard(2): Shard(1)"}},
	{"flatten and back", [][]int{{2, 4, 6}}, func(x []*tensor.Tensor) *tensor.Tensor {
		return x[0].Flatten(0, 1).MulScalar(2).Reshape(x[0].Shape()...)
	}, -1, []string{"Shard(0): Shard(0)", "Shard(1): Shard(1)", "Shard(2): Shard(2)"}},
	{"flatten and back, of one each", [][]int{{3, 2, 6}}, func(x []*tensor.Tensor) *tensor.Tensor {
		return tensor.LayerNorm(x[0], nil, nil, 1e-5)
	}, -1, []string{"Shard(1): Shard(1)"}},
	{"heads of one each", [][]int{{3, 2, 6}}, func(x []*tensor.Tensor) *tensor.Tensor {
		return x[0].Reshape(3, x[0].Dim(1), x[0].Dim(2)/3, 3)
	}, -1, []string{"Shard(2): Shard(2)", "Shard(1): Shard(1)"}},
	{"permute", [][]int{{2, 4, 6}}, func(x []*tensor.Tensor) *tensor.Tensor { return x[0].Permute(2, 0, 1) }, -1,
		[]string{"Shard(0): Shard(1)", "Shard(2): Shard(0)", "Partial(sum): Partial(sum)"}},
	{"narrow", [][]int{{4, 6}}, func(x []*tensor.Tensor) *tensor.Tensor { return x[0].Narrow(1, 1, 2) }, -1, []string{"Shard(0): Shard(0)", "Partial(sum): Partial(sum)"}},
	{"select", [][]int{{2, 4, 6}}, func(x []*tensor.Tensor) *tensor.Tensor { return x[0].Select(1, 2) }, -1, []string{"Shard(0): Shard(0)", "Shard(2): Shard(1)"}},
	{"unsqueeze and expand", [][]int{{4, 6}}, func(x []*tensor.Tensor) *tensor.Tensor {
		return x[0].Unsqueeze(1).Expand(x[0].Dim(0), 3, x[0].Dim(1))
	}, -1, []string{"Shard(0): Shard(0)", "Shard(1): Shard(2)", "Partial(sum): Partial(sum)"}},
	{"diagonal", [][]int{{2, 4, 4}}, func(x []*tensor.Tensor) *tensor.Tensor { return x[0].Diagonal(0, 1, 2) }, -1, []string{"Shard(0): Shard(0)"}},
	{"cat", [][]int{{4, 6}, {4, 2}}, func(x []*tensor.Tensor) *tensor.Tensor { return tensor.Cat(1, x...) }, -1,
		[]string{"Partial(sum) Partial(sum): Partial(sum)", "Shard(0) Shard(0): Shard(0)"}},
	{"tril", [][]int{{2, 4, 4}}, func(x []*tensor.Tensor) *tensor.Tensor { return x[0].Tril(0) }, -1, []string{"Shard(0): Shard(0)", "Partial(sum): Partial(sum)"}},
	{"sum", [][]int{{4, 6}}, func(x []*tensor.Tensor) *tensor.Tensor { return x[0].Sum(0) }, -1,
		[]string{"Shard(0): Partial(sum)", "Shard(1): Shard(0)", "Partial(sum): Partial(sum)"}},
	{"sum of all", [][]int{{4, 6}}, func(x []*tensor.Tensor) *tensor.Tensor { return x[0].Sum() }, -1, []string{"Shard(0): Partial(sum)", "Shard(1): Partial(sum)"}},
	{"mean", [][]int{{4, 6}}, func(x []*tensor.Tensor) *tensor.Tensor { return x[0].MeanKeep(-1) }, -1, []string{"Shard(0): Shard(0)", "Partial(sum): Partial(sum)"}},
	{"cumsum", [][]int{{4, 6}}, func(x []*tensor.Tensor) *tensor.Tensor { return x[0].CumSum(1) }, -1, []string{"Partial(sum): Partial(sum)"}},
	{"amax", [][]int{{4, 6}}, func(x []*tensor.Tensor) *tensor.Tensor { return x[0].AMax(1) }, -1, []string{"Shard(0): Shard(0)"}},
	{"softmax", [][]int{{4, 6}}, func(x []*tensor.Tensor) *tensor.Tensor { return x[0].Softmax(-1) }, -1, []string{"Shard(0): Shard(0)"}},
	{"softmax of the first dim", [][]int{{4, 6}}, func(x []*tensor.Tensor) *tensor.Tensor { return x[0].Softmax(0) }, -1, []string{"Shard(1): Shard(1)"}},
	{"log softmax", [][]int{{4, 6}}, func(x []*tensor.Tensor) *tensor.Tensor { return x[0].LogSoftmax(-1) }, -1, []string{"Shard(0): Shard(0)"}},
	{"layer norm", [][]int{{2, 4, 6}, {6}, {6}}, func(x []*tensor.Tensor) *tensor.Tensor { return tensor.LayerNorm(x[0], x[1], x[2], 1e-5) }, -1,
		[]string{"Shard(0) Replicate Replicate: Shard(0)", "Shard(1) Replicate Replicate: Shard(1)"}},
	{"rms norm", [][]int{{2, 4, 6}, {6}}, func(x []*tensor.Tensor) *tensor.Tensor { return tensor.RMSNorm(x[0], x[1], 1e-5) }, -1,
		[]string{"Shard(0) Replicate: Shard(0)", "Shard(1) Replicate: Shard(1)"}},
	{"group norm", [][]int{{2, 4, 6}, {4}, {4}}, func(x []*tensor.Tensor) *tensor.Tensor { return tensor.GroupNorm(x[0], 2, x[1], x[2], 1e-5) }, -1,
		[]string{"Shard(0) Replicate Replicate: Shard(0)"}},
	{"matmul", [][]int{{2, 4, 6}, {2, 6, 4}}, func(x []*tensor.Tensor) *tensor.Tensor { return x[0].MatMul(x[1]) }, -1,
		[]string{"Shard(2) Shard(1): Partial(sum)", "Shard(1) Replicate: Shard(1)", "Replicate Shard(2): Shard(2)", "Shard(0) Shard(0): Shard(0)", "Partial(sum) Replicate: Partial(sum)"}},
	{"linear", [][]int{{2, 4, 6}, {8, 6}}, func(x []*tensor.Tensor) *tensor.Tensor { return tensor.Linear(x[0], x[1], nil) }, -1,
		[]string{"Shard(0) Replicate: Shard(0)", "Shard(1) Replicate: Shard(1)", "Replicate Shard(0): Shard(2)", "Shard(2) Shard(1): Partial(sum)", "Partial(sum) Replicate: Partial(sum)", "Replicate Partial(sum): Partial(sum)"}},
	{"linear with a bias", [][]int{{4, 6}, {8, 6}, {8}}, func(x []*tensor.Tensor) *tensor.Tensor { return tensor.Linear(x[0], x[1], x[2]) }, -1,
		[]string{"Shard(0) Replicate Replicate: Shard(0)", "Replicate Shard(0) Shard(0): Shard(1)", "Shard(1) Shard(1) Partial(sum): Partial(sum)", "Partial(sum) Replicate Partial(sum): Partial(sum)"}},
	{"affine", [][]int{{4, 6}, {6, 8}, {8}}, func(x []*tensor.Tensor) *tensor.Tensor { return tensor.Affine(x[0], x[1], x[2]) }, -1,
		[]string{"Replicate Shard(1) Shard(0): Shard(1)", "Shard(1) Shard(0) Partial(sum): Partial(sum)"}},
	{"grouped linear", [][]int{{6, 4}, {4, 8, 4}}, func(x []*tensor.Tensor) *tensor.Tensor {
		return tensor.GroupedLinear(x[0], x[1], nil, groupCounts(x[1].Dim(0)))
	}, -1, []string{"Replicate Shard(1): Shard(1)", "Shard(1) Shard(2): Partial(sum)", "Partial(sum) Replicate: Partial(sum)"}},
	{"grouped linear with a bias", [][]int{{6, 4}, {4, 8, 4}, {4, 8}}, func(x []*tensor.Tensor) *tensor.Tensor {
		return tensor.GroupedLinear(x[0], x[1], x[2], groupCounts(x[1].Dim(0)))
	}, -1, []string{"Replicate Shard(1) Shard(1): Shard(1)", "Shard(1) Shard(2) Partial(sum): Partial(sum)"}},
	{"spread rows", [][]int{{3, 4}}, func(x []*tensor.Tensor) *tensor.Tensor { return tensor.SpreadRows(x[0], groupPlaces(), 6) }, -1,
		[]string{"Shard(1): Shard(1)", "Partial(sum): Partial(sum)"}},
	{"combine rows", [][]int{{6, 4}, {3, 2}}, func(x []*tensor.Tensor) *tensor.Tensor { return tensor.CombineRows(x[0], groupPlaces(), x[1]) }, -1,
		[]string{"Shard(1) Replicate: Shard(1)", "Partial(sum) Replicate: Partial(sum)"}},
	{"conv2d", [][]int{{2, 4, 3, 3}, {4, 4, 2, 2}, {4}}, func(x []*tensor.Tensor) *tensor.Tensor {
		return tensor.Conv2d(x[0], x[1], x[2], tensor.Conv2dOptions{})
	}, -1,
		[]string{"Shard(0) Replicate Replicate: Shard(0)", "Replicate Shard(0) Shard(0): Shard(1)", "Shard(1) Shard(1) Partial(sum): Partial(sum)"}},
	{"embedding", [][]int{{4, 6}, {2, 4}}, func(x []*tensor.Tensor) *tensor.Tensor { return tensor.Embedding(x[0], x[1]) }, 1,
		[]string{"Partial(sum) Replicate: Partial(sum)", "Shard(1) Replicate: Shard(2)", "Replicate Shard(0): Shard(0)", "Replicate Shard(1): Shard(1)"}},
	{"index select", [][]int{{4, 6}, {4}}, func(x []*tensor.Tensor) *tensor.Tensor { return x[0].IndexSelect(0, x[1]) }, 1, []string{"Partial(sum) Replicate: Partial(sum)"}},
	{"gather", [][]int{{6, 4}, {6, 2}}, func(x []*tensor.Tensor) *tensor.Tensor { return x[0].Gather(1, x[1]) }, 1, []string{"Shard(0) Shard(0): Shard(0)", "Partial(sum) Replicate: Partial(sum)"}},
	{"index add", [][]int{{4, 6}, {2}, {2, 6}}, func(x []*tensor.Tensor) *tensor.Tensor { return x[0].IndexAdd(0, x[1], x[2]) }, 1, []string{"Partial(sum) Replicate Partial(sum): Partial(sum)"}},
	{"cross entropy of rows", [][]int{{6, 4}, {6}}, func(x []*tensor.Tensor) *tensor.Tensor {
		return tensor.CrossEntropy(x[0], x[1], tensor.CrossEntropyOptions{Reduction: tensor.ReduceNone})
	}, 1, []string{"Shard(0) Shard(0): Shard(0)"}},
	{"attention", [][]int{{2, 4, 2, 4}, {2, 4, 2, 4}, {2, 4, 2, 4}}, func(x []*tensor.Tensor) *tensor.Tensor {
		return tensor.ScaledDotProductAttention(x[0], x[1], x[2], tensor.AttentionOptions{Causal: true})
	}, -1, []string{"Shard(0) Shard(0) Shard(0): Shard(0)", "Shard(2) Shard(2) Shard(2): Shard(2)"}},
	{"rope", [][]int{{2, 4, 2, 4}, {4, 2}, {4, 2}}, func(x []*tensor.Tensor) *tensor.Tensor { return tensor.RoPE(x[0], x[1], x[2]) }, -1,
		[]string{"Shard(0) Replicate Replicate: Shard(0)", "Shard(2) Replicate Replicate: Shard(2)"}},
	{"avg pool", [][]int{{2, 4, 4, 4}}, func(x []*tensor.Tensor) *tensor.Tensor { return tensor.AdaptiveAvgPool2d(x[0], 2, 2) }, -1, []string{"Shard(0): Shard(0)", "Partial(sum): Partial(sum)"}},
	{"max pool", [][]int{{2, 4, 4, 4}}, func(x []*tensor.Tensor) *tensor.Tensor { return tensor.AdaptiveMaxPool2d(x[0], 2, 2) }, -1, []string{"Shard(0): Shard(0)"}},
	{"convert", [][]int{{4, 6}}, func(x []*tensor.Tensor) *tensor.Tensor { return x[0].To(tensor.Float64).Clone().To(tensor.Float32) }, -1, []string{"Partial(sum): Partial(sum)", "Shard(1): Shard(1)"}},
	{"roll and flip", [][]int{{4, 6}}, func(x []*tensor.Tensor) *tensor.Tensor { return x[0].Roll([]int{1}, []int{1}) }, -1, []string{"Shard(0): Shard(0)", "Partial(sum): Partial(sum)"}},
}

// groupCounts are the rows of groups, one row of six being in none.
func groupCounts(n int) *tensor.Tensor { return tensor.FromInt64([]int64{2, 0, 2, 1}[:n]) }

// groupPlaces are the places of three rows, two each.
func groupPlaces() *tensor.Tensor { return tensor.FromInt64([]int64{3, 0, 5, -1, 2, 1}, 3, 2) }

// TestTypesAreSound: what is not refused is true, of values and of their gradients.
func TestTypesAreSound(t *testing.T) {
	gen := tensor.NewGenerator(int64(seeded.Of(t)))
	numKept := 0
	for _, prog := range programs {
		t.Run(prog.name, func(t *testing.T) {
			kept := map[string]bool{}
			for at := range placements(prog.shapes) {
				result := prog.check(t, gen, at)
				if result != "" {
					kept[result] = true
					prog.checkGradients(t, gen, at)
				}
			}
			numKept += len(kept)
			for _, want := range prog.keeps {
				if !kept[want] {
					t.Errorf("%q was refused, or is another type: kept are %q", want, slices.Sorted(maps.Keys(kept)))
				}
			}
		})
	}
	if t.Logf("%d types and %d gradients are what they say", numKept, numGradients); numGradients < 150 {
		t.Errorf("only %d gradients were compared", numGradients)
	}
	if numKept < 150 {
		t.Errorf("%d types in all were not refused, want at least 150", numKept)
	}
}

func normal(gen *tensor.Generator, shape []int) *tensor.Tensor {
	x := tensor.Zeros(shape...)
	gen.Normal(x, 0, 1)
	return x
}

// placements iterates over all placements of operands.
func placements(shapes [][]int) func(yield func(Type) bool) {
	choices := make([]Type, len(shapes))
	for i, shape := range shapes {
		choices[i] = Type{mesh.Replicate(), mesh.Partial(dist.Sum), mesh.Partial(dist.Max)}
		for d, n := range shape {
			if n%numRanks == 0 {
				choices[i] = append(choices[i], mesh.Shard(d))
			}
		}
	}
	return func(yield func(Type) bool) {
		var next func(at Type) bool
		next = func(at Type) bool {
			if len(at) == len(shapes) {
				return yield(at)
			}
			for _, c := range choices[len(at)] {
				if !next(append(slices.Clone(at), c)) {
					return false
				}
			}
			return true
		}
		next(nil)
	}
}

// check runs the program with these placements. It returns "" if they were refused.
func (prog program) check(t *testing.T, gen *tensor.Generator, at Type) (kept string) {
	t.Helper()
	if prog.ids >= 0 {
		if _, partial := at[prog.ids].IsPartial(); partial {
			return "" // of ids there are no parts
		}
	}
	whole, parts := prog.operands(gen, at)
	want := prog.run(whole)
	var results []*tensor.Tensor
	var typ Type
	for r := range numRanks {
		tape := tensor.NewTape(true)
		defer tape.Close()
		pass := Begin(tape, Axis{Name: "tp"})
		operands := make([]*tensor.Tensor, len(parts[r]))
		for i, x := range parts[r] {
			pass.Param(x, Parameter{Name: fmt.Sprint(i), Value: Type{at[i]}})
			operands[i] = tape.Watch(x, nil)
		}
		out, err := try(func() *tensor.Tensor { return prog.run(operands) })
		if err != nil {
			return ""
		}
		typ = pass.TypeOf(out)
		results = append(results, copyOf(out))
	}
	got := assemble(results, want.Shape(), typ[0])
	name := fmt.Sprint(at)
	name = name[1:len(name)-1] + ": " + typ[0].String()
	if got == nil || !near(got, want) {
		t.Errorf("%s: it is not what the operation makes of the whole operands", name)
	}
	return name
}

// numGradients is how many gradients were compared.
var numGradients int

// copyOf returns a value of another tape in float32, under none.
func copyOf(x *tensor.Tensor) *tensor.Tensor {
	return tensor.FromFloat32(x.To(tensor.Float32).Float32s(), x.NumElems()).Reshape(x.Shape()...)
}

// checkGradients runs the program, whose placements are not refused, and compares the
// gradients that the ranks get with those of the whole operands.
func (prog program) checkGradients(t *testing.T, gen *tensor.Generator, at Type) {
	t.Helper()
	whole, parts := prog.operands(gen, at)
	tape := tensor.NewTape(true)
	defer tape.Close()
	leaves := make([]*tensor.Tensor, len(whole))
	for i, x := range whole {
		leaves[i] = tape.Watch(x, &nn.Parameter{})
	}
	out := prog.run(leaves)
	if !out.NeedsGrad() {
		return
	}
	seed := normal(gen, out.Shape())
	want, err := out.Grad(t.Context(), seed, prog.floats(leaves))
	if err != nil {
		t.Fatal(err)
	}
	got, types := make([][]*tensor.Tensor, len(want)), make(Type, len(want))
	var seeds []*tensor.Tensor
	for r := range numRanks {
		tape := tensor.NewTape(true)
		defer tape.Close()
		pass := Begin(tape, Axis{Name: "tp"})
		for i, x := range parts[r] {
			pass.Param(x, Parameter{Name: fmt.Sprint(i), Value: Type{at[i]}})
			leaves[i] = tape.Watch(x, &nn.Parameter{})
		}
		out := prog.run(leaves)
		v := pass.valueOf(out)
		if op, partial := v.at[0].IsPartial(); partial && op != dist.Sum {
			return
		} else if v.grad = slices.Clone(v.at); partial {
			v.grad[0] = mesh.Replicate()
		}
		if seeds == nil {
			seeds = spread(gen, seed, v.grad[0])
		}
		for _, f := range slices.Backward(pass.flows) {
			if f.out.grad != nil {
				pass.flow(f)
			}
		}
		grads, err := out.Grad(t.Context(), seeds[r], prog.floats(leaves))
		if err != nil {
			t.Fatal(err)
		}
		for i, leaf := range prog.floats(leaves) {
			if grads[i] != nil {
				got[i] = append(got[i], copyOf(grads[i]))
				types[i] = pass.valueOf(leaf).grad[0]
			}
		}
	}
	for i := range want {
		if (want[i] == nil) != (got[i] == nil) {
			t.Errorf("%v: operand %d: a gradient comes to the whole or to the parts alone", at, i)
		} else if want[i] != nil {
			numGradients++
			if all := assemble(got[i], want[i].Shape(), types[i]); all == nil || !near(all, want[i]) {
				t.Errorf("%v: the gradient of operand %d is not %v", at, i, types[i])
			}
		}
	}
}

// floats returns the operands that have gradients.
func (prog program) floats(operands []*tensor.Tensor) []*tensor.Tensor {
	return slices.DeleteFunc(slices.Clone(operands), func(x *tensor.Tensor) bool { return !x.DType().IsFloat() })
}

// operands draws operands, whole and as each rank has them.
func (prog program) operands(gen *tensor.Generator, at Type) (whole []*tensor.Tensor, parts [][]*tensor.Tensor) {
	whole, parts = make([]*tensor.Tensor, len(prog.shapes)), make([][]*tensor.Tensor, numRanks)
	for i, shape := range prog.shapes {
		if i == prog.ids {
			ids := make([]int64, product(shape))
			for j := range ids {
				ids[j] = int64((j*7 + 3) % 4 % shape[len(shape)-1])
				if prog.name != "gather" && prog.name != "index add" {
					ids[j] = int64((j*7 + 3) % 4)
				}
			}
			whole[i] = tensor.FromInt64(ids, shape...)
		} else {
			whole[i] = normal(gen, shape)
		}
		for r, part := range spread(gen, whole[i], at[i]) {
			parts[r] = append(parts[r], part)
		}
	}
	return whole, parts
}

// try runs fn and returns what a check, or a shape that does not fit, panics with.
func try(fn func() *tensor.Tensor) (out *tensor.Tensor, err error) {
	defer func() {
		if e, ok := recover().(error); ok {
			err = e
		}
	}()
	return fn(), nil
}

// spread returns what each rank has of a value.
func spread(gen *tensor.Generator, x *tensor.Tensor, at mesh.Placement) []*tensor.Tensor {
	parts := make([]*tensor.Tensor, numRanks)
	op, partial := at.IsPartial()
	dim, shard := at.IsShard()
	for r := range parts {
		switch {
		case shard:
			// With pieces, each has a chunk of each rank.
			k := at.NumPieces()
			n := x.Dim(dim) / numRanks / k
			var chunks []*tensor.Tensor
			for i := range k {
				chunks = append(chunks, x.Narrow(dim, (i*numRanks+r)*n, n))
			}
			parts[r] = tensor.Cat(dim, chunks...)
		case partial && r == 0:
			parts[r] = normal(gen, x.Shape())
		case partial && op == dist.Sum:
			parts[r] = x.Sub(parts[0])
		case partial: // the maximum
			parts[r] = x.Clone()
			parts[0] = x.Minimum(parts[0])
		default:
			parts[r] = x.Clone()
		}
	}
	return parts
}

// assemble puts results together, nil if they do not make the shape.
func assemble(parts []*tensor.Tensor, shape []int, at mesh.Placement) *tensor.Tensor {
	op, partial := at.IsPartial()
	dim, shard := at.IsShard()
	out := parts[0]
	switch {
	case shard:
		// With pieces, each has a chunk of each rank.
		k := at.NumPieces()
		var chunks []*tensor.Tensor
		for i := range k {
			for _, p := range parts {
				n := p.Dim(dim) / k
				chunks = append(chunks, p.Narrow(dim, i*n, n))
			}
		}
		out = tensor.Cat(dim, chunks...)
	case partial:
		for _, p := range parts[1:] {
			if op == dist.Sum {
				out = out.Add(p)
			} else {
				out = out.Maximum(p)
			}
		}
	}
	if !slices.Equal(out.Shape(), shape) {
		return nil
	}
	return out
}

func near(a, b *tensor.Tensor) bool {
	x, y := a.To(tensor.Float32).Float32s(), b.To(tensor.Float32).Float32s()
	for i := range x {
		if d := math.Abs(float64(x[i] - y[i])); d > 1e-4*(1+math.Abs(float64(y[i]))) || d != d {
			return false
		}
	}
	return true
}
