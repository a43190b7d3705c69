// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	"errors"
	"math/bits"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/cohort-ml/cohort/internal/device"
)

// Sizes of blocks of pinned memory, powers of two.
const (
	minPinned = 4 << 10
	maxPinned = 8 << 20
)

// pinnedPool has memory of the host that the device reads and writes by itself. A block that
// was given back is used again when the device has come past the event that was recorded
// then.
type pinnedPool struct {
	context *context
	mu      sync.Mutex
	idle    map[int][]*pinnedBlock // by size, the earliest first
}

// pinnedBlock is a block of pinned memory.
type pinnedBlock struct {
	address, event uintptr
	size           int
}

func (b *pinnedBlock) bytes() []byte { return unsafe.Slice((*byte)(pointer(b.address)), b.size) }

// take returns a block of at least n bytes, n ≤ maxPinned.
func (p *pinnedPool) take(n int) (*pinnedBlock, error) {
	size := max(minPinned, 1<<bits.Len(uint(n-1)))
	p.mu.Lock()
	defer p.mu.Unlock()
	if list := p.idle[size]; len(list) > 0 {
		err := p.context.in(callEventQuery, list[0].event)
		var failed *CallError
		switch {
		case err == nil:
			b := list[0]
			p.idle[size] = list[1:]
			return b, nil
		case !errors.As(err, &failed) || failed.Code != codeNotReady:
			return nil, err
		}
	}
	address, event := new(uintptr), new(uintptr)
	if err := p.context.in(callMemHostAlloc, uintptr(unsafe.Pointer(address)), uintptr(size), 0); err != nil {
		return nil, err
	}
	const noTiming = 2
	if err := p.context.in(callEventCreate, uintptr(unsafe.Pointer(event)), noTiming); err != nil {
		return nil, err
	}
	return &pinnedBlock{*address, *event, size}, nil
}

// give gives a block back, which what is on the stream now may still use.
func (p *pinnedPool) give(b *pinnedBlock, stream uintptr) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.context.in(callEventRecord, b.event, stream); err != nil {
		return err
	}
	if p.idle == nil {
		p.idle = map[int][]*pinnedBlock{}
	}
	p.idle[b.size] = append(p.idle[b.size], b)
	return nil
}

// close frees all blocks. The device has done everything.
func (p *pinnedPool) close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var failed error
	for _, list := range p.idle {
		for _, b := range list {
			failed = errors.Join(failed, p.context.in(callEventDestroy, b.event), p.context.in(callMemFreeHost, b.address))
		}
	}
	p.idle = nil
	return failed
}

// faultWord is pinned memory into which the first kernel that meets a bad index writes which.
// Its layout is that of struct fault in kernels/common.cuh.
type faultWord struct {
	address uintptr
	mu      sync.Mutex
}

// faultRecord is what lies there. state is 0 for none, 1 while a kernel writes, 2 when it has
// written.
type faultRecord struct {
	state, op       uint32
	site            uint64
	position, value int64
}

func newFaultWord(x *context) (*faultWord, error) {
	address := new(uintptr)
	if err := x.in(callMemHostAlloc, uintptr(unsafe.Pointer(address)), unsafe.Sizeof(faultRecord{}), 0); err != nil {
		return nil, err
	}
	*(*faultRecord)(pointer(*address)) = faultRecord{}
	return &faultWord{address: *address}, nil
}

func (w *faultWord) close(x *context) error { return x.in(callMemFreeHost, w.address) }

// take returns the fault, and makes room for the next.
func (w *faultWord) take(names *opNames) device.Fault {
	w.mu.Lock()
	defer w.mu.Unlock()
	r := (*faultRecord)(pointer(w.address))
	if atomic.LoadUint32(&r.state) != 2 {
		return device.Fault{}
	}
	f := device.Fault{Op: names.name(r.op), Site: r.site, Position: int(r.position), Value: r.value, Found: true}
	atomic.StoreUint32(&r.state, 0)
	return f
}

// opNames numbers the names of operations, for the fault word.
type opNames struct {
	mu     sync.Mutex
	names  []string
	number map[string]uint32
}

func (n *opNames) of(name string) uint32 {
	n.mu.Lock()
	defer n.mu.Unlock()
	if i, ok := n.number[name]; ok {
		return i
	}
	if n.number == nil {
		n.number = map[string]uint32{}
	}
	i := uint32(len(n.names))
	n.names, n.number[name] = append(n.names, name), i
	return i
}

func (n *opNames) name(i uint32) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	if int(i) < len(n.names) {
		return n.names[i]
	}
	return "an operation"
}
