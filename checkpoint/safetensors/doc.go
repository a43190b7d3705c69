// SPDX-License-Identifier: Apache-2.0

// Package safetensors reads and writes the tensor file format that PyTorch and
// Hugging Face tools open without running any code.
//
// A file is a length (8 bytes, little-endian), a JSON header of that length
// and the tensors' bytes, dense, little-endian and row-major. The header says
// for each name its dtype, its shape and where its bytes begin and end.
//
// Writing: [Write] takes whole tensors as raw bytes and lays them out as the
// reference library does, so that the same tensors give the same file.
// Reading: [Open] checks the whole header before anything else is read (no
// holes, no overlaps, sizes that agree with dtype and shape, nothing after the
// last tensor); [File.ReadTensor] then reads one tensor into the caller's
// bytes. Nothing is mapped and nothing is read ahead, so a file much larger
// than memory opens at the cost of its header.
//
// Caveats. The bytes are the machine's own, which is right on every platform
// that this module supports: all are little-endian. The format holds no
// checksum: a changed bit inside a tensor is not found here; package
// checkpoint's manifest finds it. A [File] may be used by several goroutines
// at once; a slice given to [Write] must not change until it returns. The zero
// File is not usable.
package safetensors
