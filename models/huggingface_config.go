// SPDX-License-Identifier: Apache-2.0

package models

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// settings says what becomes of the keys of a family's config.json. A key is in
// one of three lists; what is in none is unknown, and told to who opens the model.
type settings struct {
	// honoured are read, and refused by who reads them where a value cannot be had.
	honoured []string
	// harmless change nothing in what a model computes for its inputs.
	harmless []string
	// plain are refused at other values than these; null, false, 0 and what is
	// empty are allowed always.
	plain map[string][]any
}

// harmlessAlways are the keys of every family's config.json that change nothing
// here.
var harmlessAlways = slices.Concat(
	// Who wrote the file and from what. Weights are float32 here, whatever they
	// are stored as.
	[]string{"_name_or_path", "name_or_path", "_commit_hash", "transformers_version", "dtype", "torch_dtype", "auto_map", "unsloth_version", "unsloth_fixed", "max_sequence_length", "model_max_length",
		"is_llama_config", "transformers.js_config"},
	// What a pass returns beside its result, and how it is computed.
	[]string{"output_attentions", "output_hidden_states", "output_past", "return_dict", "use_return_dict", "use_cache", "torchscript", "use_bfloat16",
		"tf_legacy_loss", "chunk_size_feed_forward", "gradient_checkpointing", "pretraining_tp", "attn_implementation", "_attn_implementation",
		"_attn_implementation_autoset", "_attn_implementation_internal", "_flash_attn_2_enabled", "experts_implementation", "tie_last_hidden_states"},
	// Other heads than those of language models.
	[]string{"id2label", "label2id", "num_labels", "_num_labels", "problem_type", "finetuning_task", "task_specific_params", "classifier_dropout",
		"tie_encoder_decoder"},
	// Tokens, which tokenizers know, and how text is drawn.
	[]string{"bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "cls_token_id", "unk_token_id", "mask_token_id", "decoder_start_token_id",
		"tokenizer_class", "prefix", "bad_words_ids", "begin_suppress_tokens", "diversity_penalty", "do_sample", "early_stopping",
		"encoder_no_repeat_ngram_size", "encoder_repetition_penalty", "epsilon_cutoff", "eta_cutoff", "exponential_decay_length_penalty",
		"forced_bos_token_id", "forced_eos_token_id", "length_penalty", "max_length", "max_new_tokens", "min_length", "no_repeat_ngram_size", "num_assistant_tokens",
		"num_assistant_tokens_schedule", "assistant_confidence_threshold", "assistant_lookbehind", "target_lookbehind", "num_beam_groups", "num_beams",
		"num_return_sequences", "output_scores", "remove_invalid_values", "repetition_penalty", "return_dict_in_generate", "suppress_tokens",
		"temperature", "top_k", "top_p", "typical_p"},
	// First values and training: who trains chooses.
	[]string{"initializer_range", "initializer_factor", "neftune_noise_alpha"},
)

// plainAlways are keys by which a model computes something else. Some belong to
// other families: a model that was made with them and is said to be of one of
// these does not compute what its makers meant.
var plainAlways = map[string][]any{
	"quantization_config": nil, "is_encoder_decoder": nil, "add_cross_attention": nil, "cross_attention_hidden_size": nil, "pruned_heads": nil,
	"per_layer_config": nil, "logit_scale": {1.0}, "logits_scaling": {1.0}, "embedding_multiplier": {1.0}, "residual_multiplier": {1.0},
	"attention_multiplier": {1.0}, "scale_emb": {1.0}, "scale_depth": {1.0}, "dim_model_base": nil, "final_logit_softcapping": nil,
	"attn_logit_softcapping": nil, "query_pre_attn_scalar": nil, "clip_qkv": nil, "qk_layernorm": nil, "use_qk_norm": nil, "qkv_bias": nil,
	"alibi": nil, "parallel_attn": nil, "use_parallel_residual": nil, "rotary_pct": {1.0}, "rotary_dim": nil, "rotary_emb_base": nil,
	"rope_local_base_freq": nil, "rope_interleaved": nil, "no_rope_layers": nil, "use_sliding_window": nil, "num_experts": {1.0}, "num_local_experts": {1.0},
	"num_experts_per_tok": {1.0}, "n_routed_experts": nil,
}

// configuration is a config.json whose keys have been looked at.
type configuration struct {
	keys    map[string]json.RawMessage
	unknown []string // keys that stand in no list
}

// readConfig reads the text of a config.json.
func readConfig(text []byte) (configuration, error) {
	// A map keeps names as they are written, where a struct would take other
	// letter case too, and the last of two as Python does.
	var c configuration
	if err := json.Unmarshal(text, &c.keys); err != nil {
		return c, fmt.Errorf("models: config.json: %w", err)
	}
	return c, nil
}

// has says whether a key has a value.
func (c *configuration) has(key string) bool {
	text, ok := c.keys[key]
	return ok && string(text) != "null"
}

// absent returns a value for a key that is not there. A null is there, and stands for 0.
func (c *configuration) absent(key string, value int) int {
	if _, ok := c.keys[key]; ok {
		return 0
	}
	return value
}

// modelType returns the family of the model: what model_type says or, where it is
// missing as in the oldest files, the class that saved the model.
func (c *configuration) modelType() (string, error) {
	var head struct {
		Type          string   `json:"model_type"`
		Architectures []string `json:"architectures"`
	}
	for key, into := range map[string]any{"model_type": &head.Type, "architectures": &head.Architectures} {
		if text, ok := c.keys[key]; ok {
			if err := json.Unmarshal(text, into); err != nil {
				return "", fmt.Errorf("models: config.json: %s: %w", key, err)
			}
		}
	}
	if head.Type == "" && len(head.Architectures) > 0 {
		for _, f := range families() {
			if strings.HasPrefix(head.Architectures[0], f.class) {
				return f.kind, nil
			}
		}
	}
	return head.Type, nil
}

// decode fills a struct with the keys that are honoured, and refuses by name
// every setting that would have to be.
func (c *configuration) decode(s settings, into any) error {
	honoured := make(map[string]json.RawMessage)
	var refused []string
	for _, key := range slices.Sorted(maps.Keys(c.keys)) {
		plain, known := s.plain[key]
		if !known {
			plain, known = plainAlways[key]
		}
		switch {
		case slices.Contains(s.honoured, key):
			honoured[key] = c.keys[key]
		case slices.Contains(s.harmless, key), slices.Contains(harmlessAlways, key):
		case !known:
			c.unknown = append(c.unknown, key)
		default:
			var v any
			if err := json.Unmarshal(c.keys[key], &v); err != nil {
				return fmt.Errorf("models: config.json: %s: %w", key, err)
			}
			if !neutral(v) && !slices.Contains(plain, v) {
				refused = append(refused, fmt.Sprintf("%s %s", key, c.keys[key]))
			}
		}
	}
	if len(refused) > 0 {
		return fmt.Errorf("models: config.json has settings that are not supported: %s", strings.Join(refused, ", "))
	}
	text, err := json.Marshal(honoured)
	if err == nil {
		err = json.Unmarshal(text, into)
	}
	if err != nil {
		return fmt.Errorf("models: config.json: %w", err)
	}
	return nil
}

// neutral says whether a value asks for nothing.
func neutral(v any) bool {
	switch v := v.(type) {
	case nil:
		return true
	case bool:
		return !v
	case float64:
		return v == 0
	case string:
		return v == ""
	case []any:
		return len(v) == 0
	case map[string]any:
		return len(v) == 0
	}
	return false
}
