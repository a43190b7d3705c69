// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/cohort-ml/cohort/internal/envvar"
)

// Logs says which output of the ranks goes to files, and which is shown on the terminal.
// The zero value shows everything and keeps nothing.
//
// The files are those of torchrun. Each run has a directory below Dir, whose name is
// Config.RunID and eight random digits. In it is a directory for each attempt, and in that
// one for each local rank:
//
//	Dir/none_1f0c9a7e/attempt_0/0/{stdout.log,stderr.log,error.json}
//	Dir/none_1f0c9a7e/attempt_0/{filtered_stdout.log,filtered_stderr.log}
//
// stdout.log and stderr.log hold the streams that are redirected or teed. error.json is the
// worker's TORCHELASTIC_ERROR_FILE, into which it may write the error that it ends with.
// The filtered files hold the lines of all teed streams in which one of the filters occurs.
// The files hold what the ranks wrote, byte for byte, but for the token. An attempt with
// the number of an earlier one replaces that one's directory.
type Logs struct {
	// Dir is the directory of all runs. It is made if it does not exist. If it is empty, a
	// new directory in os.TempDir is used. That one stays, and is named on Config.Stderr,
	// if a stream is redirected or teed; otherwise it holds error files alone and is
	// removed with the job. os.DevNull means that there are no files at all.
	Dir string
	// Redirects are the streams that go to files instead of the terminal. Tee are the
	// streams that go to both.
	Redirects, Tee RankStreams
	// LocalRanks are the local ranks whose output is shown on the terminal; none means all.
	// Files get the output of all ranks.
	LocalRanks []int
	// StdoutFilters and StderrFilters are texts. A line that contains one of them goes to
	// the filtered file.
	StdoutFilters, StderrFilters []string
	// Prefix is the beginning of each line on the terminal. In it, ${role_name}, ${rank},
	// ${local_rank} and ${hostname} stand for their values. The default is "[rank0] ", and
	// for teed streams "[default0]:" (the role and the local rank).
	Prefix string
}

// Streams is a set of standard streams of a process.
type Streams uint8

// The streams that a rank writes.
const (
	Stdout Streams = 1 << iota
	Stderr
)

// RankStreams are the streams of each local rank.
type RankStreams map[int]Streams

// AllRanks stands for every local rank that has no entry of its own.
const AllRanks = -1

// Of returns the streams of one local rank.
func (s RankStreams) Of(local int) Streams {
	if v, ok := s[local]; ok {
		return v
	}
	return s[AllRanks]
}

func (s RankStreams) any() bool {
	for _, v := range s {
		if v != 0 {
			return true
		}
	}
	return false
}

// ParseRankStreams reads the value of torchrun's --redirects and --tee: a number from 0 to 3
// for all ranks (1 is standard output, 2 standard error, 3 both), or such numbers by local
// rank, as in 0:3,1:2.
func ParseRankStreams(text string) (RankStreams, error) {
	bad := func(why string) (RankStreams, error) {
		return nil, fmt.Errorf("%q: %s: give 0 (none), 1 (stdout), 2 (stderr) or 3 (both), or such numbers by local rank, as in 0:3,1:2", text, why)
	}
	streams := func(s string) (Streams, bool) {
		s = strings.TrimSpace(s) // one digit, as there
		n, err := envvar.ParseInt(s)
		return Streams(n), err == nil && n >= 0 && n <= int(Stdout|Stderr) && len(s) == 1
	}
	if v, ok := streams(text); ok {
		return RankStreams{AllRanks: v}, nil
	}
	out := RankStreams{}
	for pair := range strings.SplitSeq(text, ",") {
		rank, value, ok := strings.Cut(pair, ":")
		if !ok {
			return bad("neither a number nor rank:number")
		}
		n, err := envvar.ParseInt(rank)
		if err != nil || n < 0 || n > math.MaxUint16 {
			return bad(fmt.Sprintf("%q is no local rank", rank))
		}
		v, ok := streams(value)
		if !ok {
			return bad(fmt.Sprintf("%q is not 0 to 3", value))
		}
		if _, twice := out[n]; twice {
			return bad(fmt.Sprintf("local rank %d is there twice", n))
		}
		out[n] = v
	}
	return out, nil
}

// logTree is the directory of a run.
type logTree struct {
	Logs
	full    sync.Once // of the notice that a file cannot be written
	dir     string    // the directory of the run; empty: there are no files
	scratch string    // the directory that close removes: it holds error files alone
}

// openLogs makes the directory of the run.
func openLogs(cfg *Config, g *guard) (*logTree, error) {
	l := &logTree{Logs: cfg.Logs}
	if l.Dir == os.DevNull {
		return l, nil
	}
	base, err := filepath.Abs(l.Dir)
	if err != nil {
		return nil, badConfig("Logs", "log directory %s: %w", l.Dir, err)
	}
	switch {
	case l.Dir != "":
		err = os.MkdirAll(base, 0o777)
	case l.Redirects.any() || l.Tee.any():
		if base, err = os.MkdirTemp("", "torchelastic_"); err == nil {
			fmt.Fprintf(cfg.Stderr, "cohort: log files are in %s (--log-dir chooses another place)\n", base)
		}
	default:
		base, err = g.tempDir()
		l.scratch = base
	}
	switch {
	case err == nil:
	case l.Dir == "":
		return nil, badConfig("Logs", "the temporary directory %s cannot be written: name another one in TMPDIR, or give a log directory (%w)", os.TempDir(), limited(err))
	default:
		return nil, logError(base, err)
	}
	// The name is a part of a path.
	name := strings.Map(func(r rune) rune {
		if r == filepath.Separator || r == 0 {
			return '_'
		}
		return r
	}, cfg.RunID)
	const longest = 200 // names have 255 bytes
	l.dir = filepath.Join(base, name[:min(len(name), longest)]+"_"+randomHex(4))
	if err := os.Mkdir(l.dir, 0o700); err != nil {
		l.close()
		return nil, logError(base, err)
	}
	return l, nil
}

func logError(dir string, err error) error {
	switch {
	case errors.Is(err, syscall.ENOTDIR), errors.Is(err, fs.ErrExist):
		return badConfig("Logs", "log directory %s is, or is below, a file: give a directory, or a path that does not exist yet (%w)", dir, err)
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS):
		return badConfig("Logs", "log directory %s cannot be written: name another one, or let this user write there (%w)", dir, err)
	default:
		return badConfig("Logs", "log directory %s cannot be made: %w", dir, err)
	}
}

// close removes the directories that nobody needs.
func (l *logTree) close() {
	if l == nil || l.dir == "" {
		return
	}
	if l.scratch != "" {
		_ = os.RemoveAll(l.scratch)
		return
	}
	_ = os.Remove(l.dir) // empty: nothing was started
}

// attemptLogs are the files of one attempt.
type attemptLogs struct {
	*logTree
	dir      string
	filtered [2]*os.File // by stream
	sinks    [2]*sink
}

// begin makes the directories of an attempt. Directories of that number are removed
// before.
func (l *logTree) begin(number, numRanks int) (_ *attemptLogs, err error) {
	a := &attemptLogs{logTree: l}
	if l.dir == "" {
		return a, nil
	}
	a.dir = filepath.Join(l.dir, "attempt_"+strconv.Itoa(number))
	if err := os.RemoveAll(a.dir); err != nil {
		return nil, err
	}
	for i := range numRanks {
		if err := os.MkdirAll(filepath.Join(a.dir, strconv.Itoa(i)), 0o777); err != nil {
			return nil, err
		}
	}
	for k, needles := range [][]string{l.StdoutFilters, l.StderrFilters} {
		if len(needles) == 0 {
			continue
		}
		f, err := os.Create(filepath.Join(a.dir, "filtered_"+streamNames[k]+".log"))
		if err != nil {
			a.end()
			return nil, err
		}
		a.filtered[k], a.sinks[k] = f, &sink{w: f}
	}
	return a, nil
}

var streamNames = [2]string{"stdout", "stderr"}

func (a *attemptLogs) end() {
	if a == nil {
		return
	}
	for _, f := range a.filtered {
		if f != nil {
			f.Close()
		}
	}
}

// errorFile returns the path of a worker's error file; empty if there is none.
func (a *attemptLogs) errorFile(local int) string {
	if a == nil || a.dir == "" {
		return ""
	}
	return filepath.Join(a.dir, strconv.Itoa(local), "error.json")
}

// relay makes the relay of one stream of a worker: stream number k of streamNames.
func (a *attemptLogs) relay(k, local int, prefix func(teed bool) []byte, console *sink) (*relay, error) {
	stream := Streams(1 << k)
	c := &relay{dst: console}
	teed := a.Tee.Of(local)&stream != 0 && a.dir != ""
	if a.dir != "" && (a.Redirects.Of(local)&stream != 0 || teed) {
		f, err := os.Create(filepath.Join(a.dir, strconv.Itoa(local), streamNames[k]+".log"))
		if err != nil {
			return nil, err
		}
		c.file = f
		if !teed {
			c.dst = nil
		}
	}
	if len(a.LocalRanks) > 0 && !slices.Contains(a.LocalRanks, local) {
		c.dst = nil
	} else if teed && a.sinks[k] != nil {
		c.filtered, c.needles = a.sinks[k], [][]string{a.StdoutFilters, a.StderrFilters}[k]
	}
	c.prefix = prefix(teed)
	c.trouble = func(err error) {
		a.full.Do(func() {
			_, _ = fmt.Fprintf(console, "cohort: a log file cannot be written any more and is cut here; others may be cut too: %v\n", err)
		})
	}
	return c, nil
}

var macro = regexp.MustCompile(`\$(\$|[A-Za-z_][A-Za-z0-9_]*|\{[A-Za-z_][A-Za-z0-9_]*\})`)

// linePrefix returns the beginning of a rank's lines on the terminal. Macros are those of
// Python's string.Template: $name, ${name}, and $$ for a dollar sign. An unknown one stays
// as it is.
func linePrefix(template, role, host string, rank, local int, teed bool) []byte {
	switch {
	case template != "":
		return macro.ReplaceAllFunc([]byte(template), func(m []byte) []byte {
			switch strings.Trim(string(m[1:]), "{}") {
			case "$":
				return []byte("$")
			case "role_name":
				return []byte(role)
			case "rank":
				return strconv.AppendInt(nil, int64(rank), 10)
			case "local_rank":
				return strconv.AppendInt(nil, int64(local), 10)
			case "hostname":
				return []byte(host)
			}
			return m
		})
	case teed:
		return fmt.Appendf(nil, "[%s%d]:", role, local)
	default:
		return fmt.Appendf(nil, "[rank%d] ", rank)
	}
}
