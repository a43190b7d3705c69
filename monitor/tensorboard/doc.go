// SPDX-License-Identifier: Apache-2.0

// Package tensorboard writes event files that TensorBoard reads: scalars, histograms, texts, images, and
// the settings of a run (hparams).
//
// # Mental model
//
// A [Writer] appends records to a file of its own in the run's directory, as TensorFlow's writer does:
// each process of a run makes a new file, and TensorBoard reads all of them as one run. Records are
// encoded by the caller and written by a goroutine once a second. The caller never waits for the disk:
// what does not fit in [MaxQueue] bytes meanwhile is left out and counted.
//
// # Format
//
// A file is a list of records (TFRecord): the length, a masked CRC-32C of it, the data, and a masked
// CRC-32C of these. The data is a message Event of tensorflow/core/util/event.proto. The few fields
// that are used are encoded by hand (proto.go).
//
// # Files
//
//	writer.go   Writer: the file, and who waits for whom
//	event.go    the messages of each kind
//	proto.go    the encoding of messages, and records
package tensorboard
