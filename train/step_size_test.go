// SPDX-License-Identifier: Apache-2.0

package train

import (
	"math/rand/v2"
	"testing"
)

// TestStepSizeAdopts: a run goes on with as many samples a step on any number of
// ranks that is not larger, and on others again, with none left without one.
func TestStepSizeAdopts(t *testing.T) {
	const seed = 6
	r := rand.New(rand.NewPCG(seed, 0))
	for i := range 100_000 {
		was := stepSize{1 + r.IntN(9), 1 + r.IntN(20), 1 + r.IntN(6), 0}
		total := was.total()
		for range 3 {
			now := stepSize{1 + r.IntN(40), was.batch, was.accumulate, was.uneven}
			conflict := now.adopt(was, StepShare{AskedBatch: was.batch, AskedAccumulate: was.accumulate}, nil, "samples")
			if now.ranks > total {
				if conflict == "" {
					t.Fatalf("seed %d, case %d: %+v became %+v: too few samples", seed, i, was, now)
				}
				break
			}
			pass := now.pass()
			if conflict != "" || now.total() != total || pass*now.accumulate != total || pass < now.ranks || now.batch != (pass+now.ranks-1)/now.ranks {
				t.Fatalf("seed %d, case %d: %+v became %+v: %d samples in %d passes of %d, want %d in all; %s",
					seed, i, was, now, now.total(), now.accumulate, pass, total, conflict)
			}
			was = now
		}
	}
}

// TestStepSizeSays: what is in the way is said with sums that are right.
func TestStepSizeSays(t *testing.T) {
	for _, c := range []struct {
		was, now stepSize
		given    map[string]string
		want     stepSize
		conflict string
	}{
		{stepSize{2, 4, 1, 0}, stepSize{4, 4, 1, 0}, nil, stepSize{4, 2, 1, 0}, ""},
		{stepSize{2, 4, 1, 0}, stepSize{3, 4, 1, 0}, nil, stepSize{3, 3, 1, 8}, ""},
		{stepSize{2, 2, 2, 0}, stepSize{8, 2, 2, 0}, nil, stepSize{8, 1, 1, 0}, ""},
		{stepSize{2, 2, 2, 0}, stepSize{5, 2, 2, 0}, nil, stepSize{5, 2, 1, 8}, ""},
		{stepSize{5, 2, 1, 8}, stepSize{9, 2, 1, 0}, nil, stepSize{9, 2, 1, 0}, "it takes 8 sequences a step: at most 8 ranks, not 9"},
		{stepSize{5, 2, 1, 8}, stepSize{2, 3, 1, 0}, map[string]string{"batch": "flag"}, stepSize{2, 3, 1, 0},
			"ranks × sequences: 2 × 3 = 6 a step, the checkpoint's run has 8 among 5 ranks (set --batch)"},
	} {
		got := c.now
		if conflict := got.adopt(c.was, StepShare{AskedBatch: c.was.batch, AskedAccumulate: c.was.accumulate}, c.given, "sequences"); conflict != c.conflict || got != c.want {
			t.Errorf("%v after %v: %+v, %q, want %+v, %q", c.now, c.was, got, conflict, c.want, c.conflict)
		}
	}
}

// TestStepSizeOfACommand: the same command, with its batch and passes, goes on with the
// same samples a step whatever number of ranks comes and goes, in batches no larger
// than it said wherever there is a way.
func TestStepSizeOfACommand(t *testing.T) {
	const seed = 7
	r := rand.New(rand.NewPCG(seed, 0))
	given := map[string]string{"batch": "flag", "accumulate": "flag"}
	for i := range 20_000 {
		command := stepSize{1 + r.IntN(9), 1 + r.IntN(40), 1 + r.IntN(6), 0}
		total, was := command.total(), command
		var saved StepShare
		saved.begin(command)
		for range 5 {
			now := stepSize{1 + r.IntN(12), command.batch, command.accumulate, 0}
			var next StepShare
			conflict := now.resume(was, saved, &next, given, "samples")
			if now.ranks > total {
				if conflict == "" {
					t.Fatalf("seed %d, case %d: %+v became %+v: too few samples", seed, i, was, now)
				}
				continue
			}
			pass := now.pass()
			if conflict != "" || now.total() != total || pass*now.accumulate != total || pass < now.ranks || now.batch != (pass+now.ranks-1)/now.ranks {
				t.Fatalf("seed %d, case %d: %+v of %+v became %+v, want %d samples: %s", seed, i, was, command, now, total, conflict)
			}
			if now.batch > command.batch {
				for n := 1; n <= total/now.ranks; n++ {
					if total%n == 0 && (total/n+now.ranks-1)/now.ranks <= command.batch {
						t.Fatalf("seed %d, case %d: %+v became %+v: %d passes would do with smaller batches", seed, i, command, now, n)
					}
				}
			}
			was, saved = now, next
		}
	}
}

// TestStepSizeOfAnother: a command that asks for another step is none of the run's.
func TestStepSizeOfAnother(t *testing.T) {
	was, saved := stepSize{2, 192, 2, 0}, StepShare{AskedBatch: 256, AskedAccumulate: 1} // begun on 3 ranks
	for _, c := range []struct {
		now      stepSize
		given    map[string]string
		want     stepSize
		conflict bool
	}{
		{stepSize{2, 256, 1, 0}, map[string]string{"batch": "flag"}, stepSize{2, 192, 2, 0}, false},
		{stepSize{4, 256, 1, 0}, map[string]string{"batch": "flag"}, stepSize{4, 192, 1, 0}, false},
		{stepSize{5, 256, 1, 0}, map[string]string{"batch": "flag"}, stepSize{5, 154, 1, 768}, false},
		{stepSize{2, 512, 1, 0}, map[string]string{"batch": "flag"}, stepSize{}, true},
		{stepSize{2, 128, 1, 0}, map[string]string{"batch": "flag"}, stepSize{2, 128, 3, 0}, false},
		{stepSize{3, 128, 2, 0}, map[string]string{"batch": "flag", "accumulate": "flag"}, stepSize{3, 128, 2, 0}, false},
		{stepSize{3, 128, 1, 0}, map[string]string{"batch": "flag", "accumulate": "flag"}, stepSize{}, true},
	} {
		var next StepShare
		got := c.now
		conflict := got.resume(was, saved, &next, c.given, "images")
		if (conflict != "") != c.conflict || conflict == "" && (got != c.want || next.AskedBatch != c.now.batch || next.Uneven != got.uneven) {
			t.Errorf("%+v: %+v, %+v, %q, want %+v", c.now, got, next, conflict, c.want)
		}
	}
	// A run of before says nothing of its command.
	got, next := stepSize{2, 10, 1, 0}, StepShare{}
	if conflict := got.resume(stepSize{3, 10, 1, 0}, StepShare{}, &next, map[string]string{"batch": "flag"}, "rows"); conflict != "" || got != (stepSize{2, 8, 2, 30}) && got.total() != 30 {
		t.Errorf("%+v, %q", got, conflict)
	}
}
