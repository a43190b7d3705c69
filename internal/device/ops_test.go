// SPDX-License-Identifier: Apache-2.0

package device

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// operations are the structs of ops.go that have a name, and the methods of each.
func operations(t *testing.T) (structs map[string]*ast.StructType, methods map[string][]string) {
	t.Helper()
	structs, methods = map[string]*ast.StructType{}, map[string][]string{}
	for _, file := range []string{"ops.go", "check.go"} {
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if d.Recv != nil {
					if recv, ok := d.Recv.List[0].Type.(*ast.Ident); ok {
						methods[recv.Name] = append(methods[recv.Name], d.Name.Name)
					}
				}
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					if ts, ok := spec.(*ast.TypeSpec); ok {
						if st, ok := ts.Type.(*ast.StructType); ok {
							structs[ts.Name.Name] = st
						}
					}
				}
			}
		}
	}
	maps.DeleteFunc(structs, func(name string, _ *ast.StructType) bool { return !slices.Contains(methods[name], "opName") })
	if len(structs) < 70 {
		t.Fatalf("ops.go has %d operations; the test does not see them", len(structs))
	}
	return structs, methods
}

// TestOperationsAreCopied: an operation with a list or a check can be kept for later.
func TestOperationsAreCopied(t *testing.T) {
	structs, methods := operations(t)
	for name, st := range structs {
		for _, f := range st.Fields.List {
			switch f.Type.(type) {
			case *ast.ArrayType, *ast.StarExpr, *ast.MapType:
				if !slices.Contains(methods[name], "copied") {
					t.Errorf("%s has a field that points to the caller's memory, and no method copied in check.go", name)
				}
			}
		}
	}
	op := SGD{Updates: []SGDUpdate{{LR: 1}}}
	later := CopyOp(op).(SGD)
	op.Updates[0].LR = 2
	if later.Updates[0].LR != 1 {
		t.Error("the copy of an operation shares its list")
	}
	check := &Check{Site: 7}
	CheckOf(CopyOp(CheckIndices{Limit: 3, Check: check})).Note("check indices", 1, 5)
	if check.Fault.Found {
		t.Error("the copy of an operation shares its check")
	}
}

// TestTheCPUHasEveryOperation: each struct of the list has a case in package cpu.
func TestTheCPUHasEveryOperation(t *testing.T) {
	structs, _ := operations(t)
	files, err := filepath.Glob("cpu/fused_*.go")
	if err != nil {
		t.Fatal(err)
	}
	var source strings.Builder
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		source.Write(text)
	}
	for name := range structs {
		if n := strings.Count(source.String(), "case device."+name+":"); n != 1 {
			t.Errorf("%s has %d cases in cpu/fused_*.go, want 1", name, n)
		}
	}
}
