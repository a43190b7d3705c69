// SPDX-License-Identifier: Apache-2.0

// Command rnn-rpc trains a network that writes, one letter after the other. Its LSTM
// is in the trainer; the embedding and the decoder, which grow with the vocabulary,
// are in two other processes.
package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/launch"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/optim"
	"github.com/cohort-ml/cohort/rpc"
	"github.com/cohort-ml/cohort/rpc/autograd"
	"github.com/cohort-ml/cohort/rpc/remote"
	"github.com/cohort-ml/cohort/tensor"
)

const (
	text  = "one two three four five six seven eight nine ten eleven twelve "
	steps = 121
	lanes = 8  // places of the text that are read side by side
	span  = 24 // letters of each that a step reads

	width, hidden = 16, 32
)

// names are those of the processes, by rank.
var names = []string{"trainer", "embedding", "decoder"}

// Sizes are those of a part that is made elsewhere.
type Sizes struct{ In, Out int }

var (
	NewEmbedding = rpc.NewMaker[Sizes, nn.Module]("embedding.New")
	NewDecoder   = rpc.NewMaker[Sizes, nn.Module]("decoder.New")
)

func newEmbedding(_ context.Context, s Sizes) (nn.Module, error) {
	return nn.NewEmbedding(&nn.Build{}, s.In, s.Out), nil
}

func newDecoder(_ context.Context, s Sizes) (nn.Module, error) {
	return nn.NewLinear(&nn.Build{}, s.In, s.Out), nil
}

// Writer is the network. It does not know which of its parts are elsewhere.
type Writer struct {
	Embedding nn.Module
	LSTM      *nn.LSTM
	Decoder   nn.Module
}

// ForwardN takes letters [time, lanes], and the LSTM's states after those before or
// nil, to a score for each possible next letter [time, lanes, vocabulary], and the
// states after them.
func (w *Writer) ForwardN(c *nn.Ctx, x ...*tensor.Tensor) []*tensor.Tensor {
	nn.WantInputs("Writer", x, "letters and both states", 3)
	out := c.CallN(w.LSTM, c.Call(w.Embedding, x[0]), x[1], x[2])
	return []*tensor.Tensor{c.Call(w.Decoder, out[0]), out[1], out[2]}
}

// vocabulary is what the text consists of, a letter at its id.
var vocabulary = func() (letters string) {
	for _, r := range text {
		if !strings.ContainsRune(letters, r) {
			letters += string(r)
		}
	}
	return letters
}()

// letters returns what step reads, and what comes next at each place: ids [span, lanes].
func letters(step int) (x, next *tensor.Tensor) {
	ids := func(from int) *tensor.Tensor {
		out := make([]int64, 0, span*lanes)
		for t := range span {
			for lane := range lanes {
				at := from + step*span + t + lane*len(text)/lanes
				out = append(out, int64(strings.IndexByte(vocabulary, text[at%len(text)])))
			}
		}
		return tensor.FromInt64(out, span, lanes)
	}
	return ids(0), ids(1)
}

// trainer is what a training run keeps from step to step.
type trainer struct {
	agent *rpc.Agent
	model *Writer
	opt   *autograd.Optimizer
	h, c  *tensor.Tensor // the LSTM's states: each step goes on where the last one ended
}

// states returns those of the LSTM at the beginning.
func states() (h, c *tensor.Tensor) {
	return tensor.Zeros(1, lanes, hidden), tensor.Zeros(1, lanes, hidden)
}

func (t *trainer) step(ctx context.Context, x, next *tensor.Tensor) (loss float64, err error) {
	return t.opt.Train(ctx, func(c *nn.Ctx) (*tensor.Tensor, error) {
		out := c.CallN(t.model, x, c.Tape().Const(t.h), c.Tape().Const(t.c))
		t.h, t.c = out[1].Detach().Keep(), out[2].Detach().Keep()
		return tensor.CrossEntropy(out[0], next), nil
	})
}

// train returns the last loss.
func (t *trainer) train(ctx context.Context) (loss float64, err error) {
	params, err := remote.Parameters(ctx, t.agent, t.model)
	if err != nil {
		return 0, err
	}
	if t.opt, err = autograd.NewOptimizer(ctx, t.agent, autograd.AdamW(optim.AdamWOptions{LR: 0.01}), params); err != nil {
		return 0, err
	}
	defer t.opt.Close()
	t.h, t.c = states()
	for i := range steps {
		x, next := letters(i)
		if loss, err = t.step(ctx, x, next); err != nil {
			return 0, err
		}
		if i%40 == 0 {
			fmt.Printf("step %3d: loss %.3f\n", i, loss)
		}
	}
	return loss, nil
}

// write goes on with a text for some letters, always with the one of the best score.
func (w *Writer) write(ctx context.Context, begin string, n int) (s string, err error) {
	c := nn.Evaluation(ctx)
	defer c.Close()
	defer c.Recover(&err)
	s = begin
	var h, cell *tensor.Tensor
	for i := range len(begin) + n - 1 {
		id := int64(strings.IndexByte(vocabulary, s[i]))
		out := c.CallN(w, tensor.FromInt64([]int64{id}, 1, 1), h, cell)
		h, cell = out[1], out[2]
		if i == len(s)-1 {
			s += string(vocabulary[out[0].ArgMax(-1).Int64s()[0]])
		}
	}
	return s, nil
}

// newWriter makes the parts of the network where they belong.
func newWriter(ctx context.Context, a *rpc.Agent) (*Writer, error) {
	embedding, err := remote.New(ctx, a.Peer("embedding"), NewEmbedding, Sizes{len(vocabulary), width})
	if err != nil {
		return nil, err
	}
	decoder, err := remote.New(ctx, a.Peer("decoder"), NewDecoder, Sizes{hidden, len(vocabulary)})
	if err != nil {
		return nil, err
	}
	return &Writer{embedding, nn.NewLSTM(&nn.Build{}, width, hidden, nn.RNNOptions{}), decoder}, nil
}

// use is what the trainer does. The parts go when nothing refers to them any more.
func use(ctx context.Context, a *rpc.Agent) error {
	model, err := newWriter(ctx, a)
	if err != nil {
		return err
	}
	t := &trainer{agent: a, model: model}
	if _, err := t.train(ctx); err != nil {
		return err
	}
	s, err := model.write(ctx, "one ", 60)
	if err != nil {
		return err
	}
	fmt.Println(s)
	return nil
}

// start makes the agent of a process.
func start(ctx context.Context, group *dist.Group) (*rpc.Agent, error) {
	return rpc.Init(ctx, names[group.Rank()], rpc.WithGroup(group), autograd.WithEngine(), remote.Serve(),
		rpc.ServeMaker(NewEmbedding, newEmbedding), rpc.ServeMaker(NewDecoder, newDecoder))
}

func run(ctx context.Context, group *dist.Group) error {
	a, err := start(ctx, group)
	if err != nil {
		return err
	}
	defer a.Close()
	if a.Name() == "trainer" {
		if err := use(ctx, a); err != nil {
			return err
		}
	}
	return a.Shutdown(ctx)
}

func main() {
	launch.Exit(launch.Spawn(context.Background(), len(names), dist.Main(run)))
}
