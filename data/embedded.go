// SPDX-License-Identifier: Apache-2.0

package data

import (
	"bytes"
	"compress/gzip"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// goEnvTimeout is how long the go command may take to say where it lives.
const goEnvTimeout = 10 * time.Second

// OpenStandardLibrary is the corpus of the Go standard library's source: every
// Go file below src of the installed Go (tests too), but no commands, no
// generated files, no vendored packages and no test data. About 30 MB. Where
// no Go is installed the error is a *[SourceError].
func OpenStandardLibrary(ctx context.Context) (*Corpus, error) {
	goroot, err := goRoot(ctx)
	if err != nil {
		return nil, err
	}
	src, err := filepath.EvalSymlinks(filepath.Join(goroot, "src"))
	if err != nil {
		return nil, &SourceError{Path: filepath.Join(goroot, "src"), Problem: Missing, Err: err, Advice: "install Go with its source, or give --data a file or directory of text"}
	}
	skip := func(rel string, d fs.DirEntry) bool {
		name := d.Name()
		if d.IsDir() {
			return rel == "cmd" || name == "testdata" || name == "vendor" || name[0] == '.' || name[0] == '_'
		}
		return !strings.HasSuffix(name, ".go")
	}
	files, odd, err := listFiles(ctx, src, skip)
	if err != nil {
		return nil, err
	}
	c := &Corpus{Name: "the Go standard library in " + src}
	files, skipped, err := selectFiles(ctx, files, func(_ *file, head []byte) (string, error) {
		if isGenerated(head) {
			return "generated", nil
		}
		return "", nil
	})
	if err != nil {
		return nil, err
	}
	c.Skipped = len(skipped) + len(odd)
	return c, c.part(src, files)
}

// goRoot asks the go command. The toolchain is the installed one: the answer
// must neither download another nor depend on the directory.
func goRoot(ctx context.Context) (string, error) {
	noGo := func(err error) error {
		return &SourceError{Path: "the Go installation", Problem: Missing, Err: err, Advice: "install Go, or give --data a file or directory of text"}
	}
	bin, err := exec.LookPath("go")
	if err != nil {
		return "", noGo(err)
	}
	ctx, cancel := context.WithTimeout(ctx, goEnvTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, bin, "env", "GOROOT")
	cmd.Env = append(os.Environ(), "GOTOOLCHAIN=local", "GOFLAGS=")
	cmd.Dir = os.TempDir()
	out, err := cmd.Output()
	if err != nil {
		return "", noGo(err)
	}
	root := strings.TrimSpace(string(out))
	if root == "" {
		return "", noGo(errors.New("go env GOROOT is empty"))
	}
	return root, nil
}

//go:generate go run ./_embed -root .. -out embedded.txt.gz

//go:embed embedded.txt.gz
var embedded []byte

// embeddedCorpus is a part of this repository's own source.
func embeddedCorpus() (*Corpus, error) {
	r, err := gzip.NewReader(bytes.NewReader(embedded))
	if err != nil {
		return nil, fmt.Errorf("data: the embedded text: %w", err)
	}
	text, err := io.ReadAll(r)
	if err != nil {
		return nil, fmt.Errorf("data: the embedded text: %w", err)
	}
	const name = "a small text in this program (no Go installation found)"
	c := &Corpus{Name: name}
	return c, c.part(name, []*file{{name: "embedded.txt", path: "embedded.txt", size: int64(len(text)), data: text}})
}
