// SPDX-License-Identifier: Apache-2.0

package data

import (
	"fmt"
	"sync"

	"github.com/cohort-ml/cohort/internal/random"
)

// Sampler says which samples make up this rank's batches.
//
// A position is the number of samples that all ranks together have taken since
// the start of training. Batch appends to dst the keys of this rank's batch
// that starts at a position, and returns them with the position after the
// batch. It is a pure function, safe for concurrent use. Order describes
// everything that decides what a position means, and nothing else: two
// samplers with the same order continue each other.
type Sampler interface {
	Batch(dst []Key, position int64) (keys []Key, next int64)
	Order() string
}

// epochs keeps the orders of the last epochs that were asked for: a loader
// works at the border of two.
type epochs struct {
	mu   sync.Mutex
	kept [2]struct {
		epoch int
		order []int
	}
	turn int
}

func (e *epochs) get(epoch int, order func() []int) []int {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, k := range e.kept {
		if k.order != nil && k.epoch == epoch {
			return k.order
		}
	}
	k := &e.kept[e.turn]
	e.turn = 1 - e.turn
	k.epoch, k.order = epoch, order()
	return k.order
}

// StreamConfig configures a [Stream].
type StreamConfig struct {
	Len     int   // samples in an epoch
	Batch   int   // samples that a rank takes at a time
	Total   int   // samples that all ranks take at a time, instead of Batch: their shares may differ by one
	Rank    int   // of this process
	World   int   // number of ranks
	Shuffle bool  // a new order each epoch, else 0..Len-1
	Seed    int64 // of the orders
}

// Stream is the sampler of a run measured in steps. The sequence of samples is
// a function of (seed, position) alone: epoch after epoch without a gap, each
// sample once in each, nothing padded and nothing dropped. The batch of all
// ranks is the next Total samples of it, which is Batch·World where it is not
// given, and of these rank r takes every World-th from the r-th on. So a run may be resumed with another number of
// ranks at any position and goes on with exactly the samples that would have
// come.
type Stream struct {
	c StreamConfig
	e epochs
}

// NewStream checks the configuration.
func NewStream(c StreamConfig) (*Stream, error) {
	switch {
	case c.Len < 1:
		return nil, fmt.Errorf("data: stream over %d samples, want at least 1: is the split empty?", c.Len)
	case c.Total < 0 || c.Total == 0 && c.Batch < 1:
		return nil, fmt.Errorf("data: stream with batches of %d of a rank and %d of all, want at least 1", c.Batch, c.Total)
	case c.World < 1 || c.Rank < 0 || c.Rank >= c.World:
		return nil, fmt.Errorf("data: stream for rank %d of %d, want a rank in 0..world-1", c.Rank, c.World)
	case c.Len < c.World:
		return nil, fmt.Errorf("data: stream over %d samples for %d ranks: fewer samples than ranks; use fewer ranks or more data", c.Len, c.World)
	case c.Total == 0:
		c.Total = c.Batch * c.World
	case c.Total < c.World:
		return nil, fmt.Errorf("data: stream of %d samples at a time for %d ranks: some ranks would get none; use fewer ranks or larger batches", c.Total, c.World)
	}
	return &Stream{c: c}, nil
}

// At returns the sample at a position of the sequence.
func (s *Stream) At(position int64) Key {
	epoch, i := int(position/int64(s.c.Len)), int(position%int64(s.c.Len))
	if !s.c.Shuffle {
		return Key{epoch, i}
	}
	return Key{epoch, s.order(epoch)[i]}
}

// order is PyTorch's DistributedSampler's before it is shared out.
func (s *Stream) order(epoch int) []int {
	return s.e.get(epoch, func() []int { return random.NewMT(s.c.Seed + int64(epoch)).Perm(s.c.Len) })
}

// Batch implements [Sampler].
func (s *Stream) Batch(dst []Key, position int64) ([]Key, int64) {
	for i := s.c.Rank; i < s.c.Total; i += s.c.World {
		dst = append(dst, s.At(position+int64(i)))
	}
	return dst, position + int64(s.c.Total)
}

// Order implements [Sampler]. It does not mention the batch and the ranks.
func (s *Stream) Order() string {
	return fmt.Sprintf("stream len=%d shuffle=%t seed=%d", s.c.Len, s.c.Shuffle, s.c.Seed)
}

// DistributedConfig configures a [DistributedSampler]; the names are
// PyTorch's, in its order.
type DistributedConfig struct {
	Len         int // of the dataset
	NumReplicas int
	Rank        int
	Shuffle     bool // PyTorch's default is true
	Seed        int64
	DropLast    bool

	// Batch is the samples that a rank takes at a time when the sampler is
	// used with a [Loader]; 0 means 1. The last batch of an epoch may be
	// shorter.
	Batch int
}

// DistributedSampler gives each rank the indices that PyTorch's
// torch.utils.data.DistributedSampler gives it, bit for bit. The order depends
// on the number of ranks where that does not divide the dataset: samples are
// repeated, or dropped, at the end of an epoch. [Stream] does neither.
type DistributedSampler struct {
	c          DistributedConfig
	numSamples int
	e          epochs
}

// NewDistributedSampler checks the configuration.
func NewDistributedSampler(c DistributedConfig) (*DistributedSampler, error) {
	switch {
	case c.Len < 1:
		return nil, fmt.Errorf("data: distributed sampler over %d samples, want at least 1: is the split empty?", c.Len)
	case c.NumReplicas < 1 || c.Rank < 0 || c.Rank >= c.NumReplicas:
		return nil, fmt.Errorf("data: distributed sampler for rank %d of %d, want a rank in 0..replicas-1", c.Rank, c.NumReplicas)
	case c.Batch < 0:
		return nil, fmt.Errorf("data: distributed sampler with batches of %d, want at least 1", c.Batch)
	case c.DropLast && c.Len < c.NumReplicas:
		return nil, fmt.Errorf("data: distributed sampler over %d samples for %d ranks with drop last: every rank would get none; use fewer ranks or more data", c.Len, c.NumReplicas)
	}
	c.Batch = max(c.Batch, 1)
	s := &DistributedSampler{c: c, numSamples: c.Len / c.NumReplicas}
	if !c.DropLast && c.Len%c.NumReplicas != 0 {
		s.numSamples++
	}
	return s, nil
}

// NumSamples is the number of indices that each rank gets in an epoch.
func (s *DistributedSampler) NumSamples() int { return s.numSamples }

// Indices returns the rank's indices in an epoch. The caller must not change
// them.
func (s *DistributedSampler) Indices(epoch int) []int {
	return s.e.get(epoch, func() []int {
		c := s.c
		order := s.shuffled(epoch)
		// Without DropLast there may be more places than samples: the order begins
		// again, as often as it takes.
		mine := make([]int, 0, s.numSamples)
		for i := c.Rank; i < s.total(); i += c.NumReplicas {
			mine = append(mine, order[i%c.Len])
		}
		return mine
	})
}

// shuffled is all samples in the order of an epoch.
func (s *DistributedSampler) shuffled(epoch int) []int {
	if s.c.Shuffle {
		return random.NewMT(s.c.Seed + int64(epoch)).Perm(s.c.Len)
	}
	order := make([]int, s.c.Len)
	for i := range order {
		order[i] = i
	}
	return order
}

// total is the number of indices that all ranks get in an epoch.
func (s *DistributedSampler) total() int { return s.numSamples * s.c.NumReplicas }

// Batch implements [Sampler].
func (s *DistributedSampler) Batch(dst []Key, position int64) ([]Key, int64) {
	total := int64(s.total())
	epoch := int(position / total)
	from := int(position % total / int64(s.c.NumReplicas))
	to := min(from+s.c.Batch, s.numSamples)
	for _, i := range s.Indices(epoch)[from:to] {
		dst = append(dst, Key{epoch, i})
	}
	return dst, position + int64(to-from)*int64(s.c.NumReplicas)
}

// Order implements [Sampler].
func (s *DistributedSampler) Order() string {
	return fmt.Sprintf("distributed len=%d replicas=%d shuffle=%t seed=%d drop_last=%t", s.c.Len, s.c.NumReplicas, s.c.Shuffle, s.c.Seed, s.c.DropLast)
}
