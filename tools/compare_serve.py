# SPDX-License-Identifier: Apache-2.0
"""Measures cohort serve beside generate of transformers, with the same random model of a
Qwen3-0.6B's shape made smaller: the time to the first token, and tokens a second.

    python compare_serve.py COHORT [TOKENS] [REPEATS]      (needs torch, transformers, tokenizers)

COHORT is the built command. Both use OMP_NUM_THREADS / COHORT_NUM_THREADS threads of the
environment. The figures are medians of REPEATS, taken alternately.
"""
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

import torch
import transformers as hf
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

cohort, tokens, repeats = sys.argv[1], int((sys.argv[2:] or [64])[0]), int((sys.argv[3:] or [5])[0])
folder = tempfile.mkdtemp()
alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
tok = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
tok.pre_tokenizer, tok.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
hf.PreTrainedTokenizerFast(tokenizer_object=tok).save_pretrained(folder)
torch.manual_seed(1)
config = hf.Qwen3Config(vocab_size=32000, hidden_size=512, intermediate_size=1536, num_hidden_layers=12, num_attention_heads=8, num_key_value_heads=4, head_dim=64,
                        max_position_embeddings=2048, eos_token_id=None, bos_token_id=None)
model = hf.Qwen3ForCausalLM(config).eval()
model.save_pretrained(folder)
prompt = "the quick brown fox jumps over the lazy dog. " * 6
ids = torch.tensor([tok.encode(prompt).ids])

server = subprocess.Popen([cohort, "serve", "--from", folder, "--listen", "127.0.0.1:0", "--name", "m", "--quiet"], stdout=subprocess.PIPE, text=True)
try:
    address = next(w for w in server.stdout.readline().split() if w.startswith("http")).rstrip(";")

    class First(hf.generation.streamers.BaseStreamer):
        def __init__(self):
            self.times = []

        def put(self, value):
            self.times.append(time.perf_counter())

        def end(self):
            pass

    def transformers_():
        s, begin = First(), time.perf_counter()
        with torch.no_grad():
            model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=tokens, min_new_tokens=tokens, streamer=s, pad_token_id=0)
        return s.times[1] - begin, time.perf_counter() - begin  # the first value is the prompt

    def cohort_():
        body = json.dumps({"model": "m", "prompt": prompt, "temperature": 0, "max_tokens": tokens, "stream": True}).encode()
        q = urllib.request.Request(address + "/completions", body, {"Content-Type": "application/json"})
        begin, first = time.perf_counter(), None
        with urllib.request.urlopen(q) as r:
            for line in r:
                if line.startswith(b"data: ") and first is None:
                    first = time.perf_counter() - begin
        return first, time.perf_counter() - begin

    figures = {"transformers": [], "cohort": []}
    for i in range(repeats + 1):
        for name, f in (("transformers", transformers_), ("cohort", cohort_)):
            got = f()
            if i:  # the first warms up
                figures[name].append(got)
finally:
    server.terminate()
    server.wait()
for name, all_ in figures.items():
    first, whole = (statistics.median(x) for x in zip(*all_))
    print(f"{name}: first token after {first * 1000:.0f} ms, {tokens / whole:.1f} tokens/s with the prompt, {(tokens - 1) / (whole - first):.1f} after it "
          f"({ids.shape[1]} tokens of prompt, {tokens} written, {os.environ.get('OMP_NUM_THREADS', 'all')} threads)")
