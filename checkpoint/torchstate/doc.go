// SPDX-License-Identifier: Apache-2.0

// Package torchstate says what the tensors of a PyTorch job's checkpoint are: the model's, the
// optimizer's, or something else. It gives them Cohort's names, and gives Cohort's tensors
// PyTorch's names.
//
// PyTorch's jobs save nested dicts, such as {"model": …, "optim": …}. The optimizer's part is
// found by its own form, in whatever dict it is: state.PARAMETER.KIND and param_groups. The
// model's part is the dict that has the parameters.
//
//	PyTorch                              Cohort
//	model.0.weight                       0.weight              in the model
//	optim.state.0.weight.exp_avg         exp_avg.0.weight      in the optimizer
//	optim.state.0.weight.step            step.0.weight         in the optimizer
//	optim.param_groups.0.lr              Groups[0].Options["lr"]
//
// [FromDCP] reads a checkpoint of torch.distributed.checkpoint, [FromFile] a file of torch.save.
// A file names parameters by their numbers, unless the optimizer was made with names: then the
// numbers count the model's parameters. [Items] and [Value] are the way back.
//
// # Caveats
//
// An optimizer that counts no steps in PyTorch (SGD) counts them in Cohort: a parameter with
// state and without a count has the count 1. The sources read from the checkpoint that they
// were made of; close it after them.
package torchstate
