// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/cohort-ml/cohort/dist/mesh"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/optim"
	"github.com/cohort-ml/cohort/tensor"
)

// DataParallel runs one model on several devices of one process, as PyTorch's DataParallel does:
// it divides the samples of a batch among the devices, runs a replica of the model on each at the
// same time, puts the results together on the first device, and adds up the gradients there. It
// is a [Strategy] without ranks. A device may be a group of threads (tensor.NewThreadGroup).
//
// The parameters are on the first device. Every pass copies them to the others, and every
// backward pass brings all gradients back: that is what [DDP] does not do. DDP also keeps the
// passes of ranks apart from the garbage collector of one process. Prefer DDP, and take
// DataParallel where a program must stay one process.
//
// A batch of n samples on k devices is cut into chunks of ⌈n/k⌉ samples along dim 0, as PyTorch
// cuts it: with few samples some devices get none. Inputs of no dims go to all replicas. Results
// of no dims become the elements of a vector.
//
// A backward pass through a call is not recorded (tensor.CreateGraph), and there is only one
// (tensor.RetainGraph): both are errors.
//
// Buffers of the first replica are those of the model. The others have copies, and what they
// write there is dropped. Random numbers of a replica come from a generator of its own, which the
// generator of the pass seeds.
type DataParallel struct {
	// Model is what was wrapped, an nn.Module or nn.ModuleN. Its parameters have the same names
	// in the DataParallel.
	Model any `name:""`

	devices []tensor.Device
}

// NewDataParallel prepares a model, an nn.Module or nn.ModuleN, whose parameters and buffers are
// on the first of the devices.
func NewDataParallel(model any, devices []tensor.Device) (*DataParallel, error) {
	err := checkModule(model)
	if err == nil {
		err = checkParams(model)
	}
	if err == nil {
		err = checkReplicable(model, devices)
	}
	if err != nil {
		return nil, fmt.Errorf("data parallel: %w", err)
	}
	return &DataParallel{Model: model, devices: slices.Clone(devices)}, nil
}

// checkReplicable reports a list of devices, or a model, of which no replicas can run.
func checkReplicable(model any, devices []tensor.Device) error {
	if len(devices) == 0 {
		return errors.New("there are no devices: name one at least, such as tensor.CPU()")
	}
	for i, dev := range devices {
		switch first := slices.Index(devices, dev); {
		case dev == nil:
			return fmt.Errorf("device %d is nil", i)
		case first < i:
			return fmt.Errorf("devices %d and %d are the same, %s: each replica needs a device of its own; tensor.NewThreadGroup makes one of some threads", first, i, dev.Name())
		case dev == tensor.Meta:
			return fmt.Errorf("device %d is %s, which computes nothing", i, dev.Name())
		}
	}
	for _, s := range nn.StateDict(model) {
		if dev := s.Tensor.Device(); dev != devices[0] {
			return fmt.Errorf("%s is on device %s, and the first device is %s: the model must be there", s.Name, dev.Name(), devices[0].Name())
		}
	}
	for _, p := range nn.Parameters(model) {
		if p.Sparse && !p.Frozen {
			return fmt.Errorf("%s is sparse, and replicas add up whole gradients: leave Sparse unset, or use a DDP", p.Name())
		}
	}
	for _, m := range nn.Modules(model) {
		switch m := m.(type) {
		case Strategy:
			return fmt.Errorf("the model has a %T, a strategy of its own, which cannot run in replicas: wrap the model itself, and give the DataParallel to NewDDP if there are ranks too", m)
		case *nn.MoE:
			if m.ChoiceBias != nil {
				return errors.New("a mixture of experts counts in the model how often each is chosen (BiasStep), which replicas cannot do at the same time: use a DDP")
			}
		case *nn.BatchNorm:
			if m.Sync != nil {
				return errors.New("a SyncBatchNorm communicates, and replicas in one process have no ranks: use a DDP")
			}
		}
	}
	return nil
}

// Forward runs a model that is an nn.Module.
func (d *DataParallel) Forward(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
	m, ok := d.Model.(nn.Module)
	if !ok {
		c.Fail(fmt.Errorf("data parallel: a %T has several inputs or results: call it by CallN", d.Model))
	}
	return d.run(c, []*tensor.Tensor{x}, func(c *nn.Ctx, x []*tensor.Tensor) []*tensor.Tensor {
		return []*tensor.Tensor{c.Call(m, x[0])}
	})[0]
}

// ForwardN runs a model that is an nn.ModuleN.
func (d *DataParallel) ForwardN(c *nn.Ctx, x ...*tensor.Tensor) []*tensor.Tensor {
	m, ok := d.Model.(nn.ModuleN)
	if !ok {
		c.Fail(fmt.Errorf("data parallel: a %T has one input and one result: call it by Call", d.Model))
	}
	return d.run(c, x, func(c *nn.Ctx, x []*tensor.Tensor) []*tensor.Tensor { return c.CallN(m, x...) })
}

// replica is one of the passes that compute a call.
type replica struct {
	c      *nn.Ctx
	inputs []*tensor.Tensor
	leaves []*replicaLeaf   // by parameter; nil for frozen ones
	out    []*tensor.Tensor // under its tape
	grads  []*tensor.Tensor // of out, nil for none
}

// replicaLeaf takes the gradient of a replica's parameter.
type replicaLeaf struct {
	value, grad *tensor.Tensor
	holds       bool
}

func (l *replicaLeaf) GradBuffer() (*tensor.Tensor, bool) {
	if l.grad == nil {
		l.grad = tensor.New(l.value.Device(), l.value.DType(), l.value.Shape()...)
	}
	return l.grad, l.holds
}

func (l *replicaLeaf) GradReady(context.Context) error {
	l.holds = true
	return nil
}

// run computes a call on all devices.
func (d *DataParallel) run(c *nn.Ctx, x []*tensor.Tensor, call func(c *nn.Ctx, x []*tensor.Tensor) []*tensor.Tensor) []*tensor.Tensor {
	chunks, err := scatter(x, len(d.devices))
	if err != nil {
		c.Fail(fmt.Errorf("data parallel: %w", err))
	}
	if len(chunks) == 1 || c.Device() == tensor.Meta {
		out := call(c, x)
		for k, t := range out {
			if t.NumDims() == 0 && len(d.devices) > 1 && chunks[0].total > 0 { // as of more samples
				out[k] = t.Reshape(1)
			}
		}
		return out
	}
	params := nn.Parameters(d.Model)
	replicas := make([]*replica, len(chunks))
	closeAll := func() {
		for _, r := range replicas {
			if r != nil {
				r.c.Close()
			}
		}
	}
	c.Tape().OnClose(closeAll)
	for i := range replicas {
		if replicas[i], err = d.newReplica(c, i, chunks[i], x, params); err != nil {
			c.Fail(fmt.Errorf("data parallel: %w", err))
		}
	}
	if err := each(replicas, func(r *replica) error {
		r.out = call(r.c, r.inputs)
		if added := r.c.AddedLoss(); added != nil {
			r.out = append(r.out, added)
		}
		return nil
	}); err != nil {
		closeAll()
		c.Fail(fmt.Errorf("data parallel: %w", err))
	}
	out := d.record(c, x, params, replicas, chunks)
	if !c.Tape().Recording() {
		closeAll()
	}
	return out
}

// newReplica makes the pass of a replica: its samples, and the parameters and buffers on its
// device.
func (d *DataParallel) newReplica(c *nn.Ctx, i int, rows chunk, x []*tensor.Tensor, params []*nn.Parameter) (*replica, error) {
	var own *tensor.Generator
	if g := c.Generator(); g != nil {
		own = tensor.NewGenerator(int64(g.Float64() * (1 << 53)))
	}
	dev := d.devices[i]
	in, err := c.Fork(dev, own)
	if err != nil {
		return nil, err
	}
	r := &replica{c: in, leaves: make([]*replicaLeaf, len(params))}
	for _, t := range x {
		part := rows.of(t)
		if part != nil {
			part = part.ToDevice(dev)
			if t.NeedsGrad() {
				part = in.Leaf(part)
			}
		}
		r.inputs = append(r.inputs, part)
	}
	for k, p := range params {
		value := p.Data().ToDevice(dev)
		if p.Frozen || !in.Training() {
			in.Bind(p, in.Tape().Const(value))
			continue
		}
		r.leaves[k] = &replicaLeaf{value: value}
		in.Bind(p, in.Tape().Watch(value, r.leaves[k]))
	}
	if i > 0 {
		for _, b := range nn.Buffers(d.Model) {
			in.BindBuffer(b, b.Data.ToDevice(dev))
		}
	}
	return r, nil
}

// each runs fn for all replicas at the same time, and returns the error of the first of them that
// failed.
func each(replicas []*replica, fn func(r *replica) error) error {
	errs, panics := make([]error, len(replicas)), make([]any, len(replicas))
	var wait sync.WaitGroup
	for i, r := range replicas {
		wait.Go(func() {
			defer func() { panics[i] = recover() }() // what is no failure of an operation goes on, on the caller's goroutine
			defer r.c.Recover(&errs[i])
			errs[i] = fn(r)
		})
	}
	wait.Wait()
	for i, r := range replicas {
		if panics[i] != nil {
			panic(panics[i])
		}
		if errs[i] != nil {
			return fmt.Errorf("replica %d on device %s: %w", i, r.c.Device().Name(), errs[i])
		}
	}
	return nil
}

// record puts the results of the replicas together under the tape of c. In the backward pass the
// gradients of all results come first, then those of the replicas' inputs and parameters are
// computed together: of a result by gather, and of all by a value of one element between the
// two, of which each result depends.
func (d *DataParallel) record(c *nn.Ctx, x []*tensor.Tensor, params []*nn.Parameter, replicas []*replica, chunks []chunk) []*tensor.Tensor {
	leaves := make([]*tensor.Tensor, 0, len(x)+len(params))
	for _, t := range x {
		if t != nil {
			leaves = append(leaves, t)
		}
	}
	numInputs := len(leaves)
	for _, p := range params {
		leaves = append(leaves, c.Param(p))
	}
	for _, r := range replicas {
		r.grads = make([]*tensor.Tensor, len(r.out))
	}
	gone := false
	token := tensor.Record("replicas", tensor.New(d.devices[0], tensor.Float32, 1), leaves, leaves[:numInputs], func(ctx context.Context, _ *tensor.Tensor) ([]*tensor.Tensor, error) {
		switch {
		case c.Tape().Recording(): // CreateGraph
			return nil, errors.New("data parallel: the backward pass has the option CreateGraph, and the backward passes of replicas are not recorded: use the model itself, or a DDP, for gradients of gradients")
		case gone:
			return nil, errors.New("data parallel: a second backward pass goes through the same call, and the replicas are gone after the first one, also with RetainGraph: add up the losses, or call the model again")
		}
		gone = true
		return d.backward(ctx, x, params, replicas)
	})
	var out []*tensor.Tensor
	for k := range replicas[0].out {
		out = append(out, d.gather(k, token, replicas, chunks))
	}
	if replicas[0].c.AddedLoss() != nil { // the mean over the samples
		weights := make([]float64, len(chunks))
		for i, rows := range chunks {
			weights[i] = float64(rows.length) / float64(chunks[0].total)
		}
		last := len(out) - 1
		shares := tensor.FromFloat64(weights).To(out[last].DType()).ToDevice(d.devices[0])
		c.AddLoss(out[last].Mul(shares).Sum())
		out = out[:last]
	}
	return out
}

// gather puts result k of all replicas together.
func (d *DataParallel) gather(k int, token *tensor.Tensor, replicas []*replica, chunks []chunk) *tensor.Tensor {
	parts := make([]*tensor.Tensor, len(replicas))
	lengths := make([]int, len(replicas))
	tracked := false
	for i, r := range replicas {
		part := r.out[k].Untracked().ToDevice(d.devices[0])
		if part.NumDims() == 0 {
			part = part.Reshape(1)
		}
		parts[i], lengths[i] = part, part.Dim(0)
		tracked = tracked || r.out[k].NeedsGrad()
	}
	all := tensor.Cat(0, parts...)
	if !tracked {
		return tensor.Record("gather", all, []*tensor.Tensor{token.Detach()}, nil, func(context.Context, *tensor.Tensor) ([]*tensor.Tensor, error) {
			return []*tensor.Tensor{nil}, nil
		})
	}
	return tensor.Record("gather", all, []*tensor.Tensor{token}, nil, func(_ context.Context, g *tensor.Tensor) ([]*tensor.Tensor, error) {
		at := 0
		for i, r := range replicas {
			part := g.Untracked().Narrow(0, at, lengths[i])
			at += lengths[i]
			if r.out[k].NeedsGrad() {
				// A copy: g belongs to the pass, which frees it.
				own := tensor.New(r.c.Device(), g.DType(), r.out[k].Shape()...)
				own.CopyFrom(part.ToDevice(r.c.Device()).Reshape(r.out[k].Shape()...))
				r.grads[k] = own
			}
		}
		return []*tensor.Tensor{tensor.New(d.devices[0], tensor.Float32, 1)}, nil
	})
}

// backward runs the backward passes of the replicas and adds up what they give.
func (d *DataParallel) backward(ctx context.Context, x []*tensor.Tensor, params []*nn.Parameter, replicas []*replica) ([]*tensor.Tensor, error) {
	inputs := make([][]*tensor.Tensor, len(replicas)) // gradients of inputs, by replica
	for i, r := range replicas {
		inputs[i] = make([]*tensor.Tensor, len(x))
		for k, t := range r.inputs {
			if t != nil && t.NeedsGrad() {
				t.OnGrad(func(g *tensor.Tensor) *tensor.Tensor {
					own := tensor.New(g.Device(), g.DType(), g.Shape()...)
					own.CopyFrom(g.Untracked())
					inputs[i][k] = own
					return nil
				})
			}
		}
	}
	err := each(replicas, func(r *replica) error {
		var values, grads []*tensor.Tensor
		for k, g := range r.grads {
			if g != nil {
				values, grads = append(values, r.out[k]), append(grads, g)
			}
		}
		if len(values) == 0 {
			return nil
		}
		return r.c.Tape().BackwardFrom(ctx, values, grads)
	})
	if err != nil {
		return nil, fmt.Errorf("data parallel: %w", err)
	}
	var out []*tensor.Tensor
	for k, t := range x {
		if t == nil {
			continue
		}
		var parts []*tensor.Tensor
		for i, r := range replicas {
			if in := r.inputs[k]; in != nil && in.NeedsGrad() {
				g := inputs[i][k]
				if g == nil {
					g = tensor.New(d.devices[0], in.DType(), in.Shape()...)
				}
				parts = append(parts, g.ToDevice(d.devices[0]))
			}
		}
		switch {
		case parts == nil:
			out = append(out, nil)
		case t.NumDims() == 0:
			for _, g := range parts[1:] {
				parts[0].Axpy(1, g)
			}
			out = append(out, parts[0])
		default:
			out = append(out, tensor.Cat(0, parts...))
		}
	}
	for k := range params {
		var sum *tensor.Tensor
		for _, r := range replicas {
			l := r.leaves[k]
			switch {
			case l == nil || !l.holds:
			case sum == nil:
				sum = l.grad.ToDevice(d.devices[0])
			default:
				sum.Axpy(1, l.grad.ToDevice(d.devices[0]))
			}
		}
		out = append(out, sum)
	}
	for _, r := range replicas {
		r.c.Close()
	}
	return out, nil
}

// chunk is the samples of a replica.
type chunk struct{ start, length, total int }

// scatter cuts the samples of inputs into at most n chunks, as PyTorch's chunk does.
func scatter(x []*tensor.Tensor, n int) ([]chunk, error) {
	total, first := -1, 0
	for i, t := range x {
		switch {
		case t == nil || t.NumDims() == 0:
		case total < 0:
			total, first = t.Dim(0), i
		case t.Dim(0) != total:
			return nil, fmt.Errorf("input %d has %d samples along dim 0, and input %d has %d", i, t.Dim(0), first, total)
		}
	}
	if total <= 0 {
		return []chunk{{}}, nil
	}
	size := (total + n - 1) / n
	var out []chunk
	for start := 0; start < total; start += size {
		out = append(out, chunk{start, min(size, total-start), total})
	}
	return out, nil
}

// of returns the samples of an input, under no tape.
func (c chunk) of(t *tensor.Tensor) *tensor.Tensor {
	if t == nil {
		return nil
	}
	t = t.Untracked()
	if t.NumDims() == 0 {
		return t
	}
	return t.Narrow(0, c.start, c.length)
}

// NoSync runs fn.
func (*DataParallel) NoSync(fn func() error) error { return fn() }

// Step runs the passes one after the other, each on all devices.
func (d *DataParallel) Step(ctx context.Context, microbatches []Microbatch) (loss *tensor.Tensor, err error) {
	return runPasses(ctx, d, microbatches, true, nil)
}

// ClipGradNorm is optim.ClipGradNorm: the first device has all gradients.
func (*DataParallel) ClipGradNorm(_ context.Context, params []*nn.Parameter, maxNorm float64) (norm, scale *tensor.Tensor, err error) {
	norm, scale = optim.ClipGradNorm(params, maxNorm)
	return norm, scale, nil
}

// SyncBuffers does nothing: the buffers are those of the first replica.
func (*DataParallel) SyncBuffers(context.Context) error { return nil }

// StateDict returns the parameters and buffers of the model by name.
func (d *DataParallel) StateDict() nn.NamedTensors { return nn.StateDict(d.Model) }

// Layout says that the parameter is whole.
func (*DataParallel) Layout(p *nn.Parameter) mesh.Layout { return mesh.Layout{Shape: p.Data().Shape()} }

// String names the devices.
func (d *DataParallel) String() string {
	names := make([]string, len(d.devices))
	for i, dev := range d.devices {
		names[i] = dev.Name()
	}
	return fmt.Sprintf("one process over %s (%s)", countDevices(len(names)), strings.Join(names, ", "))
}

func countDevices(n int) string {
	if n == 1 {
		return "1 device"
	}
	return fmt.Sprintf("%d devices", n)
}
