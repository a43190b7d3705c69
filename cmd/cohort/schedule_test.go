// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestSchedule: the chart, its numbers, and the comparison of all schedules.
func TestSchedule(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"--ranks 2 --microbatches 2", `rank 0 F0 F1 ·  ·  B0 == ·  B1 ==
rank 1 ·  F0 B0 == F1 B1 == ·  ·

1f1b: step 9ms  bubble 33.3 %  activations by rank [2 1]
`},
		{"--ranks 2 --microbatches 2 --name zbv --forward 2ms --input 2ms --weight 2ms", `rank 0 0F0 0F1 ·   3F0 3I0 3W0 3F1 3I1 3W1 0I0 0W0 ·   0I1 0W1
rank 1 ·   1F0 2F0 1F1 2F1 2I0 2W0 1I0 1W0 2I1 2W1 1I1 1W1 ·

zbv: step 14ms  bubble 14.3 %  activations by rank [1.5 2]
`},
		{"--ranks 2 --microbatches 2 --delay 1ms --json", `{"schedule":"1f1b","ranks":2,"stages":2,"microbatches":2,"step_us":11000,"bubble":0.4545454545454546,"activations":[2,1]}
`},
		{"--ranks 4 --microbatches 6 --name all", `schedule        stages  step    bubble  activations
gpipe           4       27ms    33.3 %  6
1f1b            4       27ms    33.3 %  4
interleaved     8       22.5ms  20.0 %  6
interleaved-zb  8       19.5ms  7.7 %   5
zbv             8       19.5ms  7.7 %   4
dualpipev       -       -       -       -

- does not fit, for example: schedule: dualpipev for 4 ranks, 8 stages and 6 microbatches: it needs as many microbatches as stages, and 6 < 8: accumulate over 8 passes or more, or take gpipe
`},
		{"--ranks 64 --microbatches 999", `a chart of 127872 actions is too large to read: take fewer ranks or microbatches

1f1b: step 3.186s  bubble 5.9 %  activations by rank at most 64
`},
	} {
		if code, out, errs := cohort(append([]string{"schedule"}, strings.Fields(c.args)...)...); code != 0 || out != c.want {
			t.Errorf("cohort schedule %s: code %d, %s\n%swant\n%s", c.args, code, errs, out, c.want)
		}
	}
}

// TestSchedulePictures: the images of docs/pipeline.md are what the command draws.
func TestSchedulePictures(t *testing.T) {
	pictures, err := filepath.Glob(filepath.Join("..", "..", "docs", "schedule-*.svg"))
	if err != nil || len(pictures) < 5 {
		t.Fatalf("%v, pictures %v", err, pictures)
	}
	for _, picture := range pictures {
		name := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(picture), "schedule-"), ".svg")
		file := filepath.Join(t.TempDir(), "chart.svg")
		if code, _, errs := cohort("schedule", "--name", name, "--svg", file); code != 0 {
			t.Fatal(errs)
		}
		drawn, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if shown, err := os.ReadFile(picture); err != nil || string(shown) != string(drawn) {
			t.Errorf("%s is not what is drawn (%v): go run ./cmd/cohort schedule --name %s --svg docs/schedule-%s.svg", picture, err, name, name)
		}
	}
}

// TestScheduleSVG: the image goes into the file, and the numbers to the terminal.
func TestScheduleSVG(t *testing.T) {
	file := filepath.Join(t.TempDir(), "chart.svg")
	code, out, errs := cohort("schedule", "--name", "dualpipev", "--svg", file, "--json")
	if code != 0 || errs != "" {
		t.Fatalf("code %d, %s", code, errs)
	}
	var numbers struct {
		Bubble      float64
		Activations []float64
	}
	if err := json.Unmarshal([]byte(out), &numbers); err != nil || numbers.Bubble <= 0 || len(numbers.Activations) != 4 {
		t.Errorf("%v: %s", err, out)
	}
	image, err := os.ReadFile(file)
	if err != nil || !strings.HasPrefix(string(image), "<svg ") || !strings.Contains(string(image), ">rank 3</text>") {
		t.Errorf("%v: %.80s", err, image)
	}
}
