// SPDX-License-Identifier: Apache-2.0

package data

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"slices"
	"strings"
	"testing"
)

func TestRandomSamplerAgainstPyTorch(t *testing.T) { randomAgainst(t, goldenJSON) }

// randomAgainst compares with what golden.py has written.
func randomAgainst(t *testing.T, text []byte) {
	var golden struct {
		Random []struct {
			Len         int    `json:"len"`
			Replacement bool   `json:"replacement"`
			NumSamples  int    `json:"num_samples"`
			Seed        int64  `json:"seed"`
			Epoch       int    `json:"epoch"`
			SHA         string `json:"sha256"`
			Order       []int  `json:"order"`
		} `json:"random"`
	}
	if err := json.Unmarshal(text, &golden); err != nil {
		t.Fatal(err)
	}
	if len(golden.Random) < 1000 {
		t.Fatalf("%d cases", len(golden.Random))
	}
	for _, c := range golden.Random {
		s, err := NewRandomSampler(RandomConfig{Len: c.Len, Replacement: c.Replacement, NumSamples: c.NumSamples, Seed: c.Seed})
		if err != nil {
			t.Fatal(err)
		}
		got := s.Indices(c.Epoch)
		if c.Order != nil && !slices.Equal(got, c.Order) {
			t.Errorf("%+v: %d", c, got)
		}
		h := sha256.New()
		for _, i := range got {
			h.Write(binary.LittleEndian.AppendUint64(nil, uint64(i)))
		}
		if hex.EncodeToString(h.Sum(nil)) != c.SHA {
			t.Errorf("differs from PyTorch: %+v", c)
		}
	}
}

// Batches follow each other, end with the epoch, and are what At says.
func TestPassBatches(t *testing.T) {
	type sampler interface {
		Sampler
		At(int64) Key
	}
	for _, n := range []int{1, 5, 12} {
		for _, batch := range []int{1, 3, 12, 20} {
			for _, drop := range []bool{false, true} {
				var all []sampler
				if s, err := NewSequentialSampler(SequentialConfig{Len: n, Batch: batch, DropLast: drop}); err == nil {
					all = append(all, s)
				} else if !drop || n >= batch {
					t.Fatal(err)
				}
				if s, err := NewRandomSampler(RandomConfig{Len: n, Batch: batch, DropLast: drop, Seed: 3}); err == nil {
					all = append(all, s)
				}
				for _, s := range all {
					var pos int64
					for epoch := range 3 {
						var got []int
						for {
							keys, next := s.Batch(nil, pos)
							for i, k := range keys {
								if at := s.At(pos + int64(i)); at != k || k.Epoch != epoch {
									t.Fatalf("%s: %v at position %d of epoch %d, At says %v", s.Order(), k, pos+int64(i), epoch, at)
								}
								got = append(got, k.Index)
							}
							if pos = next; drop && len(keys) != batch || len(keys) == 0 || len(keys) > batch {
								t.Fatalf("%s: a batch of %d, want %d", s.Order(), len(keys), batch)
							}
							if s.At(pos).Epoch > epoch {
								break
							}
						}
						want := n
						if drop {
							want -= n % batch
						}
						slices.Sort(got)
						if got = slices.Compact(got); len(got) != want {
							t.Errorf("%s: %d samples in epoch %d, want %d", s.Order(), len(got), epoch, want)
						}
					}
				}
			}
		}
	}
}

func TestPassSamplersRefuse(t *testing.T) {
	for _, c := range []RandomConfig{{}, {Len: -1}, {Len: 3, Batch: -1}, {Len: 3, NumSamples: -1}, {Len: 3, Batch: 4, DropLast: true}} {
		if _, err := NewRandomSampler(c); err == nil || !strings.HasPrefix(err.Error(), "data: random sampler ") {
			t.Errorf("%+v: %v", c, err)
		}
	}
	for _, c := range []SequentialConfig{{}, {Len: 3, Batch: -1}, {Len: 3, Batch: 4, DropLast: true}} {
		if _, err := NewSequentialSampler(c); err == nil || !strings.HasPrefix(err.Error(), "data: sequential sampler ") {
			t.Errorf("%+v: %v", c, err)
		}
	}
}
