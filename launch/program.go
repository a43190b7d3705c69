// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/cohort-ml/cohort/internal/envvar"
)

// program is what workers execute.
type program struct {
	path string   // for execve
	argv []string // argv[0] included
	tmp  string   // a directory to remove afterwards; may be empty

	isPython bool // the agent runs it with a Python interpreter (PYTHON_EXEC or python3)
	byItself bool // it is a command that is a Python interpreter, or runs one
}

var interpreters = regexp.MustCompile(`^(python|pypy)[0-9.]*t?$`)

// isInterpreter reports whether an executable is a Python interpreter, to judge by its
// name.
func isInterpreter(path string) bool { return interpreters.MatchString(filepath.Base(path)) }

// runners are programs that run a command in an environment.
var runners = []string{"env", "uv", "uvx", "poetry", "pdm", "pipenv", "hatch", "pixi", "conda", "mamba", "micromamba"}

// runsPython reports whether a command line runs Python: its first word is an interpreter,
// or a runner that has an interpreter or a .py script among its arguments.
func runsPython(words []string) bool {
	if len(words) == 0 {
		return false
	}
	return isInterpreter(words[0]) || slices.Contains(runners, filepath.Base(words[0])) && slices.ContainsFunc(words[1:], func(w string) bool {
		return isInterpreter(w) || filepath.Ext(w) == ".py"
	})
}

// argvOf returns the arguments of a local rank's worker.
func (p *program) argvOf(local int) []string {
	argv := make([]string, len(p.argv))
	for i, arg := range p.argv {
		argv[i] = strings.ReplaceAll(arg, "${local_rank}", strconv.Itoa(local))
	}
	return argv
}

func (p *program) remove() {
	if p.tmp != "" {
		_ = os.RemoveAll(p.tmp)
	}
}

// resolve finds the program that cfg names. A Go package is built by b.
func resolve(ctx context.Context, cfg *Config, b *builder) (*program, error) {
	if cfg.Module {
		return python(cfg, "-m", cfg.Program)
	}
	name := cfg.Program
	st, err := os.Stat(name)
	if cfg.Script {
		if err != nil {
			return nil, noProgram(name, err)
		}
		return python(cfg, absolute(cfg, name))
	}
	isPath := strings.ContainsRune(name, filepath.Separator)
	if !cfg.Direct && err == nil && st.IsDir() {
		return b.build(ctx, cfg, name, ".")
	}
	if ext := filepath.Ext(name); !cfg.Direct && (ext == ".py" || ext == ".go") {
		if err != nil {
			return nil, noProgram(name, err)
		}
		if ext == ".py" {
			return python(cfg, absolute(cfg, name))
		}
		return b.build(ctx, cfg, filepath.Dir(name), filepath.Base(name))
	}
	if !isPath && cfg.argv0 == "" {
		path, lookErr := exec.LookPath(name)
		if lookErr == nil {
			return command(cfg, path, name)
		}
		if err == nil {
			return nil, badConfig("Program", "program %s is not in PATH; for the file in this directory, give ./%s", name, name)
		}
		return nil, badConfig("Program", "program %s is not in PATH, and there is no such file: give the path of a binary, a Go package directory or a .py script", name)
	}
	switch {
	case err != nil:
		return nil, noProgram(name, err)
	case st.IsDir():
		return nil, badConfig("Program", "program %s is a directory", name)
	case st.Mode()&0o111 == 0:
		return nil, badConfig("Program", "program %s is not executable: chmod +x it, or name its interpreter in front", name)
	}
	return command(cfg, absolute(cfg, name), cmp.Or(cfg.argv0, name))
}

// command returns a program that the kernel executes as it is.
func command(cfg *Config, path, argv0 string) (*program, error) {
	line, err := interpreterLine(cfg.Program, path)
	if err != nil {
		return nil, err
	}
	p := &program{path: path, argv: append([]string{argv0}, cfg.Args...)}
	p.byItself = runsPython(append([]string{path}, cfg.Args...)) || runsPython(line)
	return p, nil
}

// interpreterLine returns the words of a script's first line, which name its interpreter;
// none for a file that is no script. It is an error if the interpreter is not there: the
// system's error would say that the script is not there.
func interpreterLine(name, path string) ([]string, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, nil // a file may be executable and not readable
	}
	defer f.Close()
	head := make([]byte, 256) // as much as Linux reads
	n, _ := io.ReadFull(f, head)
	line, isScript := bytes.CutPrefix(head[:n], []byte("#!"))
	if !isScript {
		return nil, nil
	}
	if i := bytes.IndexByte(line, '\n'); i >= 0 {
		line = line[:i]
	}
	word := bytes.Trim(line, " \t")
	if i := bytes.IndexAny(word, " \t"); i >= 0 {
		word = word[:i]
	}
	interpreter := string(word)
	switch _, err := os.Stat(interpreter); {
	case interpreter == "" || err == nil || !filepath.IsAbs(interpreter):
		return strings.Fields(string(line)), nil
	case strings.HasSuffix(interpreter, "\r"):
		return nil, badConfig("Program", "program %s: its lines end with CR LF, so that its interpreter %q is not found: convert it, as with dos2unix", name, interpreter)
	default:
		return nil, badConfig("Program", "program %s: its first line names %s as its interpreter: %w", name, interpreter, err)
	}
}

// absolute returns a path that is valid in the workers' working directory.
func absolute(cfg *Config, path string) string {
	if cfg.Dir == "" {
		return path
	}
	if abs, err := filepath.Abs(path); err == nil {
		return abs
	}
	return path
}

func noProgram(name string, err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return badConfig("Program", "program %s does not exist", name)
	}
	return badConfig("Program", "program %s: %w", name, err)
}

func python(cfg *Config, args ...string) (*program, error) {
	name := valueOf(cfg.Env, envvar.PythonExec)
	what := "PYTHON_EXEC=" + name
	if name == "" {
		name, what = "python3", "python3"
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return nil, badConfig("Program", "no Python to run %s with: %s: %w (set PYTHON_EXEC to an interpreter)", cfg.Program, what, err)
	}
	argv := append([]string{name, "-u"}, args...)
	return &program{path: path, argv: append(argv, cfg.Args...), isPython: true}, nil
}

// Program is the program of some of a job's ranks.
type Program struct {
	// Path names the program as Config.Program does.
	Path string
	// Args are the program's arguments.
	Args []string
	// NumRanks is the number of ranks that run it.
	NumRanks int
}

// resolve finds, or builds, the programs of the job.
func (h *Host) resolve(ctx context.Context) error {
	cfg := &h.cfg
	b := &builder{job: h.job.id, guard: h.guard, sig: &h.sig}
	if len(cfg.Programs) == 0 {
		p, err := resolve(ctx, cfg, b)
		if err != nil {
			return err
		}
		h.progs = []*program{p}
		return nil
	}
	for _, part := range cfg.Programs {
		one := *cfg
		one.Program, one.Args = part.Path, part.Args
		p, err := resolve(ctx, &one, b)
		if err != nil {
			return err
		}
		h.progs = append(h.progs, p)
	}
	return nil
}

// program returns the program of a local rank.
func (h *Host) program(local int) *program {
	for i, part := range h.cfg.Programs {
		if local < part.NumRanks {
			return h.progs[i]
		}
		local -= part.NumRanks
	}
	return h.progs[0]
}

// ParseProgram reads N:PROGRAM ARGS…, the value of the flag --program. Blanks separate the
// words; a word in quotes may contain blanks.
func ParseProgram(text string) (Program, error) {
	bad := func(why string) (Program, error) {
		return Program{}, fmt.Errorf("%q: %s: give N:PROGRAM with the number of its ranks, such as 2:train.py or \"2:train.py --lr 0.1\"", text, why)
	}
	count, rest, ok := strings.Cut(text, ":")
	if !ok {
		return bad("there is no number of ranks")
	}
	n, err := envvar.ParseInt(count)
	if err != nil || n < 1 {
		return bad(fmt.Sprintf("%q is no number of ranks", count))
	}
	words, err := splitWords(rest)
	if err != nil {
		return bad(err.Error())
	}
	if len(words) == 0 || words[0] == "" {
		return bad("there is no program")
	}
	return Program{Path: words[0], Args: words[1:], NumRanks: n}, nil
}

// splitWords splits a text at its blanks, except for those in single or double quotes.
func splitWords(text string) (words []string, err error) {
	var word strings.Builder
	var quote rune
	inside := false
	for _, c := range text {
		switch {
		case quote != 0 && c == quote:
			quote = 0
		case quote != 0:
			word.WriteRune(c)
		case c == '\'' || c == '"':
			quote, inside = c, true
		case c == ' ' || c == '\t' || c == '\n':
			if inside {
				words = append(words, word.String())
				word.Reset()
				inside = false
			}
		default:
			word.WriteRune(c)
			inside = true
		}
	}
	if quote != 0 {
		return nil, fmt.Errorf("a quote (%c) is not closed", quote)
	}
	if inside {
		words = append(words, word.String())
	}
	return words, nil
}
