// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/data/table"
)

var runDocs = flag.Bool("docs", false, "run the commands in the pages of docs")

// inputs are the files of a reader's own that the pages speak of.
var inputs = map[string]func(dir string) error{
	"notes.txt": func(path string) error {
		return os.WriteFile(path, []byte(strings.Repeat("We met at noon and spoke of many things, of ships and shoes and sealing wax.\n", 2000)), 0o644)
	},
	"clicks.csv": func(path string) error {
		return writeTable(path, table.Generated{Rows: 20_000, Users: 500, Items: 300})
	},
	"new.csv": func(path string) error {
		return writeTable(path, table.Generated{Rows: 1000, Users: 500, Items: 300, Seed: 2})
	},
	"photos": func(dir string) error {
		return errors.Join(writeSquares(filepath.Join(dir, "red"), color.RGBA{200, 30, 30, 255}, 20), writeSquares(filepath.Join(dir, "blue"), color.RGBA{30, 30, 200, 255}, 20))
	},
	"unsorted": func(dir string) error { return writeSquares(dir, color.RGBA{190, 40, 50, 255}, 3) },
	"ratings.csv": func(path string) error {
		return os.WriteFile(path, []byte("user_id,movie_id,rating\n"+strings.Repeat("1,10,5\n1,11,3\n2,10,4\n2,11,1\n3,12,2\n", 400)), 0o644)
	},
}

// writeSquares writes images of about one colour.
func writeSquares(dir string, c color.RGBA, n uint8) error {
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return err
	}
	for i := range n {
		img := image.NewRGBA(image.Rect(0, 0, 40, 32))
		for k := range img.Pix {
			img.Pix[k] = []uint8{c.R, c.G, c.B, c.A - 2*i}[k%4] + i*2
		}
		f, err := os.Create(filepath.Join(dir, fmt.Sprintf("%02d.png", i)))
		if err != nil {
			return err
		}
		if err := errors.Join(png.Encode(f, img), f.Close()); err != nil {
			return err
		}
	}
	return nil
}

func writeTable(path string, g table.Generated) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := g.WriteCSV(f); err != nil {
		return err
	}
	return f.Close()
}

var (
	named      = regexp.MustCompile("(?ms)^```(?:toml|python)\n# (\\S+)\n(.*?)^```$")
	listed     = regexp.MustCompile(`(?m)^\| \[[^]]*\]\(([a-z-]+\.md)\)`)
	notHere    = regexp.MustCompile(`^(?:go test \./\.\.\.|cohort bench )`) // CI's, and minutes of measuring
	addressed  = regexp.MustCompile(`\b10\.\d+\.\d+\.\d+`)
	isPython   = regexp.MustCompile(`(?m)^.*\.py\b.*$`)
	trains     = regexp.MustCompile(`^cohort train (lm|rec|vision)\b`)
	forMinutes = regexp.MustCompile(`--steps \d{4,}`) // time to watch
	// testFlags are those of tests that do more with them. Without one, a page runs what step test runs.
	testFlags = regexp.MustCompile(` (?:-pytorch\.all|-positions|-draws|-bench)\b|COHORT_TEST`)
	draws     = regexp.MustCompile(`-draws \d+`)
)

// widened matches the tests that run more with -pytorch.all. The others are CI's.
const widened = "'PyTorch(Dies|SaidWrong|Operations|Wrapped)'"

// TestTutorials does what the pages tell their reader to do: it runs the
// commands of the main page and of the pages of docs, in the order in which docs/README.md
// lists them. The first and the second half of the pages run side by side, each in a
// directory that looks like the repository
// and has the files of a reader's own of which they speak; files that a page shows are written
// when it is read. Every command must end well. Models are trained for a few steps only, on few
// rows, and evaluated on little text; tests that step test runs in the same way are left out. Where there is no Python, its programs
// are left out, and so are blocks for several machines, which are those that name
// one by address. It takes minutes, and so runs on demand:
// go test -run TestTutorials ./cmd/cohort -docs
func TestTutorials(t *testing.T) {
	if !*runDocs {
		t.Skip("on demand: -docs")
	}
	root, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	bin := t.TempDir()
	env := append(os.Environ(), "PATH="+bin+string(filepath.ListSeparator)+os.Getenv("PATH"),
		// What does not have its folder in it is built once for all pages.
		"GOFLAGS="+os.Getenv("GOFLAGS")+" -trimpath")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", filepath.Join(bin, "cohort"), ".")
	build.Env = env
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	pages := pagesInOrder(t, root)
	for i, half := range [][]string{pages[:len(pages)/2], pages[len(pages)/2:]} {
		t.Run([]string{"first", "second"}[i], func(t *testing.T) {
			t.Parallel() // most of the commands are built or trained by one processor
			dir := likeTheRepository(t, root)
			for name, write := range inputs {
				if err := write(filepath.Join(dir, name)); err != nil {
					t.Fatal(err)
				}
			}
			for _, page := range half {
				t.Run(filepath.Base(page), func(t *testing.T) { runPage(t, dir, env, page) })
			}
		})
	}
}

// runPage does what a page tells its reader to do.
func runPage(t *testing.T, dir string, env []string, page string) {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range named.FindAllSubmatch(text, -1) {
		if err := os.WriteFile(filepath.Join(dir, string(m[1])), m[2], 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, m := range fenced.FindAllSubmatch(text, -1) {
		if addressed.Match(m[1]) {
			continue
		}
		lines := strings.Split(string(m[1]), "\n")
		for i, line := range lines {
			if filepath.Base(page) != "README.md" { // there the reader builds the command
				line = strings.Replace(line, "go run ./cmd/cohort ", "cohort ", 1)
			}
			lines[i] = shorten(line)
		}
		script := strings.Join(lines, "\n")
		if _, err := exec.LookPath("python3"); err != nil {
			script = isPython.ReplaceAllString(script, "")
		}
		runScript(t, dir, env, script)
	}
}

// shorten makes a line of a page one that takes seconds.
func shorten(line string) string {
	if notHere.MatchString(line) || strings.HasPrefix(line, "go test ") && !testFlags.MatchString(line) {
		return ""
	}
	line = forMinutes.ReplaceAllString(draws.ReplaceAllString(line, "-draws 20"), "--steps 20")
	line = strings.ReplaceAll(line, "'PyTorch|Gloo' -pytorch.all", widened+" -pytorch.all")
	if line == "go run ./examples/resnet" {
		return line + " -steps 10"
	}
	m := trains.FindStringSubmatch(strings.TrimPrefix(line, "go run ./cmd/"))
	if m == nil {
		return line
	}
	command, _, _ := strings.Cut(line, " #")
	// with adds a flag where there is none of some, and no other data.
	with := func(flag string, unless ...string) {
		if !slices.ContainsFunc(unless, func(u string) bool { return strings.Contains(command, u) }) {
			command += " " + flag
		}
	}
	switch m[1] {
	case "lm":
		with("--eval-tokens 4096", "--eval-tokens")
		with("--steps 10", "--steps", "--init-from")
	case "rec": // of the generated table
		with("--rows 20000", "--rows", "--data", "--help")
	case "vision":
		with("--epochs 2", "--epochs", "--data")
	}
	return command
}

// pagesInOrder returns the main page and the pages of docs as docs/README.md lists them,
// and behind them those that it does not list.
func pagesInOrder(t *testing.T, root string) []string {
	t.Helper()
	docs := filepath.Join(root, "docs")
	contents, err := os.ReadFile(filepath.Join(docs, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	pages := []string{filepath.Join(root, "README.md")}
	for _, m := range listed.FindAllSubmatch(contents, -1) {
		pages = append(pages, filepath.Join(docs, string(m[1])))
	}
	if len(pages) < 10 {
		t.Fatalf("docs/README.md lists %q", pages)
	}
	all, err := filepath.Glob(filepath.Join(docs, "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range all {
		if !slices.Contains(pages, page) {
			pages = append(pages, page)
		}
	}
	return pages
}

// likeTheRepository makes a directory with links to what is in the repository,
// but with an out of its own.
func likeTheRepository(t *testing.T, root string) string {
	t.Helper()
	dir := t.TempDir()
	entries, err := os.ReadDir(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.Name() == "out" {
			continue
		}
		if err := os.Symlink(filepath.Join(root, e.Name()), filepath.Join(dir, e.Name())); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// runScript runs a block of commands; the first that fails ends it.
func runScript(t *testing.T, dir string, env []string, script string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", "-e", "-x", "-c", script)
	cmd.Dir = dir
	cmd.Env = append(slices.Clip(env), "PWD="+dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	began := time.Now()
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
		return
	}
	used := cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	t.Logf("%.1fs, %.1fs of processors: %s", time.Since(began).Seconds(), used.Seconds(), strings.TrimSpace(script))
}
