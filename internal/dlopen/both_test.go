// SPDX-License-Identifier: Apache-2.0

package dlopen

import (
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"maps"
	"strings"
	"testing"
)

// TestBothAreAlike: callers see the same in a build with the tags and in one without. So what
// compiles, and passes vet, with one compiles with the other.
func TestBothAreAlike(t *testing.T) {
	linux, static := exported(t, "library_linux.go"), exported(t, "library_static.go")
	if len(linux) < 5 || !maps.Equal(linux, static) {
		t.Errorf("library_linux.go has\n%v\nand library_static.go\n%v", linux, static)
	}
}

// exported returns the types of what a file exports, by name.
func exported(t *testing.T, file string) map[string]string {
	t.Helper()
	parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	all := make(map[string]string)
	for _, d := range parsed.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if d.Name.IsExported() {
				all[kinds(d.Recv)+" "+d.Name.Name] = kinds(d.Type.Params) + " " + kinds(d.Type.Results)
			}
		case *ast.GenDecl:
			for _, s := range d.Specs {
				switch s := s.(type) {
				case *ast.ValueSpec: // Built, whose value differs
					for _, n := range s.Names {
						if n.IsExported() {
							all[n.Name] = d.Tok.String()
						}
					}
				case *ast.TypeSpec:
					fields, ok := s.Type.(*ast.StructType)
					if !ok {
						all[s.Name.Name] = types.ExprString(s.Type)
						continue
					}
					all[s.Name.Name] = "struct"
					for _, f := range fields.Fields.List {
						for _, n := range f.Names {
							if n.IsExported() {
								all[s.Name.Name+"."+n.Name] = types.ExprString(f.Type)
							}
						}
					}
				}
			}
		}
	}
	return all
}

// kinds are the types of parameters.
func kinds(l *ast.FieldList) string {
	var b strings.Builder
	if l == nil {
		return ""
	}
	for _, f := range l.List {
		for range max(1, len(f.Names)) {
			b.WriteString(types.ExprString(f.Type) + ";")
		}
	}
	return b.String()
}
