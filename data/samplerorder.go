// SPDX-License-Identifier: Apache-2.0

package data

import (
	"fmt"
	"strings"
)

// sequence is the order of a sampler without ranks: the sample at each
// position.
type sequence struct {
	at    func(position int64) Key
	epoch int64 // positions in one
	len   int   // of the dataset
	once  bool  // an epoch has each sample exactly once
}

// maxSequence bounds the epochs of an order that was read from a file, for an
// epoch is shuffled in memory.
const maxSequence = 1 << 28

// parseSequence makes the sequence of what a [Sampler]'s Order says, with or
// without the dataset's fingerprint behind it.
func parseSequence(order string) (sequence, error) {
	order, _, _ = strings.Cut(order, "; ")
	kind, _, _ := strings.Cut(order, " ")
	var (
		s    sequence
		made Sampler
		err  error
	)
	switch kind {
	case "stream":
		c := StreamConfig{Batch: 1, World: 1}
		fmt.Sscanf(order, "stream len=%d shuffle=%t seed=%d", &c.Len, &c.Shuffle, &c.Seed)
		var of *Stream
		if of, err = NewStream(c); err == nil {
			made, s = of, sequence{of.At, int64(c.Len), c.Len, true}
		}
	case "mixture":
		var of *Mixture
		if of, err = parseMixture(order); err == nil {
			made, s = of, sequence{of.At, int64(of.Len()), of.Len(), false}
		}
	case "distributed":
		var c DistributedConfig
		fmt.Sscanf(order, "distributed len=%d replicas=%d shuffle=%t seed=%d drop_last=%t", &c.Len, &c.NumReplicas, &c.Shuffle, &c.Seed, &c.DropLast)
		if c.NumReplicas > maxSequence {
			break
		}
		var of *DistributedSampler
		if of, err = NewDistributedSampler(c); err == nil {
			made, s = of, sequence{of.at, int64(of.total()), c.Len, of.total() == c.Len}
		}
	case "random":
		var c RandomConfig
		var epoch int
		fmt.Sscanf(order, "random len=%d replacement=%t num_samples=%d seed=%d epoch=%d", &c.Len, &c.Replacement, &c.NumSamples, &c.Seed, &epoch)
		if epoch < 1 || epoch > c.NumSamples || c.NumSamples > maxSequence {
			break
		}
		var of *RandomSampler
		if of, err = NewRandomSampler(c); err == nil {
			of.p.epoch = epoch
			made, s = of, sequence{of.At, int64(epoch), c.Len, !c.Replacement && epoch == c.Len}
		}
	case "sequential":
		var c SequentialConfig
		var epoch int
		fmt.Sscanf(order, "sequential len=%d epoch=%d", &c.Len, &epoch)
		if epoch < 1 || epoch > c.Len {
			break
		}
		var of *SequentialSampler
		if of, err = NewSequentialSampler(c); err == nil {
			of.p.epoch = epoch
			made, s = of, sequence{of.At, int64(epoch), c.Len, epoch == c.Len}
		}
	}
	switch {
	case err != nil:
		return s, fmt.Errorf("the order {%s}: %w", order, err)
	case made == nil || made.Order() != order:
		return s, fmt.Errorf("the order {%s} is of no known sampler", order)
	case s.epoch > maxSequence || s.len > maxSequence:
		return s, fmt.Errorf("the order {%s} has epochs of more than %d samples", order, maxSequence)
	}
	return s, nil
}

// at returns what the sampler of all ranks together has at a position.
func (s *DistributedSampler) at(position int64) Key {
	total := int64(s.total())
	epoch, i := int(position/total), int(position%total)
	order := s.e.get(epoch, func() []int { return s.shuffled(epoch) })
	return Key{epoch, order[i%s.c.Len]}
}
