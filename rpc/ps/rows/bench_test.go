// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"runtime/debug"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/tensor"
)

// zipf draws numbers below n: k+1 with a probability in proportion to (k+1)^-exponent. An
// exponent of 0 is the uniform distribution. Numbers are spread over the range, so that
// frequent ones are no neighbours.
type zipf struct {
	n, exponent float64
	r           *rand.Rand
}

func (z *zipf) draw() int64 {
	u := z.r.Float64()
	if z.exponent == 0 {
		return int64(u * z.n)
	}
	// The inverse of the integral of x^-exponent from 1 to n+1.
	e := 1 - z.exponent
	x := math.Pow(1+u*(math.Pow(z.n+1, e)-1), 1/e)
	return int64(x) * 0x9e3779b1 % int64(z.n)
}

func fill(t testing.TB, table *Table, n int) {
	t.Helper()
	const batch = 1 << 14
	keys, grad := make([]int64, batch), make([]float32, batch*table.schema.Width)
	for lo := 0; lo < n; lo += batch {
		m := min(batch, n-lo)
		for i := range m {
			keys[i] = int64(lo + i)
		}
		if _, err := table.Update(Mark{LSN: uint64(lo/batch) + 1, Step: 1}, keys[:m], grad[:m*table.schema.Width]); err != nil {
			t.Fatal(err)
		}
	}
}

func BenchmarkGather(b *testing.B) {
	for _, c := range []struct {
		width, rows int
		dtype, as   tensor.DType
		zipf        float64
	}{
		{64, 4 << 20, tensor.Float32, tensor.Float32, 0},
		{64, 4 << 20, tensor.Float32, tensor.Float32, 1.05},
		{8, 4 << 20, tensor.BFloat16, tensor.BFloat16, 1.05},
		{16, 4 << 20, tensor.Float32, tensor.Float32, 1.05},
		{64, 4 << 20, tensor.BFloat16, tensor.Float32, 1.05},
		{64, 4 << 20, tensor.Int8, tensor.Float32, 1.05},
	} {
		b.Run(fmt.Sprintf("dim=%d/%v-%v/zipf=%v", c.width, c.dtype, c.as, c.zipf), func(b *testing.B) {
			table := newTable(b, Schema{Width: c.width, DType: c.dtype})
			fill(b, table, c.rows)
			const batch = 8192
			z := zipf{float64(c.rows), c.zipf, rand.New(rand.NewPCG(1, 2))}
			keys := make([]int64, 128*batch)
			for i := range keys {
				keys[i] = z.draw()
			}
			dst := make([]byte, batch*rowBytes(c.as, c.width))
			b.ResetTimer()
			for i := range b.N {
				at := i % 128 * batch
				if err := table.Gather(dst, c.as, keys[at:at+batch]); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.N)*batch/b.Elapsed().Seconds()/1e6, "Mrows/s")
		})
	}
}

func BenchmarkUpdate(b *testing.B) {
	for _, o := range []string{SGD, Adagrad, RowwiseAdagrad, LazyAdam, FTRL} {
		b.Run(o, func(b *testing.B) {
			const rows, width, batch = 1 << 20, 64, 4096
			table := newTable(b, Schema{Width: width, Optimizer: Optimizer{Kind: o}})
			fill(b, table, rows)
			z := zipf{rows, 1.05, rand.New(rand.NewPCG(1, 2))}
			var batches [32][]int64
			for i := range batches {
				var s keySet
				s.reset(batch)
				for len(s.keys) < batch {
					s.add(z.draw())
				}
				batches[i] = s.keys
			}
			grad := make([]float32, batch*width)
			for i := range grad {
				grad[i] = float32(i%7) - 3
			}
			b.ResetTimer()
			for i := range b.N {
				if _, err := table.Update(Mark{LSN: uint64(1<<20 + i), Step: uint64(i)}, batches[i%32], grad); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.N)*batch/b.Elapsed().Seconds()/1e6, "Mrows/s")
		})
	}
}

var (
	scaleRows = flag.Int("rows", 0, "TestScale: rows of a table of bfloat16, 100000000 say")
	coldRowsN = flag.Int("cold", 0, "TestColdRate: rows of dim 64 of a table three times its memory, 4000000 say")
	coldDir   = flag.String("cold.dir", "", "TestColdRate: the directory of cold rows")
)

// TestScale loads a large table, on demand, and queries it:
//
//	go test ./rpc/ps/rows -run TestScale -rows 100000000 -v
func TestScale(t *testing.T) {
	if *scaleRows == 0 {
		t.Skip("on demand: set -rows")
	}
	s := Schema{Name: "scale", Width: 8, DType: tensor.BFloat16, Init: Init{Kind: Uniform, Scale: 0.125}}
	table := newTable(t, s)
	began := time.Now()
	fill(t, table, *scaleRows)
	loaded := time.Since(began)
	r := rand.New(rand.NewPCG(1, 1))
	const batch = 8192
	keys, got := make([]int64, batch), make([]float32, batch*8)
	began = time.Now()
	const batches = 500
	for range batches {
		for i := range keys {
			keys[i] = r.Int64N(int64(*scaleRows))
		}
		if err := table.Gather(bytesOf(got), tensor.Float32, keys); err != nil {
			t.Fatal(err)
		}
	}
	queried := time.Since(began)
	want := make([]float32, 8)
	bytes := make([]byte, 16)
	for i, k := range keys {
		s.First(want, k) // the gradients of fill are 0
		encode(bytes, want, tensor.BFloat16, 8)
		decode(want, bytes, tensor.BFloat16, 8)
		if err := sameBits(got[i*8:i*8+8], want); err != nil {
			t.Fatalf("key %d: %v", k, err)
		}
	}
	st := table.Stats()
	t.Logf("%d rows: loaded in %v (%.2f M rows/s), %.2f M random rows/s, rows %.2f GiB, index %.2f GiB, resident %.2f GiB",
		st.Rows, loaded.Round(time.Millisecond), float64(st.Rows)/loaded.Seconds()/1e6, batches*batch/queried.Seconds()/1e6,
		float64(st.Bytes)/(1<<30), float64(st.IndexBytes)/(1<<30), resident(t))
	if st.Rows != *scaleRows {
		t.Errorf("%d rows, want %d", st.Rows, *scaleRows)
	}
	if g := resident(t); g > 8*float64(*scaleRows)/1e8 {
		t.Errorf("%.2f GiB are resident, want 8 at most for 100 million rows", g)
	}
}

// resident is the memory of this process in GiB.
func resident(t testing.TB) float64 {
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		t.Skip(err)
	}
	var size, pages float64
	if _, err := fmt.Sscan(string(text), &size, &pages); err != nil {
		t.Fatal(err)
	}
	return pages * float64(os.Getpagesize()) / (1 << 30)
}

// TestColdRate trains a table by pulls and pushes of batches with Zipf 1.05, in memory and with
// a third of the memory, on demand:
//
//	go test ./rpc/ps/rows -run TestColdRate -cold 4000000 -cold.dir . -v
func TestColdRate(t *testing.T) {
	if *coldRowsN == 0 {
		t.Skip("on demand: set -cold")
	}
	const width, batch, steps = 64, 4096, 300
	rate := func(memory int64) float64 {
		table, err := New(Schema{Name: "cold", Width: width, Optimizer: Optimizer{Kind: Adagrad}, Memory: memory}, Options{Dir: *coldDir})
		if err != nil {
			t.Fatal(err)
		}
		defer table.Close()
		fill(t, table, *coldRowsN)
		z := zipf{float64(*coldRowsN), 1.05, rand.New(rand.NewPCG(3, 3))}
		rows := make([]float32, batch*width)
		var spent time.Duration
		for step := range 2 * steps {
			var s keySet
			s.reset(batch)
			for range batch {
				s.add(z.draw())
			}
			n := len(s.keys) * width
			began := time.Now()
			if err := table.Gather(bytesOf(rows[:n]), tensor.Float32, s.keys); err != nil {
				t.Fatal(err)
			}
			if _, err := table.Update(Mark{LSN: 1<<30 + uint64(step), Step: uint64(step)}, s.keys, rows[:n]); err != nil {
				t.Fatal(err)
			}
			if step >= steps { // the first half finds out what is hot
				spent += time.Since(began)
			}
		}
		st := table.Stats()
		t.Logf("memory %d MiB: %.0f thousand samples/s; %d of %d rows in memory, %d reads of the disk, resident %.2f GiB",
			memory>>20, batch*steps/spent.Seconds()/1e3, st.Hot, st.Rows, st.ColdReads, resident(t))
		return batch * steps / spent.Seconds()
	}
	all := rate(0)
	bytes := int64(*coldRowsN) * (2*4*width + int64(headerBytes))
	third := rate(bytes / 3)
	t.Logf("with a third in memory: %.0f %% of the rate", 100*third/all)
	// Now all of the process, and the pages of its file, in a third: indexes and headers
	// take a part of it.
	debug.FreeOSMemory()
	limitMemory(t, bytes/3)
	limited := rate(bytes / 6)
	t.Logf("with a limit of %d MiB for the process: %.0f %% of the rate", bytes/3>>20, 100*limited/all)
}

// limitMemory puts this process into a control group (version 1) with a limit, until the test
// ends.
func limitMemory(t *testing.T, bytes int64) {
	const parent = "/sys/fs/cgroup/memory"
	group := fmt.Sprintf("%s/cohort-rows-%d", parent, os.Getpid())
	if err := os.Mkdir(group, 0o755); err != nil {
		t.Skipf("no control group of version 1: %v", err)
	}
	set := func(file, value string) {
		if err := os.WriteFile(file, []byte(value), 0o644); err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(func() {
		set(parent+"/cgroup.procs", fmt.Sprint(os.Getpid()))
		if err := os.Remove(group); err != nil {
			t.Error(err)
		}
	})
	set(group+"/memory.limit_in_bytes", fmt.Sprint(bytes))
	set(group+"/cgroup.procs", fmt.Sprint(os.Getpid()))
}
