# SPDX-License-Identifier: Apache-2.0
"""Writes encoder: a tiny random RoBERTa with a tokenizer, as transformers' save_pretrained
does, for tests and for the commands of docs/encoders.md. Writes pairs.jsonl and
reviews.csv too, the records of those commands.

    python encoder.py      (needs torch, transformers, tokenizers)
"""
import csv
import json
import pathlib
import random

import torch
import transformers as hf
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

HERE = pathlib.Path(__file__).parent
r = random.Random(1)
THINGS = ["tea", "bread", "milk", "a lamp", "a chair", "a boat", "the train", "a coat", "soup", "rice", "a clock", "a bell", "paper", "ink", "wool", "salt"]
PLACES = ["the kitchen", "the harbour", "the office", "the garden", "the station", "the market", "the school", "the library"]

with open(HERE / "pairs.jsonl", "w") as f:
    for t in THINGS:
        for p in PLACES:
            f.write(json.dumps({"query": f"is there {t} in {p}?", "positive": f"In {p} there is {t}."}) + "\n")
GOOD, BAD = ["warm", "lovely", "fine", "bright"], ["cold", "awful", "poor", "dull"]
with open(HERE / "reviews.csv", "w", newline="") as f:
    w = csv.writer(f)
    w.writerow(["text", "label"])
    for _ in range(160):
        words, label = r.choice([(GOOD, "good"), (BAD, "bad")])
        w.writerow([f"{r.choice(THINGS)} in {r.choice(PLACES)}, {r.choice(words)} and {r.choice(words)}", label])

tok = Tokenizer(models.BPE())
tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tok.decoder = decoders.ByteLevel()
texts = [line for name in ("pairs.jsonl", "reviews.csv") for line in (HERE / name).read_text().splitlines()]
tok.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=340, special_tokens=["<s>", "<pad>", "</s>", "<unk>", "<mask>"],
                                                   initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
tok.post_processor = processors.TemplateProcessing(single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)])
hf.PreTrainedTokenizerFast(tokenizer_object=tok, bos_token="<s>", cls_token="<s>", eos_token="</s>", sep_token="</s>", pad_token="<pad>", unk_token="<unk>",
                           mask_token="<mask>", model_max_length=32).save_pretrained(HERE / "encoder")
torch.manual_seed(1)
model = hf.RobertaForMaskedLM(hf.RobertaConfig(vocab_size=tok.get_vocab_size(), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
                                               max_position_embeddings=36, type_vocab_size=1))
model.save_pretrained(HERE / "encoder")
