// SPDX-License-Identifier: Apache-2.0

package models

import (
	"fmt"
	"math"

	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// DLRMConfig is the size of a recommender.
type DLRMConfig struct {
	Tables []int // rows of each embedding table
	Width  int   // of the tables
	Bottom []int // widths of the network for dense features; the last is Width
	Top    []int // widths after the input of the network for the interactions; the last is 1
	Sparse bool  // tables take their gradients by rows
}

// Validate reports a size that makes no model.
func (g DLRMConfig) Validate() error {
	sizes := []size{{"width", g.Width, 1 << 20}, {"number of tables", len(g.Tables), 1 << 16}}
	for _, rows := range g.Tables {
		sizes = append(sizes, size{"number of rows", rows, 1 << 40})
	}
	for _, w := range g.Bottom {
		sizes = append(sizes, size{"bottom width", w, 1 << 20})
	}
	for _, w := range g.Top {
		sizes = append(sizes, size{"top width", w, 1 << 20})
	}
	if err := checkSizes("DLRM", sizes); err != nil {
		return err
	}
	if n := len(g.Bottom); n < 2 || g.Bottom[n-1] != g.Width {
		return fmt.Errorf("models: the bottom network of a DLRM has the widths %v: want two or more, the last the tables' %d", g.Bottom, g.Width)
	}
	if n := len(g.Top); n < 1 || g.Top[n-1] != 1 {
		return fmt.Errorf("models: the top network of a DLRM has the widths %v: want one or more, the last 1", g.Top)
	}
	return nil
}

// DLRM is the deep learning recommendation model of Naumov et al. 2019 (arXiv
// 1906.00091) with the names of its reference implementation: dense features go
// through a network, categorical ones through tables, the dot products of all
// pairs of these vectors through another network.
type DLRM struct {
	Config DLRMConfig         `name:"-"`
	Bottom *nn.Sequential     `name:"bot_l"`
	Tables []*nn.EmbeddingBag `name:"emb_l"`
	Top    *nn.Sequential     `name:"top_l"`

	lower []int64 // where the pairs lie in their matrix
}

// NewDLRM returns a DLRM. It panics when the configuration is not valid.
func NewDLRM(b *nn.Build, g DLRMConfig) *DLRM {
	if err := g.Validate(); err != nil {
		panic(tensor.NewError("new dlrm", nil, "%v", err))
	}
	m := &DLRM{Config: g, Bottom: NewMLP(b, g.Bottom...)}
	m.Bottom.Layers = append(m.Bottom.Layers, &nn.ReLU{}) // the reference bends here too
	for _, rows := range g.Tables {
		table := &nn.EmbeddingBag{Weight: b.Uniform(1/math.Sqrt(float64(rows)), rows, g.Width), Mode: tensor.BagSum}
		table.Weight.Sparse = g.Sparse
		m.Tables = append(m.Tables, table)
	}
	vectors := len(g.Tables) + 1
	for i := range vectors {
		for j := range i {
			m.lower = append(m.lower, int64(i*vectors+j))
		}
	}
	m.Top = NewMLP(b, append([]int{g.Width + len(m.lower)}, g.Top...)...)
	return m
}

// ForwardN takes dense features [batch, Bottom[0]] and then, for each table,
// int64 ids of all bags behind each other [n] and where each sample's bag begins
// among them, int64 [batch]. It returns logits [batch, 1].
func (m *DLRM) ForwardN(c *nn.Ctx, in ...*tensor.Tensor) []*tensor.Tensor {
	nn.WantInputs("DLRM", in, fmt.Sprintf("%d tensors, dense features and ids and offsets of each of %d tables", 1+2*len(m.Tables), len(m.Tables)), 1+2*len(m.Tables))
	dense := c.Call(m.Bottom, in[0])
	vectors := []*tensor.Tensor{dense}
	for i, table := range m.Tables {
		vectors = append(vectors, c.CallN(table, in[1+2*i], in[2+2*i])[0])
	}
	features := tensor.Cat(1, dense, m.interact(vectors))
	return []*tensor.Tensor{c.Call(m.Top, features)}
}

// interact returns the dot products of all pairs of vectors [batch, width]:
// [batch, pairs], those of vector 1 with 0, 2 with 0 and 1, and so on.
func (m *DLRM) interact(vectors []*tensor.Tensor) *tensor.Tensor {
	stacked := tensor.Stack(1, vectors...) // [batch, vectors, width]
	products := stacked.MatMul(stacked.T())
	return products.Flatten(1, 2).IndexSelect(1, tensor.On(products.Device()).FromInt64(m.lower))
}
