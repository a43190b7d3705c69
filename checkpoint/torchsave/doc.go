// SPDX-License-Identifier: Apache-2.0

// Package torchsave reads and writes the files of torch.save: tensors in plain containers.
//
// Such a file is a zip archive whose members are stored as they are. One member, data.pkl, is
// a pickle of everything except the tensors' bytes; each of the others is the storage of one
// or several tensors. A tensor is a view of its storage: an offset, a shape and strides.
//
// [Open] reads the pickle by package pickle, which runs nothing, with a list of the globals
// that tensors and plain containers need. [File.Value] is what was saved, with a *[Tensor] for
// each tensor. A [File] is also a checkpoint.Source: its tensors have the names of their
// places, such as model.weight for the dict {"model": {"weight": …}}. A tensor is read where
// it lies, so memory is bounded whatever the size of the file. Strides, views, shared storages
// and files of big-endian machines read as PyTorch reads them. (PyTorch itself does not swap the
// bytes of uint16, uint32 and uint64 of the other kind of machine; this package does.)
//
// [Write] and [Save] make a file that torch.load opens with weights_only=True.
//
// # What is refused
//
// A tensor that is sparse, quantized or nested, has no data (the meta device), or has a dtype
// that no safetensors file has, is listed by [File.Refused]; the others can be read. A file
// with a global that is not on the list, a compressed or encrypted member, members that
// overlap, names that leave the archive, TorchScript, and the formats before PyTorch 1.6 are
// errors with their names.
//
// # Caveats
//
// Reading does not compare the checksums of a zip's members, as PyTorch does not. [File.CheckSums]
// compares them; a job may have written none (torch.serialization.set_crc32_options). A File may be used by several
// goroutines. The zero File and the zero Tensor are not usable.
package torchsave
