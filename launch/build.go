// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/cohort-ml/cohort/internal/envvar"
)

// goTempDir names the directory in which the go command works.
const goTempDir envvar.Var = "GOTMPDIR"

// builder is what a build of a Go program needs from its host.
type builder struct {
	job   string   // the job's id
	guard *guard   // removes the build if this process is killed
	sig   *signals // end the build
}

// build builds the main package in dir (target "."), or one file of it. All ranks run
// the one file that comes of it. The go command works in the directory of that file, so
// that the guard removes everything, also of a build that is killed.
func (b *builder) build(ctx context.Context, cfg *Config, dir, target string) (_ *program, err error) {
	if files, _ := filepath.Glob(filepath.Join(dir, "*.go")); len(files) == 0 {
		return nil, badConfig("Program", "directory %s has no Go files: give the directory of a main package, a binary, or a .py script", cfg.Program)
	}
	goTool, err := exec.LookPath("go")
	if err != nil {
		return nil, badConfig("Program", "%s has to be built, and the go command is not there: %w (install Go, or give a built binary)", cfg.Program, err)
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, badConfig("Program", "program %s: %w", cfg.Program, err)
	}
	tmpDir, err := b.guard.tempDir()
	if err != nil {
		return nil, badConfig("Program", "no place to build %s in: the temporary directory %s cannot be written: name another one in TMPDIR (%w)", cfg.Program, os.TempDir(), limited(err))
	}
	p := &program{
		path: filepath.Join(tmpDir, filepath.Base(strings.TrimSuffix(filepath.Join(abs, target), ".go"))),
		tmp:  tmpDir,
	}
	p.argv = append([]string{p.path}, cfg.Args...)
	defer func() {
		if err != nil {
			p.remove()
		}
	}()

	fmt.Fprintf(cfg.Stderr, "cohort: building %s\n", cfg.Program)
	var out bytes.Buffer
	cmd := exec.Command(goTool, "build", "-o", p.path, target)
	cmd.Dir, cmd.Stdout, cmd.Stderr = abs, &out, &out
	// A compiler does not need the token. The guard finds the compiler by the job's id, if
	// the agent is killed before it has told the guard of the process.
	cmd.Env = slices.DeleteFunc(slices.Clone(cfg.Env), func(kv string) bool { return strings.HasPrefix(kv, envvar.Token.Assign("")) })
	cmd.Env = append(cmd.Env, envvar.Job.Assign(b.job))
	if valueOf(cfg.Env, goTempDir) == "" {
		cmd.Env = append(cmd.Env, goTempDir.Assign(tmpDir))
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return nil, badConfig("Program", "go build %s: %w", cfg.Program, err)
	}
	b.guard.watch(cmd.Process.Pid, true)
	defer b.guard.watch(cmd.Process.Pid, false)
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	kill := func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		<-ended
	}
	select {
	case err = <-ended:
	case s := <-b.sig.ch:
		kill()
		return nil, &Error{Program: cfg.Program, Signal: s.(syscall.Signal)}
	case <-ctx.Done():
		kill()
		return nil, &Error{Program: cfg.Program, Cause: context.Cause(ctx)}
	}
	if err != nil {
		return nil, badConfig("Program", "go build %s: %w\n%s", cfg.Program, err, bytes.TrimRight(out.Bytes(), "\n"))
	}
	if st, err := os.Stat(p.path); err != nil || st.Mode()&0o111 == 0 {
		return nil, badConfig("Program", "%s is not a main package: there is nothing to run in it", cfg.Program)
	}
	return p, nil
}
