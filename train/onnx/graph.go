// SPDX-License-Identifier: Apache-2.0

package onnx

import (
	"encoding/binary"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"

	"github.com/cohort-ml/cohort/tensor"
)

// The numbers of ONNX: of its files, of the operations, of dtypes, of attributes.
const (
	irVersion = 8
	opset     = 17

	typeFloat  = 1
	typeInt64  = 7
	typeDouble = 11

	attributeFloat = 1
	attributeInt   = 2
	attributeInts  = 7
)

// maxFile is what a message of protocol buffers may have.
const maxFile = math.MaxInt32

// graph is an ONNX graph that is being made.
type graph struct {
	nodes, weights, inputs, outputs message
	stored                          map[string]bool // names of weights that are there
	count                           int             // of values that have been named
	metadata                        map[string]string
}

func newGraph() *graph {
	return &graph{stored: make(map[string]bool), metadata: make(map[string]string)}
}

// attribute is one of a node.
type attribute struct {
	name  string
	value any // int, float64 or []int
}

// node adds an operation and returns the name of its result.
func (g *graph) node(op string, attributes []attribute, inputs ...string) string {
	g.count++
	out := fmt.Sprintf("%s_%d", op, g.count)
	g.named(op, out, attributes, inputs...)
	return out
}

// named is node with the name of the result.
func (g *graph) named(op, out string, attributes []attribute, inputs ...string) {
	var n message
	for _, in := range inputs {
		n.text(1, in)
	}
	n.text(2, out)
	n.text(3, out)
	n.text(4, op)
	for _, a := range attributes {
		var m message
		m.text(1, a.name)
		switch v := a.value.(type) {
		case int:
			m.int(3, int64(v))
			m.int(20, attributeInt)
		case float64:
			m.float(2, float32(v))
			m.int(20, attributeFloat)
		case []int:
			for _, i := range v {
				m.int(8, int64(i))
			}
			m.int(20, attributeInts)
		}
		n.message(5, &m)
	}
	g.nodes.message(1, &n)
}

// weight adds the values of a tensor under a name, once.
func (g *graph) weight(name string, t *tensor.Tensor) string {
	if !g.stored[name] {
		values := t.Detach().To(tensor.Float32).Contiguous().Float32s()
		b := make([]byte, 0, 4*len(values))
		for _, v := range values {
			b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
		}
		g.store(name, typeFloat, t.Shape(), b)
	}
	return name
}

// doubles adds 64-bit numbers.
func (g *graph) doubles(name string, values []float64) string {
	var b []byte
	for _, v := range values {
		b = binary.LittleEndian.AppendUint64(b, math.Float64bits(v))
	}
	g.store(name, typeDouble, []int{len(values)}, b)
	return name
}

// floats adds 32-bit numbers.
func (g *graph) floats(name string, shape []int, values ...float64) string {
	var b []byte
	for _, v := range values {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(float32(v)))
	}
	g.store(name, typeFloat, shape, b)
	return name
}

// ints adds whole numbers; shape nil is a single one without dims.
func (g *graph) ints(name string, shape []int, values ...int64) string {
	var b []byte
	for _, v := range values {
		b = binary.LittleEndian.AppendUint64(b, uint64(v))
	}
	g.store(name, typeInt64, shape, b)
	return name
}

func (g *graph) store(name string, dtype int64, shape []int, data []byte) {
	if g.stored[name] {
		return
	}
	g.stored[name] = true
	var t message
	for _, d := range shape {
		t.int(1, int64(d))
	}
	t.int(2, dtype)
	t.text(8, name)
	t.raw(9, data)
	g.weights.message(5, &t)
}

// value describes an input or output: batch, and the dims after it.
func value(name string, dtype int64, dims ...int) *message {
	var shape, batch message
	batch.text(2, "batch")
	shape.message(1, &batch)
	for _, d := range dims {
		var dim message
		dim.int(1, int64(d))
		shape.message(1, &dim)
	}
	var of, kind, v message
	of.int(1, dtype)
	of.message(2, &shape)
	kind.message(1, &of)
	v.text(1, name)
	v.message(2, &kind)
	return &v
}

func (g *graph) input(name string, dtype int64, dims ...int) string {
	g.inputs.message(11, value(name, dtype, dims...))
	return name
}

func (g *graph) output(name string, dims ...int) {
	g.outputs.message(12, value(name, typeFloat, dims...))
}

// write writes the file.
func (g *graph) write(w io.Writer, name string) error {
	var body, file, set message
	body.append(&g.nodes)
	body.text(2, name)
	body.append(&g.weights)
	body.append(&g.inputs)
	body.append(&g.outputs)
	file.int(1, irVersion)
	file.text(2, "cohort")
	file.message(7, &body)
	set.text(1, "")
	set.int(2, opset)
	file.message(8, &set)
	for _, key := range slices.Sorted(maps.Keys(g.metadata)) {
		var entry message
		entry.text(1, key)
		entry.text(2, g.metadata[key])
		file.message(14, &entry)
	}
	if file.size > maxFile {
		return fmt.Errorf("the model takes %d bytes, an ONNX file has at most %d: export a smaller one", file.size, maxFile)
	}
	return file.writeTo(w)
}

// append adds the fields of another message.
func (m *message) append(of *message) {
	for _, p := range of.parts {
		m.add(p[:len(p):len(p)])
	}
}
