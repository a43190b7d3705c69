// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/dist/internal/pytorch"
	"github.com/cohort-ml/cohort/internal/transport"
)

// A python is an interpreter that has PyTorch, with processes of it that play
// ranks one job after the other: importing PyTorch takes seconds, a job some
// milliseconds. They end with the test process, which is their standard input.
type python struct {
	path    string
	version string // torch.__version__
	mu      sync.Mutex
	idle    []*pyRank
}

// pyRank is a process of testdata/pytorch/peer.py.
type pyRank struct {
	of     *python
	cmd    *exec.Cmd
	in     *json.Encoder
	out    *bufio.Reader
	pipe   *os.File
	stderr *os.File
}

// old reports whether it is PyTorch 1.13.
func (p *python) old() bool { return strings.HasPrefix(p.version, "1.") }

// kind is its version.
func (p *python) kind() pytorch.Release {
	kind, _ := pytorch.ParseRelease(p.version)
	return kind
}

// said tells Go ranks the version where they would take it for an earlier one, which has
// less: the store of 2.3 is that of 2.2.
func (p *python) said() []Option {
	if p == nil || !slices.Contains([]pytorch.Release{203, 204, 209}, p.kind()) {
		return nil
	}
	return []Option{WithPyTorch(p.version)}
}

func (p *python) String() string { return "PyTorch " + p.version }

// findPythons looks once for interpreters with PyTorch: python3, Debian's, and
// those that COHORT_TEST_PYTHONS lists, separated by colons.
var findPythons = sync.OnceValues(func() (found []*python, broken error) {
	candidates := append([]string{"python3", "/usr/bin/python3"}, filepath.SplitList(os.Getenv("COHORT_TEST_PYTHONS"))...)
	var tried, versions []string
	for i, name := range candidates {
		path, err := exec.LookPath(name)
		if err != nil {
			if i >= 2 {
				broken = errors.Join(broken, fmt.Errorf("COHORT_TEST_PYTHONS: %w", err))
			}
			continue
		}
		if path, err = filepath.Abs(path); err != nil || slices.Contains(tried, path) {
			continue
		}
		tried = append(tried, path)
		p := &python{path: path}
		r, err := p.start()
		if err != nil {
			// One that has PyTorch and does not play is a fault, and no reason to skip.
			if i >= 2 || exec.Command(path, "-c", "import torch.distributed").Run() == nil {
				broken = errors.Join(broken, err)
			}
			continue
		}
		if slices.Contains(versions, p.version) {
			r.kill()
			continue
		}
		versions = append(versions, p.version)
		p.idle = append(p.idle, r)
		found = append(found, p)
	}
	return found, broken
})

// pythons returns the interpreters, and skips the test where there is none, and in
// short runs.
func pythons(t testing.TB) []*python {
	t.Helper()
	if testing.Short() {
		t.Skip("importing PyTorch takes seconds: short runs do without")
	}
	all, broken := findPythons()
	if broken != nil {
		t.Fatal(broken)
	}
	if len(all) == 0 {
		t.Skip("no python3 here has PyTorch (Debian's package python3-torch, or list interpreters in COHORT_TEST_PYTHONS)")
	}
	return all
}

// eachPython runs a test for each PyTorch.
func eachPython(t *testing.T, test func(t *testing.T, p *python)) {
	for _, p := range pythons(t) {
		t.Run("torch-"+p.version, func(t *testing.T) { test(t, p) })
	}
}

// start starts a process and waits for its first line.
func (p *python) start(env ...string) (*pyRank, error) {
	stderr, err := os.CreateTemp("", "peer-*.err")
	if err != nil {
		return nil, err
	}
	_ = os.Remove(stderr.Name())
	cmd := exec.Command(p.path, "-u", "testdata/pytorch/peer.py")
	cmd.Stderr = stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	// What is about this test's own ranks is not for PyTorch's.
	cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, "COHORT_") || strings.HasPrefix(v, "TORCH") || strings.HasPrefix(v, "MASTER_")
	})
	cmd.Env = append(cmd.Env, env...)
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	r := &pyRank{of: p, cmd: cmd, in: json.NewEncoder(in), out: bufio.NewReader(out), pipe: out.(*os.File), stderr: stderr}
	var hello struct{ Version string }
	if err := r.read(&hello, time.Minute); err != nil || hello.Version == "" {
		return nil, fmt.Errorf("%s has no PyTorch that begins: %w", p.path, r.ended(err))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.version == "" { // the first one; several are started at once later
		p.version = hello.Version
	}
	return r, nil
}

func (r *pyRank) read(answer any, limit time.Duration) error {
	if err := r.pipe.SetReadDeadline(time.Now().Add(limit)); err != nil {
		return err
	}
	line, err := r.out.ReadBytes('\n')
	if err != nil {
		return err
	}
	return json.Unmarshal(line, answer)
}

func (r *pyRank) kill() {
	_ = r.cmd.Process.Kill()
	_ = r.cmd.Wait()
	r.stderr.Close()
}

// ended ends a process that does not answer, and says how it was found.
func (r *pyRank) ended(err error) error {
	if !errors.Is(err, io.EOF) {
		_ = r.cmd.Process.Kill()
	}
	_ = r.cmd.Wait()
	return fmt.Errorf("%w (%v): %s", err, r.cmd.ProcessState, r.complaint())
}

// complaint is the end of what the process has written to standard error.
func (r *pyRank) complaint() string {
	text := make([]byte, 4<<10)
	end, _ := r.stderr.Seek(0, 2)
	n, _ := r.stderr.ReadAt(text, max(0, end-int64(len(text))))
	return string(text[:n])
}

// take returns n processes, which give back or kill ends the use of.
func (p *python) take(t testing.TB, n int) []*pyRank {
	t.Helper()
	rs := make([]*pyRank, n)
	errs := make([]error, n)
	p.mu.Lock()
	for i := range rs {
		if last := len(p.idle) - 1; last >= 0 {
			rs[i] = p.idle[last]
			p.idle = p.idle[:last]
		}
	}
	p.mu.Unlock()
	var starting sync.WaitGroup
	for i := range rs {
		if rs[i] == nil {
			starting.Go(func() { rs[i], errs[i] = p.start() })
		}
	}
	starting.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	return rs
}

func (p *python) giveBack(r *pyRank) {
	p.mu.Lock()
	p.idle = append(p.idle, r)
	p.mu.Unlock()
}

// pyStep is what a rank of PyTorch does: an operation, or one of the words that
// peer.py knows besides.
type pyStep struct {
	Op     string `json:"op"`
	Group  int    `json:"group,omitempty"` // 0: of all ranks, n: the n-th that was made
	DType  string `json:"dtype,omitempty"`
	Reduce string `json:"reduce,omitempty"`
	Count  int    `json:"count"`
	Parts  string `json:"parts,omitempty"`
	Async  bool   `json:"async,omitempty"`
	Flies  bool   `json:"flies,omitempty"` // the next steps begin before it has ended
	Join   bool   `json:"join,omitempty"`  // what flies has ended before the next step
	Ranks  []int  `json:"ranks,omitempty"` // new_group
	Local  bool   `json:"local,omitempty"`
	Code   int    `json:"code,omitempty"` // exit
	Text   string `json:"text,omitempty"` // share

}

// pyOf is the step of a run.
func pyOf(c one, group int) pyStep {
	s := pyStep{Op: c.op.name, Group: group, DType: c.dtype.String(), Count: c.count, Parts: c.parts, Async: c.async}
	if c.op.reduces {
		s.Reduce = c.reduce.String()
	}
	return s
}

// pyJob is what a rank of PyTorch is told.
type pyJob struct {
	InitMethod string            `json:"init_method"`
	Rank       int               `json:"rank"`
	Size       int               `json:"size"`
	Timeout    int               `json:"timeout"` // seconds
	Env        map[string]string `json:"env,omitempty"`
	Steps      []pyStep          `json:"steps"`
}

// pyAnswer is what it says when it has played its steps.
type pyAnswer struct {
	Digests []string // of what came out of each operation
	Error   string
	Ends    bool  // it cannot play another job
	died    error // the process has ended, or does not answer
}

// play has the process play a job to its end.
func (r *pyRank) play(j pyJob) (a pyAnswer) {
	if err := r.in.Encode(j); err != nil {
		return pyAnswer{died: r.ended(err)}
	}
	if err := r.read(&a, time.Duration(j.Timeout)*time.Second+time.Minute); err != nil {
		return pyAnswer{died: r.ended(err)}
	}
	return a
}

// mixedJob is a job of ranks in this process and ranks of PyTorch.
type mixedJob struct {
	python *python
	size   int
	goes   []int // the ranks that are Go's
	url    string
	opts   []Option          // of the Go ranks
	env    map[string]string // of PyTorch's ranks
	// patience is that of PyTorch's ranks, 0 stands for limit.
	patience time.Duration
	fresh    bool          // whose processes are new: PyTorch reads some variables once
	limit    time.Duration // 0: a minute
}

// jobEnd is what became of the ranks, by rank.
type jobEnd struct {
	errs    []error    // of Go's ranks
	answers []pyAnswer // of PyTorch's
}

// err is everything that went wrong.
func (o *jobEnd) err() error {
	var errs []error
	for r, err := range o.errs {
		if err != nil {
			errs = append(errs, fmt.Errorf("rank %d (Go): %w", r, err))
		}
	}
	for r, a := range o.answers {
		if a.died != nil {
			errs = append(errs, fmt.Errorf("rank %d (PyTorch): %w", r, a.died))
		} else if a.Error != "" {
			errs = append(errs, fmt.Errorf("rank %d (PyTorch): %s", r, a.Error))
		}
	}
	return errors.Join(errs...)
}

// run runs a job: main on Go's ranks, steps on PyTorch's.
func (m mixedJob) run(t testing.TB, steps []pyStep, main func(ctx context.Context, g *Group) error) *jobEnd {
	t.Helper()
	limit := m.limit
	if limit == 0 {
		limit = time.Minute
	}
	if m.url == "" {
		port, err := transport.HoldPort("127.0.0.1")
		if err != nil {
			t.Fatal(err)
		}
		defer port.Close()
		m.url = "tcp://" + port.Addr()
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	o := &jobEnd{errs: make([]error, m.size), answers: make([]pyAnswer, m.size)}
	var peers []*pyRank
	if m.fresh {
		var env []string
		for name, value := range m.env {
			env = append(env, name+"="+value)
		}
		for range m.size - len(m.goes) {
			p, err := m.python.start(env...)
			if err != nil {
				t.Fatal(err)
			}
			peers = append(peers, p)
		}
	} else if len(m.goes) < m.size {
		peers = m.python.take(t, m.size-len(m.goes))
	}
	var ranks sync.WaitGroup
	for r := range m.size {
		if slices.Contains(m.goes, r) {
			ranks.Go(func() {
				opts := append([]Option{WithBackend("gloo"), WithURL(m.url), WithRank(r, m.size), WithTimeout(limit)}, m.python.said()...)
				opts = append(opts, m.opts...)
				g, err := Init(ctx, opts...)
				if err == nil {
					err = main(ctx, g)
					if err == nil {
						err = g.Barrier(ctx) // as peer.py
					}
					err = errors.Join(err, g.Close())
				}
				o.errs[r] = err
			})
			continue
		}
		p := peers[0]
		peers = peers[1:]
		ranks.Go(func() {
			o.answers[r] = p.play(pyJob{m.url, r, m.size, int(cmp.Or(m.patience, limit).Seconds()), m.env, steps})
			if m.fresh || o.answers[r].died != nil || o.answers[r].Ends {
				p.kill()
			} else {
				m.python.giveBack(p)
			}
		})
	}
	ranks.Wait()
	return o
}
