// SPDX-License-Identifier: Apache-2.0

package ps

import (
	"context"
	"fmt"
	"sync"

	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/rpc/ps/rows"
	"github.com/cohort-ml/cohort/tensor"
)

// Attached is a model whose tables lie on servers. It steps in where the model calls an
// embedding ([nn.Interceptor]): the pass gets the rows of its ids from the servers, and the
// gradients of the rows go to the client's next [Client.Step]. The model does not know.
//
//	tables := ps.Attach(model, client)
//	c := nn.Training(ctx).With(tables)
//	loss := lossOf(c.CallN(model, inputs...))
//	err := loss.Backward(ctx)
//	opt.Step()
//	err = client.Step(ctx)
//
// From the second pass on, all rows of a pass are asked for at once where the model is
// called: Attached has seen then which input has the ids of which table.
type Attached struct {
	client *Client
	model  any
	of     map[any]*attachment

	mu      sync.Mutex
	order   []*attachment             // in the order of their first calls
	inputs  []*tensor.Tensor          // of the model, in the pass under way
	fetched map[*tensor.Tensor]*ahead // by the ids
}

// attachment is an embedding of the model.
type attachment struct {
	look   lookup
	weight *nn.Parameter // that it had
	input  int           // of the model, which has its ids; -1: not known
}

// ahead is rows that have been asked for.
type ahead struct {
	fetch *fetch
	of    *attachment
	step  int64
}

// TableOf returns the schema of a table for an embedding's weight: its name in the model,
// its width, and any 64-bit key. The caller adds the first values and the optimizer.
func TableOf(p *nn.Parameter) rows.Schema {
	return rows.Schema{Name: p.Name(), Width: p.Data().Dim(1)}
}

// EmbeddingWeights returns the weights of the embeddings of a model, which [Attach] can
// replace by tables, in the order of the model's parameters.
func EmbeddingWeights(model any) []*nn.Parameter {
	var out []*nn.Parameter
	nn.Parameters(model) // names them
	for _, m := range nn.Modules(model) {
		if w := weightOf(m); w != nil && *w != nil {
			out = append(out, *w)
		}
	}
	return out
}

// weightOf returns where an embedding has its weight, nil for other modules.
func weightOf(module any) **nn.Parameter {
	switch m := module.(type) {
	case *nn.EmbeddingBag:
		return &m.Weight
	case *nn.Embedding:
		return &m.Weight
	}
	return nil
}

// Attach replaces the weights of the embeddings of a model by the tables of the client's
// servers that have the names of the weights. The weights leave the model, so optimizers,
// checkpoints and data parallelism do not see them any more: call Attach before those are
// made. A model that was built on [tensor.Meta] gets the memory of its other parameters by
// nn.Materialize after that. It is an error if no table has the name of a weight, or if one
// has another width.
func Attach(model any, c *Client) (*Attached, error) {
	a := &Attached{client: c, model: model, of: map[any]*attachment{}, fetched: map[*tensor.Tensor]*ahead{}}
	EmbeddingWeights(model) // names them
	uses := map[*nn.Parameter]int{}
	for _, m := range nn.Modules(model) {
		if w := weightOf(m); w != nil && *w != nil {
			uses[*w]++
		}
	}
	for _, m := range nn.Modules(model) {
		w := weightOf(m)
		if w == nil || *w == nil {
			continue
		}
		p := *w
		t, err := c.schema(p.Name())
		if err != nil {
			continue
		}
		shape := p.Data().Shape()
		switch {
		case t.Width != shape[1] || t.Rows != 0 && t.Rows != shape[0]:
			return nil, errorf(KindTable, "the weight of the model is %v, the table has width %d and %d rows", shape, t.Width, t.Rows).of(t.Name)
		case uses[p] > 1:
			return nil, errorf(KindTable, "%d embeddings of the model share the weight, which a table cannot replace", uses[p]).of(t.Name)
		}
		a.of[m] = &attachment{look: lookup{client: c, schema: t, numRows: shape[0]}, weight: p, input: -1}
	}
	if len(a.of) == 0 {
		return nil, errorf(KindTable, "no table of the servers has the name of an embedding's weight; the tables are %s", tableNames(c.Tables()))
	}
	for m := range a.of {
		*weightOf(m) = nil
	}
	return a, nil
}

// Detach gives the embeddings their weights back, with the values that those had.
func (a *Attached) Detach() {
	for m, t := range a.of {
		*weightOf(m) = t.weight
	}
}

// Prefetch asks for the rows of a later pass: inputs are what the model will be called
// with, the same tensors, in a step of the worker. It does nothing before the first pass
// of the model has ended.
func (a *Attached) Prefetch(ctx context.Context, step int64, inputs ...*tensor.Tensor) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.fetch(ctx, step, inputs)
}

// fetch asks for the rows of all tables whose input is known, in one request a server.
func (a *Attached) fetch(ctx context.Context, step int64, inputs []*tensor.Tensor) error {
	for ids, h := range a.fetched {
		if h.step < step-1 { // of a pass that never came
			delete(a.fetched, ids)
		}
	}
	var requests []Request
	var made []*ahead
	var ids []*tensor.Tensor
	for _, t := range a.order {
		if t.input < 0 || t.input >= len(inputs) {
			continue
		}
		x := inputs[t.input]
		if x == nil || x.DType() != tensor.Int64 || x.Device() == tensor.Meta || a.fetched[x] != nil {
			continue
		}
		f, err := t.look.begin(x)
		if err != nil {
			return err
		}
		f.part = len(requests)
		requests = append(requests, Request{Table: t.look.schema.Name, Keys: f.keys})
		made, ids = append(made, &ahead{f, t, step}), append(ids, x)
	}
	if len(requests) == 0 {
		return nil
	}
	pulled, err := a.client.Prefetch(ctx, step, requests...)
	if err != nil {
		return err
	}
	for i, h := range made {
		h.fetch.pulled = pulled
		a.fetched[ids[i]] = h
	}
	return nil
}

// take returns what has been asked for, for the ids of a call, and notes which input of the
// model they are.
func (a *Attached) take(t *attachment, ids *tensor.Tensor) *fetch {
	a.mu.Lock()
	defer a.mu.Unlock()
	if t.input < 0 {
		for i, x := range a.inputs {
			if x == ids {
				t.input = i
				a.order = append(a.order, t)
				break
			}
		}
	}
	h := a.fetched[ids]
	if h == nil || h.of != t || h.step != a.client.StepNumber() {
		return nil
	}
	delete(a.fetched, ids)
	return h.fetch
}

// InterceptCall implements [nn.Interceptor].
func (a *Attached) InterceptCall(c *nn.Ctx, module any, x []*tensor.Tensor, next func(c *nn.Ctx, x []*tensor.Tensor) []*tensor.Tensor) []*tensor.Tensor {
	if module == a.model {
		a.mu.Lock()
		a.inputs = x
		err := a.fetch(c, a.client.StepNumber(), x)
		a.mu.Unlock()
		if err != nil {
			c.Fail(err)
		}
		out := next(c, x)
		a.mu.Lock()
		a.inputs = nil
		a.mu.Unlock()
		return out
	}
	t := a.of[module]
	if t == nil {
		return next(c, x)
	}
	switch m := module.(type) {
	case *nn.EmbeddingBag:
		nn.WantInputs("EmbeddingBag", x, "ids and perhaps offsets and weights of the ids", 1, 2, 3)
		ids := a.take(t, x[0])
		x = append(x[:len(x):len(x)], nil, nil)
		return []*tensor.Tensor{t.look.bags(c, ids, x[0], x[1], tensor.EmbeddingBagOptions{
			Mode: m.Mode, PerSampleWeights: x[2], PaddingIdx: m.PaddingIdx, IncludeLastOffset: m.IncludeLastOffset,
		})}
	case *nn.Embedding:
		return []*tensor.Tensor{t.look.vectors(c, a.take(t, x[0]), x[0], m.PaddingIdx)}
	}
	panic(fmt.Sprintf("ps: an attached module of type %T", module))
}

// InterceptParam implements [nn.Interceptor].
func (a *Attached) InterceptParam(c *nn.Ctx, p *nn.Parameter, next func(c *nn.Ctx) *tensor.Tensor) *tensor.Tensor {
	return next(c)
}
