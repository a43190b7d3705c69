// SPDX-License-Identifier: Apache-2.0

package torchsave

import "fmt"

// FormatError says that a file is no whole file of torch.save, or of a kind that is not read.
type FormatError struct {
	File    string
	Member  string // of the zip, "" for the archive itself
	Tensor  string // the tensor concerned, "" if none
	Problem string
	Err     error // what it comes from, nil if nothing; its text is in Problem
}

func (e *FormatError) Unwrap() error { return e.Err }

func (e *FormatError) Error() string {
	s := "torchsave: " + e.File + ": "
	if e.Member != "" {
		s += fmt.Sprintf("member %q ", e.Member)
	}
	if e.Tensor != "" {
		s += fmt.Sprintf("tensor %q ", e.Tensor)
	}
	return s + e.Problem
}

// RefusedError is a tensor of a file that this package cannot give.
type RefusedError struct {
	File   string
	Name   string
	Reason string // such as "is sparse: …"
}

func (e *RefusedError) Error() string {
	return fmt.Sprintf("torchsave: %s: tensor %q %s", e.File, e.Name, e.Reason)
}
