// SPDX-License-Identifier: Apache-2.0

package train

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"path/filepath"
	"slices"
	"strings"
)

const generationFile = "generation_config.json"

// Generation has the settings in the folder of a model for generating text: those of
// its generation_config.json or, without that file, of its config.json, as in the
// Hugging Face libraries. A setting that the file does not have is nil.
type Generation struct {
	EOS               []int64 // each ends a text
	BOS               []int64 // begins a text without a prompt
	Sample            *bool   // false takes the likeliest token always
	Temperature       *float64
	TopK              *int
	TopP              *float64
	RepetitionPenalty *float64
	MaxNewTokens      *int
	MaxLength         *int // with the prompt's tokens
	MinNewTokens      *int
	MinLength         *int // with the prompt's tokens
	MinP              *float64
	NoRepeatNgram     *int
	Stop              []string // texts before which a text ends
	// Ignored names what it says beside that, which is not done; see [Generation.Refused].
	Ignored []string

	file string
}

// generationOf reads the settings in a folder, or in that of an adapter's base.
func generationOf(dir string) (Generation, error) {
	folder, err := modelFolder(dir)
	if err != nil {
		return Generation{}, err
	}
	files := make(map[string][]byte)
	for _, path := range []string{filepath.Join(folder, configFile), filepath.Join(folder, generationFile), filepath.Join(dir, generationFile)} {
		if text, err := readCompanion(path); err == nil {
			files[filepath.Base(path)] = text
		} else if !errors.Is(err, fs.ErrNotExist) {
			return Generation{}, err
		}
	}
	return parseGeneration(files)
}

// without has the fields of generation_config.json that need no notice: those that
// do not change the text for a single prompt (nil), and those that have the default
// value of the Hugging Face libraries.
var without = map[string]any{
	"transformers_version": nil, "_from_model_config": nil, "_commit_hash": nil, "pad_token_id": nil, "use_cache": nil, "cache_implementation": nil, "cache_config": nil,
	"max_cache_len": nil, "return_dict_in_generate": nil, "output_attentions": nil, "output_hidden_states": nil, "output_scores": nil, "output_logits": nil,
	"num_assistant_tokens": nil, "num_assistant_tokens_schedule": nil, "assistant_confidence_threshold": nil, "compile_config": nil, "disable_compile": nil,
	"early_stopping": nil, "length_penalty": nil, "renormalize_logits": nil, "low_memory": nil, "decoder_start_token_id": nil, "trust_remote_code": nil,
	"encoder_no_repeat_ngram_size": nil, "is_assistant": nil, "prefill_chunk_size": nil, "remove_invalid_values": nil, "chat_format": nil, "num_beam_groups": 1.,
	"num_beams": 1., "num_return_sequences": 1., "typical_p": 1., "epsilon_cutoff": 0., "eta_cutoff": 0.,
	"encoder_repetition_penalty": 1., "diversity_penalty": 0., "guidance_scale": 1., "max_window_size": nil, "transformers.js_config": nil,
}

// parseGeneration reads generation_config.json or, without it, config.json.
func parseGeneration(files map[string][]byte) (g Generation, err error) {
	g.file = generationFile
	text, ok := files[generationFile]
	if !ok {
		g.file = configFile
		if text, ok = files[configFile]; !ok {
			return g, nil
		}
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(text, &fields); err != nil {
		return g, fmt.Errorf("%s: %w", g.file, err)
	}
	known := map[string]any{
		"do_sample": &g.Sample, "temperature": &g.Temperature, "top_k": &g.TopK, "top_p": &g.TopP, "repetition_penalty": &g.RepetitionPenalty,
		"max_new_tokens": &g.MaxNewTokens, "max_length": &g.MaxLength, "min_new_tokens": &g.MinNewTokens, "min_length": &g.MinLength,
		"eos_token_id": &g.EOS, "bos_token_id": &g.BOS, "min_p": &g.MinP, "no_repeat_ngram_size": &g.NoRepeatNgram, "stop_strings": &g.Stop,
	}
	for name, raw := range fields {
		if string(raw) == "null" {
			continue
		}
		v, ok := known[name]
		switch def, ignored := without[name]; {
		case ok:
			_, isIDs := v.(*[]int64)
			_, isTexts := v.(*[]string)
			if (isIDs || isTexts) && !bytes.HasPrefix(raw, []byte("[")) {
				raw = slices.Concat([]byte("["), raw, []byte("]"))
			}
			if err := json.Unmarshal(raw, v); err != nil {
				return g, fmt.Errorf("%s: %s is %s: %w", g.file, name, raw, err)
			}
		case g.file == configFile: // most of its fields are not about generating text
		case !ignored || def != nil && !is(raw, def):
			if !is(raw, false) && string(raw) != "[]" && string(raw) != "{}" {
				g.Ignored = append(g.Ignored, fmt.Sprintf("%s %.60s", name, raw))
			}
		}
	}
	slices.Sort(g.Ignored)
	return g, g.check()
}

// is reports whether a JSON value equals another value.
func is(raw json.RawMessage, want any) bool {
	var v any
	return json.Unmarshal(raw, &v) == nil && v == want
}

func (g *Generation) check() error {
	bad := func(name string, v any, want string) error {
		return fmt.Errorf("%s: %s is %v, want %s", g.file, name, v, want)
	}
	switch {
	case g.Temperature != nil && !(*g.Temperature >= 0):
		return bad("temperature", *g.Temperature, "0 or more")
	case g.TopK != nil && *g.TopK < 0:
		return bad("top_k", *g.TopK, "0 or more")
	case g.TopP != nil && !(*g.TopP >= 0 && *g.TopP <= 1):
		return bad("top_p", *g.TopP, "0 to 1")
	case g.MinP != nil && !(*g.MinP >= 0 && *g.MinP <= 1):
		return bad("min_p", *g.MinP, "0 to 1")
	case g.NoRepeatNgram != nil && *g.NoRepeatNgram < 0:
		return bad("no_repeat_ngram_size", *g.NoRepeatNgram, "0 or more")
	case slices.Contains(g.Stop, ""):
		return bad("stop_strings", g.Stop, "texts that are not empty")
	case g.RepetitionPenalty != nil && !(*g.RepetitionPenalty > 0):
		return bad("repetition_penalty", *g.RepetitionPenalty, "more than 0")
	}
	return nil
}

// Refused is an error that names the settings which are not done, nil if there are none.
func (g Generation) Refused() error {
	if len(g.Ignored) == 0 {
		return nil
	}
	return fmt.Errorf("%s asks for what Cohort does not do: %s", g.file, strings.Join(g.Ignored, ", "))
}

// Fill sets the options that the user has not given to those of a model's folder.
// given reports whether the user gave an option, by its name in
// generation_config.json: do_sample, temperature, top_k, top_p, min_p, repetition_penalty,
// no_repeat_ngram_size, stop_strings, max_new_tokens.
func (o *GenerateOptions) Fill(g Generation, given func(name string) bool) {
	o.EOS, o.BOS = g.EOS, g.BOS
	if g.Temperature != nil && !given("temperature") {
		o.Temperature = *g.Temperature
	}
	if g.Sample != nil && !*g.Sample && !given("temperature") && !given("do_sample") {
		o.Temperature = 0
	}
	if g.TopK != nil && !given("top_k") {
		o.TopK = *g.TopK
	}
	if g.TopP != nil && !given("top_p") {
		o.TopP = max(*g.TopP, math.SmallestNonzeroFloat64) // none is the likeliest alone
	}
	if g.RepetitionPenalty != nil && !given("repetition_penalty") {
		o.RepetitionPenalty = *g.RepetitionPenalty
	}
	if g.MinP != nil && !given("min_p") {
		o.MinP = *g.MinP
	}
	if g.NoRepeatNgram != nil && !given("no_repeat_ngram_size") {
		o.NoRepeatNgram = *g.NoRepeatNgram
	}
	if len(g.Stop) > 0 && !given("stop_strings") {
		o.Stop = g.Stop
	}
	switch {
	case given("max_new_tokens"):
	case g.MaxNewTokens != nil:
		o.NumTokens = max(0, *g.MaxNewTokens)
	case g.MaxLength != nil && *g.MaxLength > 0:
		o.NumTokens, o.maxLength = math.MaxInt, *g.MaxLength
	}
	if g.MinNewTokens != nil {
		o.minTokens = *g.MinNewTokens
	} else if g.MinLength != nil {
		o.minLength = *g.MinLength
	}
}
