// SPDX-License-Identifier: Apache-2.0

package safetensors

import (
	"fmt"
	"strings"
)

// FormatError says that a file is not a whole, well-formed safetensors file,
// or that tensors handed to [Write] cannot be one.
type FormatError struct {
	File    string // as given to Open or NewFile; empty when writing
	Tensor  string // the tensor concerned, if one is
	Offset  int64  // byte of the file where the problem was found, -1 if none
	Problem string
	// Truncated: the file is shorter than its header says, so it was most
	// likely cut short while being written or copied.
	Truncated bool
}

func (e *FormatError) Error() string {
	var b strings.Builder
	b.WriteString("safetensors: ")
	if e.File != "" {
		b.WriteString(e.File + ": ")
	}
	if e.Tensor != "" {
		fmt.Fprintf(&b, "tensor %q ", e.Tensor)
	}
	b.WriteString(e.Problem)
	if e.Offset >= 0 {
		fmt.Fprintf(&b, " (at byte %d)", e.Offset)
	}
	switch {
	case e.Truncated:
		b.WriteString("; the file was cut short: copy or save it again")
	case e.File != "":
		b.WriteString("; the file is damaged or not a safetensors file")
	}
	return b.String()
}
