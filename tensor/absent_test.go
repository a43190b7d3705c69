// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"reflect"
	"testing"
)

// TestAbsentOperands: an operand that is nil and must not be is an *Error that says
// which, of functions and of methods.
func TestAbsentOperands(t *testing.T) {
	x, x3, x4, w, ids := Full(1, 2, 4), Full(1, 2, 4, 4), Full(1, 2, 4, 4, 4), Full(1, 3, 4), FromInt64([]int64{0, 1})
	gates, state, weight := Full(1, 1, 1, 4), Full(1, 1, 1), Full(1, 4, 1)
	for name, fn := range map[string]func(){
		"layer norm":            func() { LayerNorm(nil, nil, nil, 1e-5) },
		"rms norm":              func() { RMSNorm(nil, nil, 1e-5) },
		"batch norm":            func() { BatchNorm(nil, nil, nil, BatchNormOptions{Training: true}) },
		"group norm":            func() { GroupNorm(nil, 2, nil, nil, 1e-5) },
		"instance norm":         func() { InstanceNorm(nil, nil, nil, 1e-5) },
		"linear":                func() { Linear(x, nil, nil) },
		"affine":                func() { Affine(nil, w, nil) },
		"conv1d":                func() { Conv1d(x3, nil, nil, Conv2dOptions{}) },
		"conv2d":                func() { Conv2d(x4, nil, nil, Conv2dOptions{}) },
		"conv transpose 2d":     func() { ConvTranspose2d(nil, x4, nil, Conv2dOptions{}, [2]int{}) },
		"attention":             func() { ScaledDotProductAttention(x4, x4, nil, AttentionOptions{}) },
		"self attention":        func() { SelfAttention(nil, 1, AttentionOptions{}) },
		"cross entropy":         func() { CrossEntropy(x, nil) },
		"cross entropy, logits": func() { CrossEntropy(nil, ids) },
		"nll":                   func() { NLL(x, nil) },
		"mse":                   func() { MSE(x, nil) },
		"l1":                    func() { L1(nil, x) },
		"smooth l1":             func() { SmoothL1(x, nil, 1) },
		"huber":                 func() { Huber(x, nil, 1) },
		"bce":                   func() { BCE(x, nil) },
		"bce with logits":       func() { BCEWithLogits(x, nil) },
		"kl div":                func() { KLDiv(x, nil) },
		"triplet margin":        func() { TripletMargin(x, x, nil, 1) },
		"margin ranking":        func() { MarginRanking(x, x, nil, 1) },
		"cosine embedding":      func() { CosineEmbedding(x, x, nil, 1) },
		"cosine similarity":     func() { CosineSimilarity(x, nil, 1, 1e-8) },
		"embedding":             func() { Embedding(w, nil) },
		"embedding padded":      func() { EmbeddingPadded(nil, ids, 0) },
		"embedding bag":         func() { EmbeddingBag(w, nil, nil, EmbeddingBagOptions{}) },
		"dropout":               func() { Dropout(nil, 0.5, NewGenerator(1)) },
		"lstm":                  func() { LSTM(gates, nil, state, weight, false) },
		"gru":                   func() { GRU(gates, state, nil, nil, false) },
		"swiglu":                func() { SwiGLU(x, nil) },
		"rope":                  func() { RoPE(x4, nil, nil) },
		"where":                 func() { Where(x.GtScalar(0), nil, x) },
		"cat":                   func() { Cat(0, x, nil) },
		"stack":                 func() { Stack(0, nil, x) },
		"einsum":                func() { Einsum("ij,jk->ik", x, nil) },
		"one hot":               func() { OneHot(nil, 3) },
	} {
		t.Run(name, func(t *testing.T) { mustFail(t, "operand is nil", fn) })
	}
	tensor := reflect.TypeFor[*Tensor]()
	for m := range tensor.Methods() {
		args, takes := []reflect.Value{reflect.ValueOf(x)}, false
		for i := 1; i < m.Type.NumIn(); i++ {
			in := m.Type.In(i)
			takes = takes || in == tensor
			if !m.Type.IsVariadic() || i < m.Type.NumIn()-1 {
				args = append(args, reflect.Zero(in))
			}
		}
		if takes && m.Name != "Grad" { // whose seed is optional
			t.Run(m.Name, func(t *testing.T) { mustFail(t, "operand is nil", func() { m.Func.Call(args) }) })
		}
	}
	_, _ = CrossEntropy(x, ids, CrossEntropyOptions{Weight: nil}), Linear(x, w, nil)
}
