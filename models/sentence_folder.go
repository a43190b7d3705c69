// SPDX-License-Identifier: Apache-2.0

package models

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/checkpoint/huggingface"
	"github.com/cohort-ml/cohort/checkpoint/safetensors"
	"github.com/cohort-ml/cohort/nn"
)

// SentenceFile is the file of a checkpoint that has a [SentenceConfig]. A checkpoint has
// no folders in it, as sentence-transformers' format wants.
const SentenceFile = "sentence_encoder.json"

const (
	modulesFile      = "modules.json"
	denseName        = "dense."
	maxSentenceFiles = 1 << 20
	maxModules       = 64
)

// LoadSentenceEncoder opens a folder that sentence-transformers or [SaveSentenceEncoder]
// wrote, a checkpoint of `cohort train embed`, or the folder of an encoder alone, whose
// features are averaged then, as sentence-transformers does. What is in the folder and
// not honoured is refused by name.
func LoadSentenceEncoder(dir string, opts ...LoadOption) (*SentenceEncoder, error) {
	g, dense, err := readSentenceConfig(dir)
	if err != nil {
		return nil, err
	}
	opts = append(slices.Clone(opts), WithHead(Head{}), func(l *loading) { l.beside = denseName })
	e, err := LoadEncoder(dir, opts...)
	if err != nil {
		return nil, err
	}
	m, err := NewSentenceEncoder(&nn.Build{}, e, g)
	if err != nil {
		return nil, fmt.Errorf("%w (in %s)", err, dir)
	}
	for i, layer := range m.Dense {
		if err := loadDense(dir, dense, i, layer, opts); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// loadDense reads a layer after the pooling: of a folder a file of its own.
func loadDense(dir string, files []string, i int, layer *SentenceDense, opts []LoadOption) error {
	into := nn.StateDict(layer)
	if files != nil {
		name := filepath.Join(dir, files[i], "model.safetensors")
		f, err := safetensors.Open(name)
		if errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("models: %s is missing: was the layer saved without safetensors?", name)
		}
		if err != nil {
			return err
		}
		defer f.Close()
		return checkpoint.LoadTensors(f, into.All(), inFloat32...)
	}
	var o loading
	for _, opt := range opts {
		opt(&o)
	}
	f, _, err := o.open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	src, err := checkpoint.Rename(f, func(name string) string {
		name, ok := strings.CutPrefix(name, fmt.Sprintf("%s%d.", denseName, i))
		if !ok {
			return ""
		}
		return name
	})
	if err != nil {
		return err
	}
	return checkpoint.LoadTensors(src, into.All(), inFloat32...)
}

// sentenceModule is an entry of modules.json.
type sentenceModule struct {
	Index int    `json:"idx"`
	Path  string `json:"path"`
	Type  string `json:"type"`
}

// readSentenceConfig reads what a folder says of a text's vector. dense are the folders of
// the layers, nil where they are beside the encoder.
func readSentenceConfig(dir string) (g SentenceConfig, dense []string, err error) {
	if found, err := readSentenceFile(dir, SentenceFile, &g); found || err != nil {
		return g, nil, err
	}
	var modules []sentenceModule
	found, err := readSentenceFile(dir, modulesFile, &modules)
	if err == nil && !found {
		g.MaxTokens, err = TokenizerLength(dir)
	}
	if err != nil || !found {
		return g, nil, err
	}
	if len(modules) == 0 || len(modules) > maxModules {
		return g, nil, fmt.Errorf("models: %s has %d modules, want 1 to %d", filepath.Join(dir, modulesFile), len(modules), maxModules)
	}
	slices.SortStableFunc(modules, func(a, b sentenceModule) int { return a.Index - b.Index })
	fail := func(format string, args ...any) (SentenceConfig, []string, error) {
		return g, nil, fmt.Errorf("models: %s: %w", filepath.Join(dir, modulesFile), fmt.Errorf(format, args...))
	}
	dense = []string{}
	for i, m := range modules {
		if m.Path != "" && (!filepath.IsLocal(m.Path) || strings.Contains(m.Path, "\\")) {
			return fail("the path %q of module %d leads out of the folder", m.Path, i)
		}
		kind := m.Type[strings.LastIndexByte(m.Type, '.')+1:]
		switch {
		case !strings.HasPrefix(m.Type, "sentence_transformers."):
			return fail("module %d is a %s, which is code that only Python can run", i, m.Type)
		case i == 0 && kind == "Transformer" && m.Path != "":
			return fail("the encoder is in %q: move its files beside modules.json, and make the path empty", m.Path)
		case i == 0 && kind != "Transformer", i == 1 && kind != "Pooling", i > 1 && kind != "Dense" && kind != "Normalize":
			return fail("module %d is a %s: the modules can be a Transformer, a Pooling, and then Dense and Normalize", i, m.Type)
		case kind == "Pooling":
			g.Pooling, err = readPooling(dir, m.Path)
		case kind == "Normalize":
			err = readNormalize(dir, m.Path)
			g.Steps = append(g.Steps, SentenceStep{Normalize: true})
		case kind == "Dense":
			var layer *SentenceLayer
			layer, err = readDense(dir, m.Path)
			g.Steps, dense = append(g.Steps, SentenceStep{Dense: layer}), append(dense, m.Path)
		}
		if err != nil {
			return g, nil, err
		}
	}
	if len(modules) == 1 {
		return fail("there is no Pooling: the vectors would be of tokens, not of texts")
	}
	return g, dense, readSentenceSettings(dir, &g)
}

// readSentenceFile reads a file of JSON, if it is there.
func readSentenceFile(dir, name string, into any) (found bool, err error) {
	file := filepath.Join(dir, name)
	info, err := os.Stat(file)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, fs.ErrPermission) && dir == "":
		return false, nil
	case err != nil:
		return false, err
	case info.Size() > maxSentenceFiles:
		return true, fmt.Errorf("models: %s has more than the %d bytes allowed", file, maxSentenceFiles)
	}
	text, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(text, into)
	}
	if err != nil {
		return true, fmt.Errorf("models: %s: %w", file, err)
	}
	return true, nil
}

// readSentenceKeys reads a file of JSON whose keys are known; others are refused unless
// they ask for nothing. plain are values that change nothing.
func readSentenceKeys(dir, name string, into any, honoured []string, plain map[string][]any) error {
	var keys map[string]any
	found, err := readSentenceFile(dir, name, &keys)
	if err != nil || !found {
		return err
	}
	var refused []string
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		value := keys[key]
		switch {
		case slices.Contains(honoured, key), neutral(value):
		case slices.ContainsFunc(plain[key], func(p any) bool { return p == nil || p == value }):
		default:
			text, _ := json.Marshal(value)
			refused = append(refused, fmt.Sprintf("%s %s", key, text))
		}
	}
	if len(refused) > 0 {
		return fmt.Errorf("models: %s has settings that are not supported: %s", filepath.Join(dir, name), strings.Join(refused, ", "))
	}
	_, err = readSentenceFile(dir, name, into)
	return err
}

// pooling is the file of a Pooling: older releases have a key for each mode.
type poolingFile struct {
	Width     int               `json:"word_embedding_dimension"`
	Dimension int               `json:"embedding_dimension,omitempty"`
	Modes     oneOrMore[string] `json:"pooling_mode,omitempty"`
	CLS       bool              `json:"pooling_mode_cls_token"`
	Max       bool              `json:"pooling_mode_max_tokens"`
	Mean      bool              `json:"pooling_mode_mean_tokens"`
	Sqrt      bool              `json:"pooling_mode_mean_sqrt_len_tokens"`
	Weighted  bool              `json:"pooling_mode_weightedmean_tokens"`
	Last      bool              `json:"pooling_mode_lasttoken"`
	Prompt    *bool             `json:"include_prompt"`
}

func readPooling(dir, folder string) ([]string, error) {
	var p poolingFile
	name := path.Join(folder, configFile)
	err := readSentenceKeys(dir, name, &p, []string{
		"word_embedding_dimension", "embedding_dimension", "pooling_mode", "pooling_mode_cls_token", "pooling_mode_max_tokens", "pooling_mode_mean_tokens",
		"pooling_mode_mean_sqrt_len_tokens", "pooling_mode_weightedmean_tokens", "pooling_mode_lasttoken", "include_prompt",
	}, nil)
	if err != nil {
		return nil, err
	}
	if p.Prompt != nil && !*p.Prompt {
		return nil, fmt.Errorf("models: %s: include_prompt false is not supported: the tokens of a prompt are pooled too", filepath.Join(dir, name))
	}
	modes := []string(p.Modes)
	if modes == nil {
		for i, on := range []bool{p.CLS, p.Max, p.Mean, p.Sqrt, p.Weighted, p.Last} {
			if on {
				modes = append(modes, poolings[i])
			}
		}
	}
	if len(modes) == 0 {
		modes = []string{PoolMean} // as sentence-transformers takes
	}
	return modes, nil
}

// own are keys of the modules that all have.
var ownNames = map[string][]any{"module_input_name": {"sentence_embedding"}, "module_output_name": {"sentence_embedding"}}

func readNormalize(dir, folder string) error {
	return readSentenceKeys(dir, path.Join(folder, configFile), new(struct{}), nil, ownNames)
}

// torchActivations are the activations of a Dense by their names in PyTorch.
var torchActivations = map[string]Activation{
	"torch.nn.modules.activation.Tanh": "tanh", "torch.nn.modules.linear.Identity": "linear", "torch.nn.modules.activation.ReLU": "relu",
	"torch.nn.modules.activation.GELU": "gelu", "torch.nn.modules.activation.SiLU": "silu", "torch.nn.modules.activation.Sigmoid": "sigmoid",
}

func readDense(dir, folder string) (*SentenceLayer, error) {
	hf := struct {
		In         int     `json:"in_features"`
		Out        int     `json:"out_features"`
		Bias       *bool   `json:"bias"`
		Activation *string `json:"activation_function"`
	}{}
	name := path.Join(folder, configFile)
	if err := readSentenceKeys(dir, name, &hf, []string{"in_features", "out_features", "bias", "activation_function"}, ownNames); err != nil {
		return nil, err
	}
	layer := &SentenceLayer{In: hf.In, Out: hf.Out, NoBias: hf.Bias != nil && !*hf.Bias, Activation: "tanh"}
	if hf.Activation != nil {
		a, ok := torchActivations[*hf.Activation]
		if !ok {
			return nil, fmt.Errorf("models: %s: the activation_function %q is not supported: there are %s", filepath.Join(dir, name), *hf.Activation,
				strings.Join(slices.Sorted(maps.Keys(torchActivations)), ", "))
		}
		layer.Activation = a
	}
	return layer, nil
}

// readSentenceSettings reads the lengths of texts and the prompts.
func readSentenceSettings(dir string, g *SentenceConfig) error {
	var sizes struct {
		MaxTokens *int `json:"max_seq_length"`
		Lower     bool `json:"do_lower_case"`
	}
	var methods struct {
		Modalities map[string]struct {
			Method string          `json:"method"`
			Output json.RawMessage `json:"method_output_name"`
		} `json:"modality_config"`
	}
	if err := readSentenceKeys(dir, "sentence_bert_config.json", &sizes, []string{"max_seq_length", "do_lower_case", "modality_config"}, map[string][]any{
		"transformer_task": {"feature-extraction"}, "module_output_name": {"token_embeddings"},
	}); err != nil {
		return err
	}
	if _, err := readSentenceFile(dir, "sentence_bert_config.json", &methods); err != nil {
		return err
	}
	for kind, m := range methods.Modalities {
		if kind != "text" || m.Method != "forward" || string(m.Output) != `"last_hidden_state"` {
			return fmt.Errorf("models: %s: the modality %q by %q is not supported: texts are, by the encoder's features",
				filepath.Join(dir, "sentence_bert_config.json"), kind, m.Method)
		}
	}
	g.Lower = sizes.Lower
	if sizes.MaxTokens != nil {
		g.MaxTokens = *sizes.MaxTokens
	} else {
		n, err := TokenizerLength(dir)
		if err != nil {
			return err
		}
		g.MaxTokens = n
	}
	var about struct {
		Prompts    map[string]string `json:"prompts"`
		Default    *string           `json:"default_prompt_name"`
		Similarity *string           `json:"similarity_fn_name"`
	}
	if err := readSentenceKeys(dir, "config_sentence_transformers.json", &about, []string{"prompts", "default_prompt_name", "similarity_fn_name"}, map[string][]any{
		"__version__": {nil}, "model_type": {"SentenceTransformer"},
	}); err != nil {
		return err
	}
	g.Prompts = about.Prompts
	if about.Default != nil {
		g.DefaultPrompt = *about.Default
	}
	if about.Similarity != nil {
		g.Similarity = *about.Similarity
	}
	return nil
}

// TokenizerLength returns the most tokens of a text that a tokenizer's settings name, 0 where
// they name none: 1e30 stands there then.
func TokenizerLength(dir string) (int, error) {
	var tokens struct {
		MaxTokens json.Number `json:"model_max_length"`
	}
	if _, err := readSentenceFile(dir, "tokenizer_config.json", &tokens); err != nil {
		return 0, err
	}
	if n, err := tokens.MaxTokens.Int64(); err == nil && n > 0 && n <= 1<<24 {
		return int(n), nil
	}
	return 0, nil
}

// SaveSentenceEncoder writes a folder that sentence-transformers opens, all releases of it
// from 2 on. The folder must not exist yet or be empty; files, such as tokenizer.json,
// are written beside.
func SaveSentenceEncoder(dir string, m *SentenceEncoder, files map[string][]byte) error {
	all := maps.Clone(files)
	if all == nil {
		all = make(map[string][]byte)
	}
	similarity := m.Config.Similarity
	if similarity == "" {
		similarity = "cosine"
	}
	prompts := m.Config.Prompts
	if prompts == nil {
		prompts = map[string]string{}
	}
	about := map[string]any{"prompts": prompts, "default_prompt_name": nil, "similarity_fn_name": similarity}
	if m.Config.DefaultPrompt != "" {
		about["default_prompt_name"] = m.Config.DefaultPrompt
	}
	for name, v := range map[string]any{
		"sentence_bert_config.json":         map[string]any{"max_seq_length": m.MaxTokens(), "do_lower_case": m.Config.Lower},
		"config_sentence_transformers.json": about,
	} {
		text, err := json.MarshalIndent(v, "", "  ")
		if err != nil {
			return err
		}
		all[name] = append(text, '\n')
	}
	if err := SaveHuggingFace(dir, m.Encoder, 0, all); err != nil {
		return err
	}
	modules, err := m.saveModules(dir)
	if err != nil {
		return err
	}
	// Last, for without it the folder is none of sentence-transformers'.
	return writeJSON(filepath.Join(dir, modulesFile), modules)
}

// saveModules writes the folders of what follows after the encoder, and lists them.
func (m *SentenceEncoder) saveModules(dir string) ([]map[string]any, error) {
	list := []map[string]any{}
	add := func(kind string, config any) error {
		n, folder := len(list), ""
		if n > 0 {
			folder = fmt.Sprintf("%d_%s", n, kind)
			if err := os.MkdirAll(filepath.Join(dir, folder), 0o777); err != nil {
				return err
			}
		}
		list = append(list, map[string]any{"idx": n, "name": fmt.Sprint(n), "path": folder, "type": "sentence_transformers.models." + kind})
		if config == nil {
			return nil
		}
		return writeJSON(filepath.Join(dir, folder, configFile), config)
	}
	on := func(mode string) bool { return slices.Contains(m.Config.Pooling, mode) }
	p := poolingFile{
		Width: m.Encoder.Width(), CLS: on(PoolCLS), Max: on(PoolMax), Mean: on(PoolMean), Sqrt: on(PoolMeanSqrt), Weighted: on(PoolWeightedMean), Last: on(PoolLast),
		Prompt: new(bool),
	}
	*p.Prompt = true
	if err := add("Transformer", nil); err != nil {
		return nil, err
	}
	if err := add("Pooling", p); err != nil {
		return nil, err
	}
	next := 0
	for _, s := range m.Config.Steps {
		if s.Normalize {
			if err := add("Normalize", nil); err != nil {
				return nil, err
			}
		}
		if s.Dense == nil {
			continue
		}
		config := map[string]any{"in_features": s.Dense.In, "out_features": s.Dense.Out, "bias": !s.Dense.NoBias}
		for torch, a := range torchActivations {
			if a == s.Dense.Activation || a == "linear" && s.Dense.Activation == "" {
				config["activation_function"] = torch
			}
		}
		folder := fmt.Sprintf("%d_Dense", len(list))
		if err := huggingface.Save(filepath.Join(dir, folder), nn.StateDict(m.Dense[next]).All(), huggingface.SaveOptions{}); err != nil {
			return nil, err
		}
		if err := add("Dense", config); err != nil {
			return nil, err
		}
		next++
	}
	return list, nil
}

func writeJSON(name string, v any) error {
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(name, append(text, '\n'), 0o666)
}
