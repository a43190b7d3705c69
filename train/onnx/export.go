// SPDX-License-Identifier: Apache-2.0

package onnx

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"

	"github.com/cohort-ml/cohort/models"
	"github.com/cohort-ml/cohort/train"
)

// Summary says what an ONNX file takes and gives.
type Summary struct {
	Inputs, Outputs []Value
}

// Value is an input or output; the first dim, the batch, is left out of its shape.
type Value struct {
	Name, DType string
	Shape       []int
}

// Export writes a classifier of images or a recommender as an ONNX file. A model of another
// task is an error, and so is a module that has no counterpart ([UnknownModuleError]).
func Export(w io.Writer, m *train.Model) (Summary, error) {
	switch {
	case m.Images != nil:
		return exportImages(w, m.Images)
	case m.Rows != nil:
		return exportRows(w, m.Rows)
	}
	return Summary{}, fmt.Errorf("onnx: %s is a model of the task %q: only image classifiers (cohort train vision) and models of tables (cohort train rec) are exported. "+
		"Models of texts are in folders of Hugging Face, which optimum exports", m.Path, m.Task)
}

func exportImages(w io.Writer, m *train.Classifier) (Summary, error) {
	c, g := m.Config, newGraph()
	x := g.input("images", typeFloat, c.Channels, c.Size, c.Size)
	shape := []int{1, c.Channels, 1, 1}
	x = g.node("Div", nil, g.node("Sub", nil, x, g.floats("mean", shape, c.Mean...)), g.floats("std", shape, c.Std...))
	if _, conv := m.Model.(*models.CNN); !conv {
		if _, conv = m.Model.(*models.ResNet); !conv {
			x = g.node("Flatten", nil, x)
		}
	}
	y, err := g.module("", m.Model, x)
	if err != nil {
		return Summary{}, fmt.Errorf("onnx: %w", err)
	}
	g.named("Identity", "logits", nil, y)
	g.named("Softmax", "probabilities", []attribute{{"axis", 1}}, y)
	classes := len(c.Classes)
	g.output("logits", classes)
	g.output("probabilities", classes)
	if err := g.describe(map[string]any{"classes": c.Classes, "mean": c.Mean, "std": c.Std, "size": c.Size, "fitting": c.Fitting()}); err != nil {
		return Summary{}, err
	}
	return Summary{
		Inputs:  []Value{{"images", "float32", []int{c.Channels, c.Size, c.Size}}},
		Outputs: []Value{{"logits", "float32", []int{classes}}, {"probabilities", "float32", []int{classes}}},
	}, g.write(w, c.ModelType)
}

func exportRows(w io.Writer, m *train.Recommender) (s Summary, err error) {
	g, schema, scale := newGraph(), m.Config.Schema, m.Config.Scale
	numbers, columns := len(schema.Numbers), len(schema.Categories)
	var logits string
	switch model := m.Model.(type) {
	case *models.DLRM:
		var x string
		if numbers > 0 {
			x = g.node("Cast", []attribute{{"to", typeDouble}}, g.input("numbers", typeFloat, numbers))
			x = g.node("Div", nil, g.node("Sub", nil, x, g.doubles("mean", scale.Mean)), g.doubles("width", scale.Width))
			x = g.node("Cast", []attribute{{"to", typeFloat}}, x)
			x = g.node("Where", nil, g.node("IsNaN", nil, x), g.floats("missing", nil, 0), x)
			s.Inputs = append(s.Inputs, Value{"numbers", "float32", []int{numbers}})
		}
		categories := g.input("categories", typeInt64, columns)
		if numbers == 0 { // a column of zeros, as many as there are rows
			first := g.node("Unsqueeze", nil, g.column(categories, 0), g.ints("one", []int{1}, 1))
			x = g.node("Mul", nil, g.node("Cast", []attribute{{"to", typeFloat}}, first), g.floats("nothing", nil, 0))
		}
		logits, err = g.dlrm(model, x, categories)
	case *models.MatrixFactorization:
		logits = g.factorization(model, g.input("categories", typeInt64, columns))
	default:
		err = unknown("", m.Model, "")
	}
	if err != nil {
		return Summary{}, fmt.Errorf("onnx: %w", err)
	}
	g.named("Identity", "logit", nil, logits)
	g.named("Sigmoid", "probability", nil, logits)
	g.output("logit")
	g.output("probability")
	s.Inputs = append(s.Inputs, Value{"categories", "int64", []int{columns}})
	s.Outputs = []Value{{"logit", "float32", nil}, {"probability", "float32", nil}}
	err = g.describe(map[string]any{"numbers": schema.Numbers, "categories": schema.Categories, "buckets": schema.Buckets, "label": schema.Label})
	if err != nil {
		return Summary{}, err
	}
	return s, g.write(w, m.Config.ModelType)
}

// describe writes metadata: texts and whole numbers as they are, the rest as JSON.
func (g *graph) describe(metadata map[string]any) error {
	for key, v := range metadata {
		switch v := v.(type) {
		case string:
			g.metadata[key] = v
		case int:
			g.metadata[key] = strconv.Itoa(v)
		default:
			text, err := json.Marshal(v)
			if err != nil {
				return fmt.Errorf("onnx: the metadata %s: %w", key, err)
			}
			g.metadata[key] = string(text)
		}
	}
	return nil
}
