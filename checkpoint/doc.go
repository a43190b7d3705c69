// SPDX-License-Identifier: Apache-2.0

// Package checkpoint saves the state of a training run so that it is on disk
// whole or not at all, and finds it again.
//
// A run has one directory; each checkpoint is a directory in it:
//
//	DIR/step-00000123/model.safetensors      the weights, for PyTorch and Hugging Face tools too
//	                  optimizer.safetensors  the optimizer's state
//	                  progress.json          where the run was (Progress)
//	                  manifest.json          size and CRC-32C of every other file
//
// [Save] writes the files into DIR/step-00000123.tmp-RANDOM, makes each of
// them and the directory durable (fsync), and renames the directory: the one
// instant at which the checkpoint comes to be. Whatever happens before it,
// kill -9, a full disk, a power failure, leaves the checkpoints before it as
// they were and a .tmp directory that the next Save removes. Old checkpoints
// go only after the new one is durable.
//
// Where ranks hold parts of tensors, the file still has the whole ones. [WriteParts]
// puts one tensor together at a time, on rank 0, and [LoadParts] reads what a rank
// holds: so a checkpoint goes on any number of ranks, and no rank has it all.
//
// [Latest] lists the directory and returns the newest checkpoint whose every
// byte agrees with its manifest, and by name those it had to pass over.
//
// Concurrency: one save at a time in a directory; a second one, from whatever
// process, gets a [BusyError]. Reading needs no lock and may go on during a
// save. A [Writer] and its files may be used by several goroutines, each file
// by one at a time; a [Checkpoint] is not changed after it was returned.
//
// Caveats. The bytes are checked when a checkpoint is opened, not again when
// tensors are read from it. Files that the manifest does not list are ignored
// (a reader's notes do no harm) and go when their checkpoint is pruned. On a
// file system without locks (some network ones) saves are not kept apart and
// what a killed save left is not removed. The zero values of Writer and
// Checkpoint are not usable.
package checkpoint
