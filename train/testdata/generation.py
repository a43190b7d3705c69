# SPDX-License-Identifier: Apache-2.0
"""Writes generation.json: what generate of transformers draws from the tiny Llama of
models/testdata/golden/llama with penalties, and the probabilities that its warpers leave, for
TestGenerationOfTransformers. The penalties for presence and frequency, which transformers has
not, are written here as OpenAI documents them.

    python generation.py      (needs torch, transformers)
"""
import json
import pathlib

import torch
import transformers as hf
from transformers.generation import logits_process as lp

HERE = pathlib.Path(__file__).parent
model = hf.AutoModelForCausalLM.from_pretrained(HERE / "../../models/testdata/golden/llama", dtype=torch.float32).eval()
vocab = model.config.vocab_size
torch.manual_seed(5)


class Penalties(lp.LogitsProcessor):
    def __init__(self, prompt, presence, frequency):
        self.prompt, self.presence, self.frequency = prompt, presence, frequency

    def __call__(self, ids, scores):
        for row, s in zip(ids[:, self.prompt:], scores):
            count = torch.bincount(row, minlength=vocab)
            s -= self.presence * (count > 0) + self.frequency * count
        return scores


texts = []
for name, settings in {
    "greedy": {}, "repetition": {"repetition_penalty": 1.4}, "ngram": {"no_repeat_ngram_size": 2},
    "all": {"repetition_penalty": 1.15, "no_repeat_ngram_size": 3, "presence": 0.02, "frequency": 0.03},
    "counts": {"presence": 0.05, "frequency": 0.04}, "negative": {"presence": -0.01, "frequency": -0.02},
}.items():
    prompts = torch.randint(0, vocab, (2, 5))
    own = {k: settings[k] for k in ("repetition_penalty", "no_repeat_ngram_size") if k in settings}
    more = hf.LogitsProcessorList([Penalties(5, settings.get("presence", 0), settings.get("frequency", 0))])
    config = hf.GenerationConfig(do_sample=False, max_new_tokens=20, eos_token_id=None, pad_token_id=0, **own)
    with torch.no_grad():
        out = model.generate(prompts, attention_mask=torch.ones_like(prompts), generation_config=config, logits_processor=more)
    texts.append({"name": name, "settings": settings, "prompts": prompts.tolist(), "tokens": out[:, 5:].tolist()})

draws = []
for temperature, k, p, low in [(1, 0, 1, 0), (0.7, 5, 1, 0), (1.3, 0, 0.8, 0), (1, 0, 1, 0.1), (0.9, 20, 0.7, 0.05), (2, 0, 0.95, 0.3), (0.2, 3, 0.5, 0), (1, 1, 1, 0), (5, 0, 0.9999, 0)]:
    logits = torch.randn(1, 300) * 3
    logits[0, 7] = logits[0, 8] = logits.max() - 1  # equal ones
    s = lp.TemperatureLogitsWarper(float(temperature))(None, logits.clone())
    if k:
        s = lp.TopKLogitsWarper(k)(None, s)
    if p < 1:
        s = lp.TopPLogitsWarper(p)(None, s)
    if low:
        s = lp.MinPLogitsWarper(low)(None, s)
    probabilities = s.softmax(-1)[0].double()
    draws.append({"temperature": temperature, "top_k": k, "top_p": p, "min_p": low, "logits": [round(v, 6) for v in logits[0].tolist()],
                  "probabilities": {i: v for i, v in enumerate(probabilities.tolist()) if v > 0}})
(HERE / "generation.json").write_text(json.dumps({"texts": texts, "draws": draws}) + "\n")
