// SPDX-License-Identifier: Apache-2.0

package tensor

import (
	"fmt"
	"path"
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
	Late   bool     // a device that computes later has found it: who noticed is not who asked
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

// caller returns the line that called into this package, which is where the mistake
// is. The layers of package nn, and what packages parallel and rpc have around them,
// count as this package. Files tell what is ours: a closure that was inlined has the
// name of the function around it.
func caller() string {
	_, self, _, _ := runtime.Caller(0)
	root := path.Dir(path.Dir(self))
	ours := func(file string) bool {
		dir := path.Dir(file)
		return !strings.HasSuffix(file, "_test.go") &&
			(dir == root+"/tensor" || dir == root+"/nn" || strings.HasPrefix(dir+"/", root+"/parallel/") || strings.HasPrefix(dir+"/", root+"/rpc/") || strings.HasPrefix(dir, root+"/internal/"))
	}
	pcs := make([]uintptr, 64)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs)])
	for {
		f, more := frames.Next()
		if f.File != "" && !ours(f.File) && !strings.HasPrefix(f.Function, "runtime.") {
			return filepath.Base(filepath.Dir(f.File)) + "/" + filepath.Base(f.File) + ":" + strconv.Itoa(f.Line)
		}
		if !more {
			return ""
		}
	}
}

// NewError returns an error about op and its operands, of which some may be nil,
// with the line that called into this package or package nn.
func NewError(op string, operands []*Tensor, format string, args ...any) *Error {
	e := &Error{Op: op, Msg: fmt.Sprintf(format, args...), Where: caller()}
	for _, t := range operands {
		if t == nil {
			continue
		}
		e.Shapes = append(e.Shapes, t.Shape())
		e.DTypes = append(e.DTypes, t.dtype)
		e.Names = append(e.Names, t.name)
	}
	return e
}

// fail panics with an Error about op and its operands.
func fail(op string, operands []*Tensor, format string, args ...any) {
	panic(NewError(op, operands, format, args...))
}
