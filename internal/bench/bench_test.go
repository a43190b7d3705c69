// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/dist"
)

// checkPrinted prints a result in both ways and checks that the fields of its
// JSON are want, a space-separated list, in that order.
func checkPrinted(t *testing.T, r Result, want string) {
	t.Helper()
	var line, text bytes.Buffer
	if err := errors.Join(r.WriteJSON(&line), r.WriteText(&text)); err != nil {
		t.Fatal(err)
	}
	for _, b := range []*bytes.Buffer{&line, &text} {
		if strings.Count(b.String(), "\n") != 1 || !strings.HasSuffix(b.String(), "\n") {
			t.Errorf("not one line: %q", b)
		}
	}
	d := json.NewDecoder(&line)
	var keys []string
	if _, err := d.Token(); err != nil {
		t.Fatal(err)
	}
	for d.More() {
		key, err := d.Token()
		if err != nil {
			t.Fatal(err)
		}
		value, err := d.Token()
		if err != nil {
			t.Fatal(err)
		}
		// The runtime books allocations late, so that few steps may show none.
		mayBeZero := key == "gc_cpu_share" || key == "num_gc" || strings.HasPrefix(fmt.Sprint(key), "alloc")
		if n, ok := value.(float64); ok && (n < 0 || n == 0 && !mayBeZero) {
			t.Errorf("%v is %v", key, n)
		}
		keys = append(keys, key.(string))
	}
	if got := strings.Join(keys, " "); got != want {
		t.Errorf("fields %s\nwant   %s", got, want)
	}
	if !strings.Contains(text.String(), r.Case) || !strings.Contains(text.String(), "median ") {
		t.Errorf("the text lacks the case or the median: %q", text.String())
	}
}

func TestGemm(t *testing.T) {
	ps, err := ParseProducts([]string{"33", "3x5x70x9"}, Layouts())
	if err != nil {
		t.Fatal(err)
	}
	for _, dtype := range []string{"float32", "bfloat16"} {
		var cases []string
		err = Gemm(t.Context(), ps, GemmOptions{dtype, 2, time.Millisecond}, func(r Result) error {
			checkPrinted(t, r, "bench case layout dtype threads median_us min_us gflop_per_s")
			cases = append(cases, r.Case+" "+r.Layout)
			return nil
		})
		want := "33x33x33 nn,33x33x33 nt,33x33x33 tn,3x5x70x9 nn,3x5x70x9 nt,3x5x70x9 tn"
		if got := strings.Join(cases, ","); err != nil || got != want {
			t.Errorf("%s: measured %s, want %s; error %v", dtype, got, want, err)
		}
	}
	if err := Gemm(t.Context(), ps, GemmOptions{"float16", 1, 0}, nil); err == nil || !strings.Contains(err.Error(), "float16") {
		t.Errorf("float16 gave %v", err)
	}
	stop := errors.New("stop")
	if err := Gemm(t.Context(), ps, GemmOptions{"float32", 1, 0}, func(Result) error { return stop }); err != stop {
		t.Errorf("an error of emit became %v", err)
	}
	done, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Gemm(done, ps, GemmOptions{"float32", 1, time.Hour}, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled context gave %v", err)
	}
}

func TestBadProducts(t *testing.T) {
	for _, shape := range []string{"", "0", "-1", "3x4", "1x2x3x4x5", "3x4xa", "3x4x5x0", "100000x100x300x4", "9999999999999", "100000x1x100000"} {
		if ps, err := ParseProducts([]string{shape}, Layouts()); err == nil || !strings.Contains(err.Error(), shape) {
			t.Errorf("shape %q gave %v, %v", shape, ps, err)
		}
	}
	if _, err := ParseProducts([]string{"8"}, []string{"tt"}); err == nil {
		t.Error("layout tt was taken")
	}
}

func TestStep(t *testing.T) {
	// Without resnet50, whose step takes a second; package models has its own test.
	quick := slices.DeleteFunc(StepModels(), func(m string) bool { return m == "resnet50" })
	for i, model := range slices.Concat(quick, quick) {
		dtype := [...]string{"float32", "bfloat16"}[i/len(quick)]
		r, err := Step(t.Context(), StepOptions{Model: model, DType: dtype, Batch: 2, Steps: 2})
		if err != nil {
			t.Fatal(err)
		}
		if r.DType != dtype {
			t.Errorf("the result says %s, want %s", r.DType, dtype)
		}
		want := "bench case dtype threads batch params median_us min_us gflop_per_s"
		if r.PeakRSSBytes > 0 {
			want += " peak_rss_bytes growth_bytes"
			r.GrowthBytes = max(1, r.GrowthBytes) // an earlier case may have had more
		}
		want += " gc_cpu_share num_gc allocs_per_step alloc_bytes_per_step"
		checkPrinted(t, r, want)
		if params := map[string]int{"mlp": 1863690, "gpt": 3323648, "cnn": 242474}[model]; r.Params != params {
			t.Errorf("%s has %d parameters, PyTorch's has %d", model, r.Params, params)
		}
	}
}

func TestBadOptions(t *testing.T) {
	good := StepOptions{Model: "mlp", DType: "float32", Steps: 1}
	for want, change := range map[string]func(*StepOptions){
		`no model "lstm": want one of mlp, gpt`: func(o *StepOptions) { o.Model = "lstm" },
		`no dtype ""`:                           func(o *StepOptions) { o.DType = "" },
		"batch of -1":                           func(o *StepOptions) { o.Batch = -1 },
		"0 steps":                               func(o *StepOptions) { o.Steps = 0 },
	} {
		o := good
		change(&o)
		if _, err := Step(t.Context(), o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v gave %v, want %q", o, err, want)
		}
	}
	for want, o := range map[string]CollectivesOptions{
		`no operation "all_to_none"`: {Ops: []string{"all_to_none"}},
		`no memory "gpu"`:            {Memory: []string{"gpu"}},
		`no dtype "float8"`:          {DType: "float8"},
		"6 bytes":                    {Bytes: []int{4, 6}},
		"12 bytes":                   {Bytes: []int{8, 12}, DType: "int64"},
		"0 bytes":                    {Bytes: []int{0}},
		"-4 bytes":                   {Bytes: []int{-4}},
		"-1 calls":                   {Reps: -1},
		"late by -1ns":               {LateBy: -1},
	} {
		if err := o.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v gave %v, want %q", o, err, want)
		}
	}
	for _, err := range []error{CheckBackend("x"), CheckTransport("x")} {
		if err == nil {
			t.Error("an unknown backend or transport was taken")
		}
	}
}

func TestDDP(t *testing.T) {
	for _, ranks := range []int{1, 2} {
		err := dist.Spawn(t.Context(), ranks, func(ctx context.Context, g *dist.Group) error {
			r, err := DDP(ctx, g, 1)
			if err == nil && g.Rank() == 0 {
				want := "bench case backend transport dtype ranks threads batch params median_us min_us gflop_per_s"
				if r.PeakRSSBytes > 0 {
					want += " peak_rss_bytes growth_bytes"
					r.GrowthBytes = max(1, r.GrowthBytes)
				}
				checkPrinted(t, r, want)
				if r.Ranks != ranks || r.Batch != 128 {
					t.Errorf("%d ranks of batch %d, want %d of 128", r.Ranks, r.Batch, ranks)
				}
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	}
}

func TestText(t *testing.T) {
	for _, c := range []struct {
		r    Result
		want string
	}{
		{Result{Bench: "step", Case: "gpt", DType: "float32", Threads: 2, MedianMicros: 175000, MinMicros: 170500, GFlopPerSec: 120, PeakRSSBytes: 96 << 20},
			"step  gpt             float32   2 threads  median  175.00 ms  min  170.50 ms   120.0 GFLOP/s  peak memory 96 MiB\n"},
		{Result{Bench: "collectives", Case: "all_reduce", Transport: "shm", Memory: "shared", Ranks: 2, Bytes: 65536, MedianMicros: 8.5, P99Micros: 1234.5, GBPerSec: 7.71},
			"collectives  all_reduce      shm   shared    2 ranks     64 KiB  median    8.50 µs  p99    1.23 ms    7.710 GB/s\n"},
	} {
		var b bytes.Buffer
		if err := c.r.WriteText(&b); err != nil || b.String() != c.want {
			t.Errorf("%v\ngot  %swant %s", err, b.String(), c.want)
		}
	}
}

func TestQuantile(t *testing.T) {
	ts := times{5, 1, 4, 2, 3}
	if ts.median() != 3 || ts.quantile(0) != 1 || ts.quantile(0.99) != 5 || (times{}).median() != 0 {
		t.Errorf("median %v, least %v, p99 %v", ts.median(), ts.quantile(0), ts.quantile(0.99))
	}
}
