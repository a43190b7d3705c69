// SPDX-License-Identifier: Apache-2.0

package tokenizer

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// The files beside those of a tokenizer that Hugging Face's AutoTokenizer reads.
const (
	settingsFile = "tokenizer_config.json"
	specialsFile = "special_tokens_map.json"
	addedFile    = "added_tokens.json"
	modelFile    = "config.json"
)

// maxSettings limits each of them but for added_tokens.json.
const maxSettings = 16 << 20

// object is a JSON object with the order of its keys, which decides the order of
// new tokens.
type object struct {
	keys   []string
	values map[string]json.RawMessage
}

func (o *object) UnmarshalJSON(b []byte) error {
	*o = object{values: make(map[string]json.RawMessage)}
	d := json.NewDecoder(bytes.NewReader(b))
	if open, err := d.Token(); err != nil || open != json.Delim('{') {
		return fmt.Errorf("must be an object")
	}
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return err
		}
		var v json.RawMessage
		if err := d.Decode(&v); err != nil {
			return err
		}
		o.set(key.(string), v)
	}
	return nil
}

func (o *object) set(key string, v json.RawMessage) {
	if _, ok := o.values[key]; !ok {
		o.keys = append(o.keys, key)
	}
	o.values[key] = v
}

// given reports whether a key is there with a value.
func (o *object) given(key string) bool {
	v, ok := o.values[key]
	return ok && string(v) != "null"
}

// take returns the value of a key, which is no longer there, into v. It reports
// whether there was one, which is not null.
func (o *object) take(key string, v any) (bool, error) {
	raw, given := o.values[key], o.given(key)
	if i := slices.Index(o.keys, key); i >= 0 {
		o.keys = slices.Delete(o.keys, i, i+1)
		delete(o.values, key)
	}
	if !given {
		return false, nil
	}
	if err := json.Unmarshal(raw, v); err != nil {
		return false, formatErr(key, "%v", err)
	}
	return true, nil
}

// ownPattern is [Pattern] as tokenizer.json has it.
var ownPattern = func() string {
	b, err := marshal(Pattern, "")
	if err != nil {
		panic(err) // a string always marshals
	}
	return string(b)
}()

// folder is what a folder says about its tokenizer.
type folder struct {
	path     string
	settings object // tokenizer_config.json
	specials object // special_tokens_map.json
	added    object // added_tokens.json
	class    string // of the Hugging Face libraries
	named    bool   // a file names it
	file     bool   // there is a tokenizer.json

	purposes map[string]string // special tokens by what they are for
}

// loadFolder reads the tokenizer in a folder as AutoTokenizer does.
func loadFolder(path string) (*Tokenizer, error) {
	f := &folder{path: path}
	var model object
	for name, o := range map[string]*object{settingsFile: &f.settings, specialsFile: &f.specials, addedFile: &f.added, modelFile: &model} {
		if err := f.readObject(name, o); err != nil {
			return nil, err
		}
	}
	if err := f.setClass(&model); err != nil {
		return nil, err
	}
	file := filepath.Join(path, jsonFile)
	var d *document
	switch _, err := os.Stat(file); {
	case err == nil:
		f.file = true
		if d, err = loadFile(file, readDocument); err != nil {
			return nil, err
		}
	case !errors.Is(err, os.ErrNotExist):
		return nil, fmt.Errorf("tokenizer: %w", err)
	default:
		if d, err = f.readVocabulary(); err != nil {
			return nil, err
		}
	}
	base := int64(0)
	for _, id := range d.Model.Vocab {
		base = max(base, id+1)
	}
	for _, a := range d.AddedTokens {
		base = max(base, a.ID+1)
	}
	if err := f.complete(d); err != nil {
		return nil, err
	}
	t, err := d.tokenizer()
	if err == nil {
		t.base, t.special = min(int(base), t.Size()), f.purposes
	}
	var format *FormatError
	if errors.As(err, &format) && format.Path == "" {
		format.Path = file
		if !f.file {
			format.Path = filepath.Join(path, vocabFile)
			if strings.HasPrefix(format.Field, "model.merges") {
				format.Path = filepath.Join(path, mergesFile)
			}
		}
	}
	return t, err
}

func (f *folder) readObject(name string, o *object) error {
	o.values = make(map[string]json.RawMessage)
	path := filepath.Join(f.path, name)
	if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	limit := int64(maxSettings)
	if name == addedFile {
		limit = maxFile
	}
	_, err := loadFile(path, func(r io.Reader) (struct{}, error) {
		b, err := io.ReadAll(io.LimitReader(r, limit+1))
		if err != nil {
			return struct{}{}, err
		}
		if int64(len(b)) > limit {
			return struct{}{}, formatErr("", "longer than %d bytes: is this a %s?", limit, name)
		}
		if err := json.Unmarshal(b, o); err != nil {
			return struct{}{}, formatErr("", "not a %s: %v", name, err)
		}
		return struct{}{}, nil
	})
	return err
}

// The classes of the Hugging Face libraries. The first takes tokenizer.json as
// it is; of the others, each makes all but the vocabulary, the merges and the
// post-processor itself.
const (
	classBackend   = "TokenizersBackend"
	classGPT2      = "GPT2Tokenizer"
	classLlama     = "LlamaTokenizer"
	classCodeLlama = "CodeLlamaTokenizer"
	classGemma     = "GemmaTokenizer"
	classQwen2     = "Qwen2Tokenizer"
	classBERT      = "BertTokenizer"
	classRoBERTa   = "RobertaTokenizer"
	classXLMR      = "XLMRobertaTokenizer"
)

// folderClasses are those that are known.
var folderClasses = []string{classBackend, classGPT2, classLlama, classCodeLlama, classGemma, classQwen2, classBERT, classRoBERTa, classXLMR}

// backends are names of the first.
var backends = []string{classBackend, "PreTrainedTokenizer", "PythonBackend", "BloomTokenizer"}

// modelClasses are the classes of models whose tokenizer_config.json names none;
// those of the others are taken to be the first. A model for which the first is
// registered has it whatever its tokenizer_config.json says, unless that is
// registered too for other models.
var modelClasses = map[string]string{
	"gpt2": classGPT2, "gpt_neo": classGPT2, "gptj": classGPT2, "opt": classGPT2, "phi": classGPT2, "starcoder2": classGPT2, "codegen": classGPT2,
	"gemma": classGemma, "gemma2": classGemma, "gemma3": classGemma, "gemma3_text": classGemma, "code_llama": classCodeLlama,
	"gpt_neox": "GPTNeoXTokenizer", "olmo": "GPTNeoXTokenizer", "qwen3": classQwen2, "qwen2": classQwen2, "bert": classBERT, "distilbert": classBERT, "electra": classBERT,
	"roberta": classRoBERTa, "xlm-roberta": classXLMR, "t5": "T5Tokenizer", "cohere": "CohereTokenizer", "whisper": "WhisperTokenizer",
	"mistral": classBackend, "ministral": classBackend, "mixtral": classBackend, "phi3": classBackend, "phimoe": classBackend, "stablelm": classBackend,
	"granite": classBackend, "olmo2": classBackend, "olmo3": classBackend, "persimmon": classBackend, "gpt_bigcode": classBackend, "glm": classBackend,
	"glm4": classBackend, "internlm2": classBackend, "nemotron": classBackend, "jamba": classBackend, "arctic": classBackend,
}

// setClass finds out which class AutoTokenizer would take.
func (f *folder) setClass(model *object) error {
	var kind, class string
	var program json.RawMessage
	for _, s := range []struct {
		o    *object
		key  string
		into any
		file string
	}{{model, "model_type", &kind, modelFile}, {model, "tokenizer_class", &class, modelFile}, {&f.settings, "tokenizer_class", &class, settingsFile}, {&f.settings, "auto_map", &program, settingsFile}} {
		if _, err := s.o.take(s.key, s.into); err != nil {
			return f.at(s.file, err)
		}
	}
	if bytes.HasPrefix(program, []byte("[")) || bytes.Contains(program, []byte(`"AutoTokenizer"`)) {
		return f.at(settingsFile, formatErr("auto_map", "the tokenizer is a program of its own, which is not run"))
	}
	f.named = class != ""
	class, registered := strings.TrimSuffix(class, "Fast"), modelClasses[kind]
	if class == "DistilBertTokenizer" || class == "ElectraTokenizer" {
		class = classBERT // other names of it
	}
	switch {
	case class == "":
		f.class = registered
	case registered == classBackend:
		f.class = classBackend
	case registered == "Qwen2Tokenizer" && kind == "qwen2":
		f.class = registered // whatever the file says
	default:
		f.class = class
	}
	if f.class == "" || slices.Contains(backends, f.class) {
		f.class = classBackend
	}
	return nil
}

func (f *folder) at(name string, err error) error {
	var format *FormatError
	if errors.As(err, &format) {
		format.Path = filepath.Join(f.path, name)
	}
	return err
}

// readVocabulary reads GPT-2's two files.
func (f *folder) readVocabulary() (*document, error) {
	if _, err := os.Stat(filepath.Join(f.path, wordsFile)); err == nil && (f.class == classBERT || f.class == classBackend && !f.named) {
		f.class = classBERT
		return readWords(filepath.Join(f.path, wordsFile))
	}
	vocab, merges := filepath.Join(f.path, vocabFile), filepath.Join(f.path, mergesFile)
	if _, err := os.Stat(vocab); errors.Is(err, os.ErrNotExist) {
		for _, name := range []string{"tokenizer.model", "tekken.json", "vocab.txt", "spiece.model"} {
			if _, err := os.Stat(filepath.Join(f.path, name)); err == nil {
				return nil, fmt.Errorf("tokenizer: %s has a %s, but no %s, and only that is read: AutoTokenizer.from_pretrained(…).save_pretrained(…) writes one", f.path, name, jsonFile)
			}
		}
		return nil, fmt.Errorf("tokenizer: %s has neither %s nor %s and %s: is it the folder of a model?", f.path, jsonFile, vocabFile, mergesFile)
	}
	if f.class == classBackend && !f.named {
		f.class = classGPT2 // no other is made of these files here
	}
	if f.class != classGPT2 && f.class != classRoBERTa && f.class != classQwen2 {
		return nil, f.at(settingsFile, formatErr("tokenizer_class", "a %s of %s and %s is not supported, only a %s; a %s is", f.class, vocabFile, mergesFile, classGPT2, jsonFile))
	}
	return readGPT2(vocab, merges)
}

// complete gives a document what the class and the folder's other files say.
func (f *folder) complete(d *document) error {
	level := bytes.Contains(d.PreTokenizer, []byte(`"ByteLevel"`)) || bytes.Contains(d.Decoder, []byte(`"ByteLevel"`)) || bytes.Contains(d.PostProcessor, []byte(`"ByteLevel"`))
	// A tokenizer of our own kind in the folder of a GPT-2 is what it says it is:
	// the class that is taken for want of a name would split texts in another way.
	own := strings.Contains(string(d.PreTokenizer), strings.TrimSpace(ownPattern))
	if f.class == classLlama && level || own && !f.named {
		f.class = classBackend
	}
	tokens, err := f.tokens(d)
	if err != nil {
		return err
	}
	var prefix *bool
	var legacy, whole, clean, corrupt bool
	for key, v := range map[string]any{
		"add_prefix_space": &prefix, "legacy": &legacy, "split_special_tokens": &whole,
		"clean_up_tokenization_spaces": &clean, "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output": &corrupt,
	} {
		if _, err := f.settings.take(key, v); err != nil {
			return f.at(settingsFile, err)
		}
	}
	var versions []string
	if _, err := f.settings.take("fast_tokenizer_files", &versions); err != nil {
		return f.at(settingsFile, err)
	}
	switch {
	case whole:
		return f.at(settingsFile, formatErr("split_special_tokens", "is not supported: special tokens are looked for in texts"))
	case clean && corrupt:
		return f.at(settingsFile, formatErr("clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output", "is not supported"))
	case slices.ContainsFunc(versions, func(name string) bool { return name != jsonFile }):
		return f.at(settingsFile, formatErr("fast_tokenizer_files", "several versions of %s are not supported", jsonFile))
	}
	f.purposes = make(map[string]string, len(tokens.named))
	for name, tok := range tokens.named {
		f.purposes[name] = tok.Content
	}
	switch f.class {
	case classBackend:
	case classBERT, classRoBERTa, classXLMR, classQwen2:
		if err := f.rebuildEncoder(d, prefix, tokens); err != nil {
			return f.at(settingsFile, err)
		}
	default:
		d.rebuild(f.class, prefix, legacy, tokens.named["unk_token"].Content)
	}
	return f.add(d, tokens)
}

// rebuild makes of a document what a class makes of its vocabulary and merges.
func (d *document) rebuild(class string, prefix *bool, legacy bool, unknown string) {
	const (
		back    = `{"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "` + mark + `"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}`
		replace = `{"type": "Replace", "pattern": {"String": " "}, "content": "` + mark + `"}`
		atSpace = `{"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": false}`
	)
	d.Normalizer, d.Model = nil, model{Type: "BPE", Vocab: d.Model.Vocab, Merges: d.Model.Merges}
	if class == classGPT2 {
		d.PreTokenizer = json.RawMessage(fmt.Sprintf(`{"type": "ByteLevel", "add_prefix_space": %t, "trim_offsets": true, "use_regex": true}`, isTrue(prefix, false)))
		_, d.Decoder = SplitGPT2.sections()
		return
	}
	d.Model.FuseUnk, d.Model.ByteFallback = true, true
	if class != classLlama {
		d.Model.UnkToken = &unknown
	}
	if class == classGemma {
		d.Normalizer, d.PreTokenizer, d.Decoder = json.RawMessage(replace), json.RawMessage(atSpace), json.RawMessage(back+`]}`)
		return
	}
	scheme := "first"
	switch {
	case !isTrue(prefix, true):
		scheme = "never"
	case legacy && class == classLlama:
		scheme = "always"
	}
	d.PreTokenizer = json.RawMessage(`{"type": "Metaspace", "replacement": "` + mark + `", "prepend_scheme": "` + scheme + `", "split": false}`)
	d.Decoder = json.RawMessage(back + `]}`)
	if scheme != "never" || class == classCodeLlama {
		d.Decoder = json.RawMessage(back + `, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}`)
	}
}
