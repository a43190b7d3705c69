// SPDX-License-Identifier: Apache-2.0

// Package huggingface reads and writes folders of weights as Hugging Face's
// tools lay them out: model.safetensors, or shards model-00001-of-00003.safetensors
// with model.safetensors.index.json, which says where each tensor is, and
// config.json beside them. It also reads what PyTorch's HuggingFaceStorageWriter saves from
// several ranks: files that have boxes of tensors.
//
// [Open] trusts nothing in the folder: names with a path in them, shards that
// are not there, tensors that two shards have are errors that name file and
// tensor. The index says which files there are, the files which tensors. A [Folder] is a
// checkpoint.Source. [Save] makes the whole folder or nothing; [Write] takes tensors of which
// not even one is in memory.
//
// What the tensors mean is for package models, which knows the names of each
// architecture.
package huggingface
