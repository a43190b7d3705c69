// SPDX-License-Identifier: Apache-2.0

package ps

import (
	"context"
	"slices"

	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/rpc/ps/rows"
	"github.com/cohort-ml/cohort/tensor"
)

// Layers are parameters of a model whose values the servers hold: what data parallelism
// averages among workers otherwise. A worker takes the values before a pass and gives the
// gradients after it; the optimizer runs on the servers.
//
//	layers, err := ps.NewLayers(model, client)
//	if rank == 0 {
//		err = layers.Put(ctx) // first values; the others wait for it
//	}
//	for … {
//		err = layers.Pull(ctx)
//		loss, err := nn.Backward(ctx, …)
//		err = layers.Add(1 / float64(workers)) // the gradients' mean
//		err = client.Step(ctx)
//	}
//
// So a worker needs no other worker, and the consistency of the job holds for layers as for
// the rows of embeddings.
type Layers struct {
	client *Client
	layers []layer
	keys   map[int][]int64 // 0 to n-1, by n
}

type layer struct {
	param *nn.Parameter
	table rows.Schema
}

// longestLayer is the largest width that LayerTable gives a table: a longer row would lie on
// one server.
const longestLayer = 1 << 12

// LayerTable returns the schema of a dense table for a parameter: its name in the model, and
// a row for each index of its first dim. The caller adds the optimizer.
func LayerTable(p *nn.Parameter) rows.Schema {
	shape := p.Data().Shape()
	n := p.Data().NumElems()
	s := rows.Schema{Name: p.Name(), Rows: 1, Width: n}
	switch {
	case len(shape) > 1:
		s.Rows, s.Width = shape[0], n/max(1, shape[0])
	case n > longestLayer:
		s.Rows, s.Width = n, 1
	}
	return s
}

// LayerWeights returns the parameters of a model that are trained and that no embedding has,
// in the order of the model's parameters.
func LayerWeights(model any) []*nn.Parameter {
	tables := EmbeddingWeights(model)
	var out []*nn.Parameter
	for _, p := range nn.Parameters(model) {
		if !p.Frozen && !slices.Contains(tables, p) {
			out = append(out, p)
		}
	}
	return out
}

// NewLayers binds the parameters of a model to the dense tables of the client's servers that
// have their names. It is an error if there are none, or if one has other sizes than
// [LayerTable] gives. The local optimizer must not have these parameters.
func NewLayers(model any, c *Client) (*Layers, error) {
	l := &Layers{client: c, keys: map[int][]int64{}}
	for _, p := range LayerWeights(model) {
		t, err := c.schema(p.Name())
		if err != nil {
			continue
		}
		want := LayerTable(p)
		if t.Rows != want.Rows || t.Width != want.Width {
			return nil, errorf(KindTable, "the parameter is %v, the table has %d rows of width %d: want %d of width %d", p.Data().Shape(), t.Rows, t.Width, want.Rows, want.Width).of(t.Name)
		}
		l.layers = append(l.layers, layer{p, *t})
		if l.keys[t.Rows] == nil {
			l.keys[t.Rows] = make([]int64, t.Rows)
			for i := range l.keys[t.Rows] {
				l.keys[t.Rows][i] = int64(i)
			}
		}
	}
	if len(l.layers) == 0 {
		return nil, errorf(KindTable, "no dense table of the servers has the name of a parameter; the tables are %s", tableNames(c.Tables()))
	}
	return l, nil
}

// Params returns the parameters that the servers hold.
func (l *Layers) Params() []*nn.Parameter {
	var out []*nn.Parameter
	for _, x := range l.layers {
		out = append(out, x.param)
	}
	return out
}

// Put gives the servers the values that the parameters have here, with a new state of the
// optimizer. One worker calls it before any worker pulls.
func (l *Layers) Put(ctx context.Context) error {
	states := l.States()
	for i, x := range l.layers {
		if first := x.table.Optimizer.Initial; first != 0 {
			if err := l.client.Lookup(ctx, x.table.Name, l.keys[x.table.Rows], tensor.Zeros(x.table.Rows, x.table.Width), states[i]); err != nil {
				return err
			}
		}
	}
	return l.Insert(ctx, states)
}

// States returns room for the state of the optimizer of each of [Layers.Params]: zeros,
// float32 [rows of its table, length of a row's state].
func (l *Layers) States() []*tensor.Tensor {
	out := make([]*tensor.Tensor, len(l.layers))
	for i, x := range l.layers {
		out[i] = tensor.Zeros(x.table.Rows, x.table.StateLen())
	}
	return out
}

// Insert is [Layers.Put] with the states of the optimizer, for a run that goes on from a
// checkpoint.
func (l *Layers) Insert(ctx context.Context, states []*tensor.Tensor) error {
	if err := l.wantStates(states); err != nil {
		return err
	}
	for i, x := range l.layers {
		if err := l.client.Insert(ctx, x.table.Name, l.keys[x.table.Rows], x.rowsOf(x.param.Data()), states[i]); err != nil {
			return err
		}
	}
	return nil
}

// Lookup puts the values of the worker's step into the parameters, and the states of their
// optimizer into states, for a checkpoint.
func (l *Layers) Lookup(ctx context.Context, states []*tensor.Tensor) error {
	if err := l.wantStates(states); err != nil {
		return err
	}
	for i, x := range l.layers {
		values := tensor.Empty(tensor.Float32, x.table.Rows, x.table.Width)
		if err := l.client.Lookup(ctx, x.table.Name, l.keys[x.table.Rows], values, states[i]); err != nil {
			return err
		}
		x.param.Data().CopyFrom(values.Reshape(x.param.Data().Shape()...))
	}
	return nil
}

// wantStates is an error unless there is a state for each layer. Servers and clients check the
// sizes of each.
func (l *Layers) wantStates(states []*tensor.Tensor) error {
	if len(states) != len(l.layers) {
		return errorf(KindValues, "%d states for %d layers: make them by States", len(states), len(l.layers)).by(l.client.worker, -1)
	}
	return nil
}

// rowsOf returns a tensor of the parameter's shape as rows of its table.
func (x *layer) rowsOf(t *tensor.Tensor) *tensor.Tensor {
	return t.Untracked().Contiguous().Reshape(x.table.Rows, x.table.Width)
}

// Pull puts the values of the worker's step into the parameters. All layers come by one
// request a server.
func (l *Layers) Pull(ctx context.Context) error {
	var requests []Request
	for _, x := range l.layers {
		requests = append(requests, Request{Table: x.table.Name, Keys: l.keys[x.table.Rows]})
	}
	values, err := l.client.Pull(ctx, requests...)
	if err != nil {
		return err
	}
	for i, x := range l.layers {
		x.param.Data().CopyFrom(values[i].Reshape(x.param.Data().Shape()...))
	}
	return nil
}

// Add adds the gradients of the parameters, times scale, to the next [Client.Step], and
// takes them from the parameters. A parameter without a gradient adds nothing.
func (l *Layers) Add(scale float64) error {
	for _, x := range l.layers {
		g := x.param.Grad()
		if g == nil {
			continue
		}
		// A copy, for the gradient's memory is used again.
		grads := tensor.Empty(tensor.Float32, x.table.Rows, x.table.Width)
		grads.CopyFrom(x.rowsOf(g))
		if scale != 1 {
			grads.Scale(scale)
		}
		if err := l.client.Add(Gradient{x.table.Name, l.keys[x.table.Rows], grads}); err != nil {
			return err
		}
		x.param.ZeroGrad()
	}
	return nil
}
