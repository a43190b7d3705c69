// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"fmt"
	"go/ast"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The documents name files, packages, identifiers and commands. These tests
// hold them to what is there; the command lines of cohort itself are checked
// beside its flags, in cmd/cohort.

// block is a fenced block of a document.
type block struct {
	lang string
	line int // of its first line of text, from 1
	text string
}

// markdown takes a document apart: its fenced blocks, and its lines with the
// blocks left empty.
func markdown(f *file) (blocks []block, prose []string) {
	var open *block
	for i, line := range strings.Split(string(f.text), "\n") {
		mark, isFence := strings.CutPrefix(strings.TrimSpace(line), "```")
		switch {
		case isFence && open == nil:
			open = &block{lang: mark, line: i + 2}
		case isFence:
			blocks = append(blocks, *open)
			open = nil
		case open != nil:
			open.text += line + "\n"
		default:
			prose = append(prose, line)
			continue
		}
		prose = append(prose, "")
	}
	return blocks, prose
}

func documents(t *testing.T) []*file {
	t.Helper()
	var out []*file
	for _, f := range all(t) {
		if path.Ext(f.path) == ".md" {
			out = append(out, f)
		}
	}
	return out
}

// there says whether a slash-separated path from the root exists. A file that
// a wildcard stands for, or a pattern of packages, needs one match.
func there(t *testing.T, p string) bool {
	t.Helper()
	root, err := findRoot()
	if err != nil {
		t.Fatal(err)
	}
	p = strings.TrimSuffix(strings.TrimSuffix(p, "..."), "/")
	if p == "." || p == "" {
		return true
	}
	found, err := filepath.Glob(filepath.Join(root, filepath.FromSlash(p)))
	return err == nil && len(found) > 0
}

func TestMainDocuments(t *testing.T) {
	for _, name := range []string{"README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "LICENSE"} {
		if !there(t, name) {
			t.Errorf("%s is missing", name)
		}
	}
}

var link = regexp.MustCompile(`\]\(([^)\s]+)\)`)

func TestDocumentLinks(t *testing.T) {
	for _, f := range documents(t) {
		_, prose := markdown(f)
		for i, line := range prose {
			for _, m := range link.FindAllStringSubmatch(line, -1) {
				to, _, _ := strings.Cut(m[1], "#")
				if to == "" || strings.Contains(to, "://") {
					continue
				}
				if !there(t, path.Join(f.dir, to)) {
					t.Errorf("%s:%d: the link to %s leads nowhere", f.path, i+1, m[1])
				}
			}
		}
	}
}

// document returns the file at a path from the root.
func document(t *testing.T, p string) *file {
	t.Helper()
	for _, f := range all(t) {
		if f.path == p {
			return f
		}
	}
	t.Fatalf("%s is missing", p)
	return nil
}

// TestDocumentPages: the list of pages in docs/README.md names every page.
func TestDocumentPages(t *testing.T) {
	contents := string(document(t, "docs/README.md").text)
	for _, f := range documents(t) {
		if name := path.Base(f.path); f.dir == "docs" && name != "README.md" && !strings.Contains(contents, "]("+name+")") {
			t.Errorf("%s: docs/README.md does not link to it: add it to the list of pages, where readers need it", f.path)
		}
	}
}

var vocabularyRow = regexp.MustCompile(`^\| ([^|]+) \| ([^|]+) \| ([^|]+) \|$`)

// TestVocabulary: the terms of docs/vocabulary.md are those of the code. Each term
// stands once, and occurs in the package that its row names.
func TestVocabulary(t *testing.T) {
	const page = "docs/vocabulary.md"
	words := map[string]string{} // directory to the text of its Go files, in lower case
	for _, f := range sources(t) {
		words[f.dir] += strings.ToLower(string(f.text))
	}
	inTree := func(dir, word string) bool {
		for d, text := range words {
			if within(d, dir) && strings.Contains(text, word) {
				return true
			}
		}
		return false
	}
	seen := map[string]bool{}
	for i, line := range strings.Split(string(document(t, page).text), "\n") {
		row := vocabularyRow.FindStringSubmatch(line)
		if row == nil || row[1] == "term" || strings.HasPrefix(row[1], "---") {
			continue
		}
		links := link.FindAllStringSubmatch(row[3], -1)
		if len(links) == 0 {
			t.Errorf("%s:%d: the row of %q names no package", page, i+1, row[1])
		}
		for term := range strings.SplitSeq(strings.ToLower(row[1]), ", ") {
			if seen[term] {
				t.Errorf("%s:%d: %q stands twice: give each meaning a term of its own", page, i+1, term)
			}
			seen[term] = true
			last := term[strings.LastIndexByte(term, ' ')+1:]
			if !slices.ContainsFunc(links, func(l []string) bool { return inTree(path.Join("docs", l[1]), last) }) {
				t.Errorf("%s:%d: %q does not occur in %s: use the word of the code, or name its package", page, i+1, term, row[3])
			}
		}
	}
	if len(seen) < 50 {
		t.Errorf("%s: only %d terms were found", page, len(seen))
	}
}

// names are the identifiers of the module's packages, by the package's name:
// Ident, Type.Method, Type.Field.
func names(t *testing.T) map[string]map[string]bool {
	t.Helper()
	out := map[string]map[string]bool{}
	for _, f := range sources(t) {
		if f.test {
			continue
		}
		pkg := out[f.syntax.Name.Name]
		if pkg == nil {
			pkg = map[string]bool{}
			out[f.syntax.Name.Name] = pkg
		}
		members := func(typ string, list *ast.FieldList) {
			for _, field := range list.List {
				for _, n := range field.Names {
					pkg[typ+"."+n.Name] = true
				}
			}
		}
		for _, d := range f.syntax.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if r := receiverName(d); r != "" {
					pkg[r+"."+d.Name.Name] = true
				} else {
					pkg[d.Name.Name] = true
				}
			case *ast.GenDecl:
				for _, s := range d.Specs {
					switch s := s.(type) {
					case *ast.TypeSpec:
						pkg[s.Name.Name] = true
						switch typ := s.Type.(type) {
						case *ast.StructType:
							members(s.Name.Name, typ.Fields)
						case *ast.InterfaceType:
							members(s.Name.Name, typ.Methods)
						}
					case *ast.ValueSpec:
						for _, n := range s.Names {
							pkg[n.Name] = true
						}
					}
				}
			}
		}
	}
	return out
}

var (
	codeSpan  = regexp.MustCompile("`([^`]+)`")
	pathSpan  = regexp.MustCompile(`^\.?[\w-]+(/[\w.*-]+)+/?$`)
	identSpan = regexp.MustCompile(`^\*?([a-z]\w*)\.([A-Z]\w*(\.[A-Z]\w*)?)$`)
)

// elsewhere are the beginnings of paths that are not of this repository: a
// platform, a module, the standard library, the output of a run.
var elsewhere = []string{"linux/", "darwin/", "golang.org/", "github.com/", "testing/", "out/"}

// TestDocumentNames: what stands between backquotes and looks like a path or
// an exported identifier exists.
func TestDocumentNames(t *testing.T) {
	known := names(t)
	for _, f := range documents(t) {
		_, prose := markdown(f)
		for i, line := range prose {
			for _, m := range codeSpan.FindAllStringSubmatch(line, -1) {
				if problem := checkSpan(t, m[1], known); problem != "" {
					t.Errorf("%s:%d: %s", f.path, i+1, problem)
				}
			}
		}
	}
}

func checkSpan(t *testing.T, span string, known map[string]map[string]bool) string {
	if pathSpan.MatchString(span) {
		if !there(t, span) && !slices.ContainsFunc(elsewhere, func(p string) bool { return strings.HasPrefix(span, p) }) {
			return fmt.Sprintf("%s is no file or directory here: name it as it is called now (foreign paths are listed in `elsewhere` in internal/rules)", span)
		}
	}
	if m := identSpan.FindStringSubmatch(span); m != nil {
		if pkg, ok := known[m[1]]; ok && !pkg[m[2]] {
			return fmt.Sprintf("package %s has no %s: name it as it is called now", m[1], m[2])
		}
	}
	return ""
}

// TestDocumentExamples: the README shows the program of examples/ddp whole,
// and what else it and the pages of docs show is part of an example that the
// tests run.
func TestDocumentExamples(t *testing.T) {
	// dense leaves out how lines are indented, and comments at their ends.
	dense := func(code string) string {
		var b strings.Builder
		for line := range strings.Lines(code) {
			line, _, _ = strings.Cut(line, " // ")
			b.WriteString(strings.TrimSpace(line) + "\n")
		}
		return b.String()
	}
	var program, examples string
	shown := map[string]string{} // code to its document
	for _, f := range all(t) {
		if f.path == "examples/ddp/main.go" {
			// The licence is not news to the README's reader.
			_, program, _ = strings.Cut(string(f.text), "\n\n")
		}
		switch {
		case filepath.Base(f.path) == "example_test.go", within(f.dir, "examples") && filepath.Base(f.path) == "main.go":
			examples += dense(string(f.text))
		case f.path == "README.md", within(f.dir, "docs"):
			blocks, _ := markdown(f)
			for _, b := range blocks {
				if b.lang == "go" {
					shown[b.text] = f.path
				}
			}
		}
	}
	if program == "" || shown[program] != "README.md" {
		t.Error("README.md does not show examples/ddp/main.go as it is: copy it into a block marked go, without the licence line")
	}
	for code, document := range shown {
		if code != program && !strings.Contains(examples, dense(code)) {
			t.Errorf("%s shows code that is in no example_test.go and no example's main.go, so that nothing runs it:\n%s", document, code)
		}
	}
}

// TestDocumentCommands: command lines in blocks marked sh name packages, files
// and steps that exist.
func TestDocumentCommands(t *testing.T) {
	root, err := findRoot()
	if err != nil {
		t.Fatal(err)
	}
	ci, err := os.ReadFile(filepath.Join(root, ".ci", "run"))
	if err != nil {
		t.Fatal(err)
	}
	numCommands := 0
	for _, f := range documents(t) {
		blocks, _ := markdown(f)
		for _, b := range blocks {
			if b.lang != "sh" {
				continue
			}
			for i, line := range strings.Split(b.text, "\n") {
				if line, _, _ = strings.Cut(line, "#"); strings.TrimSpace(line) == "" {
					continue
				}
				numCommands++
				for _, problem := range checkCommand(t, line, string(ci)) {
					t.Errorf("%s:%d: %s", f.path, b.line+i, problem)
				}
			}
		}
	}
	if numCommands < 10 {
		t.Errorf("only %d command lines were found in blocks marked sh", numCommands)
	}
}

var assignment = regexp.MustCompile(`^[A-Z_]+=`)

func checkCommand(t *testing.T, line, ci string) (problems []string) {
	words := strings.Fields(line)
	for len(words) > 0 && assignment.MatchString(words[0]) {
		words = words[1:]
	}
	if len(words) == 0 {
		return nil
	}
	switch words[0] {
	case "go", "cohort", "export":
	case ".ci/run":
		for _, step := range words[1:] {
			if !strings.Contains(ci, "\nstep_"+step+"()") {
				problems = append(problems, fmt.Sprintf(".ci/run has no step %s", step))
			}
		}
	default:
		problems = append(problems, fmt.Sprintf("%s is a command that nobody checks: add it to checkCommand in internal/rules", words[0]))
	}
	for _, w := range words {
		if p, ok := strings.CutPrefix(w, "./"); ok && !there(t, p) {
			problems = append(problems, fmt.Sprintf("%s does not exist", w))
		}
	}
	return problems
}

// TestDocumentRules checks the rules themselves.
func TestDocumentRules(t *testing.T) {
	known := names(t)
	for span, ok := range map[string]bool{
		"internal/rules/documents_test.go": true,
		"internal/rules/nothing.go":        false,
		"tensors/tensor.go":                false,
		"internal/kernel/*.s":              true,
		"linux/arm64":                      true,
		"nn.Ctx":                           true,
		"nn.Context":                       false,
		"*tensor.Error":                    true,
		"nn.Interceptor.InterceptParam":    true,
		"nn.Ctx.Nothing":                   false,
		"torch.Tensor":                     true,
		"go vet":                           true,
	} {
		if problem := checkSpan(t, span, known); (problem == "") != ok {
			t.Errorf("%s: %q, want ok %v", span, problem, ok)
		}
	}
	const ci = "\nstep_vet() {"
	for line, ok := range map[string]bool{
		"go test ./...":                    true,
		"go run ./cmd/nothing":             false,
		"RANK=0 go run ./examples/ddp":     true,
		".ci/run vet":                      true,
		".ci/run dance":                    false,
		"make test":                        false,
		"cohort run ./examples/nothing -x": false,
	} {
		if problems := checkCommand(t, line, ci); (len(problems) == 0) != ok {
			t.Errorf("%s: %q, want ok %v", line, problems, ok)
		}
	}
}
