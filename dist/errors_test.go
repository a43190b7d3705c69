// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"go/ast"
	"go/parser"
	"go/token"
	"reflect"
	"regexp"
	"strings"
	"testing"
)

// TestAliasesTellTheirFields: go doc shows nothing of a type behind an alias, so
// that the alias's comment lists what the type has.
func TestAliasesTellTheirFields(t *testing.T) {
	aliases := map[string]reflect.Type{}
	for _, v := range []any{&RankError{}, &MismatchError{}, &RankCall{}, &TimeoutError{}, &ReduceError{}, &Doing{}, &Parcel{}, &Member{}, &WireError{}, new(ReduceOp)} {
		aliases[reflect.TypeOf(v).Elem().Name()] = reflect.TypeOf(v)
	}
	file, err := parser.ParseFile(token.NewFileSet(), "errors.go", nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	ast.Inspect(file, func(n ast.Node) bool {
		decl, ok := n.(*ast.GenDecl)
		if !ok || decl.Tok != token.TYPE {
			return true
		}
		for _, spec := range decl.Specs {
			spec := spec.(*ast.TypeSpec)
			doc := spec.Doc.Text()
			if spec.Doc == nil {
				doc = decl.Doc.Text()
			}
			typ, ok := aliases[spec.Name.Name]
			if !ok {
				t.Errorf("%s is an alias that this test does not know: add it, and its fields to its comment", spec.Name.Name)
				continue
			}
			seen++
			if s := typ.Elem(); s.Kind() == reflect.Struct {
				for i := range s.NumField() {
					if f := s.Field(i); f.IsExported() && !regexp.MustCompile(`(?m)^\t\t(\w+, )*`+f.Name+`\b`).MatchString(doc) {
						t.Errorf("the comment of %s does not list its field %s %v", spec.Name.Name, f.Name, f.Type)
					}
				}
			}
			for i := range typ.NumMethod() {
				m := typ.Method(i).Name
				if always := m == "Error" || m == "String" && spec.Name.Name != "Member"; !always && !strings.Contains(doc, ") "+m+"(") {
					t.Errorf("the comment of %s does not list its method %s", spec.Name.Name, m)
				}
			}
		}
		return true
	})
	if seen != len(aliases) {
		t.Errorf("%d aliases are declared in errors.go, want %d", seen, len(aliases))
	}
}
