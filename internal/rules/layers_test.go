// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"fmt"
	"go/ast"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// layers is the package map of the design, highest first. A package belongs to
// the tree named by the longest of these that its path begins with. Imports go
// down, or stay inside a tree.
var layers = [][]string{
	{"cmd", "examples"},
	{"train", "launch", "monitor", "internal/bench", "internal/doctor"},
	{"parallel", "rpc", "checkpoint", "models"},
	{"nn", "optim", "data", "dist"},
	{"tensor"},
	{"internal"},
}

// sideways lists the imports between trees of one layer that make sense. One
// entry never has its reverse, so the trees stay in an order.
var sideways = map[string][]string{
	"optim":          {"nn"},                         // steps on parameters
	"models":         {"checkpoint"},                 // loads and saves pretrained weights
	"train":          {"launch", "monitor"},          // a whole job starts ranks and reports
	"internal/bench": {"launch", "monitor", "train"}, // measures them
}

// leaves are packages that need a heavy client of somebody else's, or HTTP. They are
// handed in as values: nothing below the top imports them, and they alone may
// import what they are for.
var leaves = []string{"dist/store/etcd", "checkpoint/storage/s3", "checkpoint/storage/web"}

// pure lists what decides without goroutine, lock, disk or socket, so that tests
// can play it for any number of ranks: packages and single files.
var pure = []string{"dist/fault", "dist/operation", "dist/internal/collective", "dist/store/machine.go", "dist/store/request.go", "launch/supervisor.go",
	"launch/rendezvous/state.go", "launch/rendezvous/card.go", "launch/rendezvous/timing.go", "launch/rendezvous/wire.go", "launch/rendezvous/decider.go", "launch/rendezvous/machine.go", "rpc/internal/rref", "parallel/schedule"}

// impure are the packages that pure code has no use for.
var impure = []string{"net", "os", "sync", "golang.org/x", module + "/internal/transport"}

// external lists the modules that a tree may import beside the standard
// library. What is not listed has core only.
var (
	core     = []string{"golang.org/x/sys", "golang.org/x/sync"}
	external = map[string][]string{
		"cmd":   {"github.com/spf13/cobra", "github.com/spf13/pflag", "github.com/pelletier/go-toml/v2", "golang.org/x/term"},
		"train": {"golang.org/x/term"},
		// Compressed files and Parquet.
		"data/records": {"github.com/klauspost/compress", "github.com/parquet-go/parquet-go"},
		"examples":     {},
		// Unicode's normal forms, which tokenizers ask for.
		"data/tokenizer": {"golang.org/x/text"},
		// Calls of C libraries, which only a build with a tag has.
		"internal/dlopen": {"github.com/ebitengine/purego"},
	}
	// testOnly may be imported by any test.
	testOnly = []string{"github.com/anishathalye/porcupine", "github.com/google/go-cmp", "go.uber.org/goleak", "pgregory.net/rapid"}
)

func within(path, dir string) bool { return path == dir || strings.HasPrefix(path, dir+"/") }

// place returns the tree and the layer of a package, -1 for an unknown one.
func place(pkg string) (tree string, layer int) {
	for i, trees := range layers {
		for _, t := range trees {
			if within(pkg, t) {
				return t, i
			}
		}
	}
	return "", -1
}

func isLeaf(pkg string) bool {
	return slices.ContainsFunc(leaves, func(l string) bool { return within(pkg, l) })
}

// checkInternal returns what is wrong with an import inside the module, ""
// if nothing.
func checkInternal(from, to string) string {
	fromTree, fromLayer := place(from)
	toTree, toLayer := place(to)
	switch {
	case fromLayer < 0:
		return fmt.Sprintf("package %s has no place in the layers: add its tree to `layers` in internal/rules, as low as its imports allow, and to the design's map", from)
	case toLayer < 0:
		return fmt.Sprintf("package %s has no place in the layers: see `layers` in internal/rules", to)
	case isLeaf(to) && fromLayer > 0 && !within(from, to):
		return fmt.Sprintf("package %s imports the leaf package %s: take an interface, and let cmd or the user hand the leaf in", from, to)
	case fromTree == toTree:
		return ""
	case fromTree == "examples" && within(to, "internal"):
		return fmt.Sprintf("example %s imports %s, which a user cannot: use the public packages", from, to)
	case toLayer > fromLayer:
		return ""
	case slices.Contains(sideways[fromTree], toTree):
		return ""
	case toLayer == fromLayer:
		return fmt.Sprintf("package %s imports %s of its own layer: move what both need down, or take an interface; if the import is right, list it in `sideways` in internal/rules with the reason", from, to)
	default:
		return fmt.Sprintf("package %s imports %s, which is above it: imports go down only. Move the shared part down, or let the upper package hand in a value or a function", from, to)
	}
}

// checkExternal returns what is wrong with importing another module's package.
func checkExternal(from, imported string, test bool) string {
	if imported == "C" {
		return fmt.Sprintf("package %s uses cgo: Cohort builds without a C compiler; write it in Go or assembly, or open the library at run time behind a build tag", from)
	}
	if !test && (imported == "text/template" || imported == "html/template") {
		return fmt.Sprintf("package %s imports %s, which keeps all exported methods of all types in the binary (8.5 MB of the command): use internal/markup, or fmt", from, imported)
	}
	if first, _, _ := strings.Cut(imported, "/"); !strings.Contains(first, ".") {
		return "" // the standard library
	}
	allowed := slices.Clone(core)
	tree, _ := place(from)
	for _, of := range []string{tree, from} {
		allowed = append(allowed, external[of]...)
	}
	if test {
		allowed = append(allowed, testOnly...)
	}
	if isLeaf(from) || slices.ContainsFunc(allowed, func(m string) bool { return within(imported, m) }) {
		return ""
	}
	return fmt.Sprintf("package %s imports %s: it may import the standard library and %s. Write the few lines yourself, or put the client into a leaf package (`leaves` in internal/rules)", from, imported, strings.Join(allowed, ", "))
}

func TestImports(t *testing.T) {
	for _, f := range sources(t) {
		if _, layer := place(f.dir); layer < 0 {
			if f.dir == "." {
				t.Errorf("%s: the module's root has no Go package: put it into one of the packages of the design", f.path)
			} else {
				t.Errorf("%s: %s", f.path, checkInternal(f.dir, f.dir))
			}
			continue
		}
		for _, spec := range f.syntax.Imports {
			imported, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				t.Fatal(err)
			}
			var problem string
			if to, ok := strings.CutPrefix(imported, module+"/"); ok {
				if !f.test { // a test may look down on its package from above
					problem = checkInternal(f.dir, to)
				}
			} else {
				problem = checkExternal(f.dir, imported, f.test)
			}
			if problem != "" {
				t.Errorf("%s: %s", f.line(spec), problem)
			}
		}
	}
}

// TestPure: what is pure starts nothing and imports nothing that waits.
func TestPure(t *testing.T) {
	seen := map[string]bool{}
	for _, f := range sources(t) {
		i := slices.IndexFunc(pure, func(p string) bool { return within(f.path, p) })
		if i < 0 || f.test {
			continue
		}
		seen[pure[i]] = true
		for _, spec := range f.syntax.Imports {
			imported, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				t.Fatal(err)
			}
			if slices.ContainsFunc(impure, func(p string) bool { return within(imported, p) }) {
				t.Errorf("%s: %s is pure and imports %s: leave what waits to the shell around it", f.line(spec), pure[i], imported)
			}
		}
		ast.Inspect(f.syntax, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.GoStmt, *ast.SelectStmt, *ast.SendStmt:
				t.Errorf("%s: %s is pure: leave goroutines and channels to the shell around it", f.line(n), pure[i])
			}
			return true
		})
	}
	for _, p := range pure {
		if !seen[p] {
			t.Errorf("%s is listed as pure and does not exist: change `pure` in internal/rules", p)
		}
	}
}

// TestImportRules checks the rules themselves.
func TestImportRules(t *testing.T) {
	for _, c := range []struct {
		from, to string
		ok       bool
	}{
		{"cmd/cohort", "train", true},
		{"train", "launch", true},
		{"launch", "train", false},
		{"train", "cmd/cohort", false},
		{"parallel", "dist", true},
		{"parallel", "nn", true},
		{"checkpoint", "tensor", true},
		{"checkpoint", "checkpoint/safetensors", true},
		{"checkpoint", "parallel", false},
		{"dist", "nn", false},
		{"nn", "dist", false},
		{"nn", "optim", false},
		{"optim", "nn", true},
		{"data", "tensor", true},
		{"tensor", "nn", false},
		{"tensor", "internal/kernel", true},
		{"internal/kernel", "tensor", false},
		{"internal/transport", "internal/envvar", true},
		{"dist/store", "dist", true},
		{"dist", "dist/internal/native", true},
		{"dist", "dist/store/etcd", false},
		{"dist/store", "dist/store/etcd", false},
		{"cmd/cohort", "dist/store/etcd", true},
		{"dist/store/etcd", "dist/store", true},
		{"examples/mlp", "train", true},
		{"examples/mlp", "internal/mem", false},
		{"examples/mlp", "internal/bench", false},
		{"cmd/cohort", "internal/bench", true},
		{"internal/bench", "models", true},
		{"tensor", "internal/bench", false},
		{"utils", "tensor", false},
		{"tensor", "utils", false},
		{"tensorial", "tensor", false},
	} {
		if problem := checkInternal(c.from, c.to); (problem == "") != c.ok {
			t.Errorf("%s importing %s: %q, want ok %v", c.from, c.to, problem, c.ok)
		}
	}
	for _, c := range []struct {
		from, to string
		test, ok bool
	}{
		{"tensor", "fmt", false, true},
		{"tensor", "C", false, false},
		{"rpc", "html/template", false, false},
		{"rpc", "html/template", true, true},
		{"internal/mem", "golang.org/x/sys/unix", false, true},
		{"dist", "golang.org/x/sync/errgroup", false, true},
		{"dist", "golang.org/x/term", false, false},
		{"dist", "golang.org/x/systems", false, false},
		{"cmd/cohort", "github.com/spf13/cobra", false, true},
		{"launch", "github.com/spf13/cobra", false, false},
		{"launch", "github.com/google/go-cmp/cmp", false, false},
		{"launch", "github.com/google/go-cmp/cmp", true, true},
		{"checkpoint/storage/s3", "github.com/minio/minio-go/v7", false, true},
		{"checkpoint/storage", "github.com/minio/minio-go/v7", false, false},
	} {
		if problem := checkExternal(c.from, c.to, c.test); (problem == "") != c.ok {
			t.Errorf("%s importing %s: %q, want ok %v", c.from, c.to, problem, c.ok)
		}
	}
	for tree, others := range sideways {
		for _, other := range others {
			if slices.Contains(sideways[other], tree) {
				t.Errorf("%s and %s may import each other", tree, other)
			}
		}
	}
}

// TestModules: nested modules are for generators, tools and the check of deploy/ only, all modules
// ask for the same Go, and none replaces another.
func TestModules(t *testing.T) {
	goLine := regexp.MustCompile(`(?m)^go (\S+)$`)
	root, err := findRoot()
	if err != nil {
		t.Fatal(err)
	}
	main, err := os.ReadFile(filepath.Join(root, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	want := goLine.FindString(string(main))
	for _, f := range all(t) {
		if f.path != "go.mod" && !strings.HasSuffix(f.path, "/go.mod") {
			continue
		}
		if f.dir != "." && f.dir != "tools" && f.dir != "deploy" && !strings.HasPrefix(f.dir, "tools/") && !strings.HasSuffix(f.dir, "/_asm") {
			t.Errorf("%s: a module of its own is for generators (_asm), tools and deploy only: move its packages into the main module", f.path)
		}
		if got := goLine.FindString(string(f.text)); got != want {
			t.Errorf("%s: it says %q, the main module %q: write the same", f.path, got, want)
		}
		// A module of tools uses the main module as it stands beside it.
		text := regexp.MustCompile(`(?m)^replace github\.com/cohort-ml/cohort => \.\./\.\.$`).ReplaceAll(f.text, nil)
		for _, word := range []string{"replace", "toolchain"} {
			if regexp.MustCompile(`(?m)^` + word + `\b`).Match(text) {
				t.Errorf("%s: a %s directive builds something else than its user expects: remove it", f.path, word)
			}
		}
	}
}
