// SPDX-License-Identifier: Apache-2.0

package ps

import (
	"context"

	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/rpc/ps/rows"
	"github.com/cohort-ml/cohort/tensor"
)

// EmbeddingBag is an [nn.EmbeddingBag] whose table lies on servers. Its forward pass pulls
// the rows of the ids, and its backward pass adds their gradient to the client's next
// [Client.Step]. It has no parameters.
type EmbeddingBag struct {
	look lookup
	o    nn.EmbeddingBagOptions
}

// NewEmbeddingBag returns a bag over a table of the servers of a client. Sparse has no
// effect: gradients are always by rows.
func NewEmbeddingBag(c *Client, table string, o nn.EmbeddingBagOptions) (*EmbeddingBag, error) {
	t, err := c.schema(table)
	if err != nil {
		return nil, err
	}
	return &EmbeddingBag{lookup{client: c, schema: t}, o}, nil
}

// Forward takes ids [bags, n] to [bags, width].
func (e *EmbeddingBag) Forward(c *nn.Ctx, ids *tensor.Tensor) *tensor.Tensor {
	return e.ForwardN(c, ids)[0]
}

// ForwardN takes ids, offsets and weights of the ids to [bags, width], as that of
// [nn.EmbeddingBag].
func (e *EmbeddingBag) ForwardN(c *nn.Ctx, x ...*tensor.Tensor) []*tensor.Tensor {
	nn.WantInputs("EmbeddingBag", x, "ids and perhaps offsets and weights of the ids", 1, 2, 3)
	x = append(x[:len(x):len(x)], nil, nil)
	return []*tensor.Tensor{e.look.bags(c, nil, x[0], x[1], tensor.EmbeddingBagOptions{
		Mode: e.o.Mode, PerSampleWeights: x[2], PaddingIdx: e.o.PaddingIdx, IncludeLastOffset: e.o.IncludeLastOffset,
	})}
}

// lookup is a table as modules use it.
type lookup struct {
	client  *Client
	schema  *rows.Schema
	numRows int // of the parameter whose place the table has taken; 0: any key
}

// found is the rows of a batch of ids.
type found struct {
	keys []int64        // each once
	at   *tensor.Tensor // of the ids' shape: where each is among the keys
	rows *tensor.Tensor // [keys, width], at least one row
}

// checkIDs returns an error for ids that the parameter does not have whose place the table
// has taken.
func (l *lookup) checkIDs(ids []int64) error {
	if l.numRows == 0 {
		return nil
	}
	for i, id := range ids {
		if id < 0 || id >= int64(l.numRows) {
			return errorf(KindKeys, "id %d at position %d is not one of the table's %d rows", id, i, l.numRows).of(l.schema.Name)
		}
	}
	return nil
}

// find pulls the rows of ids. ahead may be a request that has been made before, of which
// part i is for these ids.
func (l *lookup) find(c *nn.Ctx, ahead *fetch, ids *tensor.Tensor) (*found, error) {
	if ids == nil || ids.DType() != tensor.Int64 {
		return nil, errorf(KindKeys, "the ids are %s: want int64", shapeText(ids)).of(l.schema.Name)
	}
	f := ahead
	if f == nil {
		var err error
		if f, err = l.begin(ids); err != nil {
			return nil, err
		}
		if f.pulled, err = l.client.Prefetch(c, l.client.StepNumber(), Request{Table: l.schema.Name, Keys: f.keys}); err != nil {
			return nil, err
		}
	}
	all, err := f.pulled.Wait(c)
	if err != nil {
		return nil, err
	}
	r := all[f.part]
	if len(f.keys) == 0 {
		r = tensor.Zeros(1, l.schema.Width)
	}
	return &found{f.keys, f.at, r}, nil
}

// fetch is rows that are on their way for a tensor of ids.
type fetch struct {
	keys   []int64
	at     *tensor.Tensor
	pulled *Pulled
	part   int
}

// begin makes a fetch that has not been asked for.
func (l *lookup) begin(ids *tensor.Tensor) (*fetch, error) {
	list := ids.Int64s()
	if err := l.checkIDs(list); err != nil {
		return nil, err
	}
	keys, at := unique(list)
	if len(at) == 0 {
		at = []int64{}
	}
	return &fetch{keys: keys, at: tensor.FromInt64(at, ids.Shape()...)}, nil
}

// leaf binds the rows of a batch as a leaf of the pass, whose gradient goes to the client.
func (l *lookup) leaf(c *nn.Ctx, f *found) *tensor.Tensor {
	c.Tape().Adopt(f.rows)
	return c.Tape().Watch(f.rows, &rowSink{client: l.client, table: l.schema.Name, keys: f.keys, rows: f.rows})
}

// bags is the forward pass of an embedding bag.
func (l *lookup) bags(c *nn.Ctx, ahead *fetch, ids, offsets *tensor.Tensor, o tensor.EmbeddingBagOptions) *tensor.Tensor {
	if ids != nil && ids.Device() == tensor.Meta {
		o.PaddingIdx = nil
		return tensor.EmbeddingBag(c.Tape().Const(tensor.New(tensor.Meta, tensor.Float32, 1, l.schema.Width)), ids, offsets, o)
	}
	f, err := l.find(c, ahead, ids)
	if err != nil {
		c.Fail(err)
	}
	o.PaddingIdx = f.position(o.PaddingIdx)
	return tensor.EmbeddingBag(l.leaf(c, f), f.at, offsets, o)
}

// vectors is the forward pass of an embedding.
func (l *lookup) vectors(c *nn.Ctx, ahead *fetch, ids *tensor.Tensor, padding *int) *tensor.Tensor {
	if ids != nil && ids.Device() == tensor.Meta {
		return tensor.Embedding(c.Tape().Const(tensor.New(tensor.Meta, tensor.Float32, 1, l.schema.Width)), ids)
	}
	f, err := l.find(c, ahead, ids)
	if err != nil {
		c.Fail(err)
	}
	if p := f.position(padding); p != nil {
		return tensor.EmbeddingPadded(l.leaf(c, f), f.at, *p)
	}
	return tensor.Embedding(l.leaf(c, f), f.at)
}

// position returns where a key is, nil if it is none.
func (f *found) position(key *int) *int {
	if key != nil {
		for i, k := range f.keys {
			if k == int64(*key) {
				return &i
			}
		}
	}
	return nil
}

// rowSink takes the gradient of the rows of a batch. It implements [tensor.RowLeaf].
type rowSink struct {
	client *Client
	table  string
	keys   []int64
	rows   *tensor.Tensor
	byRow  *tensor.RowGrad
	dense  *tensor.Tensor
}

// GradBuffer implements [tensor.Leaf].
func (s *rowSink) GradBuffer() (*tensor.Tensor, bool) {
	if s.dense == nil {
		s.dense = tensor.New(s.rows.Device(), tensor.Float32, s.rows.Shape()...)
		return s.dense, false
	}
	return s.dense, true
}

// WantsRows implements [tensor.RowLeaf].
func (s *rowSink) WantsRows() bool { return true }

// AddRows implements [tensor.RowLeaf].
func (s *rowSink) AddRows(g tensor.RowGrad) {
	if s.byRow != nil {
		g = s.byRow.Add(g)
	}
	s.byRow = &g
}

// GradReady implements [tensor.Leaf].
func (s *rowSink) GradReady(context.Context) error {
	g, d := s.byRow, s.dense
	s.byRow, s.dense = nil, nil
	if g != nil {
		ids := g.IDs.Int64s()
		keys := make([]int64, len(ids))
		for i, id := range ids {
			if id >= int64(len(s.keys)) {
				return errorf(KindKeys, "a gradient of row %d of the %d that were pulled", id, len(s.keys)).of(s.table)
			}
			keys[i] = s.keys[id]
		}
		if err := s.client.Add(Gradient{s.table, keys, g.Rows}); err != nil {
			return err
		}
	}
	if d != nil && len(s.keys) > 0 {
		return s.client.Add(Gradient{s.table, s.keys, d})
	}
	return nil
}
