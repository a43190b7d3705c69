// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/cohort-ml/cohort/internal/goroutine"
)

// Bounds of a recorder.
const (
	MaxOps     = 1 << 17
	MaxModules = 1 << 16
	MaxMemory  = 1 << 14
)

// memoryEvery is the least time between two samples of the memory.
const memoryEvery = 50 * time.Microsecond

// Op is an operation of a device.
type Op struct {
	Name         string
	Module       string // the path of the module that called it
	Backward     bool   // it is part of a backward pass
	Begun, Ended time.Duration
	FLOPs, Bytes int64 // operations of products; memory of all operands
}

// Module is a time during which a module computed.
type Module struct {
	Path         string
	Backward     bool
	Begun, Ended time.Duration
}

// Memory is how much tensors hold at a moment.
type Memory struct {
	At    time.Duration
	Bytes int64
}

// Recorder keeps what its goroutine computes.
type Recorder struct {
	start  time.Time
	memory func() int64
	by     uintptr

	ops     []Op
	modules []Module
	samples []Memory
	lost    int // operations that did not fit

	depth  int // operations within each other
	path   string
	back   bool
	since  time.Duration // of the run of operations of the backward pass
	paths  map[any]string
	within []frame
}

// frame is a module that is called.
type frame struct {
	path  string // of the module outside of it
	begun time.Duration
}

var (
	running     atomic.Int32
	byGoroutine sync.Map // uintptr to *Recorder
)

// On reports whether a recorder runs in this process.
func On() bool { return running.Load() != 0 }

// Start begins to keep what this goroutine computes, with times since start. memory says how many bytes
// tensors hold.
func Start(start time.Time, memory func() int64) *Recorder {
	r := &Recorder{start: start, memory: memory, by: goroutine.ID(), paths: map[any]string{}}
	byGoroutine.Store(r.by, r)
	running.Add(1)
	return r
}

// Stop ends that. It is called once, by any goroutine.
func (r *Recorder) Stop() {
	running.Add(-1)
	byGoroutine.CompareAndDelete(r.by, r)
}

// Of returns the recorder of this goroutine, nil for none.
func Of() *Recorder {
	r, _ := byGoroutine.Load(goroutine.ID())
	of, _ := r.(*Recorder)
	return of
}

// Ops returns the operations so far, and how many did not fit.
func (r *Recorder) Ops() (ops []Op, lost int) { return r.ops, r.lost }

// Modules returns when modules computed.
func (r *Recorder) Modules() []Module { return r.modules }

// Samples returns the memory of tensors over time.
func (r *Recorder) Samples() []Memory { return r.samples }

func (r *Recorder) now() time.Duration { return time.Since(r.start) }

// Running is an operation that has begun.
type Running struct {
	r            *Recorder
	name         string
	begun        time.Duration
	flops, bytes int64
}

// Begin says that this goroutine begins an operation. The caller has looked at [On].
func Begin(name string, flops, bytes int64) Running {
	r := Of()
	if r == nil {
		return Running{}
	}
	r.depth++
	if r.depth > 1 {
		return Running{r: r}
	}
	return Running{r, name, r.now(), flops, bytes}
}

// End says that it has ended.
func (o Running) End() {
	r := o.r
	if r == nil {
		return
	}
	r.depth--
	if r.depth > 0 {
		return
	}
	if len(r.ops) >= MaxOps {
		r.lost++
		return
	}
	now := r.now()
	r.ops = append(r.ops, Op{Name: o.name, Module: r.path, Backward: r.back, Begun: o.begun, Ended: now, FLOPs: o.flops, Bytes: o.bytes})
	if n := len(r.samples); r.memory != nil && n < MaxMemory && (n == 0 || now-r.samples[n-1].At >= memoryEvery) {
		r.samples = append(r.samples, Memory{now, r.memory()})
	}
}

// Enter says that a module is called. path is asked for its path once; ok is false of a module that has
// none, which counts as the one that calls it.
func (r *Recorder) Enter(module any, path func() (path string, ok bool)) (within string) {
	r.within = append(r.within, frame{r.path, r.now()})
	p, known := r.paths[module]
	if module == nil {
		p, known = r.path, true
	}
	if !known {
		var ok bool
		if p, ok = path(); !ok {
			p = r.path
		}
		r.paths[module] = p
	}
	r.path = p
	return p
}

// Learn tells the paths of modules, so that Enter need not ask for them.
func (r *Recorder) Learn(module any, path string) { r.paths[module] = path }

// Leave says that the module that was called last returns, and returns the path of the one that goes on.
// A call that ended by a panic is left by the next one's Leave.
func (r *Recorder) Leave() (within string) {
	n := len(r.within)
	if n == 0 {
		return r.path
	}
	f := r.within[n-1]
	r.within = r.within[:n-1]
	if len(r.modules) < MaxModules && !r.back {
		r.modules = append(r.modules, Module{Path: r.path, Begun: f.begun, Ended: r.now()})
	}
	r.path = f.path
	return r.path
}

// Backward says that the operations that follow belong to the backward pass of a module, of which Forward
// is the end.
func (r *Recorder) Backward(path string) {
	if r.back && path == r.path {
		return
	}
	r.Forward()
	r.back, r.path, r.since = true, path, r.now()
}

// Forward ends a backward pass.
func (r *Recorder) Forward() {
	if r.back && len(r.modules) < MaxModules {
		r.modules = append(r.modules, Module{Path: r.path, Backward: true, Begun: r.since, Ended: r.now()})
	}
	r.back, r.path = false, ""
}
