// SPDX-License-Identifier: Apache-2.0

// Package onnx writes trained models as ONNX files, which other programs run: ONNX Runtime,
// browsers, phones.
//
// A file holds the whole way from an input to a prediction. [Export] writes a classifier of
// images or a recommender:
//
//   - Of images the input is "images", float32 [batch, channels, size, size] with values from 0
//     to 1. The means and deviations are in the graph. The outputs are "logits" and
//     "probabilities", [batch, classes].
//   - Of tables the inputs are "numbers", float32 [batch, columns], where NaN is a missing
//     value, and "categories", int64 [batch, columns], the numbers of rows of the tables that
//     table.Schema.Bucket gives. The outputs are "logit" and "probability", [batch].
//
// The metadata of the file have what else is to know: the names of classes or columns, and how
// photos get their size.
//
// The pieces: proto.go writes the wire format of protocol buffers, as few kinds of fields as
// ONNX needs; graph.go makes nodes and weights of a graph; modules.go says for each module
// which nodes compute it. A module that it does not know is an error with its path and type.
//
// Caveats. A file has the limit of protocol buffers, 2 GiB. Weights are written as float32.
package onnx
