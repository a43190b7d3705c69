// SPDX-License-Identifier: Apache-2.0

package sharding

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// TestEveryOperationHasARule reads the names of the operations from the source of
// package tensor.
func TestEveryOperationHasARule(t *testing.T) {
	names := operationNames(t, filepath.Join("..", "..", "tensor"))
	if len(names) < 120 || !slices.Contains(names, "gelu tanh grad") || !slices.Contains(names, "linear") {
		t.Fatalf("%d operations found, which cannot be all: %q", len(names), names)
	}
	for _, name := range names {
		if _, ok := rules[name]; !ok {
			t.Errorf("operation %q has no rule: add it to the table in operations.go", name)
		}
	}
	for name := range rules {
		if !slices.Contains(names, name) {
			t.Errorf("the table has a rule for %q, which package tensor does not have", name)
		}
	}
}

// source is the functions of a package.
type source struct {
	funcs map[string][]*ast.FuncDecl
	// sinks are the parameters that are names of operations: of which function,
	// at which place, with what behind it.
	sinks map[sink]bool
	names map[string]bool
}

type sink struct {
	fn     string
	param  int
	suffix string
}

// operationNames returns every string that can become the name of an operation. It
// follows names from result, view, observe and record to whoever calls them.
func operationNames(t *testing.T, dir string) []string {
	t.Helper()
	s := &source{funcs: map[string][]*ast.FuncDecl{}, names: map[string]bool{},
		sinks: map[sink]bool{{"result", 0, ""}: true, {"view", 0, ""}: true, {"observe", 0, ""}: true, {"record", 0, ""}: true}}
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, decl := range f.Decls {
			if fn, ok := decl.(*ast.FuncDecl); ok && fn.Body != nil {
				s.funcs[fn.Name.Name] = append(s.funcs[fn.Name.Name], fn)
			}
		}
	}
	for n := -1; n != len(s.sinks); {
		n = len(s.sinks)
		for _, fns := range s.funcs {
			for _, fn := range fns {
				s.read(fn)
			}
		}
	}
	return slices.Sorted(maps.Keys(s.names))
}

// read looks for calls of sinks in a function.
func (s *source) read(fn *ast.FuncDecl) {
	params, locals := map[string]int{}, map[string]string{}
	n := 0
	for _, field := range fn.Type.Params.List {
		for _, name := range field.Names {
			params[name.Name] = n
			n++
		}
	}
	ast.Inspect(fn.Body, func(node ast.Node) bool {
		if spec, ok := node.(*ast.ValueSpec); ok {
			for i, name := range spec.Names {
				if i < len(spec.Values) {
					if text, ok := literal(spec.Values[i]); ok {
						locals[name.Name] = text
					}
				}
			}
		}
		return true
	})
	ast.Inspect(fn.Body, func(node ast.Node) bool {
		call, ok := node.(*ast.CallExpr)
		if !ok {
			return true
		}
		called := ""
		switch f := call.Fun.(type) {
		case *ast.Ident:
			called = f.Name
		case *ast.SelectorExpr:
			called = f.Sel.Name
		}
		for at := range maps.Clone(s.sinks) {
			if at.fn == called && at.param < len(call.Args) {
				s.take(fn, params, locals, call.Args[at.param], at.suffix)
			}
		}
		return true
	})
}

// take notes what an argument can be.
func (s *source) take(fn *ast.FuncDecl, params map[string]int, locals map[string]string, arg ast.Expr, suffix string) {
	if sum, ok := arg.(*ast.BinaryExpr); ok && sum.Op == token.ADD {
		if text, ok := literal(sum.Y); ok {
			if text != suffix { // a slope has none of its own
				s.take(fn, params, locals, sum.X, text+suffix)
			}
		}
		return
	}
	if text, ok := literal(arg); ok {
		s.names[text+suffix] = true
		return
	}
	switch arg := arg.(type) {
	case *ast.Ident:
		if text, ok := locals[arg.Name]; ok {
			s.names[text+suffix] = true
		} else if i, ok := params[arg.Name]; ok {
			s.sinks[sink{fn.Name.Name, i, suffix}] = true
		}
	case *ast.CallExpr: // device.OpName(op), of which only these two have results of their own
		s.names["sort"+suffix], s.names["top k"+suffix] = true, true
	}
}

func literal(e ast.Expr) (string, bool) {
	if l, ok := e.(*ast.BasicLit); ok && l.Kind == token.STRING {
		text, err := strconv.Unquote(l.Value)
		return text, err == nil
	}
	return "", false
}
