// SPDX-License-Identifier: Apache-2.0

// Package autograd differentiates computations that go over several processes by RPC, and
// steps on parameters wherever they are. It is PyTorch's torch.distributed.autograd and
// DistributedOptimizer.
//
// # Mental model
//
// A [Context] is one computation, such as a training step. [Context.Pass] begins a forward
// pass and returns its carrier, an nn.Ctx, which is also a context.Context. A call that is
// made with the carrier takes the called process into the context. The handler there
// computes under the carrier that [Ctx] returns, and may call other processes. Tensors that
// cross to another process keep their history: the tape of the sender records that a tensor
// was sent, the tape of the receiver that it was received.
//
//	dc, err := autograd.NewContext(agent)
//	defer dc.Close()
//	c, err := dc.Pass(ctx)
//	h, err := Embed.Call(c, agent.Peer("embedding"), tokens)
//	loss := tensor.CrossEntropy(c.Call(decoder, h), targets)
//	err = dc.Backward(ctx, loss)
//	err = opt.Step(ctx, dc, 1)
//
// A call that is made with ctx in place of c is an ordinary call: no gradient comes back
// through it. If a gradient would be lost that way, the call fails with [ErrNoPass]. A
// caller that wants no gradient makes the call with the carrier of nn.Evaluation.
//
// [Context.Backward] walks the tapes of all processes at once. At a tensor that was sent,
// the walk waits for its gradient; at a tensor that was received, the walk sends the
// gradient back. The gradient of a parameter stays in the context, on the parameter's
// process ([Context.Gradient]). nn.Parameter.Grad is not changed, so several contexts, of
// several trainers for example, do not disturb each other.
//
// # Files
//
//   - agent.go: how an agent takes part; engine.go: all contexts of one process
//   - context.go: contexts as programs see them; context_state.go: one context on one process
//   - pass.go: a forward pass, and the tensors that it sends and receives
//   - hook.go, header.go: what is done with the calls of a context, and what travels with them
//   - backward.go: a backward pass over all processes; walk.go: its part on one process
//   - gradient.go: the gradients of a context on one process
//   - optimizer.go: the optimizer of parameters on several processes
//
// # Bits
//
// In a chain of calls a gradient has the same bits as in one process. So it has where a
// sum of three or more gradients has the same order in both. The gradient of a tensor is
// summed on the process that received the tensor, and the sum is added to the sender's. The
// gradient of a parameter is summed call by call, the last call first. This order does not
// depend on timing, unless the program's own order does.
//
// # Caveats
//
//   - A pass, with its tape, belongs to one goroutine. Begin a pass for each goroutine.
//     The answer of an asynchronous call comes to the tape of the goroutine that waits for
//     it, and the function of rpc.Then is called there.
//   - Streams are not recorded, and refuse tensors that have a history.
//   - [Bring] brings a value of one pass into another pass on the same process.
//   - Backward needs the answers of all calls. It waits for calls that are still running.
//     An answer that comes later has no part in the backward pass.
//   - A call inside a recomputed part of a model (nn.Recompute) is refused: it would be made
//     twice. Second derivatives do not cross processes.
//   - If a process scales its losses (tensor.Tape.ScaleGrads, as DDP does), the gradients of
//     these losses are scaled on all processes.
//   - Close does not wait for other processes: they free their part of the context when the
//     message has reached them. If the process that made a context has died, the others
//     release the context within a minute.
package autograd
