// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"errors"
	"fmt"
	"math"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	// ringSize is how many bytes may be on their way in one direction. With the
	// private memory of both sides it is to stay in the caches.
	ringSize = 1 << 20
	// ringPiece is how much is copied before the other side is told, which then
	// copies it while this side goes on.
	ringPiece = 64 << 10
	// ringHead is what lies before the bytes: the numbers of both sides.
	ringHead = 4096
)

// How the side of a ring that waits is to be woken.
const (
	awake  = iota // it looks, or has other things to do
	asleep        // in the system, on the word that says so
	parked        // in the runtime's poller: by a byte over the socket
)

// ringControl is what the ends of a ring tell each other. They are different
// processes, so either may write anything here at any time.
type ringControl struct {
	written atomic.Uint64 // bytes, since the beginning; by the writer
	_       [56]byte
	taken   atomic.Uint64 // of them; by the reader
	_       [56]byte
	reader  atomic.Uint32 // how the reader waits for bytes
	_       [60]byte
	writer  atomic.Uint32 // how the writer waits for room
	_       [60]byte
	ended   atomic.Uint32 // not 0: the writer writes no more
	left    atomic.Uint32 // not 0: the reader reads no more
	_       [56]byte
	loan    loan
}

// errLying is a peer whose numbers cannot be true.
var errLying = errors.New("the peer has written impossible numbers into the shared memory")

// ring is one direction of a connection through memory, seen from one end.
// What this end has counted is kept in private memory and only told to the
// other, whose numbers are checked each time they are used.
type ring struct {
	control *ringControl
	data    []byte
	count   uint64 // bytes that this end has written, or taken
	other   uint64 // what the other end had counted when last looked at
}

// newRing lays a ring over memory of ringHead and ringSize bytes.
func newRing(memory []byte) ring {
	return ring{control: (*ringControl)(unsafe.Pointer(unsafe.SliceData(memory))), data: memory[ringHead:][:ringSize:ringSize]}
}

// come returns how many bytes there are to be taken, having looked again if it
// knew of fewer than want.
func (r *ring) come(want int) (int, error) {
	if r.other-r.count < uint64(want) {
		r.other = r.control.written.Load()
	}
	n := r.other - r.count
	if n > ringSize {
		return 0, fmt.Errorf("%w: %d bytes on their way, room for %d", errLying, n, ringSize)
	}
	return int(n), nil
}

// room returns how many bytes may be written, like come.
func (r *ring) room(want int) (int, error) {
	if ringSize-(r.count-r.other) < uint64(want) {
		r.other = r.control.taken.Load()
	}
	n := r.count - r.other
	if n > ringSize {
		return 0, fmt.Errorf("%w: %d bytes not taken, of a ring of %d", errLying, n, ringSize)
	}
	return ringSize - int(n), nil
}

// take moves bytes to p, at most what has come and a piece. The other end is to
// be told with tell.
func (r *ring) take(p []byte) (int, error) {
	want := min(len(p), ringPiece)
	n, err := r.come(want)
	n = min(n, want)
	if n == 0 {
		return 0, err
	}
	at := int(r.count % ringSize)
	first := copy(p[:n], r.data[at:])
	copy(p[first:n], r.data)
	r.count += uint64(n)
	return n, nil
}

// put moves bytes from p, at most what there is room for and a piece, like take.
func (r *ring) put(p []byte) (int, error) {
	want := min(len(p), ringPiece)
	n, err := r.room(want)
	n = min(n, want)
	if n == 0 {
		return 0, err
	}
	at := int(r.count % ringSize)
	first := copy(r.data[at:], p[:n])
	copy(r.data, p[first:n])
	r.count += uint64(n)
	return n, nil
}

// span returns room in one piece, of a multiple of unit bytes up to most, nil if there is
// none. What is written there is on its way when count has grown.
func (r *ring) span(most, unit int) ([]byte, error) {
	n, err := r.room(most)
	at := int(r.count % ringSize)
	n = min(n, most, ringSize-at) / unit * unit
	if n == 0 {
		return nil, err
	}
	return r.data[at:][:n:n], nil
}

// tail returns the bytes from the next one to be written to the ring's end.
func (r *ring) tail() int { return ringSize - int(r.count%ringSize) }

// shortSleep is up to how long a thread sleeps with all that it holds: the runtime
// would else give its turn to another thread, and both would fight for it at the
// end. The runtime's signals end such a sleep.
const shortSleep = 200 * time.Microsecond

// futexSleep sleeps until a word is no longer asleep, for limit at most, or
// shorter for no reason.
func futexSleep(word *atomic.Uint32, limit time.Duration) {
	const futexWait = 0
	t := unix.NsecToTimespec(int64(limit))
	// Whatever ends it, the caller looks again.
	if limit <= shortSleep {
		_, _, _ = unix.RawSyscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), futexWait, asleep, uintptr(unsafe.Pointer(&t)), 0, 0)
		return
	}
	_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), futexWait, asleep, uintptr(unsafe.Pointer(&t)), 0, 0)
}

// futexWake wakes who sleeps on a word.
func futexWake(word *atomic.Uint32) {
	const futexWake = 1
	_, _, _ = unix.RawSyscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), futexWake, math.MaxInt32, 0, 0, 0)
}

// newMemory makes a memory file of size bytes that can be neither shortened nor
// lengthened, so that who has mapped it need not fear for what it touches.
func newMemory(size int) (fd int, memory []byte, err error) {
	fd, err = unix.MemfdCreate("cohort-link", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return -1, nil, fmt.Errorf("make a memory file: %w", err)
	}
	if err = unix.Ftruncate(fd, int64(size)); err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, sizeSeals|unix.F_SEAL_SEAL)
	}
	if err == nil {
		memory, err = unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	}
	if err != nil {
		unix.Close(fd)
		return -1, nil, fmt.Errorf("make a memory file of %d bytes: %w", size, err)
	}
	return fd, memory, nil
}

const sizeSeals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW

// openMemory maps a memory file that a peer has made, if it is one of size bytes
// that stays so.
func openMemory(fd, size int) ([]byte, error) {
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil {
		return nil, fmt.Errorf("the peer's descriptor is no memory file: %w", err)
	}
	if seals&sizeSeals != sizeSeals {
		return nil, fmt.Errorf("the peer's memory file may change its size (seals %#x)", seals)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, fmt.Errorf("look at the peer's memory file: %w", err)
	}
	if st.Size != int64(size) {
		return nil, fmt.Errorf("the peer's memory file has %d bytes, want %d", st.Size, size)
	}
	memory, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map the peer's memory file of %d bytes: %w", size, err)
	}
	return memory, nil
}

// hungUp reports whether the other end of a socket is no longer there, or the
// socket itself is not.
func hungUp(raw syscall.RawConn) bool {
	gone := false
	err := raw.Control(func(fd uintptr) {
		fds := [1]unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
		var now unix.Timespec
		n, err := unix.Ppoll(fds[:], &now, nil)
		gone = err == nil && n > 0 && fds[0].Revents&(unix.POLLRDHUP|unix.POLLHUP|unix.POLLERR) != 0
	})
	return gone || err != nil
}
