// SPDX-License-Identifier: Apache-2.0

package onnx

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"hash/crc32"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/data/table"
	"github.com/cohort-ml/cohort/data/vision"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
	"github.com/cohort-ml/cohort/train"
)

var (
	python = flag.String("python", "", "a Python with onnx and onnxruntime, for TestRuntime")
	update = flag.Bool("update", false, "with -python: write down the graphs that ONNX Runtime computes right")
)

const graphs = "testdata/graphs.json"

// cases returns a model of each kind, by name.
func cases(t *testing.T) map[string]*train.Model {
	return map[string]*train.Model{
		"mlp":              classifier(t, train.ClassifierConfig{ModelType: "mlp", Size: 6, Channels: 1, Widths: []int{9}}),
		"cnn":              classifier(t, train.ClassifierConfig{ModelType: "cnn", Size: 11, Channels: 3, Widths: []int{4, 6}}),
		"resnet18, small":  classifier(t, train.ClassifierConfig{ModelType: "resnet18", Size: 32, Channels: 3}),
		"resnet50":         classifier(t, train.ClassifierConfig{ModelType: "resnet50", Size: 64, Channels: 3, Stem: "large"}),
		"dlrm":             recommender(t, "dlrm", 2),
		"dlrm, no numbers": recommender(t, "dlrm", 0),
		"mf":               recommender(t, "mf", 0),
	}
}

// export writes a model, and returns the file and the model's tensors by name.
func export(t *testing.T, m *train.Model) ([]byte, map[string]*tensor.Tensor) {
	t.Helper()
	var b bytes.Buffer
	if _, err := Export(&b, m); err != nil {
		t.Fatal(err)
	}
	var module any
	if m.Images != nil {
		module = m.Images.Model
	} else {
		module = m.Rows.Model
	}
	state := make(map[string]*tensor.Tensor)
	for _, s := range nn.StateDict(module) {
		if s.Tensor.DType() == tensor.Float32 {
			state[s.Name] = s.Tensor
		}
	}
	return b.Bytes(), state
}

// graphOf returns the checksum of a file without the values of the model's tensors, and says
// which of these tensors are in the file as they are.
func graphOf(t *testing.T, file []byte, state map[string]*tensor.Tensor) (sum uint32, held []string) {
	t.Helper()
	file = slices.Clone(file)
	for _, w := range fields(t, fields(t, file)[7][0])[5] {
		of := fields(t, w)
		want, ok := state[string(of[8][0])]
		if !ok {
			continue
		}
		var values []byte
		for _, v := range want.Float32s() {
			values = binary.LittleEndian.AppendUint32(values, math.Float32bits(v))
		}
		if bytes.Equal(of[9][0], values) {
			held = append(held, string(of[8][0]))
		}
		clear(of[9][0])
	}
	slices.Sort(held)
	return crc32.ChecksumIEEE(file), held
}

// TestGraphs: files have the graphs that ONNX Runtime computed right in TestRuntime, and all
// tensors of the model, once and as they are.
func TestGraphs(t *testing.T) {
	text, err := os.ReadFile(graphs)
	if err != nil {
		t.Fatal(err)
	}
	var want map[string]uint32
	if err := json.Unmarshal(text, &want); err != nil {
		t.Fatal(err)
	}
	models := cases(t)
	if len(want) != len(models) {
		t.Errorf("%d graphs are known of %d models", len(want), len(models))
	}
	for name, m := range models {
		file, state := export(t, m)
		sum, held := graphOf(t, file, state)
		if sum != want[name] {
			t.Errorf("%s: the graph differs from the one that ONNX Runtime computed: run TestRuntime -update", name)
		}
		if all := slices.Sorted(maps.Keys(state)); !slices.Equal(held, all) {
			t.Errorf("%s: the file has the tensors %v, want %v", name, held, all)
		}
	}
}

// stir gives norms statistics, and tables values, that are not those of a new model.
func stir(model any) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, s := range nn.StateDict(model) {
		if s.Tensor.DType() != tensor.Float32 {
			continue
		}
		positive := strings.HasSuffix(s.Name, "running_var")
		s.Tensor.WithFloat32s(func(v []float32) {
			for i := range v {
				if v[i] += float32(r.NormFloat64()) * 0.1; positive {
					v[i] = 0.5 + float32(r.Float64())
				}
			}
		})
	}
}

// classifier returns an image classifier with random weights.
func classifier(t *testing.T, c train.ClassifierConfig) *train.Model {
	t.Helper()
	c.Classes, c.Mean, c.Std = []string{"ant", "bee", "cat"}, []float64{0.5, 0.4, 0.3}[:c.Channels], []float64{0.2, 0.3, 0.25}[:c.Channels]
	m, err := train.NewClassifier(&nn.Build{Generator: tensor.NewGenerator(1)}, c)
	if err != nil {
		t.Fatal(err)
	}
	stir(m.Model)
	return &train.Model{Task: "vision", Path: c.ModelType, Images: m}
}

// recommender returns one with random weights.
func recommender(t *testing.T, kind string, numbers int) *train.Model {
	t.Helper()
	c := train.RecommenderConfig{ModelType: kind, Width: 4, Bottom: []int{8}, Top: []int{6}, Schema: table.Schema{
		Label: "click", Numbers: []string{"age", "price"}[:numbers], Categories: []string{"user", "item", "hour"}, Buckets: 20,
	}}
	c.Scale = table.Unscaled(c.Schema)
	for i := range c.Scale.Mean {
		c.Scale.Mean[i], c.Scale.Width[i] = 1e6+3, 7
	}
	m, err := train.NewRecommender(&nn.Build{Generator: tensor.NewGenerator(2)}, c)
	if err != nil {
		t.Fatal(err)
	}
	stir(m.Model)
	return &train.Model{Task: "rec", Path: kind, Rows: m}
}

// input is one of a file, as run.py reads it.
type input struct {
	Shape  []int `json:"shape"`
	Values []any `json:"values"`
}

// TestRuntime: ONNX's checker takes the files, and ONNX Runtime computes what Cohort does.
//
//	go test ./train/onnx -run TestRuntime -python /path/to/python [-update]
func TestRuntime(t *testing.T) {
	if *python == "" {
		t.Skip("needs -python")
	}
	dir := t.TempDir()
	var questions bytes.Buffer
	var want []map[string][]float64
	r := rand.New(rand.NewPCG(3, 4))
	const rows = 3
	models := cases(t)
	names, sums := slices.Sorted(maps.Keys(models)), make(map[string]uint32)
	for _, name := range names {
		m := models[name]
		file, state := export(t, m)
		sums[name], _ = graphOf(t, file, state)
		path := filepath.Join(dir, fmt.Sprintf("%d.onnx", len(want)))
		if err := os.WriteFile(path, file, 0o644); err != nil {
			t.Fatal(err)
		}
		var inputs map[string]input
		var answer map[string][]float64
		if m.Images != nil {
			inputs, answer = images(t, r, m.Images, rows)
		} else {
			inputs, answer = tables(t, r, m.Rows, rows)
		}
		if err := json.NewEncoder(&questions).Encode(map[string]any{"file": path, "inputs": inputs}); err != nil {
			t.Fatal(err)
		}
		want = append(want, answer)
	}
	cmd := exec.CommandContext(t.Context(), *python, "testdata/run.py")
	cmd.Stdin, cmd.Stderr = &questions, os.Stderr
	text, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	if len(lines) != len(want) {
		t.Fatalf("%d answers to %d questions", len(lines), len(want))
	}
	for i, line := range lines {
		var got map[string][]float64
		if err := json.Unmarshal([]byte(line), &got); err != nil {
			t.Fatal(err)
		}
		for name, values := range want[i] {
			largest, worst := 1e-9, 0.0
			for j, v := range values {
				largest, worst = max(largest, math.Abs(v)), max(worst, math.Abs(v-got[name][j]))
			}
			if len(got[name]) != len(values) || !(worst <= 1e-5*largest) {
				t.Errorf("%s, %s: %v, want %v", names[i], name, got[name], values)
			}
		}
	}
	if *update && !t.Failed() {
		text, err := json.MarshalIndent(sums, "", " ")
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(graphs, append(text, '\n'), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// images draws a batch of images, and returns what the model makes of it.
func images(t *testing.T, r *rand.Rand, m *train.Classifier, rows int) (map[string]input, map[string][]float64) {
	c := m.Config
	n := rows * c.Channels * c.Size * c.Size
	b := vision.Batch{N: rows, Channels: c.Channels, Height: c.Size, Width: c.Size, Images: make([]float32, n)}
	in := input{Shape: []int{rows, c.Channels, c.Size, c.Size}}
	for i := range n {
		v, channel := r.Float64(), i/(c.Size*c.Size)%c.Channels
		in.Values = append(in.Values, v)
		b.Images[i] = float32((v - c.Mean[channel]) / c.Std[channel])
	}
	pass := nn.Evaluation(t.Context())
	defer pass.Close()
	logits := m.Logits(pass, m.Model, b)
	return map[string]input{"images": in}, map[string][]float64{"logits": wide(logits), "probabilities": wide(logits.Softmax(1))}
}

// tables draws a batch of rows, with a missing number.
func tables(t *testing.T, r *rand.Rand, m *train.Recommender, rows int) (map[string]input, map[string][]float64) {
	s := m.Config.Schema
	batch := make([]table.Row, rows)
	numbers, categories := input{Shape: []int{rows, len(s.Numbers)}}, input{Shape: []int{rows, len(s.Categories)}}
	for i := range batch {
		for j := range s.Numbers {
			v := float32(1e6 + 10*r.NormFloat64())
			if i == 1 && j == 1 {
				numbers.Values = append(numbers.Values, nil)
				v = float32(math.NaN())
			} else {
				numbers.Values = append(numbers.Values, v)
			}
			batch[i].Numbers = append(batch[i].Numbers, v)
		}
		for range s.Categories {
			id := int32(r.IntN(s.Buckets))
			batch[i].Categories = append(batch[i].Categories, id)
			categories.Values = append(categories.Values, id)
		}
	}
	b, err := m.Config.Scale.Collate(batch)
	if err != nil {
		t.Fatal(err)
	}
	pass := nn.Evaluation(t.Context())
	defer pass.Close()
	logits := m.Logits(pass, m.Model, b)
	inputs := map[string]input{"categories": categories}
	if len(s.Numbers) > 0 {
		inputs["numbers"] = numbers
	}
	return inputs, map[string][]float64{"logit": wide(logits), "probability": wide(logits.Sigmoid())}
}

func wide(t *tensor.Tensor) (v []float64) {
	for _, x := range t.Float32s() {
		v = append(v, float64(x))
	}
	return v
}

// TestFile: the file says what it takes and gives, in the words of ONNX, and has all weights
// once.
func TestFile(t *testing.T) {
	m := classifier(t, train.ClassifierConfig{ModelType: "mlp", Size: 2, Channels: 1, Widths: []int{3}})
	var b bytes.Buffer
	s, err := Export(&b, m)
	if err != nil {
		t.Fatal(err)
	}
	if fmt.Sprint(s) != "{[{images float32 [1 2 2]}] [{logits float32 [3]} {probabilities float32 [3]}]}" {
		t.Errorf("%v", s)
	}
	file := fields(t, b.Bytes())
	body := fields(t, file[7][0])
	var ops, weights []string
	for _, n := range body[1] {
		ops = append(ops, string(fields(t, n)[4][0]))
	}
	for _, w := range body[5] {
		of := fields(t, w)
		weights = append(weights, fmt.Sprintf("%s:%d", of[8][0], len(of[9][0])))
	}
	if want := []string{"Sub", "Div", "Flatten", "Gemm", "Relu", "Gemm", "Identity", "Softmax"}; !slices.Equal(ops, want) {
		t.Errorf("operations %v, want %v", ops, want)
	}
	if want := []string{"mean:4", "std:4", "0.weight:48", "0.bias:12", "2.weight:36", "2.bias:12"}; !slices.Equal(weights, want) {
		t.Errorf("weights %v, want %v", weights, want)
	}
	metadata := make(map[string]string)
	for _, p := range file[14] {
		of := fields(t, p)
		metadata[string(of[1][0])] = string(of[2][0])
	}
	if metadata["classes"] != `["ant","bee","cat"]` || metadata["size"] != "2" {
		t.Errorf("metadata %v", metadata)
	}
}

// fields parses a message; whole numbers are left out.
func fields(t *testing.T, b []byte) map[uint64][][]byte {
	t.Helper()
	all := make(map[uint64][][]byte)
	for len(b) > 0 {
		tag, n := binary.Uvarint(b)
		b = b[n:]
		switch tag & 7 {
		case wireVarint:
			_, n = binary.Uvarint(b)
		case wireFixed32:
			n = 4
		case wireBytes:
			size, k := binary.Uvarint(b)
			all[tag>>3] = append(all[tag>>3], b[k:k+int(size)])
			n = k + int(size)
		default:
			t.Fatalf("wire type %d", tag&7)
		}
		b = b[n:]
	}
	return all
}

// TestRefused: what has no counterpart is an error with its name.
func TestRefused(t *testing.T) {
	m := classifier(t, train.ClassifierConfig{ModelType: "mlp", Size: 2, Channels: 1, Widths: []int{3}})
	layers := m.Images.Model.(*nn.Sequential)
	layers.Layers[1] = &nn.GELU{}
	_, err := Export(new(bytes.Buffer), m)
	if bad := (*UnknownModuleError)(nil); !errors.As(err, &bad) || bad.Path != "1" || bad.Type != "nn.GELU" || !strings.Contains(err.Error(), "module 1, a nn.GELU, is not exported to ONNX") {
		t.Errorf("%v", err)
	}
	if _, err := Export(new(bytes.Buffer), &train.Model{Task: "lm", Path: "out/lm", LM: &train.LanguageModel{}}); err == nil || !strings.Contains(err.Error(), `out/lm is a model of the task "lm"`) {
		t.Errorf("%v", err)
	}
}
