# SPDX-License-Identifier: Apache-2.0
# Writes tokenizers drawn at random, the ids that the Hugging Face tokenizers
# package gives for random texts, and how it decodes these and random ids, with
# and without special tokens. The vocabularies are those of families.json; what
# is drawn is all else: added tokens of every kind, normalizers, pre-tokenizers
# and decoders.
#
#     pip install tokenizers
#     python3 random.py 24 1 > random.json            # the sample that is kept
#     python3 random.py 5000 2 > /tmp/random.json     # go test -run Random -tokenizers /tmp/random.json
import json
import random as rand
import sys

import tokenizers
from tokenizers import Tokenizer

NUM, SEED = int(sys.argv[1]), int(sys.argv[2])
r = rand.Random(SEED)
families = {f["name"]: f["tokenizer"] for f in json.load(open("families.json"))["families"]}
for f in families.values():
    if "as" in f["model"]:
        f["model"].update({k: families[f["model"]["as"]]["model"][k] for k in ("vocab", "merges")})

LLAMA3 = families["llama3"]["pre_tokenizer"]["pretokenizers"][0]
QWEN2 = families["qwen2"]["pre_tokenizer"]["pretokenizers"][0]
PREPEND, REPLACE = families["llama2"]["normalizer"], families["gemma"]["normalizer"]
AT_SPACES = families["gemma"]["pre_tokenizer"]
BACK = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
BYTES, FUSE = {"type": "ByteFallback"}, {"type": "Fuse"}

CONTENTS = ["<x>", "<y>", "▁▁", "▁▁▁▁", "▁", "▁<PRE>", "<SUF>▁", "\n\n", "\n", "\t", " b", "  ", " ", "é", "wörld", "the", "▁the", " the", "Ġthe", "Ġ", "fox", "rank"]
CONTENTS += ["a", "<0x41>", "<0x+4>", "<0xe9>", "<0xE2>", "x ", "一", "世界", "<|im_end|>", "<|im_start|>", "[MASK]", "a▁b", "a b", "ſ", "é\u0301", "1", "12", "<s>", "</s>", "<unk>", "read", "\u3000", "\u00a0x", "Ċ"]
PIECES = ["the", " the", "fox", "rank", " read", "  ", " ", "   ", "\n", "\n\n", "\t", "a", "b", "é", "wörld", "世", "界", "1", "12", "x", ".", "(", ")", "'s", "▁", "▁▁", "\u3000", "\r\n", "Ġ", "😀", "_", "<", ">", "\u0301"]


def flag(p=0.5):
    return r.random() < p


def added(vocab):
    """Added tokens with the ids that the library gives them."""
    out, size = [], len(vocab)
    names = [v for v in vocab if v.strip()]
    contents = []
    for _ in range(r.randrange(0, 9)):
        c = r.choice(CONTENTS)
        if flag(0.2):
            c = r.choice(names)
        elif flag(0.2):
            c = "".join(r.choice(PIECES) for _ in range(r.randrange(1, 4)))
        if c not in contents:
            contents.append(c)
    for c in contents:
        a = {"content": c, "single_word": flag(0.2), "lstrip": flag(0.2), "rstrip": flag(0.2), "normalized": flag(0.4), "special": flag(0.4)}
        a["id"] = vocab.get(c, size)
        size += c not in vocab
        out.append(a)
    return out


def level(prefix, regex):
    return {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": True, "use_regex": regex}


def metaspace(split=None):
    m = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": r.choice(["always", "first", "never"])}
    return dict(m, split=flag() if split is None else split)


def over_bytes():
    base = r.choice(["gpt2", "gpt2", "llama3", "qwen2"])
    pre = r.choice([
        level(flag(), True), level(flag(), True), level(flag(), False),
        {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, level(False, True)]},
        {"type": "Sequence", "pretokenizers": [r.choice([LLAMA3, QWEN2]), level(False, False)]},
    ])
    decoder = level(True, True)
    if flag(0.15):
        decoder = r.choice([None, {"type": "Sequence", "decoders": [decoder, FUSE]}, {"type": "Sequence", "decoders": [decoder, strip(1)]}, metaspace(), FUSE])
    return base, {"ignore_merges": flag(0.3)}, dict(normalizer=None, pre_tokenizer=pre, decoder=decoder)


def strip(n):
    return {"type": "Strip", "content": " ", "start": n, "stop": 0}


def over_characters():
    normalizer, pre = r.choice([(PREPEND, None), (PREPEND, None), (REPLACE, AT_SPACES), (REPLACE, None), (None, "m"), (None, "m"), (REPLACE, "m"), (PREPEND, "never"), (None, None)])
    if pre == "m":
        pre = metaspace()
    elif pre == "never":
        pre = dict(metaspace(), prepend_scheme="never")
    sequences = [[BACK, BYTES, FUSE, strip(1)], [BACK, BYTES, FUSE], [BACK, BYTES, FUSE, strip(1)], [BACK, BYTES, FUSE]]
    if flag(0.3):
        sequences = [[BYTES, metaspace()], [metaspace(), BYTES, FUSE], [BACK, strip(1), FUSE], [BYTES, FUSE, BACK, strip(1)], [BACK, BYTES, FUSE, strip(3)], [BACK, BYTES], [BACK, FUSE, strip(1)], [FUSE, metaspace()], [BACK, BYTES, strip(1), FUSE]]
    decoder = {"type": "Sequence", "decoders": r.choice(sequences)}
    if flag(0.25):
        decoder = r.choice([metaspace(), metaspace(), metaspace(), None, BACK])
    model = {"byte_fallback": flag(0.7), "fuse_unk": flag(), "unk_token": "<unk>" if flag(0.8) else None}
    return "llama2", model, dict(normalizer=normalizer, pre_tokenizer=pre, decoder=decoder)


def text(tokens):
    out = ""
    for _ in range(r.randrange(1, 14)):
        c = r.choice(tokens) if tokens and flag(0.5) else r.choice(PIECES)
        out += c.replace("▁", " ") if flag(0.3) else c
    return out


cases = []
while len(cases) < NUM:
    base, model, parts = over_bytes() if flag(0.4) else over_characters()
    vocab = families[base]["model"]["vocab"]
    parts["added_tokens"] = added(vocab)
    parts["post_processor"] = None
    doc = json.loads(json.dumps(families[base]))
    doc.update(parts)
    doc["model"].update(model)
    normal = [a["content"].replace("▁", " ") for a in parts["added_tokens"] if a["normalized"]]
    if len(set(normal)) < len(normal):
        continue  # of two that are one after normalization the library takes either, by chance
    tok = Tokenizer.from_str(json.dumps(doc))
    assert all(tok.token_to_id(a["content"]) == a["id"] for a in parts["added_tokens"]), parts
    contents = [a["content"] for a in parts["added_tokens"]]
    case = {"base": base, "model": model, "parts": parts, "texts": [], "ids": []}
    for i in range(8):
        t = text(contents)
        if i == 0:
            t = " " * r.randrange(1, 5) + t
        try:
            ids = tok.encode(t, add_special_tokens=False).ids
        except BaseException as e:  # the library's own mistakes
            if type(e).__name__ != "PanicException":
                raise
            continue
        case["texts"].append([t, ids, tok.decode(ids, skip_special_tokens=False), tok.decode(ids)])
    known = list(vocab.values()) + [a["id"] for a in parts["added_tokens"]] * 20
    for _ in range(4):
        ids = [r.choice(known) for _ in range(r.randrange(1, 12))]
        case["ids"].append([ids, tok.decode(ids, skip_special_tokens=False), tok.decode(ids)])
    cases.append(case)
json.dump({"tokenizers": tokenizers.__version__, "cases": cases}, sys.stdout, ensure_ascii=False, separators=(",", ":"))
print()
