// SPDX-License-Identifier: Apache-2.0

// Package predict runs a trained model over files, and writes what it says of each input.
//
// # Mental model
//
// A [Source] yields [Item] values one after the other: images of files and folders, rows of
// tables, records, lines of text. [Run] and [Embed] read some hundreds of them, prepare them
// on all processors, compute them in batches, and hand the results to a [Writer] in the order
// of the inputs. So the memory that they need does not depend on how many inputs there are.
//
// An input that cannot be used is an error with its file, line and field. It ends the run, or
// is left out and told ([Options].Skip). The model itself, and what its inputs go through, is
// a train.Model; this package only reads and writes.
//
// # Files
//
//	source.go    the sources, and which of them a path is
//	fields.go    from records and rows to the inputs of a model
//	run.go       the passes over a source
//	writer.go    predictions as a table, CSV or JSON lines
//	vectors.go   vectors as JSON lines, npy or safetensors
package predict
