// SPDX-License-Identifier: Apache-2.0

package optim

import (
	"fmt"
	"testing"

	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// BenchmarkStep steps 500 parameters of a thousand elements, as one optimizer
// and as one optimizer each, and one parameter as large as all of them.
func BenchmarkStep(b *testing.B) {
	for _, kind := range []struct {
		name string
		make func(ps []*nn.Parameter) Optimizer
	}{
		{"SGD", func(ps []*nn.Parameter) Optimizer { return NewSGD(ps, SGDOptions{Momentum: 0.9}) }},
		{"AdamW", func(ps []*nn.Parameter) Optimizer { return NewAdamW(ps, AdamWOptions{WeightDecay: 0.01}) }},
		{"RMSprop", func(ps []*nn.Parameter) Optimizer { return NewRMSprop(ps, RMSpropOptions{}) }},
		{"Adagrad", func(ps []*nn.Parameter) Optimizer { return NewAdagrad(ps, AdagradOptions{}) }},
	} {
		for _, size := range []struct {
			n, elems, opts int
		}{{500, 1000, 1}, {500, 1000, 500}, {1, 500_000, 1}, {1, 1000, 1}} {
			ps := make([]*nn.Parameter, size.n)
			for i := range ps {
				ps[i] = nn.NewParameter(tensor.Full(1, size.elems))
				buf, _ := ps[i].GradBuffer()
				buf.Fill(0.01)
				if err := ps[i].GradReady(b.Context()); err != nil {
					b.Fatal(err)
				}
			}
			var opts []Optimizer
			for i := range size.opts {
				each := size.n / size.opts
				opts = append(opts, kind.make(ps[i*each:(i+1)*each]))
			}
			b.Run(fmt.Sprintf("%s/%dx%d/optimizers=%d", kind.name, size.n, size.elems, size.opts), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					for _, o := range opts {
						o.Step(nil)
					}
				}
			})
		}
	}
}

// BenchmarkClipGradNorm takes the norm of 500 gradients of a thousand elements.
func BenchmarkClipGradNorm(b *testing.B) {
	ps := make([]*nn.Parameter, 500)
	for i := range ps {
		ps[i] = nn.NewParameter(tensor.Full(1, 1000))
		buf, _ := ps[i].GradBuffer()
		buf.Fill(0.01)
		if err := ps[i].GradReady(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportAllocs()
	for b.Loop() {
		ClipGradNorm(ps, 1)
	}
}

// BenchmarkSparse steps a table of a million rows of 64, of which 4096 have a
// gradient, and, for comparison, the same table by a dense gradient.
func BenchmarkSparse(b *testing.B) {
	const numRows, width, touched = 1 << 20, 64, 4096
	ids := make([]int64, touched)
	for i := range ids {
		ids[i] = int64(i * (numRows / touched))
	}
	ps := []*nn.Parameter{nn.NewParameter(tensor.Full(1, numRows, width))}
	rows := &tensor.RowGrad{IDs: tensor.FromInt64(ids, touched), Rows: tensor.Full(0.01, touched, width), NumRows: numRows}
	b.Run("SparseAdam", func(b *testing.B) {
		opt := NewSparseAdam(ps, SparseAdamOptions{})
		for b.Loop() {
			ps[0].SetRowGrad(rows)
			opt.Step(nil)
		}
	})
	b.Run("Adagrad", func(b *testing.B) {
		opt := NewAdagrad(ps, AdagradOptions{})
		for b.Loop() {
			ps[0].SetRowGrad(rows)
			opt.Step(nil)
		}
	})
	ps[0].SetRowGrad(nil)
	buf, _ := ps[0].GradBuffer()
	buf.Fill(0.01)
	if err := ps[0].GradReady(b.Context()); err != nil {
		b.Fatal(err)
	}
	b.Run("dense Adam", func(b *testing.B) {
		opt := NewAdam(ps, AdamOptions{})
		for b.Loop() {
			opt.Step(nil)
		}
	})
}
