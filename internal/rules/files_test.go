// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"bytes"
	"go/ast"
	"go/token"
	"path"
	"regexp"
	"strings"
	"testing"
)

const (
	license  = "SPDX-License-Identifier: Apache-2.0"
	maxLines = 800
	// minDoc is the length below which a package's doc comment cannot give a
	// mental model, in characters.
	minDoc = 120
)

// TestLicense: every source file begins with the line that names its licence.
func TestLicense(t *testing.T) {
	for _, f := range all(t) {
		mark := "//"
		switch ext := path.Ext(f.path); {
		case ext == ".go" || ext == ".s" || ext == ".h" || ext == ".c":
		case ext == ".py" || ext == ".sh" || strings.HasPrefix(f.path, ".ci/"):
			mark = "#"
		default:
			continue
		}
		text := f.text
		if bytes.HasPrefix(text, []byte("#!")) {
			_, text, _ = bytes.Cut(text, []byte("\n"))
		}
		line, _, _ := bytes.Cut(text, []byte("\n"))
		if string(line) != mark+" "+license {
			t.Errorf("%s: it does not begin with %q: put that line first", f.path, mark+" "+license)
		}
	}
}

// TestLength: one noun a file, at a length that can be read in one go.
func TestLength(t *testing.T) {
	for _, f := range all(t) {
		if n := bytes.Count(f.text, []byte("\n")); f.syntax != nil && !f.generated && n > maxLines {
			t.Errorf("%s: %d lines, more than %d: split it by concern", f.path, n, maxLines)
		}
	}
}

// words lists what must not be in a file. The expressions are put together
// from pieces, so that they do not match themselves.
var words = []struct {
	pattern, why string
}{
	{`\b(` + "TO" + `DO|` + "FIX" + `ME|` + "XX" + `X|` + "HA" + `CK)\b`,
		"work left for later is nobody's: do it, or open an issue and describe the limit in the package's documentation"},
	{`(?i)\bnot (yet )?` + `implemented\b|\bunimplemented\b`,
		"no stubs: leave it out, or return an error that says what is supported instead"},
	{`(^|[^\w.)}*])/(home|root|Users|mnt|work|workspace|workspaces)/`,
		"a path of somebody's machine: use a path relative to the repository, or one that the user gives"},
}

func TestWords(t *testing.T) {
	for _, w := range words {
		re := regexp.MustCompile(w.pattern)
		for _, f := range all(t) {
			for n, line := range strings.Split(string(f.text), "\n") {
				if m := re.FindString(line); m != "" {
					t.Errorf("%s:%d: %q: %s", f.path, n+1, m, w.why)
				}
			}
		}
	}
}

// TestWordRules checks the expressions themselves.
func TestWordRules(t *testing.T) {
	for _, c := range []struct {
		text string
		bad  bool
	}{
		{"// TO" + "DO(me): later", true},
		{"the XX" + "X of", true},
		{"panic(\"not " + "implemented\")", true},
		{"read \"/ho" + "me/me/x\"", true},
		{"cd /wo" + "rk/x", true},
		{"internal/work/pool.go", false},
		{"a method that a type has not", false},
		{"todos", false},
	} {
		bad := false
		for _, w := range words {
			bad = bad || regexp.MustCompile(w.pattern).MatchString(c.text)
		}
		if bad != c.bad {
			t.Errorf("%q: refused %v, want %v", c.text, bad, c.bad)
		}
	}
}

// TestPackageDocs: every package says in one place what it is.
func TestPackageDocs(t *testing.T) {
	docs := map[string][]string{} // directory to its files with a doc comment
	long := map[string]bool{}
	first := map[string]*file{}
	for _, f := range all(t) {
		if f.syntax == nil || f.test || strings.HasPrefix(f.dir, "tools/") {
			continue
		}
		if first[f.dir] == nil {
			first[f.dir] = f
		}
		if f.syntax.Doc == nil || isGenerated.MatchString(f.syntax.Doc.Text()) {
			continue
		}
		docs[f.dir] = append(docs[f.dir], f.path)
		text := f.syntax.Doc.Text()
		long[f.dir] = len(text) >= minDoc
		if name := f.syntax.Name.Name; name != "main" && !strings.HasPrefix(text, "Package "+name+" ") {
			t.Errorf("%s: the package's doc comment does not begin with %q", f.path, "Package "+name+" ")
		}
	}
	for dir, f := range first {
		switch {
		case len(docs[dir]) == 0:
			t.Errorf("%s: package %s has no doc comment: say above the package clause of one file what it is, and its caveats (ownership, aliasing, concurrency, the zero value)", dir, f.syntax.Name.Name)
		case len(docs[dir]) > 1:
			t.Errorf("%s: the package has doc comments in %s: put them into one", dir, strings.Join(docs[dir], ", "))
		case !long[dir] && f.syntax.Name.Name != "main":
			t.Errorf("%s: the package's doc comment is shorter than %d characters: give the mental model and the caveats", dir, minDoc)
		}
	}
}

// fileName is a file as a doc comment names it; a place such as file.go:12 is an example.
var fileName = regexp.MustCompile(`[\w*/.-]+\.go\b(:\d)?`)

// TestPackageDocFiles: the files that a package's doc comment names are there: in the
// package, or by the path from the root.
func TestPackageDocFiles(t *testing.T) {
	named := 0
	for _, f := range sources(t) {
		if f.test || f.syntax.Doc == nil {
			continue
		}
		for _, name := range fileName.FindAllString(f.syntax.Doc.Text(), -1) {
			if strings.Contains(name, ":") {
				continue
			}
			named++
			if !there(t, path.Join(f.dir, name)) && !(strings.Contains(name, "/") && there(t, name)) {
				t.Errorf("%s: the package's doc comment names %s, and there is no such file in the package: call it as it is called now, or by its path from the root", f.path, name)
			}
		}
	}
	if named < 50 {
		t.Errorf("only %d names of files were found: the rule looks in the wrong place", named)
	}
}

// plain are methods whose interface documents them.
var plain = map[string]bool{
	"Error": true, "Unwrap": true, "Is": true, "String": true, "GoString": true, "Format": true,
	"Read": true, "Write": true, "Close": true, "Len": true, "Less": true, "Swap": true, "Push": true, "Pop": true,
	"MarshalJSON": true, "UnmarshalJSON": true, "MarshalText": true, "UnmarshalText": true,
	"Timeout": true, "Temporary": true, "LocalAddr": true, "RemoteAddr": true,
	"SetDeadline": true, "SetReadDeadline": true, "SetWriteDeadline": true,
}

// TestExportedDocs: what a user can name is documented.
func TestExportedDocs(t *testing.T) {
	for _, f := range sources(t) {
		if f.test || f.syntax.Name.Name == "main" {
			continue
		}
		miss := func(n ast.Node, what string) {
			t.Errorf("%s: %s is exported without a doc comment: say what it does, with shapes, units and errors, or unexport it", f.line(n), what)
		}
		for _, d := range f.syntax.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				receiver := receiverName(d)
				if d.Doc == nil && d.Name.IsExported() && (receiver == "" || ast.IsExported(receiver) && !plain[d.Name.Name]) {
					miss(d, strings.TrimPrefix(receiver+"."+d.Name.Name, "."))
				}
			case *ast.GenDecl:
				if d.Tok == token.IMPORT || d.Doc != nil && d.Tok != token.TYPE {
					continue // a comment on the group is enough for constants and variables
				}
				for _, spec := range d.Specs {
					switch s := spec.(type) {
					case *ast.TypeSpec:
						if s.Name.IsExported() && s.Doc == nil && d.Doc == nil {
							miss(s, s.Name.Name)
						}
					case *ast.ValueSpec:
						for _, name := range s.Names {
							if name.IsExported() && s.Doc == nil && s.Comment == nil {
								miss(s, name.Name)
							}
						}
					}
				}
			}
		}
	}
}

// receiverName returns the type that a method belongs to, "" for a function.
func receiverName(d *ast.FuncDecl) string {
	if d.Recv == nil {
		return ""
	}
	x := d.Recv.List[0].Type
	for {
		switch e := x.(type) {
		case *ast.StarExpr:
			x = e.X
		case *ast.IndexExpr:
			x = e.X
		case *ast.IndexListExpr:
			x = e.X
		case *ast.Ident:
			return e.Name
		default:
			return ""
		}
	}
}

// TestNoHiddenState: nothing happens because a package was imported, and the
// environment is read in one place.
func TestNoHiddenState(t *testing.T) {
	readers := map[string]bool{"Getenv": true, "LookupEnv": true, "ExpandEnv": true, "Setenv": true, "Unsetenv": true, "Clearenv": true}
	for _, f := range sources(t) {
		if f.test {
			continue
		}
		for _, d := range f.syntax.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil && fn.Name.Name == "init" {
				t.Errorf("%s: an init function acts behind the reader's back: make it a value that main passes, or a sync.OnceValue", f.line(fn))
			}
		}
		if within(f.dir, "internal/envvar") || within(f.dir, "examples") {
			continue
		}
		ast.Inspect(f.syntax, func(n ast.Node) bool {
			s, ok := n.(*ast.SelectorExpr)
			if !ok || !readers[s.Sel.Name] {
				return true
			}
			if x, ok := s.X.(*ast.Ident); ok && (x.Name == "os" || x.Name == "syscall") {
				t.Errorf("%s: %s.%s: environment variables are declared and read in internal/envvar only, which lists them for the user: add it there", f.line(s), x.Name, s.Sel.Name)
			}
			return true
		})
	}
}
