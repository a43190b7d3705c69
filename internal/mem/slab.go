// SPDX-License-Identifier: Apache-2.0

package mem

import (
	"fmt"
	"sync/atomic"
	"unsafe"
)

// Slab is memory that other processes on the machine can map: an anonymous
// file (memfd) whose descriptor travels over a unix socket. It has no name in
// any file system, so that nothing is left behind however the process ends.
//
// Where the system has no memfd, FD is -1 and the slab is private memory;
// communication then copies.
type Slab struct {
	ID   uint64 // unique in this process, never reused
	FD   int
	data []byte
}

// Buffer is a borrowed run of bytes and, when it lies in a slab, where: what
// communication needs to let a peer read it in place. It is valid as long as
// the tensor that lent it is.
type Buffer struct {
	Data   []byte
	Slab   *Slab // nil: private memory
	Offset int   // of Data in Slab
}

var lastSlabID atomic.Uint64

// NewSlab returns a cleared slab of size bytes.
func NewSlab(size int) (*Slab, error) {
	if size <= 0 {
		return nil, fmt.Errorf("mem: a slab of %d bytes", size)
	}
	data, fd, err := shareable(size)
	if err != nil {
		return nil, fmt.Errorf("mem: a slab of %d bytes: %w", size, err)
	}
	return &Slab{ID: lastSlabID.Add(1), FD: fd, data: data}, nil
}

// MapSlab maps the slab behind a descriptor that a peer sent: its first size
// bytes, if its size cannot change. The descriptor may be closed afterwards. Unmap gives the memory back.
func MapSlab(fd, size int) ([]byte, error) {
	err := checkSealed(fd)
	var data []byte
	if err == nil {
		data, err = mapShared(fd, size)
	}
	if err != nil {
		return nil, fmt.Errorf("mem: map %d bytes of a peer's slab: %w", size, err)
	}
	return data, nil
}

// Unmap takes back what MapSlab returned.
func Unmap(data []byte) error { return unmap(data) }

// Bytes returns the whole slab.
func (s *Slab) Bytes() []byte { return s.data }

// Pointer returns the address of the first byte.
func (s *Slab) Pointer() unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(s.data)) }

// Close unmaps the slab and closes its descriptor. Peers that mapped it keep
// the memory until they unmap it.
func (s *Slab) Close() error {
	data, fd := s.data, s.FD
	s.data, s.FD = nil, -1
	if data == nil {
		return nil
	}
	err := unmap(data)
	if fd >= 0 {
		if cerr := closeFD(fd); err == nil {
			err = cerr
		}
	}
	return err
}
