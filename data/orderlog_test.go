// SPDX-License-Identifier: Apache-2.0

package data

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// proofRun plays the ranks of a run that only writes its logs.
type proofRun struct {
	t      testing.TB
	dir    string
	len    int
	step   int
	state  LoaderState
	number int64
}

func (p *proofRun) sampler(batch, rank, world int) *Stream {
	s, err := NewStream(StreamConfig{Len: p.len, Batch: batch, Rank: rank, World: world, Shuffle: true, Seed: 7})
	if err != nil {
		p.t.Fatal(err)
	}
	return s
}

// attempt does steps on a number of ranks; what came after saved is lost.
func (p *proofRun) attempt(world, batch, steps, saved int, end bool) {
	p.t.Helper()
	logs := make([]*OrderLog, world)
	number := p.number
	for rank := range logs {
		var err error
		if logs[rank], err = OpenOrderLog(p.dir, rank); err != nil {
			p.t.Fatal(err)
		}
		defer logs[rank].Close()
		number = max(number, logs[rank].Last())
	}
	p.number = number + 1
	p.state.Order = p.sampler(1, 0, 1).Order() + "; some data"
	kept := p.state.Position
	for rank, l := range logs {
		if err := l.Begin(OrderAttempt{Attempt: p.number, World: world, Batch: batch, Step: p.step, From: p.state}); err != nil {
			p.t.Fatal(err)
		}
		pos := p.state.Position
		s := p.sampler(batch, rank, world)
		for i := range steps {
			var keys []Key
			for range 2 { // passes
				keys, pos = s.Batch(keys[:0], pos)
				var skipped []Skip
				if keys[0].Index%5 == 0 {
					skipped = []Skip{{Key: keys[0], By: Substitute(keys[0], p.len, 1)}}
				}
				l.Add(keys, skipped)
			}
			if err := l.Step(p.step+i+1, pos); err != nil {
				p.t.Fatal(err)
			}
			if i+1 == saved {
				kept = pos
			}
		}
		if end {
			if err := l.End(); err != nil {
				p.t.Fatal(err)
			}
		}
	}
	p.step += saved
	p.state.Position = kept
}

// newProof writes the logs of a run with two crashes and other numbers of
// ranks: 40 steps.
func newProof(t testing.TB) *proofRun {
	p := &proofRun{t: t, dir: filepath.Join(t.TempDir(), "order"), len: 50}
	p.attempt(4, 2, 14, 10, false)
	p.attempt(2, 3, 5, 5, false)
	p.attempt(3, 2, 8, 5, false)
	p.attempt(4, 1, 20, 20, true)
	return p
}

func check(t testing.TB, dir string, steps int) *OrderReport {
	t.Helper()
	r, err := CheckOrder(dir, CheckOptions{Steps: steps})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestOrderLogProvesARun(t *testing.T) {
	p := newProof(t)
	r := check(t, p.dir, 40)
	if err := r.Err(); err != nil {
		t.Fatalf("%v\n%s", err, r)
	}
	const samples = 10*16 + 5*12 + 5*12 + 20*8
	if r.Steps != 40 || r.Samples != samples || r.Epochs != samples/50 || r.Rest != samples%50 || !r.Once || !r.Ended || len(r.Attempts) != 4 {
		t.Errorf("%+v", r)
	}
	// Attempt 2 went on from step 10 of 14, attempt 4 from step 20 of 23.
	if want := []StepRange{{11, 14, 1}, {21, 23, 3}}; !slices.Equal(r.Redone, want) {
		t.Errorf("redone %v", r.Redone)
	}
	if r.Replaced == 0 {
		t.Error("no sample was replaced")
	}
	t.Log(r)
}

// rewrite changes the lines of a log and makes their chains right again.
func rewrite(t *testing.T, path string, change func(lines []string) []string) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
	for i, l := range lines {
		lines[i] = l[:strings.LastIndex(l, orderChain)]
	}
	if err := os.WriteFile(path, chain(change(lines)), 0o666); err != nil {
		t.Fatal(err)
	}
}

func chain(lines []string) []byte {
	var b bytes.Buffer
	var c orderChainHash
	for _, l := range lines {
		c.next([]byte(l))
		fmt.Fprintf(&b, "%s%s%s\n", l, orderChain, c.text)
	}
	return b.Bytes()
}

// A log that was changed by somebody who knows the format, so that only its
// meaning gives it away.
func TestCheckOrderFindsWhatIsWrong(t *testing.T) {
	nth := func(lines []string, kind string, n int) int {
		for i, l := range lines {
			if strings.HasPrefix(l, kind+" ") {
				if n--; n < 0 {
					return i
				}
			}
		}
		t.Fatalf("no %s", kind)
		return 0
	}
	replace := func(kind string, n int, old, new string) func([]string) []string {
		return func(lines []string) []string {
			i := nth(lines, kind, n)
			if !strings.Contains(lines[i], old) {
				t.Fatalf("%q has no %q", lines[i], old)
			}
			lines[i] = strings.Replace(lines[i], old, new, 1)
			return lines
		}
	}
	for _, c := range []struct {
		name   string
		rank   int
		change func(lines []string) []string
		want   string
	}{
		{"other samples", 2, replace("step", 3, "keys=", "keys=1"), "keys that are no hash"},
		{"other keys", 2, func(lines []string) []string {
			i := nth(lines, "step", 3)
			lines[i] = lines[i][:len(lines[i])-1] + string(lines[i][len(lines[i])-1]^1)
			return lines
		}, "rank-2.log:"},
		{"more samples", 1, replace("step", 0, "samples=4", "samples=5"), "step 1 of attempt 1: the samples of rank 1 are not those of positions 0 to 15"},
		{"a lost step", 1, func(lines []string) []string {
			return slices.Delete(lines, nth(lines, "step", 2), nth(lines, "step", 2)+1)
		}, "where step 3 should be"},
		{"a lost tail", 3, func(lines []string) []string { return lines[:nth(lines, "step", 25)] }, "the log was cut off"},
		{"another rank's", 3, replace("begin", 0, "rank=3", "rank=2"), "this is the log of rank 2"},
		{"another seed", 0, replace("begin", 0, "seed=7", "seed=8"), "another order"},
		{"another world", 0, replace("begin", 0, "world=4", "world=3"), "does not begin as in"},
		{"another position", 0, replace("step", 2, "position=48", "position=47"), "for other ranks"},
		{"another substitute", 0, replace("skip", 0, "by=", "by=1"), "is never replaced by"},
		{"another end", 0, replace("end", 0, "step=40", "step=41"), "the last step is 40"},
		{"attempts twice", 0, replace("begin", 1, "attempt=2", "attempt=1"), "attempt 1 after attempt 1"},
		{"no order", 0, replace("begin", 0, "stream len", "strand len"), "another order"},
	} {
		p := newProof(t)
		rewrite(t, filepath.Join(p.dir, orderFile(c.rank)), c.change)
		r := check(t, p.dir, 40)
		if r.Err() == nil || !strings.Contains(r.String(), c.want) {
			t.Errorf("%s: want %q in:\n%s", c.name, c.want, r)
		}
	}
}

// Whatever byte of whatever log is changed, and whichever line or log is
// missing, it is found.
func TestCheckOrderFindsDamage(t *testing.T) {
	const seed = 5
	random := rand.New(rand.NewPCG(seed, 0))
	p := newProof(t)
	for i := range 300 {
		path := filepath.Join(p.dir, orderFile(random.IntN(4)))
		good, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		what := ""
		bad := slices.Clone(good)
		switch at := random.IntN(len(good)); i % 3 {
		case 0:
			bit := byte(1) << random.IntN(8)
			bad[at] ^= bit
			what = fmt.Sprintf("bit %x of byte %d of %s", bit, at, path)
		case 1:
			lines := bytes.SplitAfter(good, []byte("\n"))
			n := random.IntN(len(lines) - 1)
			bad = bytes.Join(slices.Delete(lines, n, n+1), nil)
			what = fmt.Sprintf("line %d of %s", n+1, path)
		case 2:
			bad = bad[:at]
			what = fmt.Sprintf("all from byte %d of %s", at, path)
		}
		if err := os.WriteFile(path, bad, 0o666); err != nil {
			t.Fatal(err)
		}
		r := check(t, p.dir, 40)
		// Whoever cuts off no more than the last words of a rank takes nothing from the proof.
		last := bytes.LastIndex(good, []byte("\nend "))
		harmless := len(bad) > last && bytes.HasPrefix(good, bad)
		if r.Err() == nil && !harmless {
			t.Errorf("seed %d: %s was damaged, not noticed:\n%s", seed, what, r)
		}
		if err := os.WriteFile(path, good, 0o666); err != nil {
			t.Fatal(err)
		}
	}
	for rank := range 4 {
		path := filepath.Join(p.dir, orderFile(rank))
		if err := os.Rename(path, path+".away"); err != nil {
			t.Fatal(err)
		}
		r := check(t, p.dir, 40)
		if want := fmt.Sprintf("has no log of rank %d", rank); r.Err() == nil || !strings.Contains(r.String(), want) {
			t.Errorf("want %q in:\n%s", want, r)
		}
		if err := os.Rename(path+".away", path); err != nil {
			t.Fatal(err)
		}
	}
	if r := check(t, p.dir, 41); r.Err() == nil || !strings.Contains(r.String(), "the run has a checkpoint of step 41, the logs end at step 40") {
		t.Errorf("a log that is shorter than the run:\n%s", r)
	}
	for _, c := range []struct {
		state LoaderState
		want  string
	}{{p.state, ""}, {LoaderState{Position: 1, Order: p.state.Order}, "at position 1, in the logs that step ended at 440"}, {LoaderState{Position: 440, Order: "x"}, "of another order"}} {
		r, err := CheckOrder(p.dir, CheckOptions{Steps: 40, State: c.state})
		if err != nil || (r.Err() == nil) != (c.want == "") || !strings.Contains(r.String(), c.want) {
			t.Errorf("a checkpoint %+v: %v\n%s", c.state, err, r)
		}
	}
	var missing *SourceError
	for _, dir := range []string{filepath.Join(p.dir, "none"), t.TempDir()} {
		if _, err := CheckOrder(dir, CheckOptions{}); !errors.As(err, &missing) {
			t.Errorf("%s: %v", dir, err)
		}
	}
}

// A crash may cut a line off, and a rank may miss the last step.
func TestOrderLogAfterACrash(t *testing.T) {
	p := &proofRun{t: t, dir: t.TempDir(), len: 50}
	p.attempt(2, 2, 6, 5, false)
	path := filepath.Join(p.dir, orderFile(1))
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, text[:len(text)-10], 0o666); err != nil {
		t.Fatal(err)
	}
	if r := check(t, p.dir, 5); r.Err() != nil || r.Steps != 5 || r.Ended {
		t.Errorf("before it goes on:\n%s", r)
	}
	p.attempt(3, 2, 5, 5, true)
	if r := check(t, p.dir, 10); r.Err() != nil || r.Steps != 10 || !r.Ended {
		t.Errorf("afterwards:\n%s", r)
	}
	lone := t.TempDir()
	l, err := OpenOrderLog(lone, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := l.Begin(OrderAttempt{Attempt: 1, World: 1, Batch: 1, From: LoaderState{Order: "as it comes; some data"}}); err != nil {
		t.Fatal(err)
	}
	if r := check(t, lone, 0); r.Err() == nil || !strings.Contains(r.String(), "of no known sampler") {
		t.Errorf("an unknown order:\n%s", r)
	}
	// Damage is not written over.
	text[10] ^= 1
	if err := os.WriteFile(path, text, 0o666); err != nil {
		t.Fatal(err)
	}
	var bad *OrderError
	if _, err := OpenOrderLog(p.dir, 1); !errors.As(err, &bad) || bad.Line != 1 || bad.Path != path {
		t.Errorf("%v", err)
	}
}

func TestOrderLogRefusesMisuse(t *testing.T) {
	l, err := OpenOrderLog(t.TempDir(), 1)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	good := OrderAttempt{Attempt: 1, World: 2, Batch: 1, From: LoaderState{Order: "sequential len=9 epoch=9"}}
	if l.Step(1, 2) == nil || l.End() == nil {
		t.Error("a step before an attempt")
	}
	for _, change := range []func(*OrderAttempt){
		func(a *OrderAttempt) { a.Attempt = 0 },
		func(a *OrderAttempt) { a.World = 1 },
		func(a *OrderAttempt) { a.Batch = 0 },
		func(a *OrderAttempt) { a.Total = 1 },
		func(a *OrderAttempt) { a.Step = -1 },
		func(a *OrderAttempt) { a.From.Position = -1 },
		func(a *OrderAttempt) { a.From.Order = "" },
	} {
		a := good
		change(&a)
		if l.Begin(a) == nil {
			t.Errorf("%+v was accepted", a)
		}
	}
	if err := l.Begin(good); err != nil {
		t.Fatal(err)
	}
	l.Add([]Key{{0, 1}}, nil)
	if l.Step(2, 2) == nil || l.Step(1, 3) == nil {
		t.Error("a step that does not follow was accepted")
	}
	if err := l.Step(1, 2); err != nil {
		t.Fatal(err)
	}
	if l.Step(2, 2) == nil {
		t.Error("a step without samples was accepted")
	}
	if _, err := OpenOrderLog(t.TempDir(), -1); err == nil {
		t.Error("rank -1")
	}
}

// The order of PyTorch's sampler is proved as well, with the padding and the
// short last batches that it has.
func TestOrderLogOfADistributedSampler(t *testing.T) {
	for _, drop := range []bool{false, true} {
		dir := t.TempDir()
		const world, steps = 3, 11
		for rank := range world {
			s, err := NewDistributedSampler(DistributedConfig{Len: 20, NumReplicas: world, Rank: rank, Shuffle: true, Seed: 2, DropLast: drop, Batch: 4})
			if err != nil {
				t.Fatal(err)
			}
			l, err := OpenOrderLog(dir, rank)
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			if err := l.Begin(OrderAttempt{Attempt: 1, World: world, Batch: 4, From: LoaderState{Order: s.Order()}}); err != nil {
				t.Fatal(err)
			}
			var pos int64
			for step := range steps {
				var keys []Key
				keys, pos = s.Batch(nil, pos)
				l.Add(keys, nil)
				if err := l.Step(step+1, pos); err != nil {
					t.Fatal(err)
				}
			}
		}
		// An epoch has 7 samples of each rank, or 6, in two batches.
		epoch := map[bool]int64{false: 21, true: 18}[drop]
		r := check(t, dir, steps)
		if want := 5*epoch + 12; r.Err() != nil || r.Samples != want || r.Epochs != 5 || r.Rest != 12 || r.Once {
			t.Errorf("want %d samples:\n%s", want, r)
		}
	}
}

// A disk that is full is an error of the step, and of all later ones; what
// was written before stays right.
func TestOrderLogOnAFullDisk(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip(err)
	}
	dir := t.TempDir()
	l, err := OpenOrderLog(dir, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Begin(OrderAttempt{Attempt: 1, World: 1, Batch: 1, From: LoaderState{Order: "sequential len=9 epoch=9"}}); err != nil {
		t.Fatal(err)
	}
	disk := l.file
	l.file = full
	l.Add([]Key{{0, 0}}, nil)
	first := l.Step(1, 1)
	l.file = disk
	l.Add([]Key{{0, 1}}, nil)
	if second := l.Step(2, 2); !errors.Is(first, syscall.ENOSPC) || second != first || l.Sync() != first {
		t.Errorf("%v, then %v", first, second)
	}
	full.Close()
	for range 2 {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}
	if r := check(t, dir, 0); r.Err() != nil || r.Steps != 0 {
		t.Errorf("%s", r)
	}
}

func TestOrderLogStepDoesNotAllocate(t *testing.T) {
	l, err := OpenOrderLog(t.TempDir(), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := l.Begin(OrderAttempt{Attempt: 1, World: 1, Batch: 64, From: LoaderState{Order: "x"}}); err != nil {
		t.Fatal(err)
	}
	keys := make([]Key, 64)
	step := 0
	if n := testing.AllocsPerRun(100, func() {
		step++
		l.Add(keys, nil)
		if err := l.Step(step, int64(step*64)); err != nil {
			t.Fatal(err)
		}
	}); n > 0 {
		t.Errorf("%v allocations a step", n)
	}
}

func FuzzCheckOrder(f *testing.F) {
	p := newProof(f)
	for rank := range 2 {
		text, err := os.ReadFile(filepath.Join(p.dir, orderFile(rank)))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text, true)
		f.Add(text, false)
	}
	f.Fuzz(func(t *testing.T, text []byte, right bool) {
		digits := 0
		for _, b := range text {
			if digits++; b < '0' || b > '9' {
				digits = 0
			}
			if digits > 3 {
				return // numbers that are only large take long
			}
		}
		if right { // chains that are right let the rest through
			lines := strings.Split(string(text), "\n")
			for i, l := range lines {
				if at := strings.LastIndex(l, orderChain); at >= 0 {
					lines[i] = l[:at]
				}
			}
			text = chain(lines)
		}
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, orderFile(0)), text, 0o666); err != nil {
			t.Fatal(err)
		}
		r, err := CheckOrder(dir, CheckOptions{})
		if err != nil {
			t.Fatal(err)
		}
		_ = r.String()
		// What can be opened can be appended to, and what was right stays so.
		l, err := OpenOrderLog(dir, 0)
		if err != nil {
			return
		}
		l.Close()
		if again, err := CheckOrder(dir, CheckOptions{}); err != nil || (again.Err() == nil) != (r.Err() == nil) {
			t.Errorf("before: %v; after: %v, %v", r, again, err)
		}
	})
}
