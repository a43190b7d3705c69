// SPDX-License-Identifier: Apache-2.0

// Package dcp reads and writes the directories of PyTorch's distributed checkpoints
// (torch.distributed.checkpoint).
//
// A directory has a file .metadata and files such as __0_0.distcp, one or more for each rank
// that saved. The file .metadata is a pickle: it says for each tensor its dtype, its shape and
// its boxes ("chunks"), and for each box where its bytes lie. Each box is a small file of
// torch.save within a .distcp file. Everything that is no tensor is stored the same way.
//
// [Open] reads .metadata by package pickle, which runs nothing, and checks that the boxes of
// each tensor cover it. A [Checkpoint] is a checkpoint.Source that stores boxes: ReadBox reads
// only the bytes that it is asked for, so memory is bounded and a rank reads its part alone.
// Names are PyTorch's flat ones, such as model.0.weight.
//
// To write, each rank calls [WriteFile] with its items, and one rank calls [Commit] with what
// all ranks have written: it checks that the boxes cover their tensors, and writes .metadata
// last. [Write] does both for one process, from sources: in boxes if a source has boxes.
//
// # Caveats
//
// What a checkpoint means to a training program, as which of its tensors are the model's and
// which the optimizer's, is for package torchstate. Checkpoints that were compressed or
// encrypted by an extension of PyTorch are refused. PyTorch's checkpoints have no checksums:
// a changed bit in a tensor is not found. A Checkpoint may be used by several goroutines. It
// keeps at most 128 files open.
package dcp
