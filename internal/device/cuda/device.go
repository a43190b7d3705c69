// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"unsafe"

	"github.com/cohort-ml/cohort/internal/device"
)

// Options describe how a device is opened.
type Options struct {
	// Index is the number of the device among those that this process sees.
	Index     int
	Allocator AllocatorOptions
	// Poison fills memory with NaN when it is handed out, for tests.
	Poison bool
}

// Device is a GPU. What it is asked to do goes onto one stream. Several goroutines may use a
// device.
type Device struct {
	name    string
	context *context
	memory  *Allocator
	poison  bool
	streams []uintptr // by Stream
	pinned  pinnedPool
	faults  *faultWord
	names   opNames

	mu      sync.Mutex // guards what follows, and the order of calls
	modules map[string]uintptr
	kernels map[string]uintptr
	args    launchArgs
	calls   int    // kernels so far
	synced  int    // kernels that are known to have been done
	last    string // the operation of the latest
	dead    *DeadError
	closed  bool
}

// DeadError says that a device has failed. It cannot be used again in this process.
type DeadError struct {
	Device string
	Op     string // the latest operation
	Call   int    // its number
	Since  int    // how many calls before it have not been waited for
	Reason error
}

func (e *DeadError) Error() string {
	where := "before its first operation"
	if e.Call > 0 {
		where = fmt.Sprintf("in call %d (%s) or in one of the %d before it", e.Call, e.Op, e.Since)
	}
	return fmt.Sprintf("%s has failed, %s, and cannot be used again in this process: start the job again from its last checkpoint: %v", e.Device, where, e.Reason)
}

func (e *DeadError) Unwrap() error { return e.Reason }

// Open opens a device and compiles its kernels.
func Open(o Options) (*Device, error) {
	drv, err := theDriver()
	if err != nil {
		return nil, err
	}
	compiler, err := theCompiler()
	if err != nil {
		return nil, err
	}
	if err := compiler.fits(drv.version); err != nil {
		return nil, err
	}
	ctx, err := drv.retain(o.Index)
	if err != nil {
		return nil, err
	}
	d := &Device{name: fmt.Sprintf("cuda:%d", o.Index), context: ctx, poison: o.Poison, modules: map[string]uintptr{}, kernels: map[string]uintptr{}}
	d.memory = NewAllocator(source{d}, o.Allocator)
	d.pinned.context = ctx
	stream := new(uintptr)
	const nonBlocking = 1 // does not wait for the stream that other libraries use
	if err := ctx.in(callStreamCreate, uintptr(unsafe.Pointer(stream)), nonBlocking); err != nil {
		return nil, deviceError(drv, o.Index, err)
	}
	d.streams = []uintptr{*stream}
	if d.faults, err = newFaultWord(ctx); err != nil {
		return nil, deviceError(drv, o.Index, err)
	}
	info, err := drv.info(o.Index, 0)
	if err != nil {
		return nil, err
	}
	return d, d.load(compiler, archOf(info.Capability))
}

// Close waits for the device and gives everything back that it has. Nothing but Free is called
// afterwards.
func (d *Device) Close() error {
	err := d.wait()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	failed := errors.Join(d.memory.ReleaseFree(), d.pinned.close(), d.faults.close(d.context))
	for _, m := range d.modules {
		failed = errors.Join(failed, d.context.in(callModuleUnload, m))
	}
	for _, s := range d.streams {
		failed = errors.Join(failed, d.context.in(callStreamDestroy, s))
	}
	failed = errors.Join(failed, d.context.call(callPrimaryCtxRelease, uintptr(d.context.device)))
	if err != nil {
		return err // the others follow from it
	}
	return failed
}

// Name returns the name with the index, such as cuda:0.
func (d *Device) Name() string { return d.name }

// Late is true.
func (*Device) Late() bool { return true }

// MemoryStats returns what the allocator has done.
func (d *Device) MemoryStats() MemoryStats { return d.memory.Stats() }

// source gives an allocator memory of the device.
type source struct{ *Device }

func (s source) Reserve(size int) (uintptr, error) {
	address := new(uintptr)
	err := s.context.in(callMemAlloc, uintptr(unsafe.Pointer(address)), uintptr(size))
	var failed *CallError
	if errors.As(err, &failed) && failed.Code == codeOutOfMemory {
		return 0, &OutOfMemoryError{Device: s.name, Reason: err}
	}
	return *address, err
}

func (s source) Release(address uintptr) error { return s.context.in(callMemFree, address) }

func (s source) Order(later, earlier Stream) error {
	event := new(uintptr)
	const noTiming = 2
	if err := s.context.in(callEventCreate, uintptr(unsafe.Pointer(event)), noTiming); err != nil {
		return err
	}
	return errors.Join(s.context.in(callEventRecord, *event, s.streams[earlier]),
		s.context.in(callStreamWaitEvent, s.streams[later], *event, 0),
		s.context.in(callEventDestroy, *event)) // what waits for it still does
}

// must panics with the error of a call: of a device that has failed, with a *DeadError.
func (d *Device) must(err error) {
	if err == nil {
		return
	}
	var none *OutOfMemoryError
	if errors.As(err, &none) {
		panic(none)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	panic(d.failed(err))
}

// failed notes that the device is dead. The lock is held.
func (d *Device) failed(err error) *DeadError {
	if d.dead == nil {
		d.dead = &DeadError{d.name, d.last, d.calls, max(0, d.calls-d.synced-1), err}
	}
	return d.dead
}

// wait returns when everything has been done, with a *DeadError if the device has failed.
func (d *Device) wait() error {
	d.mu.Lock()
	dead, calls := d.dead, d.calls
	d.mu.Unlock()
	if dead != nil {
		return dead
	}
	err := d.context.in(callStreamSynchronize, d.streams[0])
	d.mu.Lock()
	defer d.mu.Unlock()
	if err != nil {
		return d.failed(err)
	}
	d.synced = max(d.synced, calls)
	return nil
}

// Synchronize waits until everything has been done.
func (d *Device) Synchronize() error { return d.wait() }

// Alloc returns memory of the device. It panics with an *OutOfMemoryError if there is none.
func (d *Device) Alloc(size int, shared bool) device.Memory {
	address, err := d.memory.Alloc(size, 0)
	d.must(err)
	if size > 0 && (shared || d.poison) {
		fill := 0xff
		if shared {
			fill = 0
		}
		d.must(d.context.in(callMemsetD8, address, uintptr(fill), uintptr(size), d.streams[0]))
	}
	return device.Memory{Ptr: pointer(address), Size: size, Handle: address}
}

// Free gives memory back. What was called before still uses it.
func (d *Device) Free(m device.Memory) {
	if d.isGone() {
		return
	}
	d.must(d.memory.Free(uintptr(m.Ptr)))
}

// isGone reports whether the device has failed or was closed: then there is nothing to free.
func (d *Device) isGone() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.dead != nil || d.closed
}

// Write copies data to the device, by way of pinned memory: data is the caller's again at
// once.
func (d *Device) Write(m device.Memory, offset int, data []byte) {
	for at := 0; at < len(data); {
		b, err := d.pinned.take(min(len(data)-at, maxPinned))
		d.must(err)
		n := copy(b.bytes(), data[at:])
		d.must(d.context.in(callMemcpyHtoD, uintptr(m.Ptr)+uintptr(offset+at), b.address, uintptr(n), d.streams[0]))
		d.must(d.pinned.give(b, d.streams[0]))
		at += n
	}
}

// Read waits, and copies from the device.
func (d *Device) Read(m device.Memory, offset int, dst []byte) {
	for at := 0; at < len(dst); {
		b, err := d.pinned.take(min(len(dst)-at, maxPinned))
		d.must(err)
		n := min(len(dst)-at, b.size)
		d.must(d.context.in(callMemcpyDtoH, b.address, uintptr(m.Ptr)+uintptr(offset+at), uintptr(n), d.streams[0]))
		d.must(d.wait())
		copy(dst[at:at+n], b.bytes())
		d.must(d.pinned.give(b, d.streams[0]))
		at += n
	}
}

// Fault returns the first fault that kernels have noted.
func (d *Device) Fault(wait bool) device.Fault {
	if wait {
		d.must(d.wait())
	}
	return d.faults.take(&d.names)
}

// launchArgs are the parameters of one launch: values side by side, and their addresses.
type launchArgs struct {
	at   [32]unsafe.Pointer
	data [2048]byte
	n    int
	used int
}

// room returns the place of the next parameter.
func (a *launchArgs) room(size int) unsafe.Pointer {
	a.used = (a.used + 15) &^ 15
	p := unsafe.Pointer(&a.data[a.used])
	a.used += size
	a.at[a.n] = p
	a.n++
	return p
}

func (a *launchArgs) add(v any) {
	switch v := v.(type) {
	case unsafe.Pointer:
		*(*uintptr)(a.room(8)) = uintptr(v)
	case uintptr:
		*(*uintptr)(a.room(8)) = v
	case int:
		*(*int64)(a.room(8)) = int64(v)
	case uint64:
		*(*uint64)(a.room(8)) = v
	case int32:
		*(*int32)(a.room(4)) = v
	case uint32:
		*(*uint32)(a.room(4)) = v
	case float32:
		*(*float32)(a.room(4)) = v
	case float64:
		*(*float64)(a.room(8)) = v
	case layout:
		*(*layout)(a.room(int(unsafe.Sizeof(v)))) = v
	case matrix:
		*(*matrix)(a.room(int(unsafe.Sizeof(v)))) = v
	case heads:
		*(*heads)(a.room(int(unsafe.Sizeof(v)))) = v
	case attentionShape:
		*(*attentionShape)(a.room(int(unsafe.Sizeof(v)))) = v
	default:
		panic(fmt.Sprintf("cuda: a parameter of type %T", v))
	}
}

// grid is how many blocks a launch has in each dim, and how many threads a block.
type grid struct{ x, y, z, threads int }

// launch puts a kernel onto the stream. op is the operation, for messages.
func (d *Device) launch(op, kernel string, g grid, params ...any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.dead != nil {
		panic(d.dead)
	}
	fn, ok := d.kernels[kernel]
	if !ok {
		var err error
		if fn, err = d.function(kernel); err != nil {
			panic(d.failed(err))
		}
		d.kernels[kernel] = fn
	}
	a := &d.args
	a.n, a.used = 0, 0
	for _, p := range params {
		a.add(p)
	}
	d.calls++
	d.last = op
	err := d.context.in(callLaunchKernel, fn, uintptr(g.x), uintptr(max(1, g.y)), uintptr(max(1, g.z)), uintptr(g.threads), 1, 1, 0, d.streams[0], uintptr(unsafe.Pointer(&a.at[0])), 0)
	runtime.KeepAlive(a)
	if err != nil {
		panic(d.failed(fmt.Errorf("kernel %s: %w", kernel, err)))
	}
}

var _ device.Device = (*Device)(nil)
