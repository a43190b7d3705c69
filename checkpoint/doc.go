// SPDX-License-Identifier: Apache-2.0

// Package checkpoint saves the state of a training run so that it is there whole or not at
// all, and loads it on any number of ranks.
//
// # Mental model
//
// A [State] is what a rank holds: tensors in sections ([Model], [Optimizer]), and values that
// JSON can write. All ranks list the same tensors, and a [Part] says which part of a tensor this
// rank holds. [Save] and [Load] are calls of all ranks:
//
//	state := checkpoint.State{Sections: map[string][]checkpoint.Part{checkpoint.Model: parts}}
//	step, err := checkpoint.Load(ctx, group, storage.Dir("out"), state)
//	for ; err == nil && step < steps; step++ { …
//		err = checkpoint.Save(ctx, group, storage.Dir("out"), step+1, state)
//
// Saving, each rank writes its own boxes (see [mesh.Boxes]) into files of its own. What several
// ranks hold is dealt out to them, and each writes a share. No rank plans for the others: who
// writes what is a function of the list that all have. Loading, each rank reads the bytes that
// it needs of whatever boxes there are. So a run goes on on any mesh.
//
// A storage ([storage.Storage]) has the checkpoints of one run, each in a folder:
//
//	step-00000123/model.safetensors      tensors, or model-00001-of-00004.safetensors, …
//	              optimizer.safetensors
//	              config.json            further files of the program
//	              manifest.json          what is there, see [Manifest]
//
// The files of a section have the names and the form that Hugging Face's tools read, if each
// tensor is whole in one file. Files with parts of tensors have the metadata that PyTorch's
// HuggingFaceStorageReader reads. The manifest has a CRC-32C of each MiB of each box and of each
// file, and every byte that is loaded is compared with it.
//
// # How a checkpoint comes to be
//
// The ranks compare what they save. Rank 0 looks for room and for old stages, and names a
// stage. All ranks write there, and all bytes are durable before a rank reports that it has
// written. Rank 0 merges the parts of the manifest and commits: that is the one instant at which
// the checkpoint comes to be. Whatever happens before it, kill -9, a full disk, a power failure,
// leaves the checkpoints before it as they were, and a stage that the next save removes. Old
// checkpoints go only after the new one is durable ([Retention]).
//
// An error of one rank is an error of all, and names the rank. No rank is left waiting: also a
// rank that has failed takes part in the exchange that follows.
//
// # Where things are
//
//   - state.go, parts.go: what a rank saves, and which part of a tensor it holds.
//   - save.go, merge.go, retention.go: [Save], the commit, and which checkpoints stay.
//   - saver.go, staging.go: [Saver], and copies of what is written beside training.
//   - emergency.go, list.go: [SavePart], [Complete], and what is in a storage ([List]).
//   - frozen.go: links to files of the checkpoint before.
//   - crew.go, deal.go: what the ranks tell each other, and who writes what.
//   - section_file.go, crc.go: files with the checksums of their chunks; [Writer].
//   - manifest.go, manifest_parse.go, scanner.go, box.go: [Manifest], as JSON and checked.
//   - workers.go: a limited number of goroutines, and of bytes.
//   - open.go: [Open], [Latest] and [Checkpoint].
//   - stored.go, source.go: sections as a [Source], and other sources.
//   - load.go, tensors.go, statedict.go: [Load], and how tensors are filled.
//   - progress.go, claim.go: where a run of package train was, and who uses a directory.
//   - errors.go: the types of errors.
//
// # Caveats
//
// One save at a time in a storage; a second one, from whatever process, gets a
// [*storage.BusyError]. Reading needs no lock and may go on during a save. Files that the
// manifest does not list are ignored (a reader's notes do no harm) and go when their checkpoint
// is pruned. On a file system without locks (some network ones) saves are not kept apart and
// what a killed save left is not removed. The zero values of Writer and Checkpoint are not
// usable.
//
// Checkpoints of version 1, which have whole tensors and no checksums of chunks, are still read.
package checkpoint
