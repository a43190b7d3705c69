// SPDX-License-Identifier: Apache-2.0

package predict_test

import (
	"bytes"
	"context"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/checkpoint/safetensors"
	"github.com/cohort-ml/cohort/checkpoint/storage"
	"github.com/cohort-ml/cohort/data"
	"github.com/cohort-ml/cohort/data/table"
	"github.com/cohort-ml/cohort/data/vision"
	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/train"
	"github.com/cohort-ml/cohort/train/predict"
)

var testdata = filepath.Join("..", "testdata")

// golden is what testdata/predict.py has written.
type golden struct {
	Texts   []string
	Classes []map[string]float64
	Vectors [][]float64
}

func readGolden(t *testing.T) (g golden) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(testdata, "predict.json"))
	if err == nil {
		err = json.Unmarshal(text, &g)
	}
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func load(t *testing.T, dir string) *train.Model {
	t.Helper()
	m, err := train.Load(t.Context(), storage.Dir(dir), nil)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// predicted runs a model over paths and returns what it writes.
func predicted(t *testing.T, m *train.Model, format string, o predict.Options) (string, predict.Summary, error) {
	t.Helper()
	src, err := predict.OpenSource(t.Context(), m, o)
	if err != nil {
		return "", predict.Summary{}, err
	}
	defer src.Close()
	var out bytes.Buffer
	w, err := predict.NewWriter(&out, format, m, predict.WriterOptions{Keep: o.Keep})
	if err != nil {
		t.Fatal(err)
	}
	sum, err := predict.Run(t.Context(), m, src, o, w)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.String(), sum, err
}

// TestClassesOfTransformers holds the probabilities of a folder of transformers against those
// of its pipeline, whatever the inputs come from.
func TestClassesOfTransformers(t *testing.T) {
	g, m := readGolden(t), load(t, filepath.Join(testdata, "classifier"))
	var lines, rows bytes.Buffer
	table := csv.NewWriter(&rows)
	table.Write([]string{"id", "text"})
	for i, text := range g.Texts {
		raw, _ := json.Marshal(map[string]any{"text": text, "id": i})
		fmt.Fprintf(&lines, "%s\n", raw)
		table.Write([]string{fmt.Sprint(i), text})
	}
	table.Flush()
	for format, in := range map[string]string{predict.FormatJSONL: lines.String(), predict.FormatCSV: rows.String()} {
		out, sum, err := predicted(t, m, predict.JSONLines, predict.Options{Paths: []string{"-"}, Stdin: strings.NewReader(in), Format: format, Keep: []string{"id"}, Batch: 2})
		if err != nil {
			t.Fatal(err)
		}
		if sum.Done != len(g.Texts) || sum.Cut != 1 {
			t.Errorf("%s: %v, want %d inputs, one of them cut", format, sum, len(g.Texts))
		}
		for i, line := range strings.Split(strings.TrimSpace(out), "\n") {
			var got struct {
				ID            any
				Prediction    string
				Probability   float64
				Probabilities map[string]float64
			}
			if err := json.Unmarshal([]byte(line), &got); err != nil {
				t.Fatal(err)
			}
			if fmt.Sprint(got.ID) != fmt.Sprint(i) {
				t.Errorf("%s: result %d is of id %v", format, i, got.ID)
			}
			for class, want := range g.Classes[i] {
				if p := got.Probabilities[class]; math.Abs(p-want) > 1e-5 {
					t.Errorf("%s: %q is %s by %v, want %v", format, g.Texts[i], class, p, want)
				}
			}
			if got.Probability != got.Probabilities[got.Prediction] || got.Probability < 1./3 {
				t.Errorf("%s: the likeliest is %s by %v of %v", format, got.Prediction, got.Probability, got.Probabilities)
			}
		}
	}
}

// TestVectorsOfSentenceTransformers holds vectors against those of sentence-transformers, in
// all formats.
func TestVectorsOfSentenceTransformers(t *testing.T) {
	g, dir := readGolden(t), t.TempDir()
	in := filepath.Join(dir, "texts.jsonl")
	var lines bytes.Buffer
	for _, text := range g.Texts {
		raw, _ := json.Marshal(map[string]any{"text": text})
		fmt.Fprintf(&lines, "%s\n", raw)
	}
	if err := os.WriteFile(in, lines.Bytes(), 0o666); err != nil {
		t.Fatal(err)
	}
	m := load(t, filepath.Join(testdata, "encoder"))
	embed := func(w predict.VectorWriter) {
		t.Helper()
		o := predict.Options{Paths: []string{in}, Batch: 2}
		src, err := predict.OpenSource(t.Context(), m, o)
		if err != nil {
			t.Fatal(err)
		}
		defer src.Close()
		if _, err := predict.Embed(t.Context(), m, src, o, w); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
	}
	check := func(format string, got [][]float32) {
		t.Helper()
		if len(got) != len(g.Vectors) {
			t.Fatalf("%s: %d vectors, want %d", format, len(got), len(g.Vectors))
		}
		for i, v := range got {
			for k := range v {
				if want := g.Vectors[i][k]; math.Abs(float64(v[k])-want) > 1e-5 {
					t.Fatalf("%s: number %d of the vector of %q is %v, want %v", format, k, g.Texts[i], v[k], want)
				}
			}
		}
	}
	var out bytes.Buffer
	embed(predict.NewVectorLines(&out, nil))
	var fromLines [][]float32
	for line := range strings.Lines(out.String()) {
		var v struct{ Vector []float32 }
		if err := json.Unmarshal([]byte(line), &v); err != nil {
			t.Fatal(err)
		}
		fromLines = append(fromLines, v.Vector)
	}
	check("jsonl", fromLines)
	for _, format := range []string{predict.NPY, predict.SafeTensors} {
		path := filepath.Join(dir, "vectors."+format)
		f, err := os.Create(path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		w, err := predict.NewVectorFile(f, format, m.Vectors.Width())
		if err != nil {
			t.Fatal(err)
		}
		embed(w)
		check(format, readMatrix(t, path, format, m.Vectors.Width()))
	}
}

// readMatrix reads a file of vectors: safetensors by its package, npy by the rules of NumPy.
func readMatrix(t *testing.T, path, format string, width int) (rows [][]float32) {
	t.Helper()
	var bytesOf []byte
	if format == predict.SafeTensors {
		f, err := safetensors.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		infos := f.Infos()
		if len(infos) != 1 || infos[0].Name != "vectors" || len(infos[0].Shape) != 2 || infos[0].Shape[1] != width {
			t.Fatalf("the tensors are %+v", infos)
		}
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	bytesOf = text[256:]
	if want := fmt.Sprintf("'shape': (%d, %d)", len(bytesOf)/4/width, width); format == predict.NPY && !strings.Contains(string(text[:256]), want) {
		t.Fatalf("the head of the npy file is %q, want %s", text[:256], want)
	}
	for row := range slices.Chunk(bytesOf, 4*width) {
		v := make([]float32, width)
		for k := range v {
			v[k] = math.Float32frombits(uint32(row[4*k]) | uint32(row[4*k+1])<<8 | uint32(row[4*k+2])<<16 | uint32(row[4*k+3])<<24)
		}
		rows = append(rows, v)
	}
	return rows
}

// TestBadInputs: what cannot be used is named with its file, line and field, ends the run or is
// left out, and the results before it are written.
func TestBadInputs(t *testing.T) {
	m := load(t, filepath.Join(testdata, "classifier"))
	in := `{"text":"one"}
{"text":7}
{"other":"x"}
{"text":"two"
{"text":"` + strings.Repeat("a", 3000) + `"}

{"text":"three"}
`
	file := filepath.Join(t.TempDir(), "in.jsonl")
	if err := os.WriteFile(file, []byte(in), 0o666); err != nil {
		t.Fatal(err)
	}
	out, _, err := predicted(t, m, predict.CSV, predict.Options{Paths: []string{file}})
	if err == nil || !strings.Contains(err.Error(), file+":2: field \"text\"") {
		t.Errorf("a number in place of a text: %v", err)
	}
	if !strings.Contains(out, "in.jsonl,1,") {
		t.Errorf("what was before the wrong record is not there: %q", out)
	}
	var told []string
	out, sum, err := predicted(t, m, predict.CSV, predict.Options{Paths: []string{file}, Skip: true, Notice: func(s string) { told = append(told, s) }})
	if err != nil {
		t.Fatal(err)
	}
	if sum.Done != 3 || sum.Skipped != 3 {
		t.Errorf("%v: %q", sum, told)
	}
	for i, want := range []string{":2: field \"text\"", ":3: field \"text\": it is missing; the record has other", ":4"} {
		if i >= len(told) || !strings.Contains(told[i], want) {
			t.Errorf("notice %d is not of %q: %q", i, want, told)
		}
	}
	var lines []string
	for _, row := range strings.Split(strings.TrimSpace(out), "\n")[1:] {
		lines = append(lines, strings.Split(row, ",")[1])
	}
	if !slices.Equal(lines, []string{"1", "5", "7"}) {
		t.Errorf("results of lines %v, want 1, 5 and 7", lines)
	}
	for name, o := range map[string]predict.Options{
		"no path":       {},
		"missing":       {Paths: []string{filepath.Join(t.TempDir(), "none")}},
		"no records":    {Paths: []string{t.TempDir()}},
		"wrong format":  {Paths: []string{"-"}, Stdin: strings.NewReader(""), Format: "xml"},
		"field to keep": {Paths: []string{"-"}, Stdin: strings.NewReader("a\n"), Keep: []string{"id"}},
		"no UTF-8":      {Paths: []string{"-"}, Stdin: strings.NewReader("a\xff\n")},
	} {
		if _, _, err := predicted(t, m, predict.CSV, o); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if _, _, err := predicted(t, load(t, filepath.Join(testdata, "encoder")), predict.CSV, predict.Options{Paths: []string{file}}); err == nil || !strings.Contains(err.Error(), "cohort embed") {
		t.Errorf("an encoder that predicts: %v", err)
	}
}

// TestImages: photos in files are told as the set they came from is.
func TestImages(t *testing.T) {
	dir := t.TempDir()
	cfg := train.DefaultVision()
	cfg.Out, cfg.Model, cfg.Epochs = filepath.Join(dir, "run"), "mlp", 3
	run(t, func(ctx context.Context, group *dist.Group) error {
		return train.Vision(ctx, group, cfg, nil, train.Discard)
	})
	m := load(t, cfg.Out)
	_, set, err := vision.Digits()
	if err != nil {
		t.Fatal(err)
	}
	photos := filepath.Join(dir, "photos")
	if err := os.Mkdir(photos, 0o777); err != nil {
		t.Fatal(err)
	}
	var want []string
	right := 0
	for i := range 40 {
		s, err := set.Get(t.Context(), data.Key{Index: i})
		if err != nil {
			t.Fatal(err)
		}
		p, err := m.Predict(t.Context(), []train.Input{{Image: s.Image}}, 0)
		if err != nil {
			t.Fatal(err)
		}
		if want = append(want, p[0].Class); p[0].Class == set.Classes()[s.Label] {
			right++
		}
		img := image.NewRGBA(image.Rect(0, 0, s.Image.Width, s.Image.Height))
		for k, v := range s.Image.Pix {
			img.Set(k%s.Image.Width, k/s.Image.Width, color.RGBA{v, v, v, 255})
		}
		f, err := os.Create(filepath.Join(photos, fmt.Sprintf("%03d.png", i)))
		if err != nil {
			t.Fatal(err)
		}
		if err := png.Encode(f, img); err != nil {
			t.Fatal(err)
		}
		f.Close()
	}
	if right < 30 {
		t.Fatalf("the classifier is right in %d of 40 cases", right)
	}
	damaged := filepath.Join(photos, "020b.png")
	if err := os.WriteFile(damaged, []byte("\x89PNG\r\n\x1a\nno image"), 0o666); err != nil {
		t.Fatal(err)
	}
	if _, _, err := predicted(t, m, predict.CSV, predict.Options{Paths: []string{photos}}); err == nil || !strings.Contains(err.Error(), damaged) {
		t.Errorf("a damaged image: %v", err)
	}
	out, sum, err := predicted(t, m, predict.CSV, predict.Options{Paths: []string{photos}, Skip: true, Batch: 3})
	if err != nil || sum.Skipped != 1 {
		t.Fatalf("%v, %v", sum, err)
	}
	var got []string
	for _, row := range strings.Split(strings.TrimSpace(out), "\n")[1:] {
		got = append(got, strings.Split(row, ",")[2])
	}
	if !slices.Equal(got, want) {
		t.Errorf("from files %v, want %v", got, want)
	}
}

func run(t *testing.T, f func(ctx context.Context, group *dist.Group) error) {
	t.Helper()
	if err := dist.Spawn(t.Context(), 1, f); err != nil {
		t.Fatal(err)
	}
}

// TestRows: rows without labels, of CSV and of JSON, are scored as the table with labels.
func TestRows(t *testing.T) {
	dir := t.TempDir()
	g := table.Generated{Rows: 600, Users: 50, Items: 30, Seed: 3}
	var text bytes.Buffer
	if err := g.WriteCSV(&text); err != nil {
		t.Fatal(err)
	}
	labelled := filepath.Join(dir, "clicks.csv")
	if err := os.WriteFile(labelled, text.Bytes(), 0o666); err != nil {
		t.Fatal(err)
	}
	cfg := train.DefaultRec()
	cfg.Out, cfg.Data, cfg.Epochs = filepath.Join(dir, "run"), labelled, 1
	run(t, func(ctx context.Context, group *dist.Group) error {
		return train.Rec(ctx, group, cfg, nil, train.Discard)
	})
	m := load(t, cfg.Out)
	rows, err := table.Read(t.Context(), labelled, m.Format, m.Rows.Config.Schema)
	if err != nil {
		t.Fatal(err)
	}
	logits, err := m.Rows.Score(t.Context(), rows.All(), 0, rows.Len(), 64)
	if err != nil {
		t.Fatal(err)
	}
	all, err := csv.NewReader(&text).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	label := slices.Index(all[0], m.Rows.Config.Schema.Label)
	var without, asJSON bytes.Buffer
	w := csv.NewWriter(&without)
	for i, row := range all {
		row = slices.Delete(slices.Clone(row), label, label+1)
		w.Write(row)
		if i > 0 {
			record := make(map[string]any)
			names := slices.Delete(slices.Clone(all[0]), label, label+1)
			for k, v := range row {
				record[names[k]] = v
				if v == "" {
					record[names[k]] = nil
				}
			}
			line, _ := json.Marshal(record)
			fmt.Fprintf(&asJSON, "%s\n", line)
		}
	}
	w.Flush()
	for format, in := range map[string]io.Reader{"": &without, predict.FormatJSONL: &asJSON} {
		out, _, err := predicted(t, m, predict.JSONLines, predict.Options{Paths: []string{"-"}, Stdin: in, Format: format})
		if err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(strings.TrimSpace(out), "\n")
		if len(lines) != len(logits) {
			t.Fatalf("%d results of %d rows", len(lines), len(logits))
		}
		for i, line := range lines {
			var got struct{ Probability float64 }
			if err := json.Unmarshal([]byte(line), &got); err != nil {
				t.Fatal(err)
			}
			if want := 1 / (1 + math.Exp(-logits[i])); math.Abs(got.Probability-want) > 1e-5 {
				t.Fatalf("row %d: probability %v, want %v", i, got.Probability, want)
			}
		}
	}
	in := strings.NewReader("user_id,item_id,hour,device,price\n1,2,3,phone,4\n")
	if _, _, err := predicted(t, m, predict.CSV, predict.Options{Paths: []string{"-"}, Stdin: in}); err == nil || !strings.Contains(err.Error(), `-:2: field "age": it is missing`) {
		t.Errorf("a missing column: %v", err)
	}
}
