// SPDX-License-Identifier: Apache-2.0

package nn

import "github.com/cohort-ml/cohort/tensor"

// EmbeddingOptions are those of PyTorch's Embedding that are not its sizes.
type EmbeddingOptions struct {
	// PaddingIdx, if not nil, is a row that begins as zeros and gets no gradient:
	// new(0) is the first.
	PaddingIdx *int
	// Sparse makes the weight take its gradient by rows; see [Parameter.Sparse].
	Sparse bool
}

// Embedding is a table of vectors: int64 ids [batch…] to [batch…, width].
type Embedding struct {
	Weight     *Parameter // [numRows, width]
	PaddingIdx *int       // nil for none
}

// NewEmbedding returns a table drawn from a normal distribution of deviation 1,
// PyTorch's default (its numbers differ: they come from another generator). At
// most one EmbeddingOptions may be given.
func NewEmbedding(b *Build, numRows, width int, options ...EmbeddingOptions) *Embedding {
	var o EmbeddingOptions
	if len(options) > 0 {
		o = options[0]
	}
	return &Embedding{Weight: newTable(b, numRows, width, o.PaddingIdx, o.Sparse), PaddingIdx: o.PaddingIdx}
}

func newTable(b *Build, numRows, width int, paddingIdx *int, sparse bool) *Parameter {
	c := checks{op: "new embedding"}
	c.positive("numRows", numRows)
	c.positive("width", width)
	if paddingIdx != nil {
		c.want(*paddingIdx >= 0 && *paddingIdx < numRows, "PaddingIdx %d is not one of the table's %d rows", *paddingIdx, numRows)
	}
	c.end()
	p := b.Normal(1, numRows, width)
	p.Sparse = sparse
	if paddingIdx != nil {
		p.data.Select(0, *paddingIdx).Fill(0)
	}
	return p
}

// Forward looks the ids up.
func (e *Embedding) Forward(c *Ctx, ids *tensor.Tensor) *tensor.Tensor {
	if e.PaddingIdx != nil {
		return tensor.EmbeddingPadded(c.Param(e.Weight), ids, *e.PaddingIdx)
	}
	return tensor.Embedding(c.Param(e.Weight), ids)
}

// EmbeddingBagOptions are those of PyTorch's EmbeddingBag that are not its
// sizes.
type EmbeddingBagOptions struct {
	Mode              tensor.BagMode // the mean by default
	Sparse            bool           // as in EmbeddingOptions
	IncludeLastOffset bool           // the last offset is where the last bag ends
	PaddingIdx        *int           // an id that does not count, nil for none
}

// EmbeddingBag is a table of vectors of which each bag of ids gets the sum, mean
// or maximum; see [tensor.EmbeddingBag].
type EmbeddingBag struct {
	Weight            *Parameter // [numRows, width]
	Mode              tensor.BagMode
	IncludeLastOffset bool
	PaddingIdx        *int
}

// NewEmbeddingBag returns a table drawn as NewEmbedding's.
func NewEmbeddingBag(b *Build, numRows, width int, o EmbeddingBagOptions) *EmbeddingBag {
	return &EmbeddingBag{
		Weight: newTable(b, numRows, width, o.PaddingIdx, o.Sparse),
		Mode:   o.Mode, IncludeLastOffset: o.IncludeLastOffset, PaddingIdx: o.PaddingIdx,
	}
}

// Forward takes ids [bags, n] to [bags, width].
func (e *EmbeddingBag) Forward(c *Ctx, ids *tensor.Tensor) *tensor.Tensor {
	return e.ForwardN(c, ids)[0]
}

// ForwardN takes ids, offsets and weights of the ids to [bags, width]. Offsets
// are nil for ids [bags, n]; offsets and weights may be left out.
func (e *EmbeddingBag) ForwardN(c *Ctx, x ...*tensor.Tensor) []*tensor.Tensor {
	WantInputs("EmbeddingBag", x, "ids and perhaps offsets and weights of the ids", 1, 2, 3)
	x = append(x[:len(x):len(x)], nil, nil)
	return []*tensor.Tensor{tensor.EmbeddingBag(c.Param(e.Weight), x[0], x[1], tensor.EmbeddingBagOptions{
		Mode: e.Mode, PerSampleWeights: x[2], PaddingIdx: e.PaddingIdx, IncludeLastOffset: e.IncludeLastOffset,
	})}
}
