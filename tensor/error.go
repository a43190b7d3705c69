// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"fmt"
	"strings"
)

// Error is a misuse of an operation: shapes or dtypes that do not fit, an
// index out of range, a value that was freed. Operations panic with it.
type Error struct {
	Op     string   // the operation, such as "matmul"
	Shapes [][]int  // of the operands, in order
	DTypes []DType  // of the operands, in order
	Names  []string // of the operands that have one (parameters)
	Msg    string   // what does not fit, and what would
}

func (e *Error) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "tensor: %s(", e.Op)
	for i, s := range e.Shapes {
		if i > 0 {
			b.WriteString(", ")
		}
		if i < len(e.Names) && e.Names[i] != "" {
			b.WriteString(e.Names[i] + " ")
		}
		fmt.Fprintf(&b, "%v%v", e.DTypes[i], s)
	}
	return b.String() + "): " + e.Msg
}

// fail panics with an Error about op and its operands.
func fail(op string, operands []*Tensor, format string, args ...any) {
	e := &Error{Op: op, Msg: fmt.Sprintf(format, args...)}
	for _, t := range operands {
		if t == nil {
			continue
		}
		e.Shapes = append(e.Shapes, t.Shape())
		e.DTypes = append(e.DTypes, t.dtype)
		e.Names = append(e.Names, t.name)
	}
	panic(e)
}
