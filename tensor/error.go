// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"fmt"
	"path/filepath"
	"runtime"
	"strconv"
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
	Where  string   // the line outside this package that asked for it: "file.go:12"
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
	b.WriteString("): " + e.Msg)
	if e.Where != "" {
		b.WriteString(" (at " + e.Where + ")")
	}
	return b.String()
}

// caller returns the line that called into this package and the layers of
// package nn, which is where the mistake is.
func caller() string {
	pcs := make([]uintptr, 64)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(3, pcs)])
	for {
		f, more := frames.Next()
		name := f.Function
		if f.File != "" && !strings.HasPrefix(name, ownPath+"tensor.") && !strings.HasPrefix(name, ownPath+"nn.") &&
			!strings.HasPrefix(name, ownPath+"internal/") && !strings.HasPrefix(name, "runtime.") {
			return filepath.Base(filepath.Dir(f.File)) + "/" + filepath.Base(f.File) + ":" + strconv.Itoa(f.Line)
		}
		if !more {
			return ""
		}
	}
}

const ownPath = "github.com/cohort-ml/cohort/"

// fail panics with an Error about op and its operands.
func fail(op string, operands []*Tensor, format string, args ...any) {
	e := &Error{Op: op, Msg: fmt.Sprintf(format, args...), Where: caller()}
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
