// SPDX-License-Identifier: Apache-2.0

// Package parallel trains one model on several ranks.
//
// # Mental model
//
// A [Strategy] is how a model is spread over ranks, as a training loop sees it: it
// runs the model, accumulates gradients, clips them by the norm of the whole
// model, and says what a checkpoint saves. [Single] is one rank. [DDP] keeps a
// replica on every rank and averages the gradients while the backward pass still
// runs. [FSDP] keeps a shard of each parameter on every rank. The loop of package
// train knows the interface alone.
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
// # Fully sharded parameters
//
// A rank of an [FSDP] holds 1/ranks of each parameter, of its gradient and of its
// optimizer state. The parameters are divided into units, for example one for each block of
// a transformer, and one for what the model has beside them (the root). The full values of a
// unit are there only around the calls of its module. With blocks 0, 1 and 2, time from left
// to right:
//
//	            forward                     backward
//	computes    0      1      2      loss   2      1      0
//	root        #################################################
//	unit 0      #######                            .......#######
//	unit 1      .......#######              .......#######
//	unit 2             .......#####################
//	gradients                               #####################
//
// A dot is a gather under way: the next unit comes while the present one computes. A # is
// memory: for full values, and in the last row for the whole gradients of one unit after the
// other. Unit 2 stays between the passes, for the backward pass begins
// with it. So a rank holds the full values of the root and of at most two units.
//
// With [WithinGroupsOf](k) a rank keeps a part of the full values of a unit when it gives them
// up in the forward pass: one of k. The backward pass then gathers from k neighbours, which may
// be on one node, and not from all. Parts have memory of their own, for all units but the root:
// 1/k of the parameters, which stays from step to step.
//
// Each full value has one tensor for the whole life of the FSDP. Its memory is given up and
// brought back (tensor.Tensor.Release, Restore), with views of it and what the tape has saved.
// To read it in between panics with the parameter's name. The whole gradient of a unit lies in
// memory that goes from unit to unit: from the first write to the end of the reduce-scatter.
//
// The forward pass writes a trace of the calls of units. All collectives of the backward pass
// follow from the trace: so ranks whose backward passes reach other parameters, or none of
// a unit, still make the same collectives in the same order. What travels has a sharding type
// (package mesh): a gradient is Partial(sum) on each axis until it has been reduced there, and
// is taken only when it owes nothing.
//
// The bytes are moved by the goroutine of the group's collectives while the pass computes on
// another. Ranks that share memory copy from each other's shards right to where the model
// reads the values. Parameters of less than 32 KiB a rank share a collective, and pass through
// staging memory.
//
// A seam for shards in the memory of the host, beside a device that computes, is the chunk of a
// shardParam: gathers read it, reductions write to it, and the optimizer steps on it.
//
// # Splits that are composed
//
// [Parallelize] splits a model over all axes of a mesh at once, and gives a [Parallel]. The axes
// are, outermost first:
//
//	axis       what each of its ranks has               what its ranks send
//	pp         some of the calls of the model: stages   activations between stages
//	replicate  the model, and samples of its own        sums of gradients
//	fsdp       a shard of each parameter, and samples   parameters, and sums of gradients
//	ep         some of the experts, and samples         rows of tokens, to their experts
//	cp         a part of each sequence                  keys and values
//	tp         a part of each module                    activations, several times a layer
//
// Each axis but replicate and fsdp is a part (the interface splitter in lay.go): an interceptor,
// and a say in how each parameter lies. A parameter has a lay: where each axis cuts it, and over
// which axes its gradient is owed. From the lays follows all else. Parallelize cuts the parameters
// by mesh.Boxes, also those on tensor.Meta; fsdp then cuts what the other axes have left; a
// gradient is summed once, over one group of the axes that it owes; a norm counts each element on
// the first of the ranks that have it; and [Parallel.Layout] says where a checkpoint finds it.
//
// In a pass, parts step in from the outside to the inside: pp, cp, ep, tp, and then the engine, an
// FSDP or the buckets of a DDP. So tensor parallelism reads what fsdp has gathered, and the ranks
// of a pipeline's stage share the calls of that stage.
//
// Ranks that differ on replicate, fsdp or ep have samples of their own, and the gradients are those
// of the mean over them: the backward pass begins with 1/samplers. Ranks that differ only on pp, cp
// or tp share the work on the same samples. [Parallel.Step] runs the passes of a step, and gives
// all of them one loss.
//
// # Islands
//
// A [DiLoCo] trains on islands that a slow link joins. Each island is a job of its own, which trains
// by a Single, a DDP or an FSDP. Every so many steps it exchanges how far it has come with the other
// islands, through a store: no group has members on two islands, so a lost island stops no other.
// Package islands says who takes part in an exchange.
//
// # Where a new strategy goes
//
// Each strategy is a type in a file of its own, beside single.go, ddp.go and fully_shard.go; none
// has a branch for another. What each method has to do stands beside it in strategy.go. A task
// names its strategy in train.Task.Strategy.
//
// # Files
//
//	strategy.go         the interface, and what a model must be like to be wrapped
//	step.go             the passes of a step, one after the other
//	single.go           one rank
//	data_parallel.go    one process over several devices or groups of threads
//	ddp.go              DDP and its options: when replicas are synchronised
//	fully_shard.go      FSDP and its options: FullyShard, and what a training loop calls
//	shard_policy.go     which module is a unit, and which unit has a parameter
//	shard_unit.go       the shards, full values and gradients of a unit
//	shard_part.go       what a rank keeps of the full values within groups of neighbours
//	shard_pass.go       when units are gathered, given up and reduced in a pass
//	parallelize.go      Parallel: a model that is split over all axes of a mesh
//	cut.go              what each rank holds of a parameter, its layout and its first values
//	lay.go              how a parameter lies, and what each way to split a model is to Parallel
//	sizes.go            NewMesh: the sizes of its axes
//	split.go            the groups over which gradients are summed, by parameter
//	plan.go             Plan: which module has which style of tensor parallelism; plan_roles.go
//	                    finds the modules, and says how their parameters are cut
//	tensor_parallel.go  the axis tp: modules that ranks share
//	boundary.go         where values get another kind over tp: what is sent
//	tensor_pieces.go    layers that compute while messages travel, piece by piece
//	loss_parallel.go    a loss of logits that ranks share
//	expert_parallel.go  the axis ep: rows of experts that travel to their ranks and back
//	context_parallel.go the axis cp: whose tokens are where, in the model; zigzag.go which rank
//	                    has which; context_ring.go and context_heads.go attention over them,
//	                    context_mask.go its masks, context_loss.go the loss
//	pipeline.go         the axis pp: PipelineConfig, and which stage reads which parameter;
//	                    pipeline_cut.go where stages begin
//	pipeline_plan.go    a dry run: the calls of each stage, and the values that cross
//	pipeline_stage.go   a pass over the model on a rank that has some of the stages
//	pipeline_step.go    the actions of a schedule; pipeline_wire.go their messages
//	diloco.go           DiLoCo: islands that exchange what they have learned now and then;
//	                    diloco_exchange.go when, outer_fragment.go the outer optimizer,
//	                    outer_gradient.go what travels
//	native_reducer.go   how gradients are averaged: buckets and all-reduce
//	bucket.go           which gradients share a bucket, and its memory
//	hook.go             hooks that average buckets in place of the all-reduce; hook_compress.go
//	                    those that send fewer bits, hook_powersgd.go PowerSGD,
//	                    hook_state.go what a checkpoint has of a hook
//	join.go             Join: ranks with unlike numbers of batches; pytorch_join.go beside
//	                    PyTorch's ranks
//	static_graph.go     passes that reach the same parameters
//	sparse.go           gradients by rows
//	buffers.go          rank 0's buffers for all
//	ranks.go            typed collectives over all ranks of a group
//	prediction.go       what a step will take: memory, and bytes between ranks; shard_plan.go
//	                    runs the passes of an FSDP for it, without ranks
//	type_check.go       the check of sharding types in the first training pass
//	mismatch.go         MismatchError: ranks with different models
//	zero_redundancy_optimizer.go
//	                    an optimizer whose state is divided among replicas
//	straggler.go        ranks that the others wait for
//	sync_batchnorm.go   batch norms over the batches of all ranks
//	pytorch.go          PyTorch's DDP wire: options and errors
//	pytorch_reducer.go  its passes; pytorch_buckets.go its buckets, pytorch_state.go
//	                    its broadcasts of the state, pytorch_model.go its comparison
//	                    of the models, pytorch_dtype.go what sizes tell of dtypes
package parallel
