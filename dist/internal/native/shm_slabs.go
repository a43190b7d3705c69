// SPDX-License-Identifier: Apache-2.0

package native

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/cohort-ml/cohort/dist/internal/collective"
	"github.com/cohort-ml/cohort/dist/operation"
	"github.com/cohort-ml/cohort/internal/mem"
)

// maxMapped bounds the slabs of one peer that stay mapped. The least recently used one is
// unmapped first.
const maxMapped = 64

// fetchTimeout bounds the request for a peer's slab, which the peer answers at once.
const fetchTimeout = 10 * time.Second

// slabSpace reaches the data of ranks in other processes, if it lies in a slab. The descriptor of
// a slab is fetched at its first use, and the mapping is kept.
type slabSpace struct {
	fetch func(ctx context.Context, peer int, id uint64) (fd, size int, err error)

	mu     sync.Mutex
	lent   map[uint64]*mem.Slab // slabs of this rank that peers may ask for
	mapped map[slabKey]*mapping
	clock  uint64
}

type slabKey struct {
	peer int
	id   uint64
}

type mapping struct {
	data []byte
	used uint64 // clock of the last use
}

func newSlabSpace(fetch func(ctx context.Context, peer int, id uint64) (fd, size int, err error)) *slabSpace {
	return &slabSpace{fetch: fetch, lent: map[uint64]*mem.Slab{}, mapped: map[slabKey]*mapping{}}
}

func (s *slabSpace) lend(_ int, _ *operation.Call, d *collective.Data, _ bool) (location, bool) {
	slab := d.Buffer.Slab
	if slab == nil || slab.FD < 0 || d.Buffer.Offset < 0 || d.Buffer.Offset+len(d.Buffer.Data) > len(slab.Bytes()) {
		return location{}, false
	}
	s.mu.Lock()
	s.lent[slab.ID] = slab
	s.mu.Unlock()
	return location{slab.ID, uint64(d.Buffer.Offset)}, true
}

// slab returns a slab that this rank has lent.
func (s *slabSpace) slab(id uint64) (fd, size int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	slab := s.lent[id]
	if slab == nil || slab.FD < 0 {
		return 0, 0, fmt.Errorf("slab %d has not been lent", id)
	}
	return slab.FD, len(slab.Bytes()), nil
}

func (s *slabSpace) reach(ctx context.Context, peer int, c *operation.Call, at location, _ bool, offset, size int) ([]byte, error) {
	data, err := s.mapping(ctx, slabKey{peer, at.slab})
	if err != nil {
		return nil, err
	}
	room := uint64(len(data))
	if at.offset > room || uint64(offset) > room-at.offset || uint64(size) > room-at.offset-uint64(offset) || at.offset%uint64(c.DType.Size()) != 0 {
		return nil, fmt.Errorf("%d bytes at offset %d+%d of a slab of %d", size, at.offset, offset, len(data))
	}
	return data[at.offset+uint64(offset):][:size:size], nil
}

// mapping returns a peer's slab, mapped.
func (s *slabSpace) mapping(ctx context.Context, key slabKey) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clock++
	if m := s.mapped[key]; m != nil {
		m.used = s.clock
		return m.data, nil
	}
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	// Only calls of this rank wait for the lock, and they need what is fetched. Requests of
	// peers go through slab, which holds it for a moment.
	s.mu.Unlock()
	fd, size, err := s.fetch(ctx, key.peer, key.id)
	s.mu.Lock()
	if err != nil {
		return nil, err
	}
	defer closeFD(fd)
	if err := checkSize(fd, size); err != nil {
		return nil, err
	}
	if m := s.mapped[key]; m != nil { // another call was quicker
		return m.data, nil
	}
	s.makeRoom(key.peer)
	data, err := mem.MapSlab(fd, size)
	if err != nil {
		return nil, err
	}
	s.mapped[key] = &mapping{data, s.clock}
	return data, nil
}

// makeRoom unmaps the least recently used slab of a peer if there are too many. Calls that run at
// the moment may use the most recent ones, of which there are far fewer than maxMapped.
func (s *slabSpace) makeRoom(peer int) {
	num, oldest := 0, slabKey{}
	var used uint64
	for key, m := range s.mapped {
		if key.peer != peer {
			continue
		}
		if num == 0 || m.used < used {
			oldest, used = key, m.used
		}
		num++
	}
	if num >= maxMapped {
		_ = mem.Unmap(s.mapped[oldest].data)
		delete(s.mapped, oldest)
	}
}

func (s *slabSpace) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for _, m := range s.mapped {
		errs = append(errs, mem.Unmap(m.data))
	}
	clear(s.mapped)
	clear(s.lent)
	return errors.Join(errs...)
}
