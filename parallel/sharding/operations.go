// SPDX-License-Identifier: Apache-2.0

package sharding

import "github.com/cohort-ml/cohort/dist/mesh"

// The kinds of operations.
var (
	// pointwise operations are not linear and work on each element by itself.
	pointwise = rule{partial: notLinear, shard: elementwise}
	// scaling is linear in its only operand, by itself on each element.
	scaling = rule{partial: linearIn(0), shard: elementwise}
	// adding is linear in its operands together.
	adding = rule{partial: allAdditive, shard: elementwise}
	// lastDim operations are not linear and need the last dim.
	lastDim = rule{partial: notLinear, shard: alike(1)}
	// byRow operations are not linear and treat each sample by itself.
	byRow = rule{partial: notLinear, shard: onDim(func(_ *operation, dim int) int {
		if dim == 0 {
			return 0
		}
		return -1
	})}
	// choosing operations reduce dims, and are not linear.
	choosing = rule{partial: notLinear, shard: reduced(false)}
	// opaque operations need all of their operands.
	opaque = unknown
	// pooling is linear, and treats each plane by itself.
	pooling = rule{partial: linearIn(0), shard: byRow.shard}
)

// view is the rule of a view that moves dims.
func view(shard func(o *operation) (mesh.Placement, string)) rule {
	return rule{partial: linearIn(0), moves: true, shard: shard}
}

// rules has the rule of each operation of package tensor, by the name in messages. A
// test reads the names from the source of tensor and fails for one that is missing.
var rules = table(
	entry{rule{constant: true}, []string{"scalar", "zeros"}},

	// elementwise
	entry{scaling, []string{"neg", "mul scalar", "div scalar"}},
	entry{rule{partial: linearIn(0), moves: true, shard: elementwise}, []string{"to", "to device", "clone"}},
	entry{rule{partial: addsOnce, shard: elementwise}, []string{"add scalar"}},
	entry{adding, []string{"add", "sub"}},
	entry{rule{partial: bilinear, shard: elementwise}, []string{"mul"}},
	entry{rule{partial: linearIn(0), shard: elementwise}, []string{"div"}},
	entry{rule{partial: additive(1, 2), shard: elementwise}, []string{"where"}},
	entry{pointwise, []string{
		"exp", "log", "sqrt", "rsqrt", "reciprocal", "tanh", "erf", "sin", "cos", "log1p", "expm1", "abs", "square",
		"sign", "floor", "ceil", "round", "pow", "clamp", "maximum", "minimum",
		"eq", "ne", "lt", "le", "gt", "ge", "logical and", "logical or", "logical xor", "logical not", "is nan", "is inf", "is finite",
	}},
	entry{pointwise, []string{
		"relu", "relu grad", "gelu", "gelu grad", "gelu tanh", "gelu tanh grad", "silu", "silu grad", "sigmoid", "sigmoid grad", "swiglu",
		"log sigmoid", "log sigmoid slope", "leaky relu", "leaky relu slope", "elu", "elu slope", "selu", "selu slope", "softplus", "softplus slope",
		"hardtanh", "hardtanh slope", "hardsigmoid", "hardsigmoid slope", "hardswish", "hardswish slope", "mish", "mish slope",
	}},
	// The mask of a dropout may differ between ranks, so that the sum of dropped out
	// parts is not the dropped out sum.
	entry{rule{partial: notLinear, shard: dropped}, []string{"dropout"}},
	entry{pointwise, []string{"attention dropout"}},

	// views and copies
	entry{view(reshaped), []string{"reshape"}},
	entry{view(onDim(permuted)), []string{"permute"}},
	entry{view(onDim(narrowed)), []string{"narrow"}},
	entry{view(onDim(squeezed)), []string{"squeeze"}},
	entry{view(onDim(unsqueezed)), []string{"unsqueeze"}},
	entry{view(onDim(expanded)), []string{"expand"}},
	entry{view(onDim(diagonally)), []string{"diagonal"}},
	entry{view(whole), []string{"embed", "embed diagonal"}},
	entry{view(elementwise), []string{"padding"}},
	entry{rule{partial: allAdditive, moves: true, shard: joined}, []string{"cat"}},
	entry{rule{partial: linearIn(0), shard: lastDims(2)}, []string{"tril", "triu"}},
	entry{rule{partial: notLinear, shard: lastDims(2)}, []string{"causal mask"}},

	// reductions
	entry{rule{partial: linearIn(0), shard: reduced(true)}, []string{"sum"}},
	entry{rule{partial: linearIn(0), shard: averaged}, []string{"mean"}},
	entry{choosing, []string{"amax", "amin", "max", "min", "argmax", "argmin", "all", "any", "prod", "norm", "log sum exp"}},
	entry{lastDim, []string{"softmax", "cumprod", "first zeros"}},
	entry{rule{partial: linearIn(0), shard: whole}, []string{"cumsum"}},
	entry{opaque, []string{"prod grad", "sort", "top k"}},

	// products
	entry{rule{partial: bilinear, shard: multiplied}, []string{"matmul"}},
	entry{rule{partial: bilinear, shard: projected(0, 1), biased: true}, []string{"linear"}},
	entry{rule{partial: bilinear, shard: projected(1, 0), biased: true}, []string{"affine"}},
	entry{rule{partial: bilinear, shard: grouped, biased: true}, []string{"grouped linear"}},
	entry{rule{partial: bilinear, shard: convolved, biased: true}, []string{"conv2d"}},
	entry{rule{partial: bilinear, shard: whole}, []string{"conv2d input grad", "conv2d weight grad"}},
	entry{rule{partial: linearIn(0), shard: whole}, []string{"conv2d bias grad"}},
	entry{rule{partial: notLinear, shard: attended}, []string{"attention", "self attention"}},
	entry{rule{partial: linearIn(0), shard: turned}, []string{"rope"}},
	entry{opaque, []string{"lstm", "gru", "recurrent state", "recurrent weight"}},

	// norms and losses
	entry{lastDim, []string{"layer norm", "rms norm"}},
	entry{rule{partial: notLinear, shard: perRow}, []string{"cross entropy", "nll"}},
	entry{byRow, []string{"group norm"}},
	entry{opaque, []string{"batch norm", "bce"}},

	// indices and pools
	entry{rule{partial: linearIn(0), shard: looked}, []string{"embedding"}},
	entry{rule{partial: linearIn(0), shard: whole}, []string{"index select"}},
	entry{rule{partial: linearIn(0), shard: gathered}, []string{"gather"}},
	entry{rule{partial: additive(0, 1), shard: whole}, []string{"index add", "scatter", "scatter add"}},
	entry{rule{partial: linearIn(0), shard: placed}, []string{"spread rows", "combine rows"}},
	entry{opaque, []string{"embedding bag", "one hot", "group rows", "limit groups", "combine weights", "grouped weight grad", "group sums"}},
	entry{byRow, []string{"max pool", "max pool grad", "max pool grad grad", "adaptive max pool"}},
	entry{pooling, []string{"avg pool", "avg pool grad", "adaptive avg pool", "adaptive avg pool grad"}},
)

// entry is a rule and the operations that have it.
type entry struct {
	rule  rule
	names []string
}

// table makes a map of entries.
func table(entries ...entry) map[string]rule {
	m := make(map[string]rule)
	for _, e := range entries {
		for _, name := range e.names {
			m[name] = e.rule
		}
	}
	return m
}

// lastDims needs the last n dims of the only sharded operand.
func lastDims(n int) func(o *operation) (mesh.Placement, string) {
	return onDim(func(o *operation, dim int) int {
		if dim >= len(o.in[0].shape)-n {
			return -1
		}
		return dim
	})
}

// dropped keeps the shard of what is dropped out. The mask is a list of bits.
func dropped(o *operation) (mesh.Placement, string) {
	if len(o.out) == 1 && len(o.in[0].shape) != 1 {
		return mesh.Replicate(), "" // the bits, which only this operation reads
	}
	return elementwise(o)
}

// turned is a rotation of the last dim by angles of the second: x [batch, time,
// heads, dim] is sharded by samples or heads.
func turned(o *operation) (mesh.Placement, string) {
	if dim, ok := o.in[0].at.IsShard(); !ok || dim == 1 || dim == 3 || dim == 0 && len(o.in[1].shape) == 3 {
		return whole(o)
	}
	return o.in[0].at, ""
}
