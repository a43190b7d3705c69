// SPDX-License-Identifier: Apache-2.0

package data

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/cohort-ml/cohort/internal/random"
)

const (
	// mixtureBlock is the number of positions in which each source has its share.
	mixtureBlock = 1000
	maxSources   = 256
)

// MixtureSource is a part of a dataset: Len samples, which come in the share Weight of the sum of all
// weights.
type MixtureSource struct {
	Len    int
	Weight float64
}

// MixtureConfig configures a [Mixture].
type MixtureConfig struct {
	Sources []MixtureSource // one behind the other in the dataset
	Total   int             // samples that all ranks take at a time
	Rank    int             // of this process
	World   int             // number of ranks
	Seed    int64
}

// Mixture is the sampler of a dataset that consists of sources, of which some come more often than
// others. As that of a [Stream], its sequence is a function of (seed, position) alone, and ranks take
// turns. In each block of 1,000 positions each source has its share, rounded to whole samples and at
// least one, at places that are drawn. The samples of a source come epoch after epoch, each once in each,
// in an order that is drawn for each epoch. The epoch of a [Key] is that of its source.
type Mixture struct {
	c      MixtureConfig
	shares []int // of a block, by source
	first  []int // sample of a source
	blocks epochs
	orders []epochs // by source
}

// NewMixture checks the configuration.
func NewMixture(c MixtureConfig) (*Mixture, error) {
	switch {
	case len(c.Sources) < 1 || len(c.Sources) > maxSources:
		return nil, fmt.Errorf("data: mixture of %d sources, want 1 to %d", len(c.Sources), maxSources)
	case c.World < 1 || c.Rank < 0 || c.Rank >= c.World:
		return nil, fmt.Errorf("data: mixture for rank %d of %d", c.Rank, c.World)
	case c.Total < c.World:
		return nil, fmt.Errorf("data: mixture with batches of %d samples for %d ranks: each needs one at least", c.Total, c.World)
	}
	m := &Mixture{c: c, orders: make([]epochs, len(c.Sources))}
	sum, n := 0.0, 0
	for i, s := range c.Sources {
		if s.Len < 1 || s.Len > maxSequence || !(s.Weight > 0) || math.IsInf(s.Weight, 1) {
			return nil, fmt.Errorf("data: source %d of a mixture has %d samples and the weight %v: want samples, and a finite weight above 0", i, s.Len, s.Weight)
		}
		sum += s.Weight
		m.first = append(m.first, n)
		if n += s.Len; n > maxSequence {
			return nil, fmt.Errorf("data: the sources of a mixture have more than %d samples", maxSequence)
		}
	}
	m.first = append(m.first, n)
	if m.shares = sharesOf(c.Sources, sum); m.shares == nil {
		return nil, fmt.Errorf("data: the weights of a mixture add up to %v", sum)
	}
	return m, nil
}

// sharesOf parts a block by weights: largest remainders, and one sample at least.
func sharesOf(sources []MixtureSource, sum float64) []int {
	if !(sum > 0) || math.IsInf(sum, 1) {
		return nil
	}
	shares := make([]int, len(sources))
	byRest := make([]int, len(sources))
	left := mixtureBlock
	rest := func(i int) float64 {
		_, frac := math.Modf(sources[i].Weight / sum * mixtureBlock)
		return frac
	}
	for i, s := range sources {
		shares[i] = max(1, int(s.Weight/sum*mixtureBlock))
		left -= shares[i]
		byRest[i] = i
	}
	slices.SortStableFunc(byRest, func(a, b int) int {
		switch x, y := rest(a), rest(b); {
		case x > y:
			return -1
		case x < y:
			return 1
		}
		return 0
	})
	for i := 0; left > 0; i, left = i+1, left-1 {
		shares[byRest[i%len(byRest)]]++
	}
	for ; left < 0; left++ { // many small sources
		most := 0
		for i := range shares {
			if shares[i] > shares[most] {
				most = i
			}
		}
		shares[most]--
	}
	return shares
}

// Len is the number of samples of all sources.
func (m *Mixture) Len() int { return m.first[len(m.first)-1] }

// block returns, for each place in a block, the source and how many of its samples came before in the
// block: source + number × sources.
func (m *Mixture) block(b int) []int {
	return m.blocks.get(b, func() []int {
		all := make([]int, 0, mixtureBlock)
		for i, n := range m.shares {
			for range n {
				all = append(all, i)
			}
		}
		places := make([]int, mixtureBlock)
		for at, from := range random.NewMT(m.c.Seed ^ int64(b+1)*0x2545f4914f6cdd1d).Perm(mixtureBlock) {
			places[at] = all[from]
		}
		count := make([]int, len(m.shares))
		for at, i := range places {
			places[at] = i + count[i]*len(m.shares)
			count[i]++
		}
		return places
	})
}

// At returns the sample at a position.
func (m *Mixture) At(position int64) Key {
	b, at := position/mixtureBlock, position%mixtureBlock
	place := m.block(int(b))[at]
	i, before := place%len(m.shares), place/len(m.shares)
	n := b*int64(m.shares[i]) + int64(before)
	size := int64(m.c.Sources[i].Len)
	epoch := int(n / size)
	order := m.orders[i].get(epoch, func() []int {
		return random.NewMT(m.c.Seed + int64(epoch) + int64(i)*0x100000001b3).Perm(int(size))
	})
	return Key{epoch, m.first[i] + order[n%size]}
}

// Batch implements [Sampler].
func (m *Mixture) Batch(dst []Key, position int64) ([]Key, int64) {
	next := position + int64(m.c.Total)
	for p := position + int64(m.c.Rank); p < next; p += int64(m.c.World) {
		dst = append(dst, m.At(p))
	}
	return dst, next
}

// Order implements [Sampler].
func (m *Mixture) Order() string {
	var b strings.Builder
	fmt.Fprintf(&b, "mixture seed=%d", m.c.Seed)
	for _, s := range m.c.Sources {
		fmt.Fprintf(&b, " %d×%s", s.Len, strconv.FormatFloat(s.Weight, 'g', -1, 64))
	}
	return b.String()
}

// parseMixture reads what Order says.
func parseMixture(order string) (*Mixture, error) {
	c := MixtureConfig{Total: 1, World: 1}
	words := strings.Fields(order)
	if len(words) < 2 {
		return nil, fmt.Errorf("data: %q is no mixture", order)
	}
	fmt.Sscanf(words[1], "seed=%d", &c.Seed)
	for _, w := range words[2:] {
		n, weight, _ := strings.Cut(w, "×")
		s := MixtureSource{}
		var err error
		if s.Len, err = strconv.Atoi(n); err != nil {
			return nil, fmt.Errorf("data: %q is no source of a mixture", w)
		}
		if s.Weight, err = strconv.ParseFloat(weight, 64); err != nil {
			return nil, fmt.Errorf("data: %q is no source of a mixture", w)
		}
		c.Sources = append(c.Sources, s)
	}
	return NewMixture(c)
}
