// SPDX-License-Identifier: Apache-2.0

package native

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"testing"
)

// TestSeams: what watches ranks knows neither kind of backend, and shared memory does not
// know the mesh, as the package's documentation says of its files.
func TestSeams(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		mesh := strings.HasPrefix(name, "mesh") || name == "executor.go" || name == "watchdog.go"
		if mesh || strings.HasSuffix(name, "_test.go") {
			continue
		}
		syntax, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(syntax, func(n ast.Node) bool {
			if id, ok := n.(*ast.Ident); ok && (id.Name == "Mesh" || id.Name == "Shm" && !strings.HasPrefix(name, "shm")) {
				t.Errorf("%s names %s: move what needs it to a file of its own kind, or hand in a function", name, id.Name)
			}
			return true
		})
	}
}
