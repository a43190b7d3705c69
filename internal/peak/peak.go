// SPDX-License-Identifier: Apache-2.0

package peak

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/cohort-ml/cohort/internal/kernel"
	"github.com/cohort-ml/cohort/internal/mem"
	"github.com/cohort-ml/cohort/internal/processor"
	"github.com/cohort-ml/cohort/internal/work"
)

// Rates are what threads reach at best, in a second.
type Rates struct {
	FLOPs float64 `json:"flops"` // floating-point operations of large matrix products
	Bytes float64 `json:"bytes"` // read and written by copies of what no cache holds
}

// IsKnown reports whether the rates have been measured.
func (r Rates) IsKnown() bool { return r.FLOPs > 0 && r.Bytes > 0 }

// Bounds of the file of rates.
const (
	maxFile  = 1 << 20
	maxRates = 256
)

const (
	measureTime  = 200 * time.Millisecond // for products
	copyTime     = 80 * time.Millisecond
	copyBytes    = 64 << 20 // of all threads together
	productSize  = 1024
	firstSize    = 256             // of the product that says whether the large one takes too long
	longestLarge = time.Second / 8 // for one of them, of which some are done
)

// entry is a line of the file.
type entry struct {
	Key string `json:"key"`
	Rates
}

// Known returns the rates of numThreads threads of this machine for products of a dtype, "float32" or
// "bfloat16", if the file in dir has them. "" is the user's cache. Nothing is measured or written.
func Known(dir, dtype string, numThreads int) (Rates, bool) {
	measuring.Lock()
	defer measuring.Unlock()
	return lookUp(dir, keyOf(dtype, numThreads))
}

// lookUp looks into what this process knows, and into the file.
func lookUp(dir, key string) (Rates, bool) {
	at := dirKey{dir, key}
	if r, ok := known[at]; ok {
		return r, true
	}
	for _, e := range read(place(dir)) {
		if e.Key == key && e.IsKnown() {
			known[at] = e.Rates
			return e.Rates, true
		}
	}
	return Rates{}, false
}

// Of returns the same, and measures the rates if the file does not have them. Where the file cannot be
// written nothing is measured, because each process would measure again.
func Of(ctx context.Context, dir, dtype string, numThreads int) (Rates, error) {
	measuring.Lock()
	defer measuring.Unlock()
	key := keyOf(dtype, numThreads)
	if r, ok := lookUp(dir, key); ok {
		return r, nil
	}
	path, err := writable(dir)
	if err != nil {
		return Rates{}, err
	}
	r, err := Measure(ctx, dtype, numThreads)
	if err != nil {
		return Rates{}, err
	}
	known[dirKey{dir, key}] = r
	return r, write(path, entry{key, r})
}

// Reached says that steps of a program have done so many operations in a second. If that is more than the
// file says, the file says so from now on.
func Reached(dir, dtype string, numThreads int, flops float64) error {
	measuring.Lock()
	defer measuring.Unlock()
	key := keyOf(dtype, numThreads)
	at := dirKey{dir, key}
	r, ok := known[at]
	if !ok || flops <= r.FLOPs {
		return nil
	}
	r.FLOPs = flops
	known[at] = r
	return write(place(dir), entry{key, r})
}

// measuring guards known: what this process has read or measured.
var (
	measuring sync.Mutex
	known     = map[dirKey]Rates{}
)

// dirKey is an entry of the file in a directory.
type dirKey struct{ dir, key string }

// Measure measures the rates.
func Measure(ctx context.Context, dtype string, numThreads int) (Rates, error) {
	threads, memory := work.New(numThreads), mem.NewPool()
	defer threads.Close()
	p := Product{M: firstSize, N: firstSize, K: firstSize, Layout: "nn"}
	took, err := p.Measure(ctx, threads, memory, dtype, 0)
	if err != nil {
		return Rates{}, err
	}
	flops := p.FLOPs() / slices.Min(took).Seconds()
	p.M, p.N, p.K = productSize, productSize, productSize
	if p.FLOPs()/flops < longestLarge.Seconds() { // not on a slow or busy processor
		if took, err = p.Measure(ctx, threads, memory, dtype, measureTime); err != nil {
			return Rates{}, err
		}
		flops = max(flops, p.FLOPs()/slices.Min(took).Seconds())
	}
	return Rates{FLOPs: flops, Bytes: copied(numThreads)}, nil
}

// copied returns the bytes a second that threads read and write when each copies a part of its own.
func copied(numThreads int) float64 {
	n := copyBytes / 2 / numThreads
	froms, tos := make([][]byte, numThreads), make([][]byte, numThreads)
	for i := range froms {
		froms[i], tos[i] = make([]byte, n), make([]byte, n)
	}
	best := 0.0
	begin := time.Now()
	for i := 0; i == 0 || time.Since(begin) < copyTime && i < 1000; i++ {
		start := time.Now()
		var all sync.WaitGroup
		for part := range froms {
			all.Go(func() { copy(tos[part], froms[part]) })
		}
		all.Wait()
		best = max(best, 2*float64(n*numThreads)/time.Since(start).Seconds())
	}
	return best
}

// keyOf says of what rates are.
func keyOf(dtype string, numThreads int) string {
	version := runtime.Version()
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		version = info.Main.Version
	}
	cpu, _ := processor.Read("/") // a model that is not told is ""
	return fmt.Sprintf("%s %s, %s, %d of %d threads, %s, %s", runtime.GOARCH, cpu.Model, kernel.InstructionSet(), numThreads, runtime.NumCPU(), dtype, version)
}

// place returns the path of the file.
func place(dir string) string {
	if dir == "" {
		own, err := os.UserCacheDir()
		if err != nil { // a container without a home
			own = filepath.Join(os.TempDir(), fmt.Sprintf("cohort-%d", os.Getuid()))
		}
		dir = filepath.Join(own, "cohort")
	}
	return filepath.Join(dir, "rates.json")
}

// writable returns the path of the file, in a directory that is there and takes files.
func writable(dir string) (string, error) {
	path := place(dir)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return "", fmt.Errorf("rates of this machine: %w", err)
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".rates-*")
	if err != nil {
		return "", fmt.Errorf("rates of this machine: %w", err)
	}
	if err := errors.Join(f.Close(), os.Remove(f.Name())); err != nil {
		return "", fmt.Errorf("rates of this machine: %w", err)
	}
	return path, nil
}

// read returns what the file has; nothing of a file that is damaged or is not there, for it can be made
// again.
func read(path string) (entries []entry) {
	f, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer f.Close()
	if err := json.NewDecoder(io.LimitReader(f, maxFile)).Decode(&entries); err != nil {
		return nil
	}
	return entries
}

// write writes the file anew with an entry. Of two processes that write at the same time one wins.
func write(path string, last entry) error {
	entries := slices.DeleteFunc(read(path), func(e entry) bool {
		if e.Key == last.Key {
			last.FLOPs, last.Bytes = max(last.FLOPs, e.FLOPs), max(last.Bytes, e.Bytes)
		}
		return e.Key == last.Key
	})
	entries = append(entries, last)
	entries = entries[max(0, len(entries)-maxRates):]
	text, err := json.MarshalIndent(entries, "", " ")
	if err != nil {
		return fmt.Errorf("rates of this machine: %w", err)
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".rates-*")
	if err != nil {
		return fmt.Errorf("rates of this machine: %w", err)
	}
	_, err = f.Write(append(text, '\n'))
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name())
		return fmt.Errorf("rates of this machine: %w", err)
	}
	return nil
}
