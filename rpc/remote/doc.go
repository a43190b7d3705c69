// SPDX-License-Identifier: Apache-2.0

// Package remote puts parts of a model into other processes. It is PyTorch's
// torch.distributed.nn.RemoteModule.
//
// A [Module] stands for a module in another process. It is an nn.Module itself, so it can be
// a part of any model. Its Forward runs the other module's Forward there; its ForwardN runs
// ForwardN, for a module with several inputs or results.
//
//	var NewDecoder = rpc.NewMaker[Config, nn.Module]("decoder")
//
//	a, err := rpc.Init(ctx, name, rpc.WithGroup(g), autograd.WithEngine(), remote.Serve(),
//		rpc.ServeMaker(NewDecoder, func(_ context.Context, cfg Config) (nn.Module, error) { … }))
//	decoder, err := remote.New(ctx, a.Peer("decoder"), NewDecoder, cfg)
//	model := nn.NewSequential(embedding, decoder)
//
// In training the model is called under the carrier of a pass of package autograd, which
// brings the gradients back:
//
//	c, err := dc.Pass(ctx)
//	loss := tensor.CrossEntropy(c.Call(model, x), targets)
//	err = dc.Backward(ctx, loss)
//
// The gradients stay on the process of the parameters. [Parameters] returns references to
// all parameters of such a model, here and elsewhere, for an autograd.Optimizer.
//
// # Caveats
//
// The remote pass has the mode of the caller's pass: training under a pass of autograd,
// evaluation otherwise. Generators and interceptors (autocast, recomputation) do not travel.
// Several callers may use one module at once if the module allows that. Batch norms do not:
// they change their running statistics.
package remote
