// SPDX-License-Identifier: Apache-2.0

// Package remote puts parts of a model into other processes. It is PyTorch's
// torch.distributed.nn.RemoteModule.
//
// A [Module] stands for a module that lives elsewhere. It is an nn.Module itself:
// in a model it stands where the other one would, and its Forward runs there, or its
// ForwardN where that one has several inputs or results.
//
//	var NewDecoder = rpc.NewMaker[Config, nn.Module]("decoder")
//
//	a, err := rpc.Init(ctx, name, rpc.WithGroup(g), autograd.WithEngine(), remote.Serve(),
//		rpc.ServeMaker(NewDecoder, func(_ context.Context, cfg Config) (nn.Module, error) { … }))
//	decoder, err := remote.New(ctx, a.Peer("decoder"), NewDecoder, cfg)
//	model := nn.NewSequential(embedding, decoder)
//
// In training the carrier is that of a pass of package autograd, which knows the
// way back:
//
//	c, err := dc.Pass(ctx)
//	loss := tensor.CrossEntropy(c.Call(model, x), targets)
//	err = dc.Backward(ctx, loss)
//
// Gradients stay with the parameters' process. [Parameters] gives references to all
// parameters of such a model, here and elsewhere, for an autograd.Optimizer.
//
// # Caveats
//
// The remote pass is in the mode of the caller's: training under a pass of autograd,
// evaluation otherwise. Generators and interceptors (autocast, recomputation) do not
// travel. Several callers may use one module at once, as far as it allows that: batch
// norms, which move their running statistics, do not.
package remote
