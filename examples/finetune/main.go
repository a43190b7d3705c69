// SPDX-License-Identifier: Apache-2.0

// Command finetune teaches a language model to answer questions. On two ranks it
// trains low-rank matrices beside the weights (LoRA), on pairs of a question and an
// answer. It saves them as an adapter, which Python's PEFT opens too.
//
//	go run ./examples/finetune
//
// By default a tiny Llama that can count in words learns to write numbers in
// figures. -from takes the Hugging Face folder of a GPT-2 or Llama. -data takes a
// file with a question, a tab and an answer in each line.
package main

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/data"
	"github.com/cohort-ml/cohort/data/tokenizer"
	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/launch"
	"github.com/cohort-ml/cohort/models"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/optim"
	"github.com/cohort-ml/cohort/tensor"
	"github.com/cohort-ml/cohort/train"
)

var (
	from   = flag.String("from", "train/testdata/finetune/llama", "folder of the model")
	source = flag.String("data", "", "file of questions and answers; default is numbers in words and in figures")
	out    = flag.String("out", "out/finetune", "directory of the run")
	rank   = flag.Int("lora", 16, "rank of the matrices")
	epochs = flag.Float64("epochs", 60, "how often each pair is seen")
	rate   = flag.Float64("lr", 5e-3, "highest learning rate")
)

// pair is a sample: the tokens of a question and its answer, and the position at
// which the answer begins.
type pair struct {
	question string
	tokens   []int64
	answer   int
}

// batch contains pairs of one length: the inputs, and for each input the token that
// follows it. Only the tokens of answers count in the loss.
type batch struct{ inputs, targets *tensor.Tensor }

// collate makes a batch of pairs. Padding of short pairs comes after their end,
// where it has no effect on tokens that count.
func collate(pairs []pair) (batch, error) {
	longest := 0
	for _, p := range pairs {
		longest = max(longest, len(p.tokens)-1)
	}
	inputs, targets := make([]int64, len(pairs)*longest), make([]int64, len(pairs)*longest)
	for i, p := range pairs {
		row := inputs[i*longest : (i+1)*longest]
		copy(row, p.tokens[:len(p.tokens)-1])
		for j := range row {
			targets[i*longest+j] = tensor.IgnoreIndex
			if next := j + 1; next >= p.answer && next < len(p.tokens) {
				targets[i*longest+j] = p.tokens[next]
			}
		}
	}
	return batch{tensor.FromInt64(inputs, len(pairs), longest), tensor.FromInt64(targets, len(pairs), longest)}, nil
}

// tune runs on every rank.
func tune(ctx context.Context, group *dist.Group, report train.Reporter) error {
	model, err := models.LoadCausalLM(*from)
	if err != nil {
		return err
	}
	tok, err := tokenizer.Load(*from)
	if err != nil {
		return err
	}
	pairs, err := readPairs(tok, model.Context())
	if err != nil {
		return err
	}
	var learned, asked []pair // every seventh pair is for the exam
	for i, p := range pairs {
		if i%7 == 2 {
			asked = append(asked, p)
		} else {
			learned = append(learned, p)
		}
	}

	// The weights of the model are frozen. Only the matrices beside them are trained.
	b := &nn.Build{Generator: tensor.NewGenerator(1)}
	lora, err := nn.NewLoRA(b, model, nn.LoRAOptions{Rank: *rank, Targets: projections(model)})
	if err != nil {
		return err
	}
	var added []*nn.Parameter
	for _, p := range lora.Added {
		added = append(added, p.Parameter)
	}

	const perRank = 8
	o := train.Options{Out: *out, Epochs: *epochs, Batch: perRank * group.Size(), Clip: 1, EvalEvery: 50, Best: true}
	steps := int(*epochs * float64(len(learned)) / float64(o.Batch))
	return train.Run(ctx, group, train.Task[batch]{
		Name:  "finetune",
		About: train.About{Model: fmt.Sprintf("LoRA of rank %d beside %s", *rank, *from), Data: fmt.Sprintf("%d pairs to learn, %d to ask", len(learned), len(asked))},
		Model: lora, Weights: lora.State, WeightsFile: models.AdapterFile,
		Optimizer: func([]*nn.Parameter) optim.Optimizer {
			return optim.NewAdamW(added, optim.AdamWOptions{LR: *rate, WeightDecay: 0.01})
		},
		Schedule: optim.WarmupCosine(steps/10, steps, 0.05),
		Loss: func(c *nn.Ctx, model any, x batch) *tensor.Tensor {
			return tensor.CrossEntropy(c.Call(model.(nn.Module), x.inputs), x.targets)
		},
		Samples: len(learned),
		Feed: func(ctx context.Context, at data.LoaderState) (train.Feed[batch], error) {
			order, err := data.NewStream(data.StreamConfig{
				Len: len(learned), Batch: perRank, Rank: group.Rank(), World: group.Size(), Shuffle: true, Seed: 1,
			})
			if err != nil {
				return nil, err
			}
			return data.NewLoader(ctx, data.FromSlice(learned), order, collate, data.LoaderConfig{}, at)
		},
		Evaluate: func(ctx context.Context, model any) (train.Metrics, error) {
			return exam(ctx, model.(nn.Module), asked)
		},
		Files: func(w *checkpoint.Writer) error {
			base, err := filepath.Abs(*from)
			if err != nil {
				return err
			}
			config, err := models.AdapterConfig(lora, base)
			if err != nil {
				return err
			}
			return w.WriteFile("adapter_config.json", config)
		},
		Finish: func(ctx context.Context, _ any) (train.Ending, error) {
			if group.Rank() != 0 {
				return train.Ending{}, nil
			}
			var text strings.Builder
			for _, p := range asked[len(asked)-3:] {
				text.WriteString(p.question)
				err := train.Generate(ctx, models.WithLoRA(model, lora), tok, p.question, train.GenerateOptions{NumTokens: 20}, func(piece []byte) error {
					text.Write(piece)
					return nil
				})
				if err != nil {
					return train.Ending{}, err
				}
				text.WriteString("\n")
			}
			return train.Ending{
				Title: "it answers", Text: text.String(), Key: "answers", Next: fmt.Sprintf("generate --from %s --temperature 0 --prompt %q", *out, asked[len(asked)-1].question),
			}, nil
		},
	}, o, report)
}

// exam returns the fraction of questions that the model answers right. The model
// always writes its most likely token.
func exam(ctx context.Context, model nn.Module, pairs []pair) (_ train.Metrics, err error) {
	c := nn.Evaluation(ctx)
	defer c.Close()
	defer c.Recover(&err)
	x, err := collate(pairs)
	if err != nil {
		return nil, err
	}
	right, best := 0, c.Call(model, x.inputs).ArgMax(-1).Int64s()
	wanted, length := x.targets.Int64s(), x.targets.Dim(1)
	for i := range pairs {
		good := 1
		for j := i * length; j < (i+1)*length; j++ {
			if wanted[j] != tensor.IgnoreIndex && wanted[j] != best[j] {
				good = 0
			}
		}
		right += good
	}
	return train.Metrics{{Name: "right", Value: float64(right) / float64(len(pairs)), Higher: true, Unit: "%"}}, nil
}

// projections returns the names of all projections of a model's layers.
func projections(model models.CausalLM) []string {
	var names []string
	for name, m := range nn.Modules(model) {
		if _, ok := m.(nn.Projection); ok {
			names = append(names, name)
		}
	}
	return names
}

// readPairs returns the pairs as tokens: a question, an answer, and the token
// that ends a document, so that the model learns where an answer ends.
func readPairs(tok *tokenizer.Tokenizer, most int) ([]pair, error) {
	lines := numbers()
	if *source != "" {
		f, err := os.Open(*source)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		lines = nil
		scan := bufio.NewScanner(f)
		for scan.Scan() {
			lines = append(lines, scan.Text())
		}
		if err := scan.Err(); err != nil {
			return nil, fmt.Errorf("%s: %w", *source, err)
		}
	}
	var pairs []pair
	for i, line := range lines {
		question, answer, ok := strings.Cut(line, "\t")
		if !ok || question == "" || answer == "" {
			return nil, fmt.Errorf("%s:%d: want a question, a tab and an answer, got %q", *source, i+1, line)
		}
		tokens := tok.EncodeInput([]byte(question))
		p := pair{question: question, answer: len(tokens)}
		p.tokens = tok.Append(tokens, []byte(" "+answer))
		if end, ok := tok.EndOfText(); ok {
			p.tokens = append(p.tokens, end)
		}
		if len(p.tokens) > most {
			return nil, fmt.Errorf("%s:%d: %d tokens, the model takes %d", *source, i+1, len(p.tokens), most)
		}
		pairs = append(pairs, p)
	}
	if len(pairs) < 20 {
		return nil, fmt.Errorf("%s has %d pairs, want at least 20", *source, len(pairs))
	}
	return pairs, nil
}

// numbers returns the numbers below 400 in words and as separate digits.
func numbers() []string {
	small := strings.Fields("zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen")
	tens := strings.Fields("- - twenty thirty forty fifty sixty seventy eighty ninety")
	var word func(n int) string
	word = func(n int) string {
		switch {
		case n < 20:
			return small[n]
		case n < 100 && n%10 == 0:
			return tens[n/10]
		case n < 100:
			return tens[n/10] + "-" + small[n%10]
		case n%100 == 0:
			return small[n/100] + " hundred"
		}
		return small[n/100] + " hundred and " + word(n%100)
	}
	var lines []string
	for n := range 400 {
		lines = append(lines, word(n)+" is\t"+strings.Join(strings.Split(fmt.Sprint(n), ""), " "))
	}
	return lines
}

func main() {
	flag.Parse()
	launch.Exit(launch.Spawn(context.Background(), 2, dist.Main(func(ctx context.Context, group *dist.Group) error {
		return tune(ctx, group, train.NewConsole(os.Stdout, false, "cohort"))
	}), launch.WithPassRank0()))
}
