// SPDX-License-Identifier: Apache-2.0

package dcp

import "fmt"

// FormatError says that a directory is no whole checkpoint of PyTorch.
type FormatError struct {
	Checkpoint string
	File       string // "" for the directory itself
	Name       string // the tensor or object concerned, "" if none
	Problem    string
	Err        error // what it comes from, nil if nothing; its text is in Problem
}

func (e *FormatError) Unwrap() error { return e.Err }

func (e *FormatError) Error() string {
	s := "dcp: " + e.Checkpoint + ": "
	if e.File != "" {
		s += e.File + ": "
	}
	if e.Name != "" {
		s += fmt.Sprintf("%q ", e.Name)
	}
	return s + e.Problem
}
