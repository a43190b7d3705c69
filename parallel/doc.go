// SPDX-License-Identifier: Apache-2.0

// Package parallel trains one model on several ranks.
//
// # Mental model
//
// A [Strategy] is how a model is spread over ranks, as a training loop sees it: it
// runs the model, accumulates gradients, clips them by the norm of the whole
// model, and says what a checkpoint saves. [Single] is one rank. [DDP] keeps a
// replica on every rank and averages the gradients while the backward pass still
// runs. The loop of package train knows the interface alone.
//
// A strategy is itself a module: it runs the model that it was given. It steps in
// where a module is called and where a parameter is read (nn.Interceptor), and
// where a gradient is ready (nn.Parameter.OnGradReady,
// tensor.Tape.AfterBackward). The code of the model does not know of it.
//
// The first training pass of a strategy is checked: each value has a sharding type,
// and each gradient must owe what the strategy pays off; see package sharding.
//
// With the option [WithPyTorch] a DDP issues the collectives of PyTorch's
// DistributedDataParallel instead of its own, so that a group may have ranks of
// both kinds. testdata/ddp_pytorch.py records what those collectives are.
//
// # Where a new strategy goes
//
// Each strategy is a type in a file of its own, beside single.go and ddp.go; none
// has a branch for another. Sharded parameters (FSDP) go into a file of their own, named fsdp:
// the type is an nn.Interceptor, whose InterceptParam gathers a parameter by an
// operation made with tensor.Record, whose gradient is a reduce-scatter. What
// each method has to do there stands beside it in strategy.go. A task names its
// strategy in train.Task.Strategy.
//
// # Files
//
//	strategy.go         the interface, and what a model must be like to be wrapped
//	single.go           one rank
//	ddp.go              DDP and its options: when replicas are synchronised
//	native_reducer.go   how gradients are averaged: buckets and all-reduce
//	bucket.go           which gradients share a bucket, and its memory
//	sparse.go           gradients by rows
//	buffers.go          rank 0's buffers for all
//	ranks.go            typed collectives over all ranks of a group
//	prediction.go       what a step will take: memory, and bytes between ranks; shard_plan.go
//	                    runs the passes of an FSDP for it, without ranks
//	type_check.go       the check of sharding types in the first training pass
//	mismatch.go         MismatchError: ranks with different models
//	straggler.go        ranks that the others wait for
//	sync_batchnorm.go   batch norms over the batches of all ranks
//	pytorch.go          PyTorch's DDP wire: options and errors
//	pytorch_reducer.go  its passes; pytorch_buckets.go its buckets, pytorch_state.go
//	                    its broadcasts of the state, pytorch_model.go its comparison
//	                    of the models, pytorch_dtype.go what sizes tell of dtypes
//	pytorch_join.go     Join: ranks with unlike numbers of batches
package parallel
