// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"math"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/rpc"
	"github.com/cohort-ml/cohort/rpc/ps"
	"github.com/cohort-ml/cohort/rpc/ps/journal"
	"github.com/cohort-ml/cohort/rpc/ps/rows"
	"github.com/cohort-ml/cohort/tensor"
)

// localServers are servers in this process.
type localServers struct {
	t    *testing.T
	net  *rpc.Network
	at   []string
	ends []func()
}

// serveLocal makes servers, with a journal in a folder of dir for each.
func serveLocal(t *testing.T, n int, dir string) *localServers {
	t.Helper()
	l := &localServers{t: t, net: rpc.NewNetwork()}
	for i := range n {
		j, err := journal.Open(filepath.Join(dir, fmt.Sprint(i)), journal.Options{Server: i, Servers: n})
		if err != nil {
			t.Fatal(err)
		}
		a := l.agent(fmt.Sprint("server", i))
		s, err := ps.Serve(t.Context(), a, i, n, ps.WithJournal(j), ps.WithDir(filepath.Join(dir, fmt.Sprint(i), "cold")))
		if err != nil {
			t.Fatal(err)
		}
		l.at = append(l.at, s.Addr())
		l.ends = append(l.ends, func() { a.Close(); s.Close(); j.Close() })
	}
	return l
}

func (l *localServers) agent(name string) *rpc.Agent {
	l.t.Helper()
	a, err := rpc.Init(l.t.Context(), name, rpc.WithNetwork(l.net))
	if err != nil {
		l.t.Fatal(err)
	}
	return a
}

// dial makes a worker. The function that it returns ends it.
func (l *localServers) dial(worker, workers int, tables ...rows.Schema) (*ps.Client, func()) {
	l.t.Helper()
	a := l.agent(fmt.Sprint("worker", worker))
	c, err := ps.Dial(l.t.Context(), a, ps.At(l.at...), ps.WithWorker(worker, workers, ps.Synchronous()), ps.WithTables(tables...))
	if err != nil {
		l.t.Fatal(err)
	}
	return c, func() { c.Close(); a.Close() }
}

func (l *localServers) end() {
	for _, end := range l.ends {
		end()
	}
}

// loadTables are tables whose updates depend on the number of the step, and on learning rates.
func loadTables() []rows.Schema {
	first := rows.Init{Kind: rows.Uniform, Scale: 0.5, Seed: 1}
	return []rows.Schema{
		{Name: "adam", Width: 3, Init: first, Optimizer: rows.Optimizer{Kind: rows.LazyAdam, LR: 0.1}, Memory: 1 << 20},
		{Name: "decays", Width: 3, Init: first, Optimizer: rows.Optimizer{Kind: rows.Adagrad, LR: 0.1, LRDecay: 0.5}},
		{Name: "waits", Width: 3, Init: first, Admit: 3, Evict: rows.Eviction{Steps: 4}},
	}
}

// trainSteps pushes the gradients of steps, each to other keys.
func trainSteps(t *testing.T, c *ps.Client, from, to int) {
	t.Helper()
	for step := from; step < to; step++ {
		if step == 2 {
			if err := c.SetLR("adam", 0.025); err != nil {
				t.Fatal(err)
			}
		}
		var grads []ps.Gradient
		for i, table := range loadTables() {
			keys := []int64{int64(step % 2), 10, 20 + int64(step%3), 40}
			g := make([]float32, 3*len(keys))
			for j := range g {
				g[j] = float32(math.Sin(float64(100*step + 10*i + j)))
			}
			grads = append(grads, ps.Gradient{Table: table.Name, Keys: keys, Grads: tensor.FromFloat32(g, len(keys), 3)})
		}
		if err := c.Push(t.Context(), grads...); err != nil {
			t.Fatal(err)
		}
	}
}

// rowsOf returns the rows of all tables.
func rowsOf(t *testing.T, c *ps.Client) []float32 {
	t.Helper()
	var keys []int64
	for k := range int64(50) {
		keys = append(keys, k)
	}
	var all []float32
	for _, table := range loadTables() {
		got, err := c.Pull(t.Context(), ps.Request{Table: table.Name, Keys: keys})
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, got[0].Float32s()...)
	}
	return all
}

// Training goes on with another number of servers as if nothing had been: rows with their state,
// steps, learning rates, and the counts of keys that wait. Servers were killed in the middle of
// their logs.
func TestPSLoadGoesOn(t *testing.T) {
	dir := t.TempDir()
	const half, all = 5, 11
	reference := serveLocal(t, 1, filepath.Join(dir, "reference"))
	defer reference.end()
	c, end := reference.dial(0, 1, loadTables()...)
	defer end()
	trainSteps(t, c, 0, all)
	want := rowsOf(t, c)

	two := serveLocal(t, 2, filepath.Join(dir, "two"))
	c, end2 := two.dial(0, 1, loadTables()...)
	trainSteps(t, c, 0, 3)
	if err := c.Snapshot(t.Context()); err != nil {
		t.Fatal(err)
	}
	trainSteps(t, c, 3, half)
	args := []string{"ps", "load", "--servers", "3", filepath.Join(dir, "two", "0"), filepath.Join(dir, "two", "1"), filepath.Join(dir, "three")}
	end2()
	two.end()
	if code, _, errs := cohort(args...); code != 0 || strings.Count(errs, "new snapshot with 2 entries of its log") != 2 {
		t.Fatalf("load: code %d, %s", code, errs)
	}
	three := serveLocal(t, 3, filepath.Join(dir, "three"))
	defer three.end()
	c, end3 := three.dial(0, 1, loadTables()...)
	defer end3()
	if n := c.StepNumber(); n != half {
		t.Errorf("the worker goes on at step %d, want %d", n, half)
	}
	trainSteps(t, c, half, all)
	for i, x := range rowsOf(t, c) {
		if math.Float32bits(x) != math.Float32bits(want[i]) {
			t.Fatalf("value %d of the rows is %v, and without the load %v", i, x, want[i])
		}
	}
}

// Synchronous servers that were ended between two steps are not loaded.
func TestPSLoadBetweenSteps(t *testing.T) {
	dir := t.TempDir()
	two := serveLocal(t, 2, dir)
	tables := loadTables()
	c0, end0 := two.dial(0, 2, tables...)
	_, end1 := two.dial(1, 2, tables...)
	trainSteps(t, c0, 0, 1) // and worker 1 does not
	end0()
	end1()
	two.end()
	code, _, errs := cohort("ps", "load", filepath.Join(dir, "0"), filepath.Join(dir, "1"), filepath.Join(dir, "one"))
	if code == 0 || !strings.Contains(errs, "server 0: pushes of a step wait for those of other workers") {
		t.Errorf("load: code %d, %s", code, errs)
	}
}
