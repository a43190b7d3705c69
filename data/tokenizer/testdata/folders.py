# SPDX-License-Identifier: Apache-2.0
# Writes folders drawn at random, with what AutoTokenizer of the Hugging Face
# transformers package gives for random texts in each: ids without and with what
# is put around a text, and how these are decoded, with and without special
# tokens. What is drawn is tokenizer.json or vocab.json and merges.txt, and the
# files beside them. The vocabularies are those of families.json.
#
#     pip install tokenizers transformers
#     python3 folders.py 24 1 > folders.json           # the sample that is kept
#     python3 folders.py 3000 2 > /tmp/folders.json    # go test -run Folders -folders /tmp/folders.json
import json
import os
import random as rand
import sys
import tempfile

os.environ["TRANSFORMERS_VERBOSITY"] = "critical"
import transformers
from transformers import AutoTokenizer

NUM, SEED = int(sys.argv[1]), int(sys.argv[2])
r = rand.Random(SEED)
families = {f["name"]: f["tokenizer"] for f in json.load(open("families.json"))["families"]}
for f in families.values():
    if "as" in f["model"]:
        f["model"].update({k: families[f["model"]["as"]]["model"][k] for k in ("vocab", "merges")})

TOKENS = ["<x>", "<y>", "<pad>", "<mask>", "<|im_end|>", "<|endoftext|>", "<s>", "</s>", "<unk>", "▁▁", "▁<PRE>", "the", "fox", " a", "é", "[SEP]", "<eos>", "<bos>", "Ġthe", "read", "\n\n"]
PIECES = ["the", " the", "fox", " fox", "rank", " read", "  ", " ", "   ", "\n", "\n\n", "\t", "a", "é", "世", "12", "x", ".", "'s", "▁", "😀"]
NAMES = ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"]


def flag(p=0.5):
    return r.random() < p


def token(kind):
    """A token as files have it: its content, or an object of the kind that the file has."""
    c = r.choice(TOKENS)
    if flag():
        return c
    t = {"content": c, "lstrip": flag(0.2), "rstrip": flag(0.2), "normalized": flag(0.4), "single_word": flag(0.2)}
    return dict(t, __type="AddedToken", special=flag(0.8)) if kind == "config" else t


def decoder(vocab):
    out, size = {}, len(vocab)
    for c in r.sample(TOKENS, r.randrange(0, 5)):
        t = {"content": c, "lstrip": flag(0.2), "rstrip": flag(0.2), "normalized": flag(0.4), "single_word": flag(0.2), "special": flag()}
        out[str(vocab.get(c, size + r.randrange(0, 60)))] = t
    return out


def config(vocab, file):
    c = {}
    if flag(0.8):
        c["tokenizer_class"] = r.choice(["PreTrainedTokenizerFast", "TokenizersBackend", "GPT2Tokenizer", "GPT2TokenizerFast", "LlamaTokenizer", "LlamaTokenizerFast", "CodeLlamaTokenizer", "GemmaTokenizer"]) if file else "GPT2Tokenizer"
        if "<s>" in vocab and "GPT2" in c["tokenizer_class"]:
            c["tokenizer_class"] = "LlamaTokenizer"  # over characters
    for n in NAMES:
        if flag(0.3):
            c[n] = token("config") if flag(0.9) else None
    if flag(0.5):
        c["added_tokens_decoder"] = decoder(vocab)
    for key in ("additional_special_tokens", "extra_special_tokens"):
        if flag(0.25):
            c[key] = [token("config") for _ in range(r.randrange(0, 3))]
    if flag(0.1):
        c["extra_special_tokens"] = {"boi_token": r.choice(TOKENS), "eoi_token": r.choice(TOKENS)}
    if flag(0.2):
        c["image_token"] = r.choice(TOKENS)
    for key in ("add_prefix_space", "add_bos_token", "add_eos_token", "legacy", "clean_up_tokenization_spaces"):
        if flag(0.4):
            c[key] = flag()
    if flag(0.2):
        c.update(model_max_length=r.choice([12, 1024]), padding_side="left", chat_template="{{ messages }}", errors="replace", unheard_of={"a": 1})
    items = list(c.items())
    r.shuffle(items)
    return dict(items)


def specials():
    s = {n: token("map") for n in NAMES if flag(0.3)}
    if flag(0.3):
        s["additional_special_tokens"] = [r.choice(TOKENS) for _ in range(r.randrange(1, 3))]
    if flag(0.2):
        s["extra_special_tokens"] = [token("map") for _ in range(r.randrange(1, 3))]
    if flag(0.1):
        s["video_token"] = r.choice(TOKENS)
    return s


def text(contents):
    out = " " * r.randrange(3)
    for _ in range(r.randrange(1, 12)):
        c = r.choice(contents) if contents and flag(0.5) else r.choice(PIECES)
        out += c.replace("▁", " ") if flag(0.3) else c
    return out


cases, failed = [], 0
while len(cases) < NUM:
    file = flag(0.75)
    base = r.choice(["gpt2", "gpt2", "llama2", "llama3", "metaspace", "gemma"]) if file else "gpt2"
    doc = json.loads(json.dumps(families[base]))
    vocab = doc["model"]["vocab"]
    parts = {}
    if file and flag(0.3):
        parts["truncation"] = {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}
    if file and flag(0.3):
        parts["padding"] = {"strategy": {"Fixed": 16}, "direction": "Left", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0, "pad_token": "<unk>"}
    if file and flag(0.3):
        parts["added_tokens"] = doc["added_tokens"] + [dict(content="<x>", id=len(vocab) + sum(a["content"] not in vocab for a in doc["added_tokens"]), lstrip=flag(0.3), rstrip=False, normalized=flag(), single_word=False, special=flag())]
    doc.update(parts)
    files = {}
    if flag(0.8) or not file:
        files["tokenizer_config.json"] = config(vocab, file)
    if flag(0.4):
        files["special_tokens_map.json"] = specials()
    if flag(0.4):
        new = r.sample(TOKENS, r.randrange(1, 4))
        files["added_tokens.json"] = {c: vocab.get(c, len(vocab) + 1 + i) for i, c in enumerate(new)}
    if flag(0.7) or not file:
        files["config.json"] = {"model_type": r.choice(["llama", "gpt2" if base == "gpt2" else "llama", "mistral"]) if file else "gpt2"}
    with tempfile.TemporaryDirectory() as d:
        for name, content in files.items():
            json.dump(content, open(f"{d}/{name}", "w"), ensure_ascii=False)
        if file:
            json.dump(doc, open(f"{d}/tokenizer.json", "w"), ensure_ascii=False)
        else:
            json.dump(vocab, open(f"{d}/vocab.json", "w"), ensure_ascii=False)
            with open(f"{d}/merges.txt", "w") as m:
                m.write("#version: 0.2\n" + "".join(" ".join(p) + "\n" for p in doc["model"]["merges"]))
        try:
            tok = AutoTokenizer.from_pretrained(d, local_files_only=True)
            if max(tok.encode("") + [0]) >= len(tok):
                continue  # the post-processor puts an id around texts that has no token
            normal = [str(a).replace("▁", " ") for a in tok.added_tokens_decoder.values() if a.normalized]
            if len(set(normal)) < len(normal):
                continue  # of two that are one after normalization the library takes either, by chance
            case = {"base": base, "file": file, "parts": parts, "files": files, "class": type(tok).__name__, "texts": []}
            # Code Llama's class makes another text of one that has <FILL_ME>.
            contents = [str(a) for a in tok.added_tokens_decoder.values() if str(a) != "<FILL_ME>"]
            for _ in range(6):
                t = text(contents)
                ids, full = tok.encode(t, add_special_tokens=False), tok.encode(t)
                case["texts"].append([t, ids, full, tok.decode(full), tok.decode(full, skip_special_tokens=True)])
        except BaseException as e:
            if isinstance(e, KeyboardInterrupt):
                raise
            failed += 1
            continue
    cases.append(case)
json.dump({"transformers": transformers.__version__, "cases": cases}, sys.stdout, ensure_ascii=False, separators=(",", ":"))
print()
print(f"{NUM} folders, {failed} others that AutoTokenizer cannot open", file=sys.stderr)
