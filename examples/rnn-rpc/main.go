// SPDX-License-Identifier: Apache-2.0

// Command rnn-rpc trains a network that writes a text letter by letter. Its LSTM is in
// the trainer. The embedding and the decoder grow with the vocabulary. They are in two
// other processes.
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
	lanes = 8  // sequences of a batch, read in parallel
	span  = 24 // letters of each sequence in a step

	width, hidden = 16, 32
)

// names has the name of each process, by rank.
var names = []string{"trainer", "embedding", "decoder"}

// Sizes has the sizes of a part that another process makes.
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

// Writer is the network. It does not know which of its parts are in other processes.
type Writer struct {
	Embedding nn.Module
	LSTM      *nn.LSTM
	Decoder   nn.Module
}

// ForwardN takes letters [time, lanes] and the LSTM's states after the letters before
// them, or nil. It returns a score for each possible next letter [time, lanes,
// vocabulary], and the new states.
func (w *Writer) ForwardN(c *nn.Ctx, x ...*tensor.Tensor) []*tensor.Tensor {
	nn.WantInputs("Writer", x, "letters and both states", 3)
	out := c.CallN(w.LSTM, c.Call(w.Embedding, x[0]), x[1], x[2])
	return []*tensor.Tensor{c.Call(w.Decoder, out[0]), out[1], out[2]}
}

// vocabulary has all letters of the text. The index of a letter is its id.
var vocabulary = func() (letters string) {
	for _, r := range text {
		if !strings.ContainsRune(letters, r) {
			letters += string(r)
		}
	}
	return letters
}()

// letters returns the letters of a step and the letter after each: ids [span, lanes].
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

// trainer has what a training run keeps from step to step.
type trainer struct {
	agent *rpc.Agent
	model *Writer
	opt   *autograd.Optimizer
	h, c  *tensor.Tensor // the LSTM's states, from which the next step continues
}

// states returns the LSTM's states at the beginning.
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

// train trains the network and returns the last loss.
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

// write continues a text by some letters. It always takes the letter with the best score.
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

// newWriter makes the network, with each part in its process.
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

// use runs in the trainer. A part is freed when nothing refers to it any more.
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
