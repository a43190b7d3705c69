// SPDX-License-Identifier: Apache-2.0

package trials

import (
	"context"
	"flag"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/checkpoint/storage"
	"github.com/cohort-ml/cohort/dist/mesh"
	"github.com/cohort-ml/cohort/tensor"
)

var scale = flag.Bool("scale", false, "TestScale has 1,000 ranks and a million boxes")

// TestScale: the parts of many ranks become a manifest that is written, listed and loaded in
// seconds, for less than 1 GiB of memory.
//
//	go test ./checkpoint/trials -run TestScale -scale -v
func TestScale(t *testing.T) {
	numRanks, numTensors := 50, 100
	if *scale {
		numRanks, numTensors = 1000, 1000
	}
	path := t.TempDir()
	dir := storage.Dir(path, storage.WithoutSync())
	name := func(i int) string { return fmt.Sprintf("model.layers.%d.mlp.weight", i) }
	watch := watchMemory()
	defer watch.close()
	var took time.Duration
	lap := func(what string) {
		peak := watch.peak()
		t.Logf("%-32s %8.2f s, at most %4d MiB of memory", what, (watch.lap() - took).Seconds(), peak>>20)
		if peak > 1<<30 {
			t.Errorf("%s: it took %d MiB of memory", what, peak>>20)
		}
		watch.reset()
		took = watch.lap()
	}
	stage, _ := dir.Stage(checkpoint.StepName(1), "emergency")
	for rank := range numRanks {
		m, err := mesh.Sketch(rank, mesh.Axis{Name: "fsdp", Size: numRanks})
		if err != nil {
			t.Fatal(err)
		}
		parts := make([]checkpoint.Part, numTensors)
		local := tensor.Full(float64(rank), 1, 2)
		for i := range parts {
			parts[i] = checkpoint.Part{Name: name(i), Tensor: mesh.Tensor{Local: local, Layout: mesh.Layout{Mesh: m, Shape: []int{numRanks, 2}, Placements: []mesh.Placement{mesh.Shard(0)}}}}
		}
		s := checkpoint.State{Sections: map[string][]checkpoint.Part{checkpoint.Model: parts}}
		if err := checkpoint.SavePart(t.Context(), rank, numRanks, apart{dir}, 1, s); err != nil {
			t.Fatal(err)
		}
	}
	lap(fmt.Sprintf("%d ranks write %d boxes", numRanks, numRanks*numTensors))
	if _, err := checkpoint.Complete(t.Context(), dir, stage); err != nil {
		t.Fatal(err)
	}
	lap("merged and committed")
	listed, err := checkpoint.List(t.Context(), dir)
	if err != nil || len(listed) != 1 {
		t.Fatal(listed, err)
	}
	lap("listed")
	var parts []checkpoint.Part
	for i := range numTensors {
		parts = append(parts, checkpoint.Part{Name: name(i), Tensor: mesh.Tensor{Local: tensor.Full(-1, numRanks, 2)}})
	}
	if _, err := checkpoint.Load(t.Context(), nil, dir, checkpoint.State{Sections: map[string][]checkpoint.Part{checkpoint.Model: parts}}); err != nil {
		t.Fatal(err)
	}
	lap("loaded on one rank")
	for _, p := range parts {
		for i, v := range p.Local.Float32s() {
			if v != float32(i/2) {
				t.Fatalf("%s has %v at %d", p.Name, v, i)
			}
		}
	}
}

// apart is a storage in which a rank sees nothing of what others have written, as on machines
// that write at the same time.
type apart struct{ *storage.Directory }

func (apart) List(context.Context, string) ([]storage.Entry, error) { return nil, nil }

// memoryWatch looks at the memory of the process.
type memoryWatch struct {
	begun time.Time
	stop  context.CancelFunc
	done  sync.WaitGroup

	mu   sync.Mutex
	most uint64
}

func watchMemory() *memoryWatch {
	ctx, stop := context.WithCancel(context.Background())
	w := &memoryWatch{begun: time.Now(), stop: stop}
	ticks := time.NewTicker(5 * time.Millisecond)
	w.done.Go(func() {
		defer ticks.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticks.C:
				w.look()
			}
		}
	})
	return w
}

func (w *memoryWatch) look() {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.most = max(w.most, m.HeapInuse+m.StackInuse)
}

func (w *memoryWatch) peak() uint64 {
	w.look()
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.most
}

// reset forgets the peak of what is over.
func (w *memoryWatch) reset() {
	runtime.GC()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.most = 0
}

func (w *memoryWatch) lap() time.Duration { return time.Since(w.begun) }

func (w *memoryWatch) close() {
	w.stop()
	w.done.Wait()
}
