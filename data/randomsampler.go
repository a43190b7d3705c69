// SPDX-License-Identifier: Apache-2.0

package data

import (
	"fmt"

	"github.com/cohort-ml/cohort/internal/random"
)

// RandomConfig configures a [RandomSampler]; the names are PyTorch's.
type RandomConfig struct {
	Len         int  // of the dataset
	Replacement bool // each sample is drawn from all, so some come twice and some not at all
	NumSamples  int  // of an epoch; 0 means Len
	Seed        int64

	Batch    int  // samples that are taken at a time; 0 means 1
	DropLast bool // leave out the last batch of an epoch if it is shorter
}

// RandomSampler gives one process the indices that PyTorch's
// torch.utils.data.RandomSampler gives it, bit for bit, where that has a
// generator seeded with Seed+epoch at the start of each epoch. Several ranks
// would all get the same; they share samples by [Stream] or
// [DistributedSampler].
type RandomSampler struct {
	c RandomConfig
	p pass
	e epochs
}

// NewRandomSampler checks the configuration.
func NewRandomSampler(c RandomConfig) (*RandomSampler, error) {
	if c.NumSamples == 0 {
		c.NumSamples = c.Len
	}
	p, err := newPass("random", c.Len, c.NumSamples, c.Batch, c.DropLast)
	if err != nil {
		return nil, err
	}
	return &RandomSampler{c: c, p: p}, nil
}

// Indices returns the samples of an epoch. The caller must not change them.
func (s *RandomSampler) Indices(epoch int) []int {
	return s.e.get(epoch, func() []int {
		g := random.NewMT(s.c.Seed + int64(epoch))
		order := make([]int, 0, s.c.NumSamples)
		for len(order) < s.c.NumSamples {
			if s.c.Replacement {
				order = append(order, int(g.IntN(int64(s.c.Len))))
			} else {
				all := g.Perm(s.c.Len)
				order = append(order, all[:min(len(all), s.c.NumSamples-len(order))]...)
			}
		}
		return order[:s.p.epoch]
	})
}

// At returns the sample at a position.
func (s *RandomSampler) At(position int64) Key {
	epoch, i := s.p.place(position)
	return Key{epoch, s.Indices(epoch)[i]}
}

// Batch implements [Sampler].
func (s *RandomSampler) Batch(dst []Key, position int64) ([]Key, int64) {
	epoch, from, to := s.p.next(position)
	for _, i := range s.Indices(epoch)[from:to] {
		dst = append(dst, Key{epoch, i})
	}
	return dst, position + int64(to-from)
}

// Order implements [Sampler].
func (s *RandomSampler) Order() string {
	return fmt.Sprintf("random len=%d replacement=%t num_samples=%d seed=%d epoch=%d", s.c.Len, s.c.Replacement, s.c.NumSamples, s.c.Seed, s.p.epoch)
}

// SequentialConfig configures a [SequentialSampler].
type SequentialConfig struct {
	Len      int  // of the dataset
	Batch    int  // samples that are taken at a time; 0 means 1
	DropLast bool // leave out the last batch of an epoch if it is shorter
}

// SequentialSampler gives one process the samples in their own order, epoch
// after epoch, as PyTorch's torch.utils.data.SequentialSampler does.
type SequentialSampler struct {
	c SequentialConfig
	p pass
}

// NewSequentialSampler checks the configuration.
func NewSequentialSampler(c SequentialConfig) (*SequentialSampler, error) {
	p, err := newPass("sequential", c.Len, c.Len, c.Batch, c.DropLast)
	if err != nil {
		return nil, err
	}
	return &SequentialSampler{c: c, p: p}, nil
}

// At returns the sample at a position.
func (s *SequentialSampler) At(position int64) Key {
	epoch, i := s.p.place(position)
	return Key{epoch, i}
}

// Batch implements [Sampler].
func (s *SequentialSampler) Batch(dst []Key, position int64) ([]Key, int64) {
	epoch, from, to := s.p.next(position)
	for i := from; i < to; i++ {
		dst = append(dst, Key{epoch, i})
	}
	return dst, position + int64(to-from)
}

// Order implements [Sampler].
func (s *SequentialSampler) Order() string {
	return fmt.Sprintf("sequential len=%d epoch=%d", s.c.Len, s.p.epoch)
}

// pass parts epochs into batches that do not reach over their ends.
type pass struct {
	epoch int // samples in one
	batch int
}

func newPass(kind string, n, numSamples, batch int, dropLast bool) (pass, error) {
	p := pass{epoch: numSamples, batch: max(batch, 1)}
	switch {
	case n < 1:
		return p, fmt.Errorf("data: %s sampler over %d samples, want at least 1: is the split empty?", kind, n)
	case numSamples < 0:
		return p, fmt.Errorf("data: %s sampler with epochs of %d samples, want at least 1", kind, numSamples)
	case batch < 0:
		return p, fmt.Errorf("data: %s sampler with batches of %d, want at least 1", kind, batch)
	case dropLast && numSamples < p.batch:
		return p, fmt.Errorf("data: %s sampler with epochs of %d samples in batches of %d, of which the last is dropped: none is left; use smaller batches or more data", kind, numSamples, p.batch)
	case dropLast:
		p.epoch -= numSamples % p.batch
	}
	return p, nil
}

// place returns where a position is.
func (p pass) place(position int64) (epoch, i int) {
	return int(position / int64(p.epoch)), int(position % int64(p.epoch))
}

// next returns the batch that begins at a position.
func (p pass) next(position int64) (epoch, from, to int) {
	epoch, from = p.place(position)
	return epoch, from, min(from+p.batch, p.epoch)
}
