// SPDX-License-Identifier: Apache-2.0

// Package cuda computes on NVIDIA's GPUs. It calls the driver's library directly
// (libcuda.so.1), which is found when the program runs; the compiler NVRTC makes the
// kernels. There is no cgo and no header of the vendor.
//
// # State
//
// Not yet run on hardware. Tests run it on a stand-in for the driver (package fake). See
// docs/gpu.md.
//
// # Mental model
//
// The driver is loaded once in a process ([Open] does it). A call of the driver works on the context
// that is current on its OS thread, so each call makes the context of its device current
// first. What a device is asked to do goes onto a stream, and is done later, in the order of
// the stream. An event marks a point of a stream; another stream or the host can wait for it.
//
// Memory comes from an [Allocator], which keeps what is given back for the next block of the
// same stream. So a step that repeats asks the driver for nothing.
//
// # Files
//
//   - library.go: where the libraries are looked for. status.go: what [Probe] finds out.
//   - driver.go, compiler.go: the calls of the driver and of NVRTC.
//   - errors.go: the kinds of failures. allocator.go: memory of the device. pinned.go: memory
//     of the host that the device reads, and the word in which kernels note bad indices.
//   - device.go: [Device], and how a kernel is launched. primitives.go, fused.go: which kernel
//     computes what. kernels.go: how kernels come onto a device.
//   - kernels: the sources, by family. fake: the stand-in for the driver.
//
// # Adding a kernel
//
// Write it into the family's file in kernels, and add a case to Fused (fused.go). Take the
// operation off the list noCUDA in tensor/cuda_test.go, whose test then compares it with the
// CPU. Run go generate for kernels, if you have NVRTC.
//
// # Caveats
//
// A program that was built without the tag cuda loads nothing, and each function that would
// returns [ErrNotBuilt]. A failure of a kernel is sticky: the device is dead for the rest of
// the process.
package cuda
