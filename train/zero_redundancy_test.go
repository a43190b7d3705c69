// SPDX-License-Identifier: Apache-2.0

package train

import (
	"maps"
	"strings"
	"testing"
)

// replicas returns a run on so many replicas, with the samples of a step of the run on one rank.
func replicas(t *testing.T, c LMConfig, ranks int, zero1 bool) LMConfig {
	d, _ := onMesh(t, c, "replicate1")
	d.Replicate, d.ZeRO1, d.Batch = ranks, zero1, c.Batch/ranks
	return d
}

// TestZeRO1: runs that divide the state of the optimizer have the losses of DDP bit for bit, and
// go on with any number of ranks, divided or not, from what each rank has saved.
func TestZeRO1(t *testing.T) {
	c := layered(t, writeText(t, 40_000))
	c.Batch, c.Steps, c.Warmup, c.LRFloor = 24, 12, 0, 1
	plain := replicas(t, c, 2, false)
	plain.Out += "-plain"
	ddp, err := run(t, 2, plain)
	if err != nil {
		t.Fatal(err)
	}
	zero := replicas(t, c, 2, true)
	zero.Out += "-zero"
	l, err := run(t, 2, zero)
	if err != nil {
		t.Fatal(err)
	}
	if !maps.Equal(l.losses, ddp.losses) || !maps.Equal(l.evaluations, ddp.evaluations) {
		t.Errorf("losses %v and evaluations %v, want DDP's %v and %v", l.losses, l.evaluations, ddp.losses, ddp.evaluations)
	}
	if want := "DDP over 2 ranks, optimizer state divided among 2 ranks (ZeRO-1)"; l.start.Strategy != want {
		t.Errorf("the run is spread as %q, want %q", l.start.Strategy, want)
	}
	for i, how := range []struct {
		ranks int
		zero1 bool
	}{{3, true}, {2, false}, {4, true}, {1, false}, {1, true}, {2, true}} {
		d := replicas(t, c, how.ranks, how.zero1)
		d.Out, d.Steps = c.Out+"-moved", 2*(i+1)
		l, err := run(t, how.ranks, d, "steps")
		if err != nil {
			t.Fatalf("%+v: %v", how, err)
		}
		if len(l.losses) != 2 {
			t.Errorf("%+v: losses %v", how, l.losses)
		}
		closeTo(t, "losses", l.losses, ddp.losses, 1e-4)
	}
}

// TestZeRO1Refuses: the setting is refused beside axes that divide the state.
func TestZeRO1Refuses(t *testing.T) {
	c := layered(t, writeText(t, 40_000))
	for _, name := range []string{"fsdp2", "tp2", "pp2"} {
		d, ranks := onMesh(t, c, name)
		d.ZeRO1 = true
		if _, err := run(t, ranks, d); err == nil || !strings.Contains(err.Error(), "--zero1 divides the optimizer state of replicas of the whole model, and --"+name[:len(name)-1]+" is 2") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
