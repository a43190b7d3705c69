// SPDX-License-Identifier: Apache-2.0

package onnx

import (
	"fmt"
	"strings"

	"github.com/cohort-ml/cohort/models"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// UnknownModuleError is returned for a model with a module that ONNX files are not made of.
type UnknownModuleError struct {
	Path string // of the module in the model
	Type string // in Go
	What string // about it that is not known; "" for all of it
}

func (e *UnknownModuleError) Error() string {
	what := "is not exported to ONNX"
	if e.What != "" {
		what = "with " + e.What + " is not exported to ONNX"
	}
	at := "the model"
	if e.Path != "" {
		at = "module " + e.Path
	}
	return fmt.Sprintf("%s, a %s, %s: the modules of MLPs, CNNs, ResNets, DLRMs and matrix factorization are", at, e.Type, what)
}

func unknown(path string, m any, what string) error {
	return &UnknownModuleError{path, strings.TrimPrefix(fmt.Sprintf("%T", m), "*"), what}
}

func at(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

// step is a module, its name, or an operation of no weights.
type step struct {
	name   string
	module any
	op     string
}

// module adds the nodes of a module that takes x; path is its name in the model.
func (g *graph) module(path string, m any, x string) (string, error) {
	switch m := m.(type) {
	case *nn.Sequential:
		var steps []step
		for i, l := range m.Layers {
			steps = append(steps, step{name: fmt.Sprint(i), module: l})
		}
		return g.steps(path, x, steps...)
	case *nn.Linear:
		in := []string{x, g.weight(at(path, "weight"), m.Weight.Data())}
		if m.Bias != nil {
			in = append(in, g.weight(at(path, "bias"), m.Bias.Data()))
		}
		return g.node("Gemm", []attribute{{"transB", 1}}, in...), nil
	case *nn.Conv2d:
		return g.conv(path, m, x)
	case *nn.BatchNorm2d:
		if m.RunningMean == nil || m.Weight == nil || m.Bias == nil {
			return "", unknown(path, m, "no running statistics or no weights")
		}
		return g.node("BatchNormalization", []attribute{{"epsilon", m.Eps}}, x, g.weight(at(path, "weight"), m.Weight.Data()), g.weight(at(path, "bias"), m.Bias.Data()),
			g.weight(at(path, "running_mean"), m.RunningMean.Data), g.weight(at(path, "running_var"), m.RunningVar.Data)), nil
	case *nn.ReLU:
		return g.node("Relu", nil, x), nil
	case *nn.MaxPool2d:
		return g.node("MaxPool", pooling(tensor.Pool2dOptions(*m)), x), nil
	case *nn.AdaptiveAvgPool2d:
		if m.Size != nn.Square(1) {
			return "", unknown(path, m, fmt.Sprintf("the size %v", m.Size))
		}
		return g.node("GlobalAveragePool", nil, x), nil
	case *models.CNN:
		return g.cnn(path, m, x)
	case *models.CNNStage:
		return g.steps(path, x, step{"conv1", m.Conv1, ""}, step{"bn1", m.BN1, ""}, step{op: "Relu"}, step{"conv2", m.Conv2, ""}, step{"bn2", m.BN2, ""}, step{op: "Relu"})
	case *models.ResNet:
		return g.resNet(path, m, x)
	case *models.BasicBlock:
		y, err := g.steps(path, x, step{"conv1", m.Conv1, ""}, step{"bn1", m.BN1, ""}, step{op: "Relu"}, step{"conv2", m.Conv2, ""}, step{"bn2", m.BN2, ""})
		if err != nil {
			return "", err
		}
		return g.residual(path, m.Downsample, x, y)
	case *models.Bottleneck:
		y, err := g.steps(path, x, step{"conv1", m.Conv1, ""}, step{"bn1", m.BN1, ""}, step{op: "Relu"}, step{"conv2", m.Conv2, ""}, step{"bn2", m.BN2, ""}, step{op: "Relu"},
			step{"conv3", m.Conv3, ""}, step{"bn3", m.BN3, ""})
		if err != nil {
			return "", err
		}
		return g.residual(path, m.Downsample, x, y)
	}
	return "", unknown(path, m, "")
}

// steps adds modules and operations one after the other.
func (g *graph) steps(path, x string, steps ...step) (_ string, err error) {
	for _, s := range steps {
		if s.op != "" {
			x = g.node(s.op, nil, x)
		} else if x, err = g.module(at(path, s.name), s.module, x); err != nil {
			return "", err
		}
	}
	return x, nil
}

// residual adds the shortcut of a block.
func (g *graph) residual(path string, downsample *nn.Sequential, x, y string) (_ string, err error) {
	if downsample != nil {
		if x, err = g.module(at(path, "downsample"), downsample, x); err != nil {
			return "", err
		}
	}
	return g.node("Relu", nil, g.node("Add", nil, y, x)), nil
}

func (g *graph) conv(path string, m *nn.Conv2d, x string) (string, error) {
	o := m.Options
	if o.OutputPadding != nn.Square(0) {
		return "", unknown(path, m, "an output padding")
	}
	kernel := m.Weight.Data().Shape()[2:]
	in := []string{x, g.weight(at(path, "weight"), m.Weight.Data())}
	if m.Bias != nil {
		in = append(in, g.weight(at(path, "bias"), m.Bias.Data()))
	}
	return g.node("Conv", []attribute{
		{"kernel_shape", kernel}, {"strides", orOne(o.Stride)}, {"dilations", orOne(o.Dilation)}, {"group", max(1, o.Groups)},
		{"pads", []int{o.Padding[0], o.Padding[1], o.Padding[0], o.Padding[1]}},
	}, in...), nil
}

func orOne(p [2]int) []int { return []int{max(1, p[0]), max(1, p[1])} }

// pooling are the attributes of a pooling.
func pooling(o tensor.Pool2dOptions) []attribute {
	stride := o.Stride
	for i, s := range stride {
		if s == 0 {
			stride[i] = o.Kernel[i]
		}
	}
	ceil := 0
	if o.CeilMode {
		ceil = 1
	}
	return []attribute{
		{"kernel_shape", o.Kernel[:]}, {"strides", stride[:]}, {"dilations", orOne(o.Dilation)}, {"ceil_mode", ceil},
		{"pads", []int{o.Padding[0], o.Padding[1], o.Padding[0], o.Padding[1]}},
	}
}

func (g *graph) resNet(path string, m *models.ResNet, x string) (_ string, err error) {
	steps := []step{{"conv1", m.Conv1, ""}, {"bn1", m.BN1, ""}, {op: "Relu"}}
	if m.MaxPool != nil {
		steps = append(steps, step{"maxpool", m.MaxPool, ""})
	}
	for i, l := range []*nn.Sequential{m.Layer1, m.Layer2, m.Layer3, m.Layer4} {
		steps = append(steps, step{fmt.Sprintf("layer%d", i+1), l, ""})
	}
	if x, err = g.steps(path, x, append(steps, step{"avgpool", m.AvgPool, ""}, step{op: "Flatten"})...); err != nil {
		return "", err
	}
	return g.module(at(path, "fc"), m.FC, x)
}

func (g *graph) cnn(path string, m *models.CNN, x string) (_ string, err error) {
	var steps []step
	for i, s := range m.Stages {
		if i > 0 {
			steps = append(steps, step{"pool", m.Pool, ""})
		}
		steps = append(steps, step{fmt.Sprintf("stages.%d", i), s, ""})
	}
	return g.steps(path, x, append(steps, step{op: "GlobalAveragePool"}, step{op: "Flatten"}, step{"head", m.Head, ""})...)
}

// column returns column i of whole numbers [batch, columns], as [batch].
func (g *graph) column(x string, i int) string {
	return g.node("Gather", []attribute{{"axis", 1}}, x, g.ints(fmt.Sprintf("column_%d", i), nil, int64(i)))
}

// rows looks up rows of a table.
func (g *graph) rows(path string, table *nn.Parameter, ids string) string {
	return g.node("Gather", []attribute{{"axis", 0}}, g.weight(at(path, "weight"), table.Data()), ids)
}

// dlrm returns the logits [batch].
func (g *graph) dlrm(m *models.DLRM, numbers, categories string) (string, error) {
	dense, err := g.module("bot_l", m.Bottom, numbers)
	if err != nil {
		return "", err
	}
	one := g.ints("one", []int{1}, 1)
	stacked := []string{g.node("Unsqueeze", nil, dense, one)}
	for i, table := range m.Tables {
		path := fmt.Sprintf("emb_l.%d", i)
		if table.Mode != tensor.BagSum || table.PaddingIdx != nil {
			return "", unknown(path, table, "another mode than the sum, or a padding")
		}
		stacked = append(stacked, g.node("Unsqueeze", nil, g.rows(path, table.Weight, g.column(categories, i)), one))
	}
	vectors := g.node("Concat", []attribute{{"axis", 1}}, stacked...)
	products := g.node("Flatten", nil, g.node("MatMul", nil, vectors, g.node("Transpose", []attribute{{"perm", []int{0, 2, 1}}}, vectors)))
	var lower []int64
	n := len(stacked)
	for i := range n {
		for j := range i {
			lower = append(lower, int64(i*n+j))
		}
	}
	pairs := g.node("Gather", []attribute{{"axis", 1}}, products, g.ints("pairs", []int{len(lower)}, lower...))
	y, err := g.module("top_l", m.Top, g.node("Concat", []attribute{{"axis", 1}}, dense, pairs))
	if err != nil {
		return "", err
	}
	return g.node("Squeeze", nil, y, one), nil
}

// factorization returns the logits [batch].
func (g *graph) factorization(m *models.MatrixFactorization, categories string) string {
	users, items := g.column(categories, 0), g.column(categories, 1)
	one := g.ints("one", []int{1}, 1)
	taste := g.node("ReduceSum", []attribute{{"keepdims", 0}},
		g.node("Mul", nil, g.rows("user", m.User.Weight, users), g.rows("item", m.Item.Weight, items)), one)
	alone := g.node("Squeeze", nil, g.node("Add", nil, g.rows("user_bias", m.UserBias.Weight, users), g.rows("item_bias", m.ItemBias.Weight, items)), one)
	return g.node("Add", nil, g.node("Add", nil, taste, alone), g.weight("bias", m.Bias.Data()))
}
