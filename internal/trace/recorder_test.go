// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"testing"
	"time"
)

// TestRecorder: operations have their modules, forward and backward; one within another is a part of it;
// what other goroutines compute is not kept.
func TestRecorder(t *testing.T) {
	if On() || Of() != nil {
		t.Fatal("a recorder runs")
	}
	r := Start(time.Now(), func() int64 { return 7 })
	names := map[any]string{"a": "", "b": "head"}
	asked := 0
	enter := func(m any) string {
		return r.Enter(m, func() (string, bool) { asked++; return names[m], names[m] != "" })
	}
	op := func(name string) { Begin(name, 1, 2).End() }
	for range 2 {
		enter("a")
		op("one")
		if enter("b") != "head" {
			t.Error("the module has no path")
		}
		outer := Begin("two", 1, 2)
		op("inner")
		outer.End()
		if r.Leave() != "" {
			t.Error("the outer module has a path")
		}
		r.Leave()
		r.Backward("head")
		op("three")
		r.Backward("head")
		r.Forward()
		op("four")
	}
	done := make(chan struct{})
	go func() { op("elsewhere"); close(done) }()
	<-done
	r.Stop()
	if On() || Of() != nil {
		t.Error("the recorder still runs")
	}
	type seen struct {
		name, module string
		backward     bool
	}
	want := []seen{{"one", "", false}, {"two", "head", false}, {"three", "head", true}, {"four", "", false}}
	ops, lost := r.Ops()
	for i, o := range ops {
		if w := want[i%len(want)]; (seen{o.Name, o.Module, o.Backward}) != w || o.Ended < o.Begun || o.FLOPs != 1 || o.Bytes != 2 {
			t.Errorf("operation %d is %+v, want %+v", i, o, w)
		}
	}
	if len(ops) != 2*len(want) || lost != 0 || asked != 2 || len(r.Samples()) == 0 || r.Samples()[0].Bytes != 7 {
		t.Errorf("%d operations, %d lost; asked for %d paths; memory %+v", len(ops), lost, asked, r.Samples())
	}
	var paths []string
	for _, m := range r.Modules() {
		if m.Backward {
			m.Path += " backward"
		}
		paths = append(paths, m.Path)
	}
	if len(paths) != 6 || paths[0] != "head" || paths[1] != "" || paths[2] != "head backward" {
		t.Errorf("modules %q", paths)
	}
}

// BenchmarkOff is what an operation costs more that nobody traces.
func BenchmarkOff(b *testing.B) {
	for b.Loop() {
		if On() {
			b.Fatal("a recorder runs")
		}
	}
}

// BenchmarkOp is what an operation costs more that is traced.
func BenchmarkOp(b *testing.B) {
	r := Start(time.Now(), func() int64 { return 0 })
	defer r.Stop()
	for b.Loop() {
		if r.ops = r.ops[:min(len(r.ops), MaxOps/2)]; On() {
			Begin("op", 1, 2).End()
		}
	}
}
