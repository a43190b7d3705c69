// SPDX-License-Identifier: Apache-2.0

// Package nn has the modules that models are made of.
//
// # Modules
//
// A module is a pointer to a struct with a method
//
//	Forward(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor
//
// and exported fields that hold its parameters ([*Parameter]), buffers
// ([*Buffer]) and children: modules, or slices of them, which is PyTorch's
// ModuleList, or maps from strings, its ModuleDict, whose keys are taken in
// order. Names come from the fields, as PyTorch's state_dict writes them: field
// InProj of child 0 of Layers is layers.0.in_proj; a tag `name:"wte"` gives
// another one, `name:"-"` hides a field, and `name:""` leaves the field's own
// part out. The fields of an embedded struct are fields of the outer one.
//
// # The carrier
//
// A [Ctx] is what a forward pass carries: the context, the tape, training or
// evaluation, the generator, the device, autocast. A module calls a child by c.Call and
// reads a parameter by c.Param. These two are the only places where others
// step in ([Interceptor]): sharding gathers a parameter there, checkpointing
// recomputes a call ([Recompute]), errors get their module's name. A model's code does not
// change for any of it.
//
//	c := nn.Training(ctx)
//	defer c.Close() // frees what the step made
//	loss := tensor.CrossEntropy(c.Call(model, x), y)
//	err := loss.Backward(ctx)
//
// # bfloat16
//
// A pass with [WithAutocast] computes its products in bfloat16, while parameters, their
// gradients, and so optimizers and checkpoints, stay float32. Where the processor has
// instructions for it, matrix products run at about twice the speed; convolutions
// gain less. The list of what is computed in what is in the documentation of
// package tensor.
//
// # Concurrency
//
// A Ctx and a model belong to one goroutine. Ranks in one process have a model
// each.
package nn
