// SPDX-License-Identifier: Apache-2.0

package train

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/checkpoint/storage"
	"github.com/cohort-ml/cohort/models"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/parallel"
	"github.com/cohort-ml/cohort/tensor"
)

const (
	mergedDir  = "merged"
	baseDir    = models.AdapterBaseDir
	allTargets = "all"
	// tunedContext is how many tokens a sequence has where nobody says.
	tunedContext = 128
)

// companions are the files of a model, besides its weights and config.json, that
// go with it into a checkpoint: what its users' tools ask for.
var companions = []string{
	tokenizerFile, tokenizerConfigFile, "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt", "tokenizer.model",
	"vocab.txt", "sentencepiece.bpe.model", "generation_config.json", "chat_template.jinja",
}

// maxCompanion bounds each of them.
const maxCompanion = 256 << 20

// modelFolder returns the folder with the config.json of the model at a place:
// for an adapter that of its base.
func modelFolder(path string) (string, error) {
	if !hasAdapter(path) {
		return path, nil
	}
	return models.AdapterBase(path)
}

// hasAdapter reports whether an adapter is in a directory.
func hasAdapter(path string) bool {
	_, err := os.Stat(filepath.Join(path, adapterConfigFile))
	return !errors.Is(err, fs.ErrNotExist)
}

// checkBase reports what openBase would, without reading weights.
func (r *lmRun) checkBase(ctx context.Context, saved *SavedRun) error {
	c := r.cfg
	fail := func(err error) error { return fmt.Errorf("train lm: --init-from: %w", err) }
	at, err := r.findBase(ctx, saved)
	if err != nil {
		return fail(err)
	}
	dir, done, err := at.local(ctx)
	if err != nil {
		return fail(err)
	}
	defer done()
	tok, err := readTokenizer(dir)
	if err != nil {
		return fail(err)
	}
	folder, err := modelFolder(dir)
	if err != nil {
		return fail(err)
	}
	var in []models.LoadOption
	if folder == dir {
		in = at.weightsFrom(ctx, nil)
	}
	p, err := models.Outline(folder, in...) // openBase tells what is unknown
	if err != nil {
		return fail(err)
	}
	m, ok := p.(models.CausalLM)
	if !ok {
		return fail(fmt.Errorf("%s holds a %s, which does not name the next token: a GPT-2 or a Llama does", folder, strings.TrimPrefix(fmt.Sprintf("%T", p), "*models.")))
	}
	if err := fits(tok, m); err != nil {
		return fail(fmt.Errorf("%s: %w", at.path, err))
	}
	if err := c.fitsModel(m, at.path); err != nil {
		return err
	}
	if err := c.checkSplit(m); err != nil {
		return err
	}
	files, err := readCompanions(dir)
	if err != nil {
		return fail(err)
	}
	if err := c.checkSample(m, tok, files); err != nil {
		return fail(fmt.Errorf("%s: %w", at.path, err))
	}
	r.tokenizer = tok
	if c.Context == 0 {
		r.cfg.Context = c.defaultContext(m)
	}
	if c.LoRA > 0 {
		if err := noAdapter(dir); err != nil {
			return fail(err)
		}
		if _, err := nn.NewLoRA(&nn.Build{Device: tensor.Meta}, m, c.loraOptions(m)); err != nil {
			return fmt.Errorf("train lm: --lora-targets: %w", err)
		}
	}
	return nil
}

// noAdapter reports a place with an adapter, which has no weights of its own to
// put a LoRA beside.
func noAdapter(path string) error {
	if folder, err := modelFolder(path); err != nil || folder != path {
		return fmt.Errorf("%s is itself an adapter: give its merged model, or train without --lora", path)
	}
	return nil
}

// defaultContext is how many tokens a sequence has where nobody says.
func (c LMConfig) defaultContext(m models.CausalLM) int {
	if c.areRecords() {
		return min(recordContext, m.Context())
	}
	return min(tunedContext, m.Context())
}

// fitsModel compares the settings with the model that they are for.
func (c LMConfig) fitsModel(m models.CausalLM, path string) error {
	if c.Model != "" && c.Model != m.Kind() {
		return fmt.Errorf("train lm: --model is %s, the model in %s is a %s: leave the flag out", c.Model, path, m.Kind())
	}
	if c.Context > m.Context() {
		return fmt.Errorf("train lm: --context is %d, the model in %s takes %d tokens", c.Context, path, m.Context())
	}
	return nil
}

// findBase returns where the model is that the run goes on from. That of a LoRA
// that resumes is where its adapter says: the directory that the run was begun
// with may be of a run that has gone on since.
func (r *lmRun) findBase(ctx context.Context, saved *SavedRun) (place, error) {
	if saved != nil && r.was.InitFrom == r.cfg.InitFrom {
		if r.cfg.LoRA == 0 {
			return placeOf(saved.Checkpoint), nil
		}
		dir, done, err := placeOf(saved.Checkpoint).local(ctx)
		if err != nil {
			return place{}, err
		}
		defer done()
		if folder, err := models.AdapterBase(dir); err == nil {
			return findModel(ctx, storage.Dir(folder), r.report.Notice)
		}
	}
	from, err := r.cfg.open("init-from", r.cfg.InitFrom)
	if err != nil {
		return place{}, err
	}
	return findModel(ctx, from, r.report.Notice)
}

// openBase loads the model that the run goes on from, and the tokenizer; a run
// that resumes has the model of its checkpoint, unless it trains a LoRA, which
// wants the one that it was begun with.
func (r *lmRun) openBase(ctx context.Context, saved *SavedRun) error {
	fail := func(err error) error { return fmt.Errorf("train lm: --init-from: %w", err) }
	at, err := r.findBase(ctx, saved)
	if err != nil {
		return fail(err)
	}
	dir, done, err := at.local(ctx)
	if err != nil {
		return fail(err)
	}
	defer done()
	if r.cfg.LoRA > 0 {
		if err := noAdapter(dir); err != nil {
			return fail(err)
		}
	}
	if err := r.loadBase(ctx, at, dir, models.WithNotice(r.report.Notice)); err != nil {
		return fail(err)
	}
	if r.cfg.Context == 0 {
		r.cfg.Context = r.cfg.defaultContext(r.base)
	}
	if err := r.cfg.fitsModel(r.base, at.path); err != nil {
		return err
	}
	moved := saved != nil && r.was.InitFrom != r.cfg.InitFrom
	if saved == nil || r.cfg.LoRA > 0 || moved {
		sum, err := r.checksum()
		if err != nil {
			return fail(err)
		}
		if r.cfg.Base == "" {
			r.cfg.Base = sum
		} else if r.cfg.Base != sum {
			return fmt.Errorf("train lm: the model in %s is not the one that %s was begun with (its weights have the checksum %s, they had %s): "+
				"put it back as it was, or give another --out to start afresh", r.cfg.InitFrom, r.cfg.Out, sum, r.cfg.Base)
		}
	}
	if moved && r.cfg.LoRA == 0 { // it is the right one, which is all there is to know of it
		at = placeOf(saved.Checkpoint)
		done()
		if dir, done, err = at.local(ctx); err != nil {
			return fail(err)
		}
		defer done()
		if err := r.loadBase(ctx, at, dir); err != nil {
			return fail(err)
		}
	}
	folder := at.path
	_, isDirectory := at.from.(*storage.Directory)
	if at.checkpoint != nil || !isDirectory {
		// Its run deletes it when it goes on, so that the adapter keeps a copy; and PEFT wants a
		// base on this machine.
		if at.checkpoint != nil {
			r.baseStep = at.checkpoint.Step
		}
		folder = checkpoint.Path(filepath.Join(r.cfg.Out, baseDir), r.baseStep)
	}
	if r.baseDir, err = filepath.Abs(folder); err != nil {
		return fail(err)
	}
	r.keepsBase = r.cfg.LoRA > 0 && (at.checkpoint != nil || !isDirectory)
	if r.companions, err = readCompanions(dir); err != nil {
		return fail(err)
	}
	if err := r.cfg.checkSample(r.base, r.tokenizer, r.companions); err != nil {
		return fail(fmt.Errorf("%s: %w", at.path, err))
	}
	return nil
}

// loadBase loads the model at a place, or only its outline where the run is sharded: its
// ranks read their shards later, by fillBase. An adapter is merged into a whole model.
// dir has its small files.
func (r *lmRun) loadBase(ctx context.Context, at place, dir string, opts ...models.LoadOption) (err error) {
	r.outline, r.outlineAt = "", at
	if (r.cfg.FSDP > 1 || r.cfg.isComposed()) && noAdapter(dir) == nil {
		r.outline = at.path
	}
	if r.outline == "" {
		r.base, r.tokenizer, err = at.loadLM(ctx, opts...)
		return err
	}
	if r.tokenizer, err = readTokenizer(dir); err != nil {
		return err
	}
	r.outlineIn = at.weightsFrom(ctx, nil)
	p, err := models.Outline(at.path, append(opts, r.outlineIn...)...)
	if err != nil {
		return err
	}
	m, ok := p.(models.CausalLM)
	if !ok {
		return fmt.Errorf("%s holds a %s, which does not name the next token: a GPT-2 or a Llama does", at.path, strings.TrimPrefix(fmt.Sprintf("%T", p), "*models."))
	}
	r.base = m
	return fits(r.tokenizer, m)
}

// fillBase reads what this rank holds of a base of which there was only an outline.
func (r *lmRun) fillBase(model parallel.Strategy) error {
	if r.outline == "" {
		return nil
	}
	parts := ModelParts(model)
	if r.lora != nil {
		added := make(map[*tensor.Tensor]bool)
		for _, p := range r.lora.Added {
			added[p.Parameter.Data()] = true
		}
		parts = slices.DeleteFunc(parts, func(p checkpoint.Part) bool { return added[p.Local] })
		for i := range parts {
			parts[i].Name = strings.TrimPrefix(parts[i].Name, "base_model.model.")
		}
	}
	if err := models.LoadHuggingFaceParts(r.outline, parts, r.outlineIn...); err != nil {
		return fmt.Errorf("train lm: --init-from: %w", err)
	}
	return nil
}

// checksum returns that of the base's weights, also where there is only an outline.
func (r *lmRun) checksum() (string, error) {
	if r.outline == "" {
		return checksum(r.base)
	}
	h := crc32.New(crc32.MakeTable(crc32.Castagnoli))
	err := models.EachHuggingFace(r.outline, func(s nn.NamedTensor) error {
		_, err := h.Write(s.Tensor.Buffer().Data)
		runtime.KeepAlive(s.Tensor)
		return err
	}, r.outlineIn...)
	return fmt.Sprintf("%08x", h.Sum32()), err
}

// checksum returns that of a model's weights, CRC-32C in hexadecimal.
func checksum(m models.CausalLM) (string, error) {
	h := crc32.New(crc32.MakeTable(crc32.Castagnoli))
	for _, s := range nn.StateDict(m) {
		if _, err := h.Write(s.Tensor.Buffer().Data); err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("%08x", h.Sum32()), nil
}

// readCompanions reads the files that go with a model: of an adapter its own
// and, where it has none, its base's.
func readCompanions(path string) (map[string][]byte, error) {
	folder, err := modelFolder(path)
	if err != nil {
		return nil, err
	}
	files := make(map[string][]byte)
	read := func(as, path string) error {
		text, err := readCompanion(path)
		if err == nil {
			files[as] = text
		} else if errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
		return err
	}
	for _, name := range companions {
		for _, dir := range []string{folder, path} {
			if err := read(name, filepath.Join(dir, name)); err != nil {
				return nil, err
			}
		}
	}
	return files, read(configFile, filepath.Join(folder, configFile))
}

// readCompanion reads one of these files.
func readCompanion(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxCompanion+1))
	if err == nil && len(text) > maxCompanion {
		err = fmt.Errorf("%s has more than the %d bytes allowed", path, maxCompanion)
	}
	return text, err
}

// adapt puts a LoRA beside the model's weights.
func (r *lmRun) adapt() (err error) {
	if r.cfg.FSDP > 1 || r.cfg.isComposed() { // while it is where it was, or whole
		if err := r.keepBase(); err != nil {
			return fmt.Errorf("train lm: %w", err)
		}
	}
	b := r.cfg.newBuild(r.outline == "")
	if r.lora, err = nn.NewLoRA(b, r.base, r.cfg.loraOptions(r.base)); err != nil {
		return fmt.Errorf("train lm: --lora-targets: %w", err)
	}
	return nil
}

// keepBase copies the model beside which a LoRA is trained into the run's directory,
// where it is of a run that goes on.
func (r *lmRun) keepBase() error {
	if _, err := os.Stat(r.baseDir); !r.keepsBase || err == nil || r.axes.World.Rank() != 0 {
		return nil
	}
	var state checkpoint.State
	if r.outline != "" {
		weights, err := r.outlineAt.weights(context.Background())
		if err != nil {
			return err
		}
		defer weights.Close()
		state.Sources = map[string]checkpoint.Source{checkpoint.Model: weights}
	} else {
		state.Sections = r.baseWeights()
	}
	return r.saveWhole(context.Background(), filepath.Join(r.cfg.Out, baseDir), r.baseStep, nil, state)
}

// baseWeights returns the base's weights as they are now.
func (r *lmRun) baseWeights() map[string][]checkpoint.Part {
	return map[string][]checkpoint.Part{checkpoint.Model: inFiles(r.base, checkpoint.Whole(nn.StateDict(r.base).All()))}
}

// tunedFiles writes what makes a checkpoint a folder of Hugging Face's or, of a
// LoRA, of PEFT's: the model's own files, with the type that its weights have.
func (r *lmRun) tunedFiles(w *checkpoint.Writer) error {
	for _, name := range companions {
		if text, ok := r.companions[name]; ok {
			if err := w.WriteFile(name, text); err != nil {
				return err
			}
		}
	}
	if r.lora == nil {
		config, err := r.tunedConfig()
		if err != nil {
			return err
		}
		return w.WriteFile(configFile, config)
	}
	if err := r.keepBase(); err != nil {
		return err
	}
	config, err := models.AdapterConfig(r.lora, r.baseDir)
	if err != nil {
		return err
	}
	return w.WriteFile(adapterConfigFile, append(config, '\n'))
}

// tunedConfig returns the base's config.json, all that is in it, for weights of
// float32.
func (r *lmRun) tunedConfig() ([]byte, error) {
	var config, own map[string]any
	d := json.NewDecoder(bytes.NewReader(r.companions[configFile]))
	d.UseNumber() // as they are written
	if err := d.Decode(&config); err != nil {
		return nil, fmt.Errorf("%s of the model: %w", configFile, err)
	}
	// Releases differ in what they do with an output layer that is stored and said
	// to be the table of tokens: the truth is what was opened.
	text, err := r.base.HuggingFaceConfig()
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(text, &own); err != nil {
		return nil, err
	}
	config["tie_word_embeddings"] = own["tie_word_embeddings"]
	delete(config, "dtype")
	config["torch_dtype"] = "float32" // which new versions of transformers read too
	return json.MarshalIndent(config, "", "  ")
}

// saveMerged saves the model with the matrices added to its weights, the best ones if
// they were kept. Rank 0 calls it when all is done, for the weights change.
func (r *lmRun) saveMerged(ctx context.Context) (dir string, err error) {
	step := r.cfg.Steps
	best, err := latest(ctx, storage.Under(r.cfg.place(), bestDir), r.report.Notice)
	switch {
	case err == nil:
		if err := best.LoadTensors(strings.TrimSuffix(models.AdapterFile, ".safetensors"), r.lora.State().All()); err != nil {
			return "", err
		}
		step = best.Step
	case !errors.Is(err, checkpoint.ErrNone):
		r.report.Notice(fmt.Sprintf("the best weights cannot be used, the last are merged: %v", err))
	}
	r.lora.Merge()
	// The text that it was trained on and the length of a sequence, for evaluations.
	recipe, err := json.Marshal(LMConfig{Data: r.cfg.Data, Context: r.cfg.Context})
	if err != nil {
		return "", err
	}
	dir = filepath.Join(r.cfg.Out, mergedDir)
	progress := checkpoint.Progress{Task: "lm", Step: step, Seed: r.cfg.Seed, Recipe: recipe}
	r.report.Notice(fmt.Sprintf("%s has the model with the matrices of step %d", dir, step))
	return checkpoint.Path(dir, step), r.saveWhole(ctx, dir, step, &progress, checkpoint.State{Sections: r.baseWeights()})
}

// saveWhole saves a state with the weights of the base as a checkpoint that is alone in a directory, with
// a progress if there is one.
func (r *lmRun) saveWhole(ctx context.Context, dir string, step int, progress *checkpoint.Progress, state checkpoint.State) error {
	config, err := r.tunedConfig()
	if err != nil {
		return err
	}
	if progress != nil {
		state.Values = map[string]any{checkpoint.ProgressValue: *progress}
	}
	state.Files = func(w *checkpoint.Writer) error {
		for _, name := range companions {
			if text, ok := r.companions[name]; ok {
				if err := w.WriteFile(name, text); err != nil {
					return err
				}
			}
		}
		return w.WriteFile(configFile, config)
	}
	return checkpoint.Save(ctx, nil, storage.Dir(dir), step, state, checkpoint.WithRetention(checkpoint.Retention{Only: true}))
}

// newModel builds a model of the settings' sizes for a vocabulary: a small text may not have
// as many pairs worth an entry as the settings say.
func (c LMConfig) newModel(b *nn.Build, vocab int) models.CausalLM {
	switch {
	case c.Experts > 0:
		return models.NewMoETransformer(b, c.mixture(vocab))
	case c.Model == "llama":
		return models.NewLlama(b, c.llama(vocab))
	}
	size := c.model()
	size.Vocab = vocab
	return models.NewGPT(b, size)
}

// llama returns the sizes of a Llama that has about as many parameters as the
// GPT of the same settings.
func (c LMConfig) llama(vocab int) models.LlamaConfig {
	const multiple = 8
	hidden := (8*c.Width/3 + multiple - 1) / multiple * multiple
	return models.LlamaConfig{
		Vocab: vocab, Context: c.Context, Width: c.Width, Hidden: hidden, Heads: c.Heads, KeyHeads: c.Heads, Layers: c.Layers, Tied: true,
	}
}

// nameOf names the kind of a model for people.
func nameOf(m models.CausalLM) string {
	names := map[string]string{"gpt2": "GPT", "llama": "Llama", "smollm3": "SmolLM3", "mixtral": "Mixtral", "qwen2_moe": "Qwen2-MoE", "qwen3_moe": "Qwen3-MoE"}
	kind := m.Kind()
	if name := names[kind]; name != "" {
		return name
	}
	if moe, ok := m.(*models.MoETransformer); ok {
		text := fmt.Sprintf("mixture of %d experts, %d active", moe.Config.Experts, moe.Config.Active)
		if moe.Config.SharedHidden > 0 {
			text += " and a shared one"
		}
		return text
	}
	return strings.ToUpper(kind[:1]) + kind[1:]
}

// describeModel returns what is trained, for people.
func (r *lmRun) describeModel() string {
	kind := nameOf(r.base)
	if r.cfg.InitFrom == "" {
		return fmt.Sprintf("%s, %d %s of width %d, %d tokens of context, %d BPE tokens",
			kind, r.cfg.Layers, plural(r.cfg.Layers, "layer"), r.cfg.Width, r.cfg.Context, r.base.Vocab())
	}
	text := fmt.Sprintf("%s from %s, sequences of %d tokens", kind, r.cfg.InitFrom, r.cfg.Context)
	if r.lora == nil {
		return text
	}
	o := r.lora.Options
	names := make(map[string]bool)
	for _, t := range o.Targets {
		names[t[strings.LastIndexByte(t, '.')+1:]] = true
	}
	var short []string
	for n := range names {
		short = append(short, n)
	}
	slices.Sort(short)
	return fmt.Sprintf("%s; LoRA of rank %d beside %s: %d of its parameters are trained", text, o.Rank, strings.Join(short, ", "), r.lora.NumAdded())
}
