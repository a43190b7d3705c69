// SPDX-License-Identifier: Apache-2.0

package models

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/tensor"
)

// keysOf are the keys of one family, with a value that says something else than
// the family's own.
type keysOf struct{ honoured, harmless, refused map[string]any }

// familyKeys are the keys that transformers' classes write and those that are in
// published files: each is honoured, changes nothing, or is refused by name.
var familyKeys = map[string]keysOf{
	"gpt2": {
		honoured: map[string]any{
			"activation_function": "relu", "layer_norm_epsilon": 1e-6, "n_embd": 24, "n_head": 2, "n_inner": 7, "n_layer": 3, "n_positions": 9,
			"scale_attn_by_inverse_layer_idx": true, "scale_attn_weights": false, "tie_word_embeddings": false, "vocab_size": 70,
			"hidden_size": 24, "num_attention_heads": 2, "num_hidden_layers": 3, "max_position_embeddings": 9,
		},
		harmless: map[string]any{
			"attn_pdrop": 0.3, "embd_pdrop": 0.3, "resid_pdrop": 0.3, "n_ctx": 1024, "reorder_and_upcast_attn": true, "is_decoder": true,
			"summary_activation": "tanh", "summary_first_dropout": 0.3, "summary_proj_to_labels": false, "summary_type": "mean", "summary_use_proj": false,
			"n_special": 4, "predict_special_tokens": false,
		},
		refused: map[string]any{"add_cross_attention": true, "quantization_config": map[string]any{"quant_method": "awq"}, "n_inner": 0, "activation_function": "prelu"},
	},
	"llama": {
		honoured: map[string]any{
			"attention_bias": true, "head_dim": 16, "hidden_act": "gelu", "hidden_size": 64, "intermediate_size": 40, "max_position_embeddings": 99,
			"mlp_bias": true, "num_attention_heads": 8, "num_hidden_layers": 3, "num_key_value_heads": 1, "rms_norm_eps": 1e-3,
			"rope_parameters": map[string]any{"rope_theta": 5.0, "rope_type": "default"}, "tie_word_embeddings": true, "vocab_size": 70,
			"rope_scaling": map[string]any{"type": "linear", "factor": 2.0},
		},
		harmless: map[string]any{
			"attention_dropout": 0.1, "pretraining_tp": 2, "is_decoder": true, "sliding_window": 4096, "layer_types": []string{"full_attention"},
			"partial_rotary_factor": 1.0, "logit_scale": 1.0, "quantization_config": nil, "pruned_heads": map[string]any{},
			"original_max_position_embeddings": 9, "rope_theta": 5, // rope_parameters have one of their own
			"is_llama_config": true, "rope_interleaved": false, "transformers.js_config": map[string]any{"kv_cache_dtype": "float16"}, // SmolLM2's
		},
		refused: map[string]any{
			"sliding_window": 5, "layer_types": []string{"full_attention", "sliding_attention"}, "partial_rotary_factor": 0.5, "logit_scale": 0.5,
			"quantization_config": map[string]any{"quant_method": "gptq"}, "is_encoder_decoder": true, "pruned_heads": map[string]any{"0": []int{1}},
			"per_layer_config": map[string]any{"0": map[string]any{"num_attention_heads": 2}}, "embedding_multiplier": 12, "hidden_act": "xielu",
			"num_local_experts": 8, "rope_interleaved": true, "attn_logit_softcapping": 50.0, "rms_norm_eps": 0.0, "use_sliding_window": true,
		},
	},
	"mistral": {
		honoured: map[string]any{
			"head_dim": 16, "hidden_act": "gelu", "hidden_size": 64, "intermediate_size": 40, "max_position_embeddings": 99, "num_attention_heads": 8,
			"num_hidden_layers": 3, "num_key_value_heads": 1, "rms_norm_eps": 1e-3, "rope_parameters": map[string]any{"rope_theta": 5.0, "rope_type": "default"},
			"sliding_window": 5, "tie_word_embeddings": true, "vocab_size": 70,
		},
		harmless: map[string]any{"attention_dropout": 0.1, "attention_bias": false, "sliding_window": nil, "layer_types": []string{"full_attention", "full_attention"}},
		refused:  map[string]any{"attention_bias": true, "mlp_bias": true, "sliding_window": 0, "layer_types": []string{"sliding_attention", "full_attention"}},
	},
	"roberta": robertaKeys, "xlm-roberta": robertaKeys,
	"distilbert": {
		honoured: map[string]any{
			"activation": "relu", "attention_dropout": 0.3, "dim": 24, "dropout": 0.3, "hidden_dim": 7, "n_heads": 2, "n_layers": 3, "vocab_size": 70,
			"max_position_embeddings": 99, "pad_token_id": 5, "tie_word_embeddings": false, "architectures": []string{"DistilBertModel"},
			"hidden_size": 24, "num_attention_heads": 2, "num_hidden_layers": 3,
		},
		harmless: map[string]any{"qa_dropout": 0.3, "sinusoidal_pos_embds": true, "seq_classif_dropout": 0.3, "tie_weights_": true}, // of other heads
		refused:  map[string]any{"is_decoder": true, "add_cross_attention": true, "activation": "xielu", "is_encoder_decoder": true},
	},
	"smollm3": decoderKeys(keysOf{
		honoured: map[string]any{
			"tie_word_embeddings": false, "use_sliding_window": false, "sliding_window": 7, "no_rope_layers": []int{1, 1}, "attention_bias": true,
			"mlp_bias": true, "layer_types": []string{"sliding_attention", "sliding_attention"}, "num_hidden_layers": 2, "no_rope_layer_interval": 2,
		},
		harmless: map[string]any{"max_window_layers": 28, "pretraining_tp": 2, "num_hidden_layers": 2, "no_rope_layer_interval": 3},
		refused:  map[string]any{"no_rope_layers": []int{1}, "use_qk_norm": true},
	}),
	"qwen2": decoderKeys(keysOf{
		honoured: map[string]any{"tie_word_embeddings": false, "use_sliding_window": true, "sliding_window": 7, "layer_types": []string{"sliding_attention", "sliding_attention"}},
		harmless: map[string]any{"max_window_layers": 28, "use_mrope": false, "num_hidden_layers": 2, "use_sliding_window": true, "attention_bias": true},
		refused:  map[string]any{"use_mrope": true, "mlp_bias": true, "layer_types": []string{"sliding_attention"}},
	}),
	"qwen3": decoderKeys(keysOf{
		honoured: map[string]any{"tie_word_embeddings": false, "attention_bias": true},
		harmless: map[string]any{
			"max_window_layers": 28, "use_sliding_window": false, "sliding_window": 4096, "num_hidden_layers": 2, "layer_types": []string{"full_attention", "full_attention"},
		},
		refused: map[string]any{"layer_types": []string{"sliding_attention", "full_attention"}, "mlp_bias": true},
	}),
	"mixtral": decoderKeys(keysOf{
		honoured: map[string]any{
			"tie_word_embeddings": true, "num_local_experts": 6, "num_experts_per_tok": 1, "sliding_window": 7,
		},
		harmless: map[string]any{
			"num_hidden_layers": 2, "num_experts": 4, "attention_bias": false, "output_router_logits": true, "router_aux_loss_coef": 0.02, "router_jitter_noise": 0.1,
			"layer_types": []string{"sliding_attention", "sliding_attention"},
		},
		refused: map[string]any{
			"attention_bias": true, "mlp_bias": true, "num_experts": 5, "num_local_experts": -1, "sliding_window": 0, "layer_types": []string{"full_attention", "sliding_attention"},
		},
	}),
	"qwen2_moe": decoderKeys(keysOf{
		honoured: map[string]any{
			"tie_word_embeddings": true, "num_experts": 6, "num_experts_per_tok": 1, "moe_intermediate_size": 9, "shared_expert_intermediate_size": 9, "norm_topk_prob": true,
			"decoder_sparse_step": 2, "mlp_only_layers": []int{0}, "qkv_bias": false, "sliding_window": 7,
			"layer_types": []string{"full_attention", "full_attention", "sliding_attention"},
		},
		harmless: map[string]any{
			"num_hidden_layers": 3, "num_local_experts": 5, "attention_bias": false, "use_sliding_window": true, "output_router_logits": true, "router_aux_loss_coef": 0.02, "max_window_layers": 2,
		},
		refused: map[string]any{
			"attention_bias": true, "mlp_bias": true, "num_local_experts": 6, "decoder_sparse_step": 0, "shared_expert_intermediate_size": 0,
			"layer_types": []string{"sliding_attention"},
		},
	}),
	"qwen3_moe": decoderKeys(keysOf{
		honoured: map[string]any{
			"tie_word_embeddings": false, "num_local_experts": 6, "num_experts_per_tok": 1, "moe_intermediate_size": 9, "norm_topk_prob": false, "decoder_sparse_step": 2,
			"mlp_only_layers": []int{0}, "attention_bias": true,
		},
		harmless: map[string]any{
			"num_hidden_layers": 2, "num_experts": 4, "output_router_logits": true, "router_aux_loss_coef": 0.02, "max_window_layers": 1, "use_sliding_window": true,
			"sliding_window": 4, "layer_types": []string{"full_attention", "full_attention"}, "mlp_only_layers": nil,
		},
		refused: map[string]any{"mlp_bias": true, "num_experts": 5, "decoder_sparse_step": 0, "layer_types": []string{"sliding_attention", "full_attention"}},
	}),
	"gemma2": decoderKeys(keysOf{
		honoured: map[string]any{
			"tie_word_embeddings": false, "attention_bias": true, "hidden_activation": "relu", "query_pre_attn_scalar": 5, "attn_logit_softcapping": nil,
			"final_logit_softcapping": nil, "sliding_window": 7, "layer_types": []string{"full_attention", "full_attention"},
		},
		harmless: map[string]any{"hidden_act": "gelu", "cache_implementation": "hybrid", "use_bidirectional_attention": false, "num_hidden_layers": 2},
		refused: map[string]any{
			"use_bidirectional_attention": true, "query_pre_attn_scalar": 0, "attn_logit_softcapping": -1.0, "final_logit_softcapping": -1.0, "sliding_window": 0,
		},
	}),
	"gemma3_text": decoderKeys(keysOf{
		honoured: map[string]any{
			"tie_word_embeddings": false, "attention_bias": true, "hidden_activation": "relu", "query_pre_attn_scalar": 5, "final_logit_softcapping": 2.0,
			"sliding_window": 7, "layer_types": []string{"full_attention", "full_attention"},
			"rope_parameters": map[string]any{"full_attention": map[string]any{"rope_theta": 5.0, "rope_type": "default"}},
		},
		harmless: map[string]any{
			"hidden_act": "gelu", "cache_implementation": "hybrid", "use_bidirectional_attention": false, "num_hidden_layers": 2, "sliding_window_pattern": 6,
			"attn_logit_softcapping": nil, "rope_local_base_freq": 10000.0, "_sliding_window_pattern": 6,
		},
		refused: map[string]any{
			"use_bidirectional_attention": true, "attn_logit_softcapping": 50.0, "query_pre_attn_scalar": 0, "sliding_window": 0,
			"rope_parameters": map[string]any{"rope_theta": 5.0},
		},
	}),
	"bert": {
		honoured: map[string]any{
			"attention_probs_dropout_prob": 0.3, "hidden_act": "relu", "hidden_dropout_prob": 0.3, "hidden_size": 64, "intermediate_size": 40, "layer_norm_eps": 1e-6,
			"max_position_embeddings": 99, "num_attention_heads": 8, "num_hidden_layers": 3, "pad_token_id": 5, "tie_word_embeddings": false,
			"type_vocab_size": 3, "vocab_size": 70, "architectures": []string{"BertModel"},
		},
		harmless: map[string]any{
			"classifier_dropout": 0.1, "directionality": "bidi", "pooler_fc_size": 768, "pooler_num_attention_heads": 12, "pooler_num_fc_layers": 3,
			"pooler_size_per_head": 128, "pooler_type": "first_token_transform", "position_embedding_type": "absolute", "is_decoder": false,
			"add_cross_attention": false,
		},
		refused: map[string]any{"is_decoder": true, "add_cross_attention": true, "position_embedding_type": "relative_key", "hidden_act": "xielu"},
	},
}

// robertaKeys are those of RoBERTa and XLM-R.
var robertaKeys = keysOf{
	honoured: map[string]any{
		"attention_probs_dropout_prob": 0.3, "hidden_act": "relu", "hidden_dropout_prob": 0.3, "hidden_size": 48, "intermediate_size": 40, "layer_norm_eps": 1e-6,
		"max_position_embeddings": 99, "num_attention_heads": 2, "num_hidden_layers": 3, "pad_token_id": 5, "tie_word_embeddings": false,
		"type_vocab_size": 3, "vocab_size": 70, "architectures": []string{"RobertaModel"},
	},
	harmless: map[string]any{"position_embedding_type": "absolute", "is_decoder": false, "add_cross_attention": false, "classifier_dropout": 0.1},
	refused:  map[string]any{"is_decoder": true, "add_cross_attention": true, "position_embedding_type": "relative_key", "hidden_act": "xielu"},
}

// decoderKeys are those that Llama's later families share, with more of their own.
func decoderKeys(own keysOf) keysOf {
	honoured := map[string]any{
		"head_dim": 16, "hidden_act": "gelu", "hidden_size": 64, "intermediate_size": 40, "max_position_embeddings": 99, "num_attention_heads": 8,
		"num_hidden_layers": 3, "num_key_value_heads": 1, "rms_norm_eps": 1e-3, "rope_parameters": map[string]any{"rope_theta": 5.0, "rope_type": "default"},
		"vocab_size": 70,
	}
	harmless := map[string]any{"attention_dropout": 0.1, "partial_rotary_factor": 1.0, "rope_scaling": nil, "use_qk_norm": false}
	refused := map[string]any{
		"rms_norm_eps": 0.0, "rope_scaling": map[string]any{"rope_type": "mrope", "factor": 2.0}, "num_experts": 8, "hidden_act": "xielu",
		"layer_types": []string{"chunked_attention", "full_attention"}, "quantization_config": map[string]any{"quant_method": "awq"}, "partial_rotary_factor": 0.5,
	}
	for key := range own.honoured {
		delete(refused, key)
	}
	maps.Copy(honoured, own.honoured)
	maps.Copy(harmless, own.harmless)
	maps.Copy(refused, own.refused)
	for key := range own.harmless {
		delete(honoured, key)
		delete(refused, key)
	}
	for key := range own.refused {
		delete(honoured, key)
	}
	return keysOf{honoured, harmless, refused}
}

// everywhere are harmless keys of every family.
var everywhere = map[string]any{
	"_name_or_path": "a/b", "architectures": []string{"BertForMaskedLM"}, "bos_token_id": 7, "chunk_size_feed_forward": 3, "dtype": "bfloat16",
	"eos_token_id": []int{1, 2}, "id2label": map[string]any{"0": "a"}, "initializer_range": 0.3, "is_encoder_decoder": false, "label2id": map[string]any{"a": 0},
	"output_attentions": true, "output_hidden_states": true, "problem_type": "regression", "return_dict": false, "torch_dtype": "float16",
	"transformers_version": "4.1.0", "use_cache": false, "gradient_checkpointing": true, "task_specific_params": map[string]any{"a": 1},
	"tokenizer_class": "X", "auto_map": map[string]any{"AutoConfig": "x.Y"}, "finetuning_task": "x", "num_labels": 3,
}

func TestEverySettingIsHonouredOrHarmlessOrRefused(t *testing.T) {
	text, err := os.ReadFile(golden("keys.json"))
	if err != nil {
		t.Fatal(err)
	}
	var theirs map[string][]string
	if err := json.Unmarshal(text, &theirs); err != nil {
		t.Fatal(err)
	}
	for family, keys := range familyKeys {
		name := family
		switch family {
		case "mistral":
			name = "llama"
		case "roberta", "xlm-roberta":
			name = filepath.Join("encoders", "roberta-masked")
		case "distilbert":
			name = filepath.Join("encoders", "distilbert-masked")
		case "smollm3", "qwen2", "qwen3", "gemma2":
			name = filepath.Join("families", family)
		case "mixtral", "qwen2_moe", "qwen3_moe":
			name = filepath.Join("families", strings.ReplaceAll(family, "_", "-"))
		case "gemma3_text":
			name = filepath.Join("families", "gemma3")
		}
		parse := func(key string, value any) (any, []string, error) {
			text, err := os.ReadFile(golden(name) + "/config.json")
			if err != nil {
				t.Fatal(err)
			}
			var config map[string]any
			if err := json.Unmarshal(text, &config); err != nil {
				t.Fatal(err)
			}
			config["model_type"] = family
			if _, ok := config["head_dim"]; ok && key != "head_dim" { // follows the width
				delete(config, "head_dim")
			}
			if key != "" {
				config[key] = value
			}
			if text, err = json.Marshal(config); err != nil {
				t.Fatal(err)
			}
			c, err := readConfig(text)
			if err != nil {
				t.Fatal(err)
			}
			var g any
			switch family {
			case "gpt2":
				g, err = parseGPT(&c)
			case "bert":
				g, err = parseBERT(&c)
			case "roberta", "xlm-roberta":
				g, err = parseRoberta(&c)
			case "distilbert":
				g, err = parseDistilBERT(&c)
			case "smollm3":
				g, err = parseSmolLM3(&c)
			case "qwen2":
				g, err = parseQwen2(&c)
			case "qwen3":
				g, err = parseQwen3(&c)
			case "mixtral":
				g, err = parseMixtral(&c)
			case "qwen2_moe":
				g, err = parseQwen2MoE(&c)
			case "qwen3_moe":
				g, err = parseQwen3MoE(&c)
			case "gemma2":
				g, err = parseGemma2(&c)
			case "gemma3_text":
				g, err = parseGemma3(&c)
			default:
				g, err = parseLlama(&c)
			}
			return g, c.unknown, err
		}
		own, unknown, err := parse("", nil)
		if err != nil || len(unknown) > 0 {
			t.Fatalf("%s: unknown %q, %v", family, unknown, err)
		}
		for key, value := range keys.honoured {
			if g, _, err := parse(key, value); err != nil || reflect.DeepEqual(g, own) {
				t.Errorf("%s: %s %v is not honoured: %v", family, key, value, err)
			}
		}
		harmless := maps.Clone(everywhere)
		for _, key := range theirs["generation"] {
			harmless[key] = 1
		}
		if strings.HasPrefix(name, "families") || family == "gpt2" || family == "llama" || family == "mistral" {
			harmless["pad_token_id"] = 3
		}
		maps.Copy(harmless, keys.harmless)
		for key, value := range harmless {
			if g, unknown, err := parse(key, value); err != nil || len(unknown) > 0 || !reflect.DeepEqual(g, own) {
				t.Errorf("%s: %s %v is not harmless (unknown %q): %v", family, key, value, unknown, err)
			}
		}
		for key, value := range keys.refused {
			if _, _, err := parse(key, value); err == nil || !strings.Contains(err.Error(), key) && !strings.Contains(err.Error(), "activation") {
				t.Errorf("%s: %s %v is not refused by name: %v", family, key, value, err)
			}
		}
		for _, key := range theirs[family] {
			_, a := keys.honoured[key]
			_, b := harmless[key]
			_, c := keys.refused[key]
			if !a && !b && !c && key != "model_type" {
				t.Errorf("%s: nothing is said of %s", family, key)
			}
		}
		// What nobody knows is told; letter case matters, as in Python.
		for _, key := range []string{"frobnicate", "Vocab_Size"} {
			if g, unknown, err := parse(key, 3); err != nil || !slices.Equal(unknown, []string{key}) || !reflect.DeepEqual(g, own) {
				t.Errorf("%s: %s: unknown %q, %v", family, key, unknown, err)
			}
		}
	}
}

// The rotation is that of transformers wherever a file says it.
func TestRotationsThatAreSaidTwice(t *testing.T) {
	linear := &RoPEScaling{Factor: 4}
	llama3 := func(context int) *RoPEScaling {
		return &RoPEScaling{Factor: 8, LowFactor: 1, HighFactor: 4, Context: context}
	}
	for _, c := range []struct {
		text string
		want RoPEConfig
		says string
	}{
		{`"rope_parameters":{"rope_type":"default","rope_theta":500},"rope_scaling":{"rope_type":"linear","factor":4}`, RoPEConfig{Base: 10_000, Scaling: linear}, ""},
		{`"rope_parameters":{"rope_type":"default","rope_theta":500},"rope_scaling":{"rope_type":"linear","factor":4},"rope_theta":7`, RoPEConfig{Base: 7, Scaling: linear}, ""},
		{`"rope_parameters":{"rope_type":"default","rope_theta":500},"rope_scaling":{},"rope_theta":7`, RoPEConfig{Base: 500}, ""},
		{`"rope_parameters":{"rope_type":"default"},"rope_scaling":null,"rope_theta":7`, RoPEConfig{Base: 7}, ""},
		{`"rope_scaling":{"type":"linear","rope_type":"default","factor":4}`, RoPEConfig{Base: 10_000}, ""},
		{`"rope_scaling":{"rope_type":"llama3","factor":8,"low_freq_factor":1,"high_freq_factor":4}`, RoPEConfig{Base: 10_000, Scaling: llama3(64)}, ""},
		{`"rope_scaling":{"rope_type":"llama3","factor":8,"low_freq_factor":1,"high_freq_factor":4,"original_max_position_embeddings":32},"original_max_position_embeddings":16`,
			RoPEConfig{Base: 10_000, Scaling: llama3(16)}, ""},
		{`"rope_parameters":{"full_attention":{"rope_type":"linear","factor":4}}`, RoPEConfig{}, "full_attention"},
		{`"rope_parameters":{"full_attention":{"rope_type":"linear","factor":4}},"layer_types":["full_attention"]`, RoPEConfig{}, "full_attention"},
		{`"rope_scaling":{"rope_type":"dynamic","factor":4}`, RoPEConfig{Base: 10_000, Scaling: &RoPEScaling{Kind: "dynamic", Factor: 4, Context: 64}}, ""},
		{`"rope_scaling":{"rope_type":"yarn","factor":4}`, RoPEConfig{Base: 10_000, Scaling: &RoPEScaling{Kind: "yarn", Factor: 4, Context: 64}}, ""},
		{`"rope_scaling":{"rope_type":"yarn","factor":4,"attention_factor":-1}`, RoPEConfig{}, "attention_factor"},
		{`"rope_scaling":{"rope_type":"longrope","factor":4,"short_factor":[1],"long_factor":[1]}`, RoPEConfig{}, "factors"},
		{`"rope_scaling":{"rope_type":"proportional","factor":4}`, RoPEConfig{}, "proportional"},
		{`"rope_scaling":{"type":"mrope","mrope_section":[1,2]}`, RoPEConfig{}, "mrope_section"},
		{`"rope_parameters":{"rope_theta":5,"partial_rotary_factor":0.5}`, RoPEConfig{}, "partial_rotary_factor"},
		{`"rope_parameters":{"rope_theta":5,"partial_rotary_factor":1.0}`, RoPEConfig{Base: 5}, ""},
		{`"rope_theta":null`, RoPEConfig{}, "rope_theta"},
		{`"rope_theta":0`, RoPEConfig{}, "rope_theta"},
		{`"rope_scaling":{"rope_type":"linear","factor":4,"rope_theta":null}`, RoPEConfig{}, "rope_theta"},
		{`"rope_scaling":{"rope_type":"linear"}`, RoPEConfig{}, "factor"},
		{`"rope_scaling":"linear"`, RoPEConfig{}, "config.json"},
	} {
		g, err := ParseLlamaConfig([]byte(`{"model_type":"llama","max_position_embeddings":64,` + c.text + `}`))
		if c.says != "" {
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%s: %v, want %q", c.text, err, c.says)
			}
		} else if err != nil || !reflect.DeepEqual(g.RoPE, c.want) {
			t.Errorf("%s: %+v, %v", c.text, g.RoPE, err)
		}
	}
}

// Settings that nobody knows are told once, to who wants to hear of them.
func TestUnknownSettingsAreTold(t *testing.T) {
	dir := refolder(t, "gpt2", func(config map[string]any, _ map[string]*tensor.Tensor) {
		config["frobnicate"], config["wobble"] = 3, map[string]any{"a": nil}
	})
	for _, open := range []func(string, ...LoadOption) (Pretrained, error){LoadHuggingFace, Outline} {
		var told []string
		if _, err := open(dir, WithNotice(func(text string) { told = append(told, text) })); err != nil {
			t.Fatal(err)
		}
		if len(told) != 1 || !strings.HasSuffix(told[0], ": frobnicate, wobble") || !strings.Contains(told[0], dir) {
			t.Errorf("told %q", told)
		}
		if _, err := open(dir); err != nil {
			t.Fatal(err)
		}
	}
}

// The oldest files do not name their family, but the class that saved them.
func TestFamiliesByTheirClass(t *testing.T) {
	for class, want := range map[string]string{"GPT2LMHeadModel": "gpt2", "LlamaForCausalLM": "llama", "MistralForCausalLM": "mistral", "BertForMaskedLM": "bert", "T5Model": ""} {
		c, err := readConfig([]byte(`{"architectures":["` + class + `"]}`))
		if err != nil {
			t.Fatal(err)
		}
		if got, err := c.modelType(); got != want || err != nil {
			t.Errorf("%s is of a %q, %v", class, got, err)
		}
	}
	if _, err := parsePretrained([]byte(`{"model_type":3}`)); err == nil || !strings.Contains(err.Error(), "model_type") {
		t.Error(err)
	}
}
