// SPDX-License-Identifier: Apache-2.0

// Package anyformat opens the weights of any tool that Cohort reads, compares
// them, and writes them in the format of another tool.
//
// [Open] looks at what lies at a [Location], never at its name: a file begins with
// the header of its format, and a folder has the files that only one format has. It
// returns an [Input], which has sections (the model, the optimizer) of tensors. Each
// section is a checkpoint.Source, so that all code below works on all formats.
//
// No function holds a whole tensor. Tensors are read in pieces ([Pieces]) of a few
// megabytes, so memory does not depend on the size of a checkpoint.
//
// Files: recognize.go says which format lies somewhere; input.go opens it; pieces.go
// reads a tensor piece by piece; number.go gives the values of bytes;
// difference.go compares.
//
// Caveats. A format without checksums (all but Cohort's own) shows damage only if
// the damage makes a file malformed. An Input may be read by several goroutines.
package anyformat
