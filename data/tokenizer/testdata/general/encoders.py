# SPDX-License-Identifier: Apache-2.0
# Writes folders of encoders and of Qwen, and what AutoTokenizer of the Hugging
# Face library transformers gives for texts and pairs of texts in each. The
# vocabularies are those of general.json.gz.
#
#     pip install transformers==5.24.0
#     python3 encoders.py > encoders.json
import gzip
import json
import os
import sys
import tempfile

os.environ["TRANSFORMERS_VERBOSITY"] = "critical"
import transformers

golden = json.load(gzip.open("general.json.gz"))
families = {f["name"]: f["tokenizer"] for f in golden["families"]}
TEXTS = ["", "The fox jumps, un-happy!", " naïve CAFÉ e\u0301 世界", "<mask> [MASK] <s>[SEP] New Token", "a\n\n  b\tHTTPServer 12345", "ﬁn ① ½ 😀 <|im_end|>", "\u200bx\u00a0y\u3000z"]
CASES = [
    ("bert uncased", "vocab", {}),
    ("bert uncased", "vocab", {"tokenizer_class": "BertTokenizer", "do_lower_case": False}),
    ("bert uncased", "json", {"tokenizer_class": "BertTokenizer"}),
    ("bert cased", "json", {"tokenizer_class": "BertTokenizerFast", "do_lower_case": False, "strip_accents": True, "model_max_length": 512}),
    ("bert cased", "json", {"tokenizer_class": "DistilBertTokenizer", "tokenize_chinese_chars": False}),
    ("bert cased", "json", {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "[PAD]", "mask_token": {"content": "[MASK]", "lstrip": True}}),
    ("roberta", "json", {"tokenizer_class": "RobertaTokenizer", "mask_token": {"content": "<mask>", "lstrip": True}}),
    ("roberta", "json", {"tokenizer_class": "RobertaTokenizerFast", "add_prefix_space": True}),
    ("xlm-r", "json", {"tokenizer_class": "XLMRobertaTokenizer"}),
    ("xlm-r", "json", {"tokenizer_class": "XLMRobertaTokenizerFast", "add_prefix_space": False}),
    ("xlm-r", "json", {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "<pad>"}),
    ("qwen", "json", {"tokenizer_class": "Qwen2Tokenizer"}),
    ("qwen", "json", {"tokenizer_class": "Qwen2TokenizerFast", "pad_token": "<|endoftext|>", "eos_token": "<|im_end|>", "bos_token": None, "add_bos_token": False}),
]
out = []
for base, kind, config in CASES:
    doc = families[base]
    with tempfile.TemporaryDirectory() as d:
        if kind == "json":
            json.dump(doc, open(d + "/tokenizer.json", "w"))
        else:
            vocab = doc["model"]["vocab"]
            open(d + "/vocab.txt", "w").write("".join(w + "\n" for w in sorted(vocab, key=vocab.get)))
            json.dump({"model_type": "bert"}, open(d + "/config.json", "w"))
        json.dump(config, open(d + "/tokenizer_config.json", "w"))
        case = {"base": base, "kind": kind, "config": config}
        try:
            tok = transformers.AutoTokenizer.from_pretrained(d)
            case["class"] = type(tok).__name__
            case["texts"] = [[t, tok.encode(t, add_special_tokens=False), tok.encode(t), tok.decode(tok.encode(t), skip_special_tokens=True)] for t in TEXTS]
            case["pairs"] = [[a, b, *(lambda e: [e["input_ids"], e["token_type_ids"]])(tok(a, b, return_token_type_ids=True))] for a, b in zip(TEXTS[1:], TEXTS[2:])]
            case["pad"] = tok.pad_token_id
        except Exception as e:
            print(base, config, repr(e)[:300], file=sys.stderr)
            continue
        out.append(case)
json.dump({"transformers": transformers.__version__, "cases": out}, sys.stdout, ensure_ascii=True, separators=(",", ":"))
