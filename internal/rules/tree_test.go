// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
)

const module = "github.com/cohort-ml/cohort"

// file is one text file of the repository.
type file struct {
	path      string // from the root, with slashes
	dir       string // of path, "." for the root
	text      []byte
	generated bool
	nested    bool // belongs to a module of its own: generators, tools
	// For Go files:
	syntax *ast.File
	test   bool
}

// line returns the place of a node as path:line.
func (f *file) line(n ast.Node) string {
	return fset.Position(n.Pos()).String()
}

var (
	fset        = token.NewFileSet()
	isGenerated = regexp.MustCompile(`(?m)^(//|#) Code generated .* DO NOT EDIT\.$`)
)

// tree reads the repository once.
var tree = sync.OnceValues(func() ([]*file, error) {
	root, err := findRoot()
	if err != nil {
		return nil, err
	}
	var files []*file
	nested := map[string]bool{} // directories with a go.mod of their own
	err = filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, p)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		if d.IsDir() {
			switch {
			case rel == "out" || d.Name() == ".git" || d.Name() == "node_modules":
				return fs.SkipDir
			case rel != "." && exists(filepath.Join(p, "go.mod")):
				nested[rel] = true
			}
			return nil
		}
		if !d.Type().IsRegular() || !isText(rel) {
			return nil
		}
		text, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		f := &file{path: rel, dir: path.Dir(rel), text: text, generated: isGenerated.Match(text)}
		for dir := f.dir; dir != "."; dir = path.Dir(dir) {
			f.nested = f.nested || nested[dir]
		}
		if strings.HasSuffix(rel, ".go") && !strings.Contains("/"+rel, "/testdata/") {
			f.test = strings.HasSuffix(rel, "_test.go")
			f.syntax, err = parser.ParseFile(fset, rel, text, parser.ParseComments|parser.SkipObjectResolution)
			if err != nil {
				return err
			}
		}
		files = append(files, f)
		return nil
	})
	return files, err
})

// isText says whether the rules look into a file: sources and documents, not
// data.
func isText(rel string) bool {
	switch path.Ext(rel) {
	case ".go", ".s", ".h", ".c", ".py", ".sh", ".md", ".mod", ".yml", ".yaml":
		return true
	}
	return strings.HasPrefix(rel, ".ci/")
}

func exists(p string) bool {
	_, err := os.Stat(p)
	return err == nil
}

func findRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		text, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err == nil && bytes.Contains(text, []byte("module "+module+"\n")) {
			return dir, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", fs.ErrNotExist
		}
		dir = parent
	}
}

// all returns the repository's files.
func all(t *testing.T) []*file {
	t.Helper()
	files, err := tree()
	if err != nil {
		t.Fatal(err)
	}
	if len(files) < 10 {
		t.Fatalf("only %d files were found: the rules look in the wrong place", len(files))
	}
	return files
}

// sources returns the Go files of this module, without generators and tools.
func sources(t *testing.T) []*file {
	t.Helper()
	var out []*file
	for _, f := range all(t) {
		if f.syntax != nil && !f.nested {
			out = append(out, f)
		}
	}
	return out
}
