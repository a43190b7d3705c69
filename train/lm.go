// SPDX-License-Identifier: Apache-2.0

package train

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"strings"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/data"
	"github.com/cohort-ml/cohort/data/tokenizer"
	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/models"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/optim"
	"github.com/cohort-ml/cohort/parallel"
	"github.com/cohort-ml/cohort/tensor"
)

// lmRun is one rank's part of a run.
type lmRun struct {
	cfg    LMConfig
	group  *dist.Group
	report Reporter

	corpus     *data.Corpus
	tokenizer  *tokenizer.Tokenizer
	windows    *data.Windows
	validation *data.Validation
	loader     *data.Loader[data.TokenWindow, data.TokenBatch]

	model  *models.GPT
	params []*nn.Parameter
	ddp    *parallel.DDP
	opt    *optim.AdamW
	vote   *tensor.Tensor   // loss and wish to stop; see agree
	around []nn.Interceptor // of the training passes

	step         int // steps done
	skipped      int // steps of this process whose update was left out
	skippedInRow int
	bitsPerByte  float64
}

// LM trains a GPT on text on all ranks of a group, each of which calls it with
// the same configuration. explicit names the flags that the user gave: when a
// run is resumed they must agree with it. Report is used on rank 0.
//
// When the run's directory has a checkpoint, LM goes on from it: the same
// data, weights and optimizer as if it had never stopped. When ctx ends, it
// saves one and returns an error that wraps [ErrStopped].
func LM(ctx context.Context, group *dist.Group, cfg LMConfig, explicit map[string]bool, report Reporter) error {
	if group.Rank() != 0 {
		report = Discard
	}
	if explicit["ranks"] && cfg.Ranks != group.Size() {
		return fmt.Errorf("train lm: --ranks is %d, but this job was started with %d: leave the flag out", cfg.Ranks, group.Size())
	}
	cfg.Ranks = group.Size()
	return (&lmRun{cfg: cfg, group: group, report: report}).run(ctx, explicit)
}

// run does the job.
func (r *lmRun) run(ctx context.Context, explicit map[string]bool) error {
	saved, err := r.findCheckpoint(ctx, explicit)
	if err != nil {
		return err
	}
	if err := r.cfg.Validate(); err != nil {
		return err
	}
	if err := r.openData(ctx, saved); err != nil {
		return err
	}
	if err := r.buildModel(ctx, saved); err != nil {
		return err
	}
	if err := r.startLoader(ctx, saved); err != nil {
		return err
	}
	defer r.loader.Close()
	if r.group.Rank() == 0 {
		release, err := checkpoint.Claim(r.cfg.Out)
		if err != nil {
			return fmt.Errorf("train lm: checkpoints cannot be saved in %s: %w", r.cfg.Out, err)
		}
		defer release()
	}
	if err := r.sameEverywhere(ctx); err != nil {
		return err
	}
	r.report.Start(r.start(saved))
	if r.step >= r.cfg.Steps {
		r.report.Notice(fmt.Sprintf("%s is complete at step %d; --steps N with a larger N goes on, another --out starts afresh", r.cfg.Out, r.step))
	} else if err := r.train(ctx); err != nil {
		return err
	}
	return r.finish(ctx)
}

// findCheckpoint returns the newest checkpoint of the run's directory, nil if
// there is none, and takes over its settings.
func (r *lmRun) findCheckpoint(ctx context.Context, explicit map[string]bool) (*savedRun, error) {
	ck, err := latest(ctx, r.cfg.Out, r.report.Notice)
	if errors.Is(err, checkpoint.ErrNone) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("train lm: %w; move the directory away, or give another --out", err)
	}
	s, err := openSaved(ck)
	if err != nil {
		return nil, err
	}
	return s, r.cfg.adopt(s.recipe, explicit)
}

// openData finds the text, its tokenizer, and the windows that are trained and
// evaluated on.
func (r *lmRun) openData(ctx context.Context, saved *savedRun) (err error) {
	if r.corpus, err = data.OpenCorpus(ctx, r.cfg.Data); err != nil {
		return fmt.Errorf("train lm: %w", err)
	}
	if saved != nil {
		r.tokenizer = saved.tokenizer
	} else if r.tokenizer, err = data.TrainTokenizer(ctx, r.corpus.Train, r.cfg.Vocab); err != nil {
		return fmt.Errorf("train lm: tokenizer: %w", err)
	}
	if r.windows, err = data.NewWindows(r.corpus.Train, r.tokenizer, r.cfg.Context); err != nil {
		return fmt.Errorf("train lm: %w", err)
	}
	r.validation, err = data.NewValidation(r.corpus.Validation, r.tokenizer, r.cfg.Context, r.cfg.EvalTokens)
	if err != nil {
		return fmt.Errorf("train lm: %w", err)
	}
	if r.cfg.Prompt == "" {
		r.cfg.Prompt, err = promptFor(r.cfg.Data, r.corpus.Validation)
	}
	return err
}

// promptFor returns how a text of this kind begins.
func promptFor(source string, text *data.Text) (string, error) {
	if source == "" {
		return "func New", nil
	}
	start := make([]byte, min(text.Size(), 24))
	if _, err := text.ReadAt(start, 0); err != nil && !errors.Is(err, io.EOF) {
		return "", fmt.Errorf("train lm: %w", err)
	}
	line, _, _ := strings.Cut(strings.TrimLeft(strings.ToValidUTF8(string(start), ""), " \t\r\n"), "\n")
	return line, nil
}

// buildModel makes the model and the optimizer, takes over what was saved, and
// wraps the model so that all ranks train it together.
func (r *lmRun) buildModel(ctx context.Context, saved *savedRun) (err error) {
	size := r.cfg.model()
	size.Vocab = r.tokenizer.Size() // a small text may not have as many pairs worth an entry
	if saved != nil {
		// The recipe is only what a file says: nothing is allocated for it before the
		// weights agree.
		if err := matchModel(saved.checkpoint, models.NewGPT(&nn.Build{Device: tensor.Meta}, size)); err != nil {
			return fmt.Errorf("train lm: resume: %w", err)
		}
	}
	r.model = models.NewGPT(&nn.Build{Generator: tensor.NewGenerator(r.cfg.Seed)}, size)
	r.params = nn.Parameters(r.model)
	if r.cfg.Recompute {
		r.around = append(r.around, nn.Recompute(func(m any) bool { _, ok := m.(*models.GPTBlock); return ok }))
	}
	var matrices, vectors []*nn.Parameter
	for _, p := range r.params {
		if p.Data().NumDims() >= 2 {
			matrices = append(matrices, p)
		} else {
			vectors = append(vectors, p)
		}
	}
	o := optim.AdamWOptions{LR: r.cfg.LR, Beta2: r.cfg.Beta2, WeightDecay: r.cfg.WeightDecay}
	r.opt = optim.NewAdamW(matrices, o)
	o.WeightDecay = 0 // pulling norms and biases to zero helps nothing
	r.opt.AddGroup(vectors, o)
	if saved != nil {
		if err := saved.load(r); err != nil {
			return err
		}
	}
	r.vote = tensor.NewShared(tensor.CPU(), tensor.Float32, 2)
	r.ddp, err = parallel.NewDDP(ctx, r.model, r.group, parallel.OnStraggler(func(s parallel.Straggler) { r.report.Notice(s.String()) }))
	return err
}

// startLoader starts making batches, from where the saved run was.
func (r *lmRun) startLoader(ctx context.Context, saved *savedRun) error {
	sampler, err := data.NewStream(data.StreamConfig{
		Len: r.windows.Len(), Batch: r.cfg.Batch, Rank: r.group.Rank(), World: r.group.Size(), Shuffle: true, Seed: r.cfg.Seed,
	})
	if err != nil {
		return fmt.Errorf("train lm: %w", err)
	}
	var from data.LoaderState
	if saved != nil {
		from = saved.loader
	}
	r.loader, err = data.NewLoader(context.WithoutCancel(ctx), r.windows, sampler, data.CollateTokens, data.LoaderConfig{}, from)
	if other := (*data.ResumeError)(nil); errors.As(err, &other) {
		// The settings have been compared; what is left is the text.
		return fmt.Errorf("train lm: the text in %s has changed since %s was saved: put it back as it was, or give another --out to start afresh",
			r.corpus.Name, saved.checkpoint.Path)
	}
	if err != nil {
		return fmt.Errorf("train lm: %w", err)
	}
	return nil
}

// sameEverywhere makes sure that all ranks read the same data in the same way,
// and begin at the same step.
func (r *lmRun) sameEverywhere(ctx context.Context) error {
	key := fmt.Sprint(r.windows.Fingerprint(), r.cfg, r.step)
	mine := int64(crc32.ChecksumIEEE([]byte(key)))
	all := tensor.New(tensor.CPU(), tensor.Int64, r.group.Size())
	if err := r.group.AllGather(ctx, all, tensor.FromInt64([]int64{mine})); err != nil {
		return fmt.Errorf("train lm: compare the data of the ranks: %w", err)
	}
	digests := all.Int64s()
	for rank, d := range digests {
		if d != digests[0] {
			return fmt.Errorf("train lm: rank %d sees other data, flags or checkpoints than rank 0 (data %s, out %s): give all ranks the same",
				rank, r.corpus.Name, r.cfg.Out)
		}
	}
	return nil
}

func (r *lmRun) tokensPerStep() int { return r.cfg.numSequences() * r.cfg.Context }

// tensorsOf returns a batch as a model takes it, both [rows, length].
func tensorsOf(batch data.TokenBatch) (inputs, targets *tensor.Tensor) {
	return tensor.FromInt64(batch.Inputs, batch.Rows, batch.Length), tensor.FromInt64(batch.Targets, batch.Rows, batch.Length)
}

// evalStep returns the sum of the losses of one batch of this rank.
func (r *lmRun) evalStep(ctx context.Context, batch data.TokenBatch) (nats float64, err error) {
	c := nn.Evaluation(ctx, r.cfg.autocast())
	defer c.Close()
	defer c.Recover(&err)
	inputs, targets := tensorsOf(batch)
	loss := tensor.CrossEntropy(c.Call(r.model, inputs), targets)
	return loss.Item() * float64(batch.Rows*batch.Length), nil
}

// finish prints what the model writes, and where everything is.
func (r *lmRun) finish(ctx context.Context) error {
	if r.group.Rank() == 0 {
		text, err := r.sample(ctx)
		if err != nil {
			return err
		}
		r.report.Finish(Finish{
			Steps: r.step, BitsPerByte: r.bitsPerByte, Prompt: r.cfg.Prompt, Sample: text, Checkpoint: checkpoint.Path(r.cfg.Out, r.step), Out: r.cfg.Out,
		})
	}
	// Nobody leaves before rank 0 has finished, which others would take for a failure.
	if err := r.group.Barrier(ctx); err != nil {
		return fmt.Errorf("train lm: end of the run: %w", err)
	}
	return nil
}
