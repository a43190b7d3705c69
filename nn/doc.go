// SPDX-License-Identifier: Apache-2.0

// Package nn has the modules that models are made of.
//
// # Modules
//
// A module is a pointer to a struct. It has a method
//
//	Forward(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor
//
// and exported fields that hold its parameters ([*Parameter]), its buffers
// ([*Buffer]) and its children. Children are modules, slices of modules
// (PyTorch's ModuleList), or maps from strings to modules (PyTorch's ModuleDict;
// the keys are taken in order). A module with several inputs or results has
// ForwardN instead ([ModuleN]).
//
// Names come from the fields, as PyTorch's state_dict writes them: field InProj
// of child 0 of Layers is layers.0.in_proj. The tag `name:"wte"` gives a field
// another name, `name:"-"` hides the field, and `name:""` leaves its own part out
// of the name. The fields of an embedded struct are fields of the outer one.
//
// # The carrier
//
// A [Ctx] is what a forward pass carries: the context, the tape, training or
// evaluation, the generator, the device, autocast. A module calls a child by
// c.Call and reads a parameter by c.Param. A wrapper can step in at these two
// places and nowhere else ([Interceptor]). Sharding gathers a parameter there,
// and activation checkpointing recomputes a call there ([Recompute]). The code of
// the model does not change for it.
//
//	c := nn.Training(ctx)
//	defer c.Close() // frees what the step made
//	loss := tensor.CrossEntropy(c.Call(model, x), y)
//	err := loss.Backward(ctx)
//
// # Files
//
//	ctx.go         the carrier Ctx, Interceptor, Call, Param, errors with the module's name
//	parameter.go   Parameter, its gradient, hooks on the gradient; Buffer
//	statedict.go   Parameters, Buffers, StateDict of a model
//	modules.go     Modules of a model, and how names come from fields
//	build.go       Build: where new parameters live and what they are drawn from; init.go;
//	               materialize.go, first values of a model that was built on tensor.Meta
//	linear.go      layers: also conv.go, embedding.go, norm.go, pool.go, dropout.go, rnn.go
//	attention.go   attention; kvcache.go its cache, transformer.go PyTorch's transformer
//	moe.go         a mixture of experts and its router; experts.go the experts themselves
//	activations.go activations; losses.go, accuracy.go
//	sequential.go  modules one after the other
//	recompute.go   activation checkpointing
//	fork.go        passes over some of the samples, at the same time; buffers of a pass
//	lora.go        matrices that are trained beside frozen weights
//	backward.go    a forward and a backward pass in one call
//	check.go       what is wrong with the options of a layer, told in one error
//
// # bfloat16
//
// A pass with [WithAutocast] computes its products in bfloat16. Parameters,
// their gradients, and so optimizers and checkpoints, stay float32. Where the
// processor has instructions for bfloat16, matrix products run at about twice
// the speed; convolutions gain less. The documentation of package tensor lists
// what is computed in which dtype.
//
// # Concurrency
//
// A Ctx and a model belong to one goroutine. Ranks in one process have a model
// each.
package nn
