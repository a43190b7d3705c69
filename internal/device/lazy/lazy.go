// SPDX-License-Identifier: Apache-2.0

// Package lazy is a device for tests: the CPU, made to behave like a processor that
// runs behind the program.
//
// A call is queued, with copies of its operands' descriptions and of its operation,
// and runs on another goroutine: when the host waits, or when many calls have come
// together, so as late as it can. Memory that nobody has written yet holds NaN, as
// does memory that has been freed. A read of a value by the host waits, is counted,
// and panics unless the test allows it: a training step must not read. A kernel that
// meets a bad index notes a fault; what is called from then on until
// the fault has been asked for is left out: it would compute with garbage.
//
// What passes its tests on this device needs no host read where there is none
// allowed, keeps no memory that it has given back, and does not use lists again that
// a call still has.
package lazy

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/cohort-ml/cohort/internal/device"
	"github.com/cohort-ml/cohort/internal/device/cpu"
)

// batch is how many calls come together before they run without being waited for.
const batch = 256

// Device is the late processor. Close ends it.
type Device struct {
	cpu     *cpu.CPU
	reads   atomic.Int64
	allowed atomic.Int64 // how many Allow calls are under way
	lends   atomic.Bool  // memory may be lent

	mu      sync.Mutex
	changed *sync.Cond
	queue   []call
	made    int // calls so far
	done    int // calls that have run
	wanted  int // calls up to here are to run now
	spoilt  int // calls up to here are left out: they were made before a fault was known
	closed  bool
	last    string // name of the latest call
	fault   device.Fault
	failure any // what a call panicked with
}

// call is queued work. Frees and writes happen also after a fault.
type call struct {
	name   string
	always bool
	run    func() device.Fault
}

// New returns a device that computes on numThreads threads.
func New(numThreads int) *Device {
	d := &Device{cpu: cpu.New(numThreads)}
	d.changed = sync.NewCond(&d.mu)
	go d.work()
	return d
}

// Close runs what is queued and ends the device.
func (d *Device) Close() {
	d.wait()
	d.mu.Lock()
	d.closed = true
	d.changed.Broadcast()
	d.mu.Unlock()
}

// Allow runs fn, in which the host may read.
func (d *Device) Allow(fn func()) {
	d.allowed.Add(1)
	defer d.allowed.Add(-1)
	fn()
}

// AllowLending lets the host have memory in place from now on, as collectives do:
// that waits, but is no read.
func (d *Device) AllowLending() { d.lends.Store(true) }

// Run runs what is queued.
func (d *Device) Run() { d.wait() }

// NumReads returns how often the host has read, allowed or not.
func (d *Device) NumReads() int { return int(d.reads.Load()) }

func (d *Device) work() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for {
		for len(d.queue) == 0 || d.done >= d.wanted && len(d.queue) < batch {
			if d.closed {
				return
			}
			d.changed.Wait()
		}
		c := d.queue[0]
		d.queue[0] = call{}
		d.queue = d.queue[1:]
		skip := !c.always && (d.fault.Found || d.failure != nil || d.done < d.spoilt)
		d.mu.Unlock()
		var fault device.Fault
		var failure any
		if !skip {
			fault, failure = c.attempt()
		}
		d.mu.Lock()
		if fault.Found && !d.fault.Found {
			d.fault = fault
		}
		if failure != nil && d.failure == nil {
			d.failure = failure
		}
		d.done++
		d.changed.Broadcast()
	}
}

func (c call) attempt() (fault device.Fault, failure any) {
	defer func() {
		if v := recover(); v != nil {
			failure = fmt.Sprintf("lazy: %s: %v", c.name, v)
		}
	}()
	return c.run(), nil
}

// add queues a call.
func (d *Device) add(name string, always bool, run func() device.Fault) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		run() // a free after the test
		return
	}
	d.queue = append(d.queue, call{name, always, run})
	d.made++
	if !always {
		d.last = name
	}
	d.changed.Broadcast()
}

// do queues a call that notes no fault.
func (d *Device) do(name string, run func()) {
	d.add(name, false, func() device.Fault { run(); return device.Fault{} })
}

// wait returns when all calls so far have run. What a call panicked with is the
// waiting caller's.
func (d *Device) wait() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.wanted = d.made
	d.changed.Broadcast()
	for upTo := d.made; d.done < upTo && !d.closed; {
		d.changed.Wait()
	}
	if f := d.failure; f != nil {
		d.failure = nil
		panic(f)
	}
}

// read waits for the host to read, where that is allowed.
func (d *Device) read(size int) {
	d.reads.Add(1)
	if d.allowed.Load() == 0 {
		d.mu.Lock()
		last := d.last
		d.mu.Unlock()
		panic(fmt.Sprintf("lazy: the host reads %d bytes where the device must not be waited for; the latest call was %s; read at %s", size, last, reader()))
	}
	d.wait()
}

// reader returns the lines that led to a read, the innermost first.
func reader() string {
	pcs := make([]uintptr, 32)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(3, pcs)])
	var lines []string
	for {
		f, more := frames.Next()
		if !strings.Contains(f.Function, "internal/device/") && len(lines) < 8 {
			lines = append(lines, fmt.Sprintf("%s:%d", f.File[strings.LastIndex(f.File, "/")+1:], f.Line))
		}
		if !more {
			return strings.Join(lines, " < ")
		}
	}
}

// Name returns "lazy".
func (*Device) Name() string { return "lazy" }

// Alloc returns memory that holds NaN, but for shared memory, which is zero.
func (d *Device) Alloc(size int, shared bool) device.Memory {
	m := d.cpu.Alloc(size, shared)
	if !shared {
		poison(m)
	}
	return m
}

// Free gives memory back once all calls before it have run.
func (d *Device) Free(m device.Memory) {
	d.add("free", true, func() device.Fault {
		poison(m)
		d.cpu.Free(m)
		return device.Fault{}
	})
}

// poison fills memory with what is NaN in every floating type.
func poison(m device.Memory) {
	b := unsafe.Slice((*byte)(m.Ptr), m.Size)
	for i := range b {
		b[i] = 0xff
	}
}

// Write queues the copy of data.
func (d *Device) Write(m device.Memory, offset int, data []byte) {
	data = slices.Clone(data)
	d.add("write", true, func() device.Fault { d.cpu.Write(m, offset, data); return device.Fault{} })
}

// Read waits and copies.
func (d *Device) Read(m device.Memory, offset int, dst []byte) {
	d.read(len(dst))
	d.cpu.Read(m, offset, dst)
}

// Host waits and returns the memory itself, which the CPU sees: for what lends it.
func (d *Device) Host(m device.Memory, offset, size int) []byte {
	if d.lends.Load() {
		d.wait()
	} else {
		d.read(size)
	}
	return d.cpu.Host(m, offset, size)
}

// Late is true.
func (*Device) Late() bool { return true }

// Fault returns the first fault since it was last asked.
func (d *Device) Fault(wait bool) device.Fault {
	if wait {
		d.wait()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	f := d.fault
	d.fault = device.Fault{}
	if f.Found {
		d.spoilt = d.made
	}
	return f
}

// copied returns the description of an operand for a call that runs later.
func copied(a device.Array) device.Array {
	a.Shape, a.Strides = slices.Clone(a.Shape), slices.Clone(a.Strides)
	return a
}

func copiedAll(arrays []device.Array) []device.Array {
	out := make([]device.Array, len(arrays))
	for i, a := range arrays {
		out[i] = copied(a)
	}
	return out
}

// Fill queues device.Kernels' Fill; so do the methods below.
func (d *Device) Fill(dst device.Array, value float64) {
	dst = copied(dst)
	d.do("fill", func() { d.cpu.Fill(dst, value) })
}

// Copy queues a copy.
func (d *Device) Copy(dst, src device.Array) {
	dst, src = copied(dst), copied(src)
	d.do("copy", func() { d.cpu.Copy(dst, src) })
}

// Axpy queues the addition of a multiple.
func (d *Device) Axpy(dst device.Array, alpha float64, x device.Array) {
	dst, x = copied(dst), copied(x)
	d.do("axpy", func() { d.cpu.Axpy(dst, alpha, x) })
}

// Unary queues a function of one operand.
func (d *Device) Unary(op device.Unary, dst, x device.Array) {
	dst, x = copied(dst), copied(x)
	d.do("unary", func() { d.cpu.Unary(op, dst, x) })
}

// Binary queues a function of two operands.
func (d *Device) Binary(op device.Binary, dst, a, b device.Array) {
	dst, a, b = copied(dst), copied(a), copied(b)
	d.do("binary", func() { d.cpu.Binary(op, dst, a, b) })
}

// BinaryScalar queues a function of an operand and a number.
func (d *Device) BinaryScalar(op device.Binary, dst, a device.Array, scalar float64) {
	dst, a = copied(dst), copied(a)
	d.do("binary scalar", func() { d.cpu.BinaryScalar(op, dst, a, scalar) })
}

// Where queues a choice.
func (d *Device) Where(dst, cond, a, b device.Array) {
	dst, cond, a, b = copied(dst), copied(cond), copied(a), copied(b)
	d.do("where", func() { d.cpu.Where(dst, cond, a, b) })
}

// Reduce queues a reduction.
func (d *Device) Reduce(op device.Reduction, dst, x device.Array) {
	dst, x = copied(dst), copied(x)
	d.do("reduce", func() { d.cpu.Reduce(op, dst, x) })
}

// ArgReduce queues a search.
func (d *Device) ArgReduce(op device.Reduction, dst, x device.Array, dim int) {
	dst, x = copied(dst), copied(x)
	d.do("arg reduce", func() { d.cpu.ArgReduce(op, dst, x, dim) })
}

// SumSquares queues sums of squares.
func (d *Device) SumSquares(dst device.Array, xs ...device.Array) {
	dst, xs = copied(dst), copiedAll(xs)
	d.do("sum squares", func() { d.cpu.SumSquares(dst, xs...) })
}

// MatMul queues a product.
func (d *Device) MatMul(dst, a, b, bias device.Array, beta float32) {
	dst, a, b, bias = copied(dst), copied(a), copied(b), copied(bias)
	d.do("matmul", func() { d.cpu.MatMul(dst, a, b, bias, beta) })
}

// Gather queues a lookup.
func (d *Device) Gather(dst, table, ids device.Array, check *device.Check) {
	dst, table, ids = copied(dst), copied(table), copied(ids)
	var own *device.Check
	if check != nil {
		own = &device.Check{Site: check.Site}
	}
	d.add("gather", false, func() device.Fault {
		d.cpu.Gather(dst, table, ids, own)
		if own == nil {
			return device.Fault{}
		}
		return own.Fault
	})
}

// ScatterAdd queues an addition of rows.
func (d *Device) ScatterAdd(dst, g, ids device.Array) {
	dst, g, ids = copied(dst), copied(g), copied(ids)
	d.do("scatter add", func() { d.cpu.ScatterAdd(dst, g, ids) })
}

// Fused queues an operation of the list.
func (d *Device) Fused(op device.Op, args ...device.Array) bool {
	op, args = device.CopyOp(op), copiedAll(args)
	check := device.CheckOf(op)
	d.add(device.OpName(op), false, func() device.Fault {
		if !d.cpu.Fused(op, args...) {
			panic("the CPU has no kernel for it")
		}
		if check == nil {
			return device.Fault{}
		}
		return check.Fault
	})
	return true
}

var (
	_ device.Device  = (*Device)(nil)
	_ device.Visible = (*Device)(nil)
)
