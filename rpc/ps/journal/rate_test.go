// SPDX-License-Identifier: Apache-2.0

package journal

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/internal/seeded"
	"github.com/cohort-ml/cohort/rpc/ps/rows"
)

var (
	rateGiB  = flag.Float64("rate", 0, "size in GiB of the snapshot of TestSnapshotRate, 0 to skip it")
	rateMode = flag.String("rate.mode", "os", "mode of the log in TestSnapshotRate")
	rateDir  = flag.String("rate.dir", "", "directory of TestSnapshotRate, on the disk to measure")
	ratePace = flag.Int("rate.pushes", 0, "pushes a second in TestSnapshotRate, 0 for as many as there can be")
)

// TestSnapshotRate compares a snapshot with a plain write of as many bytes, and the pushes beside it
// with the pushes before and after it.
func TestSnapshotRate(t *testing.T) {
	if *rateGiB == 0 {
		t.Skip("it takes minutes: ask for it by -rate 4")
	}
	const width, perPush = 64, 1024
	s := rows.Schema{Name: "t", Width: width, Optimizer: rows.Optimizer{Kind: rows.Adagrad}}
	numRows := int(*rateGiB * (1 << 30) / (recordHeader + 2*4*width))
	table, err := rows.New(s, rows.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer table.Close()
	base := *rateDir
	if base == "" {
		base = t.TempDir()
	}
	dir := filepath.Join(base, "rate")
	defer os.RemoveAll(dir)
	j, err := Open(dir, Options{Servers: 1, Mode: Mode(*rateMode)})
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	keys, grad := make([]int64, perPush), make([]float32, perPush*width)
	for i := range grad {
		grad[i] = float32(i%7) - 3
	}
	for lo := 0; lo < numRows; lo += perPush {
		for i := range keys {
			keys[i] = int64(lo + i)
		}
		lsn, err := j.Append(nil)
		if err == nil {
			_, err = table.Update(rows.Mark{LSN: lsn, Step: 1}, keys, grad)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := j.Sync(); err != nil {
		t.Fatal(err)
	}
	size := int64(numRows) * (recordHeader + 2*4*width)
	plain := func() float64 {
		return float64(size) / plainWrite(t, filepath.Join(base, "plain"), size).Seconds() / 1e6
	}
	before := plain()

	var pushes atomic.Int64
	end, ended := make(chan struct{}), make(chan struct{})
	r := rand.New(rand.NewPCG(seeded.Of(t), 3))
	go func() {
		defer close(ended)
		entry := make([]byte, perPush*(8+4*width))
		var tick <-chan time.Time
		if *ratePace > 0 {
			ticker := time.NewTicker(time.Second / time.Duration(*ratePace))
			defer ticker.Stop()
			tick = ticker.C
		}
		for {
			select {
			case <-end:
				return
			default:
			}
			if tick != nil {
				<-tick
			}
			at := r.IntN(numRows - 8*perPush)
			for i := range keys {
				keys[i] = int64(at + 8*i + r.IntN(8))
			}
			lsn, err := j.Append(entry)
			if err == nil {
				_, err = table.Update(rows.Mark{LSN: lsn, Step: 2}, keys, grad)
			}
			if err != nil {
				t.Error(err)
				return
			}
			pushes.Add(1)
		}
	}()
	rate := func(do func()) float64 {
		n, begun := pushes.Load(), time.Now()
		do()
		return float64(pushes.Load()-n) / time.Since(begun).Seconds()
	}
	alone := []float64{rate(func() { <-time.After(5 * time.Second) })}
	var took time.Duration
	beside := rate(func() {
		begun := time.Now()
		if err := j.FullSnapshot(t.Context(), j.Last(), nil, []*rows.Table{table}); err != nil {
			t.Error(err)
		}
		took = time.Since(begun)
	})
	alone = append(alone, rate(func() { <-time.After(5 * time.Second) }))
	close(end)
	<-ended
	m := j.Base()
	got := float64(m.Tables[0].File.Bytes) / took.Seconds() / 1e6
	after := plain()
	usual := (alone[0] + alone[1]) / 2
	fmt.Printf("snapshot of %d MB: %.0f MB/s, plain writes %.0f and %.0f MB/s (%.0f %%); pushes of %d rows: %.1f/s before, %.1f/s beside it (%.1f %%), %.1f/s after\n",
		m.Tables[0].File.Bytes/1e6, got, before, after, 100*got/max(before, after), perPush, alone[0], beside, 100*beside/usual, alone[1])
	begun := time.Now()
	l, _, err := Load(dir)
	if err == nil {
		err = l.Verify()
	}
	if err != nil {
		t.Fatal(err)
	}
	fmt.Printf("read and checked at %.0f MB/s\n", float64(l.Bytes())/time.Since(begun).Seconds()/1e6)
}

// plainWrite writes a file in pieces of 4 MiB, and makes it durable.
func plainWrite(t *testing.T, path string, size int64) time.Duration {
	t.Helper()
	defer os.Remove(path)
	b := slices.Repeat([]byte{1, 2, 3, 4}, 1<<20)
	begun := time.Now()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for n := int64(0); n < size; n += int64(len(b)) {
		if _, err := f.Write(b[:min(int64(len(b)), size-n)]); err != nil {
			t.Fatal(err)
		}
	}
	if err := syncData(f); err != nil {
		t.Fatal(err)
	}
	return time.Since(begun)
}
