// SPDX-License-Identifier: Apache-2.0

package data

import (
	"strings"
	"testing"
)

// What a sampler calls its order is enough to have it again.
func TestParseSequence(t *testing.T) {
	type ordered interface {
		Sampler
		At(int64) Key
	}
	must := func(s ordered, err error) ordered {
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	stream, err := NewStream(StreamConfig{Len: 11, Batch: 2, Rank: 1, World: 3, Shuffle: true, Seed: -5})
	all := []ordered{must(stream, err)}
	random, err := NewRandomSampler(RandomConfig{Len: 11, Replacement: true, NumSamples: 30, Seed: 4, Batch: 7, DropLast: true})
	all = append(all, must(random, err))
	sequential, err := NewSequentialSampler(SequentialConfig{Len: 11, Batch: 3, DropLast: true})
	all = append(all, must(sequential, err))
	mixture, err := NewMixture(MixtureConfig{Sources: []MixtureSource{{4, 0.25}, {7, 2}}, Total: 3, World: 3, Rank: 1, Seed: 9})
	all = append(all, must(mixture, err))
	for _, s := range all {
		seq, err := parseSequence(s.Order() + "; windows length=3")
		if err != nil {
			t.Fatal(err)
		}
		if seq.len != 11 || seq.once != (s == stream) {
			t.Errorf("%s: %+v", s.Order(), seq)
		}
		for p := range int64(100) {
			if got, want := seq.at(p), s.At(p); got != want {
				t.Fatalf("%s: %v at position %d, want %v", s.Order(), got, p, want)
			}
		}
	}
	// The order of a distributed sampler is what its ranks take in turns.
	for _, drop := range []bool{false, true} {
		const world = 4
		for rank := range world {
			s, err := NewDistributedSampler(DistributedConfig{Len: 11, NumReplicas: world, Rank: rank, Shuffle: true, Seed: 2, DropLast: drop, Batch: 2})
			if err != nil {
				t.Fatal(err)
			}
			seq, err := parseSequence(s.Order())
			if err != nil {
				t.Fatal(err)
			}
			for pos := int64(0); pos < 100; {
				keys, next := s.Batch(nil, pos)
				for i, k := range keys {
					if got := seq.at(pos + int64(i*world+rank)); got != k {
						t.Fatalf("%s: %v at position %d, rank %d has %v", s.Order(), got, pos+int64(i*world+rank), rank, k)
					}
				}
				pos = next
			}
		}
	}
}

func FuzzParseSequence(f *testing.F) {
	for _, s := range []string{
		"stream len=11 shuffle=true seed=-5", "distributed len=11 replicas=4 shuffle=true seed=2 drop_last=false; windows",
		"random len=11 replacement=true num_samples=30 seed=4 epoch=28", "sequential len=11 epoch=9", "stream len=9999999999999 shuffle=true seed=0",
		"sequential len=3 epoch=0", "mixture seed=3 5×1 7×0.25; sequences", "mixture seed=3 5×NaN", "mixture seed=3 5×1e308 7×1e308", "random len=3 replacement=true num_samples=999999999999999999 seed=4 epoch=3", "distributed len=1 replicas=9223372036854775807 shuffle=true seed=2 drop_last=false", "",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, order string) {
		s, err := parseSequence(order)
		if err != nil {
			return
		}
		if s.len < 1 || s.epoch < 1 || s.len > maxSequence || s.epoch > maxSequence {
			t.Fatalf("%q: %+v", order, s)
		}
		if s.epoch > 1<<12 || s.len > 1<<12 {
			return
		}
		for _, p := range []int64{0, s.epoch - 1, s.epoch, 1 << 61} {
			if k := s.at(p); k.Index < 0 || k.Index >= s.len || !strings.HasPrefix(order, "mixture") && int64(k.Epoch) != p/s.epoch {
				t.Errorf("%q: %v at position %d", order, k, p)
			}
		}
	})
}
