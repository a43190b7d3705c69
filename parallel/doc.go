// SPDX-License-Identifier: Apache-2.0

// Package parallel trains one model on several ranks.
//
// [DDP] keeps a replica on every rank and averages the gradients while the
// backward pass still runs. A wrapper here is itself a module: it runs the
// model it was given and steps in at the carrier's two places (nn.Interceptor)
// and at the gradients (nn.Parameter.OnGradReady, tensor.Tape.AfterBackward).
// Model code does not know of it.
//
// With the option [PyTorch] a DDP issues the collectives of PyTorch's
// DistributedDataParallel instead of its own, so that a group may have ranks of
// both kinds. testdata/ddp_pytorch.py records what those are.
package parallel
