# SPDX-License-Identifier: Apache-2.0
"""Writes keys.json: the keys of a config.json of each family of models, and of
PEFT's adapter_config.json, as the installed transformers and peft have them.

    python keys.py     (needs transformers, peft)
"""
import dataclasses
import json
import pathlib

import peft
import transformers as hf

keys = {c.model_type: sorted(set(c().to_dict()) | set(c.attribute_map)) for c in (hf.GPT2Config, hf.LlamaConfig, hf.MistralConfig, hf.BertConfig,
                                                                                     hf.RobertaConfig, hf.XLMRobertaConfig, hf.DistilBertConfig, hf.SmolLM3Config, hf.Qwen2Config,
                                                                                     hf.Qwen3Config, hf.Gemma2Config, hf.Gemma3TextConfig, hf.MixtralConfig, hf.Qwen2MoeConfig, hf.Qwen3MoeConfig)}
keys["generation"] = sorted(hf.GenerationConfig._get_default_generation_params())
keys["adapter"] = sorted(f.name for f in dataclasses.fields(peft.LoraConfig))
(pathlib.Path(__file__).parent / "keys.json").write_text(json.dumps(keys, indent=1) + "\n")
