// SPDX-License-Identifier: Apache-2.0

package tensorboard

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"flag"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "write testdata/events.golden anew")

// write writes what a run may log, at a fixed time, and returns the file.
func write(t *testing.T, dir string) string {
	t.Helper()
	at := time.Unix(1_700_000_000, 250_000_000)
	w, err := create(dir, map[string]string{"lr": "0.5", "task": "lm", "best": "true"}, func() time.Time { return at })
	if err != nil {
		t.Fatal(err)
	}
	for step := 1; step <= 3; step++ {
		w.Scalar(step, "loss", 1/float64(step))
	}
	w.Scalar(3, "nan", math.NaN())
	w.Histogram(2, "weights", Histogram{Min: -1, Max: 2, Count: 4, Sum: 2, Squares: 6, Limits: []float64{0, 1, 2}, Counts: []float64{1, 2, 1}})
	w.Text(3, "sample", "**hello**\nworld é")
	picture, err := base64.StdEncoding.DecodeString("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==")
	if err != nil {
		t.Fatal(err)
	}
	w.Image(3, "picture", 1, 1, picture)
	w.End(true)
	w.Close(time.Minute)
	if err := w.Err(); err != nil {
		t.Fatal(err)
	}
	return w.Path()
}

// TestGolden: the bytes of a file are those that the Python package tensorboard has read (TestPython).
func TestGolden(t *testing.T) {
	got, err := os.ReadFile(write(t, t.TempDir()))
	if err != nil {
		t.Fatal(err)
	}
	golden := filepath.Join("testdata", "events.golden")
	if *update {
		if err := os.MkdirAll("testdata", 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(golden, got, 0o666); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("got %d bytes that are not the %d of %s: run with -update, and TestPython with COHORT_TEST_PYTHONS", len(got), len(want), golden)
	}
}

const reader = `
import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import plugin_data_pb2
a = EventAccumulator(sys.argv[1], size_guidance={"scalars": 0, "histograms": 0, "images": 0, "tensors": 0})
a.Reload()
h = a.Histograms("weights")[0].histogram_value
i = a.Images("picture")[0]
t = a.Tensors("sample")[0].tensor_proto
content = a.PluginTagToContent("hparams")["_hparams_/session_start_info"]
start = plugin_data_pb2.HParamsPluginData.FromString(content).session_start_info
end = plugin_data_pb2.HParamsPluginData.FromString(a.PluginTagToContent("hparams")["_hparams_/session_end_info"]).session_end_info
print(json.dumps({
  "loss": [[s.step, s.value, s.wall_time] for s in a.Scalars("loss")],
  "nan": a.Scalars("nan")[0].value != a.Scalars("nan")[0].value,
  "histogram": [h.min, h.max, h.num, h.sum, h.sum_squares, list(h.bucket_limit), list(h.bucket)],
  "image": [i.step, i.width, i.height, i.encoded_image_string[:4].hex()],
  "text": [a.Tensors("sample")[0].step, t.string_val[0].decode()],
  "plugins": sorted(a.PluginTagToContent("text")),
  "hparams": {k: getattr(v, v.WhichOneof("kind")) for k, v in start.hparams.items()},
  "status": end.status,
}))
`

// TestPython: TensorBoard's own reader finds what was written.
func TestPython(t *testing.T) {
	found := false
	for _, python := range filepath.SplitList(os.Getenv("COHORT_TEST_PYTHONS")) {
		if exec.Command(python, "-c", "import tensorboard").Run() != nil {
			continue
		}
		found = true
		out, err := exec.Command(python, "-c", reader, filepath.Dir(write(t, t.TempDir()))).Output()
		if err != nil {
			t.Fatal(err, string(err.(*exec.ExitError).Stderr))
		}
		var got, want any
		if err := json.Unmarshal(out, &got); err != nil {
			t.Fatal(err)
		}
		_ = json.Unmarshal([]byte(`{"loss":[[1,1,1700000000.25],[2,0.5,1700000000.25],[3,0.3333333432674408,1700000000.25]],"nan":true,
			"histogram":[-1,2,4,2,6,[0,1,2],[1,2,1]],"image":[3,1,1,"89504e47"],"text":[3,"**hello**\nworld é"],"plugins":["sample"],
			"hparams":{"lr":0.5,"task":"lm","best":true},"status":1}`), &want)
		a, _ := json.Marshal(got)
		b, _ := json.Marshal(want)
		if !bytes.Equal(a, b) {
			t.Errorf("%s reads %s, want %s", python, a, b)
		}
	}
	if !found {
		t.Skip("COHORT_TEST_PYTHONS lists no Python that has the package tensorboard")
	}
}

// TestStepIsKept: of long runs a bounded number of steps is written.
func TestStepIsKept(t *testing.T) {
	for _, steps := range []int{1, fullScalars, 3 * fullScalars, 100 * fullScalars} {
		kept := 0
		for i := 1; i <= steps; i++ {
			if StepIsKept(i) {
				kept++
			}
		}
		if kept > 8*fullScalars || steps <= fullScalars && kept != steps {
			t.Errorf("of %d steps %d are kept", steps, kept)
		}
	}
}

// TestSlowDisk: what does not fit is left out, and told once.
func TestSlowDisk(t *testing.T) {
	w, err := Create(t.TempDir(), nil)
	if err != nil {
		t.Fatal(err)
	}
	big := strings.Repeat("x", 3<<20)
	for range 10 {
		w.Text(1, "t", big)
	}
	if err := w.Err(); err == nil || !strings.Contains(err.Error(), "left out") {
		t.Errorf("got %v", err)
	}
	w.Close(time.Minute)
	if err := w.Err(); err != nil {
		t.Errorf("told twice: %v", err)
	}
	if _, err := Create(filepath.Join(t.TempDir(), "none"), nil); err == nil {
		t.Error("a directory that is not there is no error")
	}
}
