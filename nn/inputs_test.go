// SPDX-License-Identifier: Apache-2.0

package nn_test

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// failure returns the *tensor.Error that a pass ends with.
func failure(t *testing.T, compute func(c *nn.Ctx) *tensor.Tensor, opts ...nn.CtxOption) *tensor.Error {
	t.Helper()
	_, err := nn.Backward(t.Context(), compute, opts...)
	var e *tensor.Error
	if !errors.As(err, &e) {
		t.Fatalf("the pass ended with %v, want a *tensor.Error", err)
	}
	return e
}

// TestNumberOfInputs: what a module would leave unread is an error that says
// what it takes.
func TestNumberOfInputs(t *testing.T) {
	b, x := &nn.Build{}, tensor.Zeros(2, 2, 4)
	row, ids := tensor.Zeros(2, 4), tensor.FromInt64([]int64{0, 1}, 1, 2)
	state := tensor.Zeros(1, 2, 4)
	o := nn.TransformerOptions{Width: 4, NumHeads: 2, Hidden: 4}
	for i, c := range []struct {
		want   string
		module nn.ModuleN
		inputs []*tensor.Tensor
	}{
		{"LSTM", nn.NewLSTM(b, 4, 4, nn.RNNOptions{}), []*tensor.Tensor{x, state}},
		{"h and c, or none", nn.NewLSTM(b, 4, 4, nn.RNNOptions{}), []*tensor.Tensor{x, state, nil}},
		{"LSTM", nn.NewLSTM(b, 4, 4, nn.RNNOptions{}), []*tensor.Tensor{x, state, state, state}},
		{"first input is nil", nn.NewLSTM(b, 4, 4, nn.RNNOptions{}), []*tensor.Tensor{nil}},
		{"GRU", nn.NewGRU(b, 4, 4, nn.RNNOptions{}), []*tensor.Tensor{x, state, state}},
		{"LSTMCell", nn.NewLSTMCell(b, 4, 4), []*tensor.Tensor{row, row}},
		{"GRUCell", nn.NewGRUCell(b, 4, 4), []*tensor.Tensor{row, row, row}},
		{"GRUCell", nn.NewGRUCell(b, 4, 4), nil},
		{"EmbeddingBag", nn.NewEmbeddingBag(b, 3, 4, nn.EmbeddingBagOptions{}), []*tensor.Tensor{ids, nil, nil, nil}},
		{"MultiheadAttention", nn.NewMultiheadAttention(b, 4, 2), []*tensor.Tensor{x, x, x, nil, nil}},
		{"TransformerEncoderLayer", nn.NewTransformerEncoderLayer(b, o), []*tensor.Tensor{x, nil, nil}},
		{"TransformerEncoder", nn.NewTransformerEncoder(b, 1, o), []*tensor.Tensor{x, nil, nil}},
		{"TransformerDecoderLayer", nn.NewTransformerDecoderLayer(b, o), []*tensor.Tensor{x}},
		{"TransformerDecoder", nn.NewTransformerDecoder(b, 1, o), []*tensor.Tensor{x, x, nil, nil, nil}},
	} {
		e := failure(t, func(ctx *nn.Ctx) *tensor.Tensor { return ctx.CallN(c.module, c.inputs...)[0].Sum() })
		if !strings.Contains(e.Error(), c.want) || !strings.Contains(e.Msg, "takes") || !strings.Contains(e.Where, "nn/inputs_test.go") {
			t.Errorf("case %d, %s: the error is %v", i, c.want, e)
		}
	}
}

// TestWhere: the error names the line that made the mistake, however it was called.
func TestWhere(t *testing.T) {
	layer, attention := nn.NewLinear(&nn.Build{}, 3, 2), nn.NewMultiheadAttention(&nn.Build{}, 4, 2)
	gru := nn.NewGRU(&nn.Build{}, 5, 2, nn.RNNOptions{})
	x := tensor.Zeros(1, 2, 5)
	for name, pass := range map[string]func(c *nn.Ctx, line *string) *tensor.Tensor{
		"Call": func(c *nn.Ctx, line *string) *tensor.Tensor {
			*line = next()
			return c.Call(layer, x)
		},
		"CallN": func(c *nn.Ctx, line *string) *tensor.Tensor {
			*line = next()
			return c.CallN(attention, x)[0]
		},
		"recurrent": func(c *nn.Ctx, line *string) *tensor.Tensor {
			*line = next()
			return c.CallN(gru, x, tensor.Zeros(1, 2))[0]
		},
		"With": func(c *nn.Ctx, line *string) *tensor.Tensor {
			c = c.With(nn.Recompute(func(any) bool { return true }))
			*line = next()
			return c.Call(layer, x)
		},
	} {
		var line string
		e := failure(t, func(c *nn.Ctx) *tensor.Tensor { return pass(c, &line) })
		if e.Where != line {
			t.Errorf("%s: the error is of %s, want %s", name, e.Where, line)
		}
	}
}

// next returns the line after the caller's.
func next() string {
	_, _, line, _ := runtime.Caller(1)
	return fmt.Sprintf("nn/inputs_test.go:%d", line+1)
}

// TestBackwardMistakes: what is wrong before or after the model ran is an error
// of Backward too.
func TestBackwardMistakes(t *testing.T) {
	e := failure(t, func(*nn.Ctx) *tensor.Tensor { return tensor.Zeros() }, nn.WithAutocast(tensor.Float16))
	if !strings.Contains(e.Msg, "wants bfloat16") || !strings.Contains(e.Where, "nn/inputs_test.go") {
		t.Errorf("autocast to float16 gives %v", e)
	}
	if e := failure(t, func(*nn.Ctx) *tensor.Tensor { return nil }); !strings.Contains(e.Msg, "must return the loss") {
		t.Errorf("no loss gives %v", e)
	}
}

// TestImpossibleModules: a size or option that no input fits is refused where
// the module is made.
func TestImpossibleModules(t *testing.T) {
	b := &nn.Build{}
	for want, build := range map[string]func(){
		"p is 1.5": func() { nn.NewDropout(1.5) },
		"in is 0":  func() { nn.NewLinear(b, 0, 5) },
		"in is -1: it must be at least 1; out is -2": func() { nn.NewLinear(b, -1, -2) },
		"must divide in, 4, and out, 6":              func() { nn.NewConv2d(b, 4, 6, nn.Square(3), nn.Conv2dOptions{Groups: 4}) },
		"the kernel's number of columns is 0":        func() { nn.NewConv2d(b, 4, 6, [2]int{3, 0}, nn.Conv2dOptions{}) },
		"Stride is [-1 1]":                           func() { nn.NewConv2d(b, 4, 6, nn.Square(3), nn.Conv2dOptions{Stride: [2]int{-1, 1}}) },
		"OutputPadding is [0 2]":                     func() { nn.NewConvTranspose2d(b, 4, 6, nn.Square(3), nn.Conv2dOptions{OutputPadding: [2]int{0, 2}}) },
		"PaddingIdx 3 is not one of the table's 3":   func() { nn.NewEmbedding(b, 3, 2, nn.EmbeddingOptions{PaddingIdx: new(3)}) },
		"numRows is -1":                              func() { nn.NewEmbeddingBag(b, -1, 2, nn.EmbeddingBagOptions{}) },
		"hiddenSize is 0":                            func() { nn.NewLSTM(b, 3, 0, nn.RNNOptions{}) },
		"Dropout is -0.1":                            func() { nn.NewGRU(b, 3, 2, nn.RNNOptions{Dropout: -0.1}) },
		"inputSize is 0":                             func() { nn.NewGRUCell(b, 0, 2) },
		"3 heads must divide the width":              func() { nn.NewMultiheadAttention(b, 4, 3) },
	} {
		func() {
			defer func() {
				e, ok := recover().(*tensor.Error)
				if !ok || !strings.Contains(e.Msg, want) || !strings.Contains(e.Where, "nn/inputs_test.go") {
					t.Errorf("got %v, want an error that says %q", e, want)
				}
			}()
			build()
		}()
	}
}
