// SPDX-License-Identifier: Apache-2.0

// Package autograd differentiates computations that go over several processes by
// RPC, and steps on parameters wherever they are. It is PyTorch's
// torch.distributed.autograd and DistributedOptimizer.
//
// # Mental model
//
// A [Context] is one computation, such as a training step. A pass of it
// ([Context.Pass]) is a carrier as package nn knows it, and a context.Context: a
// call made with it takes the process that it reaches into the context. There the
// handler computes under [Ctx], and may call on. Tensors that cross carry their
// history along: what gradients flow through is recorded as sent on one side and as
// received on the other.
//
//	dc, err := autograd.NewContext(agent)
//	defer dc.Close()
//	c, err := dc.Pass(ctx)
//	h, err := Embed.Call(c, agent.Peer("embedding"), tokens)
//	loss := tensor.CrossEntropy(c.Call(decoder, h), targets)
//	err = dc.Backward(ctx, loss)
//	err = opt.Step(ctx, dc, 1)
//
// A call with ctx in place of c would be an ordinary one, through which no gradient
// comes. Where there would be one it fails with [ErrNoPass]: who wants none makes the
// call with the carrier of nn.Evaluation.
//
// [Context.Backward] walks the tapes of all processes at once. Where a tape sent a
// tensor, the walk waits for its gradient; where it received one, the walk sends the
// gradient back. Gradients stay in the context, on the process of the parameter
// ([Context.Gradient]); nn.Parameter.Grad is not touched, so several contexts, of
// several trainers say, do not disturb each other.
//
// # Bits
//
// A gradient has the bits of one process in a chain of calls, and wherever sums of
// three and more have the same order: a tensor's gradient is summed on the side that
// received it, and then once with those of the sender; a parameter's is summed call by
// call, the last first. The order does not depend on timing as long as the program's
// does not.
//
// # Caveats
//
//   - A pass, with its tape, belongs to one goroutine. Begin one for each goroutine.
//     The answer of an asynchronous call comes to the tape where it is waited for, and
//     what rpc.Then makes of it is computed there, when it is waited for. Streams are
//     not recorded, and refuse tensors that have a history.
//   - A value of one pass is used in another, on the same process, through [Bring].
//   - Backward wants the answers of all calls to be there. Calls that nobody waited
//     for hold it up while they run; what comes later has no part in the pass.
//   - A call inside of a part that is recomputed (nn.Recompute) would be made twice,
//     and is refused. Second derivatives do not cross processes.
//   - A scale of the loss that one process sets (tensor.Tape.ScaleGrads, as DDP does)
//     scales all gradients of its losses, on whichever process.
//   - What Close frees on other processes is theirs once a message has reached them.
//     Contexts of a process that died are released there within a minute.
package autograd
