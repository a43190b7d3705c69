// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/internal/event"
)

var (
	helpLine   = regexp.MustCompile(`^# HELP ([a-zA-Z_:][a-zA-Z0-9_:]*) (.*)$`)
	typeLine   = regexp.MustCompile(`^# TYPE ([a-zA-Z_:][a-zA-Z0-9_:]*) (counter|gauge)$`)
	sampleLine = regexp.MustCompile(`^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{((?:[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\[\\n"])*",?)*)\})? (\S+)$`)
	labelPart  = regexp.MustCompile(`([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\[\\n"])*)"`)
)

// parse reads the format strictly: HELP and TYPE before the samples, a family in one piece, no series
// twice, counters with the right name, labels in one order.
func parse(text string) (map[string]float64, error) {
	if !strings.HasSuffix(text, "\n") {
		return nil, errors.New("the last line has no end")
	}
	values := map[string]float64{}
	kinds := map[string]string{}
	family := ""
	unescape := strings.NewReplacer(`\\`, `\`, `\n`, "\n", `\"`, `"`)
	for i, line := range strings.Split(strings.TrimSuffix(text, "\n"), "\n") {
		fail := func(why string) error { return fmt.Errorf("line %d: %s: %q", i+1, why, line) }
		if m := helpLine.FindStringSubmatch(line); m != nil {
			if kinds[m[1]] != "" {
				return nil, fail("a family in two pieces")
			}
			family = m[1]
			continue
		}
		if m := typeLine.FindStringSubmatch(line); m != nil {
			if m[1] != family || kinds[m[1]] != "" {
				return nil, fail("TYPE without HELP")
			}
			if (m[2] == "counter") != strings.HasSuffix(m[1], "_total") {
				return nil, fail("counters alone end with _total")
			}
			kinds[m[1]] = m[2]
			continue
		}
		m := sampleLine.FindStringSubmatch(line)
		if m == nil {
			return nil, fail("no sample")
		}
		if m[1] != family || kinds[family] == "" {
			return nil, fail("a sample of no family")
		}
		v, err := strconv.ParseFloat(m[3], 64)
		if err != nil || kinds[family] == "counter" && !(v >= 0) {
			return nil, fail("a bad value")
		}
		series := m[1]
		for _, l := range labelPart.FindAllStringSubmatch(m[2], -1) {
			series += ";" + l[1] + "=" + unescape.Replace(l[2])
		}
		if _, ok := values[series]; ok {
			return nil, fail("a series twice")
		}
		values[series] = v
	}
	return values, nil
}

// answers are what the ranks of a job have done whose groups have odd names.
func answers(ranks, groups int) []event.Answer {
	var out []event.Answer
	for r := range ranks {
		s := event.New(time.Now())
		s.StepDone(7, event.StepNumbers{Loss: 2.5, LearningRate: 1e-3, GradNorm: math.Inf(1), Size: 64, Seconds: 0.5, Epoch: math.NaN()})
		s.Holds(event.MemoryNumbers{Tensors: 100, Resident: int64(1000 + r), CPU: time.Second, FLOPs: 7e9, Again: 2e9, Peak: 1e11})
		for g := range groups {
			name := "world"
			if g > 0 {
				name = fmt.Sprintf("tp \"%d\"\\\n\xff", g)
			}
			c := s.Channel(name, uint64(g), make([]int, ranks))
			for range 3 {
				c.Ended(&event.Call{Op: 1, Name: "all_reduce", Bytes: 10, Span: event.Span{Called: 0, Begun: 1, Ended: time.Millisecond + 1}})
			}
		}
		f := s.Figures()
		out = append(out, event.Answer{Rank: r, File: &event.File{Rank: r, WorldSize: ranks + 1, Figures: f}})
	}
	return append(out, event.Answer{Rank: ranks}) // it does not answer
}

// TestFormat: what is written is what the format says, with the values of the ranks.
func TestFormat(t *testing.T) {
	w := httptest.NewRecorder()
	Handler(func(context.Context) []event.Answer { return answers(2, 2) }).ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	got, err := parse(w.Body.String())
	if err != nil {
		t.Fatalf("%v in:\n%s", err, w.Body)
	}
	for series, want := range map[string]float64{
		"cohort_rank_up;rank=1": 1, "cohort_rank_up;rank=2": 0, "cohort_ranks": 3, "cohort_step;rank=0": 7, "cohort_loss": 2.5, "cohort_learning_rate": 1e-3, "cohort_step_size": 64,
		"cohort_memory_bytes;rank=1;kind=resident": 1001, "cohort_memory_bytes;rank=0;kind=tensors": 100, "cohort_cpu_seconds_total;rank=0": 1, "cohort_peak_flops;rank=1": 1e11,
		"cohort_floating_point_operations_total;rank=0;kind=model": 5e9, "cohort_floating_point_operations_total;rank=0;kind=again": 2e9,
		"cohort_collective_calls_total;group=world;op=all_reduce": 6, "cohort_collective_bytes_total;group=tp \"1\"\\\n\ufffd;op=all_reduce": 60,
		"cohort_collective_seconds_total;group=world;op=all_reduce": 0.006, "cohort_events_total;rank=1;kind=collective": 6, "cohort_phase_seconds_total;rank=0;phase=backward": 0,
	} {
		if v, ok := got[series]; !ok || math.Abs(v-want) > 1e-12 {
			t.Errorf("%s is %v, want %v", series, v, want)
		}
	}
	for _, series := range []string{"cohort_gradient_norm", "cohort_epoch"} {
		if _, ok := got[series]; ok {
			t.Errorf("%s is there and is not finite", series)
		}
	}
	if kind := w.Header().Get("Content-Type"); kind != contentType {
		t.Errorf("the type is %q", kind)
	}
	check(t, w.Body.Bytes())
}

// check has promtool read a text, where there is one.
func check(t *testing.T, text []byte) {
	t.Helper()
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Log("there is no promtool")
		return
	}
	cmd := exec.Command(promtool, "check", "metrics")
	cmd.Stdin = bytes.NewReader(text)
	if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("promtool: %v: %s", err, out)
	}
}

// TestBounded: however many groups a program makes, there are not more series.
func TestBounded(t *testing.T) {
	var b bytes.Buffer
	if err := Write(&b, answers(3, 60)); err != nil {
		t.Fatal(err)
	}
	got, err := parse(b.String())
	if err != nil {
		t.Fatal(err)
	}
	groups := 0
	for series := range got {
		if strings.HasPrefix(series, "cohort_collective_calls_total") {
			groups++
		}
	}
	if groups != MaxGroups+1 || got["cohort_collective_calls_total;group=other;op=all_reduce"] != float64(3*3*(60-MaxGroups)) {
		t.Errorf("%d groups, in others %v calls", groups, got["cohort_collective_calls_total;group=other;op=all_reduce"])
	}
}

// TestBoard: the board for Grafana asks for metrics that there are.
func TestBoard(t *testing.T) {
	board, err := os.ReadFile(filepath.Join("..", "..", "deploy", "grafana", "cohort.json"))
	if err != nil {
		t.Fatal(err)
	}
	if !json.Valid(board) {
		t.Error("the board is no JSON")
	}
	var b bytes.Buffer
	if err := Write(&b, answers(2, 1)); err != nil {
		t.Fatal(err)
	}
	names := regexp.MustCompile(`cohort_[a-z_]+`).FindAllString(string(board), -1)
	if len(names) < 8 {
		t.Errorf("the board asks for %v", names)
	}
	for _, name := range names {
		if !strings.Contains(b.String(), "# TYPE "+name+" ") {
			t.Errorf("the board asks for %s, which is not there", name)
		}
	}
}

// TestNobody: a job without ranks has no metrics, and that is a text of the format too.
func TestNobody(t *testing.T) {
	var b bytes.Buffer
	if err := Write(&b, nil); err != nil || b.Len() != 0 {
		t.Errorf("got %q, %v", b.String(), err)
	}
}

// TestParserIsStrict: the parser of this test finds what it is for.
func TestParserIsStrict(t *testing.T) {
	for _, text := range []string{
		"a 1", "a 1\n", "# HELP a x\n# TYPE a gauge\na{b=\"c} 1\n", "# HELP a x\n# TYPE a counter\na 1\n", "# HELP a_total x\n# TYPE a_total counter\na_total -1\n",
		"# HELP a x\n# TYPE a gauge\na 1\na 1\n", "# HELP a x\n# TYPE a gauge\na{1b=\"c\"} 1\n", "# HELP a x\n# TYPE a gauge\na one\n",
	} {
		if _, err := parse(text); err == nil {
			t.Errorf("%q is taken", text)
		}
	}
}
