// SPDX-License-Identifier: Apache-2.0

package data

import (
	"crypto/sha256"
	_ "embed"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"testing"
)

// The vectors of the specification of PyTorch's sampler.
func TestDistributedSamplerVectors(t *testing.T) {
	for _, c := range []struct {
		n, world int
		drop     bool
		want     [][]int
	}{
		{10, 3, false, [][]int{{6, 7, 1, 4}, {0, 8, 9, 6}, {3, 5, 2, 0}}},
		{10, 3, true, [][]int{{6, 7, 1}, {0, 8, 9}, {3, 5, 2}}},
		{2, 5, false, [][]int{{0}, {1}, {0}, {1}, {0}}},
		{7, 2, true, [][]int{{5, 4, 0}, {3, 6, 2}}},
	} {
		for rank, want := range c.want {
			s, err := NewDistributedSampler(DistributedConfig{Len: c.n, NumReplicas: c.world, Rank: rank, Shuffle: true, Seed: 3, DropLast: c.drop})
			if err != nil {
				t.Fatal(err)
			}
			if got := s.Indices(0); !slices.Equal(got, want) || s.NumSamples() != len(want) {
				t.Errorf("%d samples, rank %d of %d, drop %t: %d, want %d", c.n, rank, c.world, c.drop, got, want)
			}
		}
	}
}

//go:embed testdata/golden.json
var goldenJSON []byte

func TestDistributedSamplerAgainstPyTorch(t *testing.T) { distributedAgainst(t, goldenJSON) }

var pytorch = flag.String("pytorch", "", "a Python with PyTorch, which TestSamplersAgainstARunningPyTorch runs")

// 2,000 cases that nobody has seen before, where there is a PyTorch:
//
//	go test ./data -run Samplers -pytorch python3
func TestSamplersAgainstARunningPyTorch(t *testing.T) {
	if *pytorch == "" {
		t.Skip("no -pytorch")
	}
	seed := rand.Uint32()
	t.Logf("seed %d", seed)
	cmd := exec.CommandContext(t.Context(), *pytorch, "testdata/golden.py", fmt.Sprint(seed))
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	distributedAgainst(t, out)
	randomAgainst(t, out)
}

// distributedAgainst compares with what golden.py has written.
func distributedAgainst(t *testing.T, text []byte) {
	var golden struct {
		Cases []struct {
			Len      int     `json:"len"`
			Replicas int     `json:"replicas"`
			Shuffle  bool    `json:"shuffle"`
			Seed     int64   `json:"seed"`
			DropLast bool    `json:"drop_last"`
			Epoch    int     `json:"epoch"`
			SHA      string  `json:"sha256"`
			Ranks    [][]int `json:"ranks"`
		} `json:"cases"`
	}
	if err := json.Unmarshal(text, &golden); err != nil {
		t.Fatal(err)
	}
	if len(golden.Cases) < 1000 {
		t.Fatalf("%d cases", len(golden.Cases))
	}
	for _, c := range golden.Cases {
		h := sha256.New()
		for rank := range c.Replicas {
			s, err := NewDistributedSampler(DistributedConfig{Len: c.Len, NumReplicas: c.Replicas, Rank: rank, Shuffle: c.Shuffle, Seed: c.Seed, DropLast: c.DropLast})
			if err != nil {
				t.Fatal(err)
			}
			got := s.Indices(c.Epoch)
			if c.Ranks != nil && !slices.Equal(got, c.Ranks[rank]) {
				t.Errorf("rank %d of %+v: %d", rank, c, got)
			}
			for _, i := range got {
				h.Write(binary.LittleEndian.AppendUint64(nil, uint64(i)))
			}
		}
		if hex.EncodeToString(h.Sum(nil)) != c.SHA {
			t.Errorf("differs from PyTorch: %+v", c)
		}
	}
}

// The batches of all epochs are the indices of all epochs.
func TestDistributedSamplerBatches(t *testing.T) {
	for _, n := range []int{1, 7, 20, 24} {
		for _, batch := range []int{1, 3, 8, 50} {
			s, err := NewDistributedSampler(DistributedConfig{Len: n, NumReplicas: 2, Rank: 1, Shuffle: true, Seed: 5, Batch: batch})
			if err != nil {
				t.Fatal(err)
			}
			var pos int64
			for epoch := range 3 {
				var got []int
				for len(got) < s.NumSamples() {
					var keys []Key
					keys, pos = s.Batch(nil, pos)
					if len(keys) == 0 || len(keys) > batch {
						t.Fatalf("a batch of %d", len(keys))
					}
					for _, k := range keys {
						if k.Epoch != epoch {
							t.Fatalf("epoch %d in epoch %d", k.Epoch, epoch)
						}
						got = append(got, k.Index)
					}
				}
				if !slices.Equal(got, s.Indices(epoch)) {
					t.Errorf("n %d, batch %d, epoch %d: %d, want %d", n, batch, epoch, got, s.Indices(epoch))
				}
			}
		}
	}
}

// Through any number of resumes with other ranks and batches, the samples are
// those of the sequence, each once.
func TestStreamOrderDoesNotDependOnTheRanks(t *testing.T) {
	const seed = 31
	r := rand.New(rand.NewPCG(seed, 0))
	for range 200 {
		c := StreamConfig{Len: 1 + r.IntN(60), Batch: 1, World: 1, Shuffle: r.IntN(4) > 0, Seed: r.Int64()}
		ref, err := NewStream(c)
		if err != nil {
			t.Fatal(err)
		}
		var pos int64
		for range 12 { // restarts
			c.Batch, c.World = 1+r.IntN(9), 1+r.IntN(min(8, c.Len))
			ranks := make([]*Stream, c.World)
			for i := range ranks {
				c.Rank = i
				if ranks[i], err = NewStream(c); err != nil {
					t.Fatal(err)
				}
				if ranks[i].Order() != ref.Order() {
					t.Fatalf("order %q, want %q", ranks[i].Order(), ref.Order())
				}
			}
			for range r.IntN(6) {
				global := make([]Key, c.Batch*c.World)
				next := pos
				for i, s := range ranks {
					var keys []Key
					keys, next = s.Batch(nil, pos)
					for j, k := range keys {
						global[j*c.World+i] = k
					}
				}
				for j, k := range global {
					if want := ref.At(pos + int64(j)); k != want {
						t.Fatalf("seed %d: %+v, position %d: sample %v, want %v", seed, c, pos+int64(j), k, want)
					}
				}
				if next != pos+int64(len(global)) {
					t.Fatalf("position %d after %d samples from %d", next, len(global), pos)
				}
				pos = next
			}
		}
		for epoch := range 3 {
			seen := make([]bool, c.Len)
			for i := range c.Len {
				k := ref.At(int64(epoch)*int64(c.Len) + int64(i))
				if k.Epoch != epoch || seen[k.Index] {
					t.Fatalf("seed %d: sample %v at position %d of epoch %d is there twice or in the wrong epoch", seed, k, i, epoch)
				}
				seen[k.Index] = true
			}
		}
	}
}

func TestSamplersRefuse(t *testing.T) {
	for _, c := range []StreamConfig{{}, {Len: 1, Batch: 1}, {Len: 1, World: 1}, {Batch: 1, World: 1}, {Len: 1, Batch: 1, World: 2, Rank: 2}, {Len: 1, Batch: 1, World: 2, Rank: -1}, {Len: 3, Batch: 1, World: 4}, {Len: 9, Total: 3, World: 4}, {Len: 9, Total: -1, Batch: 1, World: 4}} {
		if _, err := NewStream(c); err == nil {
			t.Errorf("%+v was accepted", c)
		}
	}
	for _, c := range []DistributedConfig{{}, {Len: 1}, {NumReplicas: 1}, {Len: 3, NumReplicas: 2, Rank: 2}, {Len: 3, NumReplicas: 1, Batch: -1}, {Len: 3, NumReplicas: 4, DropLast: true}} {
		if _, err := NewDistributedSampler(c); err == nil {
			t.Errorf("%+v was accepted", c)
		}
	}
}
