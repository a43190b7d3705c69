# SPDX-License-Identifier: Apache-2.0
# Makes what `go test -run Big -big DIR` wants: tokenizers with whole
# vocabularies, texts, and the ids that the Hugging Face tokenizers package
# gives. DIR gets a folder for each tokenizer: gpt2 (vocab.json, merges.txt),
# gpt2json (added tokens that take spaces), llama3 (the vocabulary of GPT-4 in
# the form of Llama 3's), and llama2 and its relatives over characters, which
# are trained here. TEXT are files or directories of any text.
#
# The vocabularies of GPT-2 and GPT-4 come from the Go module
# github.com/tiktoken-go/tokenizer, which embeds them.
#
#     pip install tokenizers
#     python3 big.py DIR TEXT...
import base64
import json
import os
import random
import struct
import subprocess
import sys
import tempfile

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

OUT, SOURCES = sys.argv[1], sys.argv[2:]
LIMIT = 24 << 20  # bytes of text from SOURCES
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


RANKS = r"""
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"

	"github.com/tiktoken-go/tokenizer"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: go run . DIR")
		os.Exit(2)
	}
	for encoding, file := range map[tokenizer.Encoding]string{tokenizer.R50kBase: "gpt2.ranks.json", tokenizer.Cl100kBase: "cl100k.ranks.json"} {
		if err := write(encoding, filepath.Join(os.Args[1], file)); err != nil {
			fmt.Fprintln(os.Stderr, "ranks:", err)
			os.Exit(1)
		}
	}
}

func write(encoding tokenizer.Encoding, path string) error {
	codec, err := tokenizer.Get(encoding)
	if err != nil {
		return err
	}
	// The map from tokens to ranks is private.
	vocab := reflect.ValueOf(codec).Elem().FieldByName("vocabulary")
	tokens := make([][]byte, vocab.Len())
	for it := vocab.MapRange(); it.Next(); {
		tokens[it.Value().Uint()] = []byte(it.Key().String())
	}
	b, err := json.Marshal(tokens)
	if err != nil {
		return err
	}
	return os.WriteFile(path, b, 0o644)
}
"""


def write_ranks():
    """Writes gpt2.ranks.json and cl100k.ranks.json: lists of tokens, in base64, by rank."""
    with tempfile.TemporaryDirectory() as d:
        with open(f"{d}/main.go", "w") as f:
            f.write(RANKS)
        for args in (["mod", "init", "ranks"], ["get", "github.com/tiktoken-go/tokenizer@v0.10.0"], ["run", ".", os.path.abspath(OUT)]):
            subprocess.run(["go", *args], cwd=d, check=True)


def byte_names():
    keep = [b for b in range(256) if 33 <= b <= 126 or 161 <= b <= 172 or 174 <= b <= 255]
    names, extra = {b: chr(b) for b in keep}, 256
    for b in range(256):
        if b not in names:
            names[b], extra = chr(extra), extra + 1
    return names


NAMES = byte_names()


def visible(tok):
    return "".join(NAMES[b] for b in tok)


def merges_of(tokens):
    """The merge that makes each token: what is left of its bytes by the merges before it."""
    rank = {t: i for i, t in enumerate(tokens)}
    merges = []
    for i, tok in enumerate(tokens):
        if len(tok) == 1:
            continue
        parts = [tok[j : j + 1] for j in range(len(tok))]
        while len(parts) > 2:
            best, at = i, -1
            for j in range(len(parts) - 1):
                r = rank.get(parts[j] + parts[j + 1], i)
                if r < best:
                    best, at = r, j
            if at < 0:
                break
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
        if len(parts) == 2:
            merges.append((visible(parts[0]), visible(parts[1])))
    return merges


def over_bytes(name):
    tokens = [base64.b64decode(t) for t in json.load(open(f"{OUT}/{name}.ranks.json"))]
    return {visible(t): i for i, t in enumerate(tokens)}, merges_of(tokens)


def read_texts():
    texts, total = [], 0
    for source in SOURCES:
        files = [source]
        if os.path.isdir(source):
            files = sorted(os.path.join(d, f) for d, _, fs in os.walk(source) for f in fs)
        for f in files:
            try:
                text = open(f, "rb").read(2 << 20).decode("utf-8", errors="ignore")
            except OSError:
                continue
            if text and total < LIMIT:
                texts.append(text)
                total += len(text.encode())
    return texts


def odd_texts():
    r = random.Random(11)
    texts = ["", " ", "  ", "\n", " \n ", "'s", "'S", "'ſ", "I'LL've 'lx 'Re", "\u00a0x", "a\u3000 b", "<s>", "a <s> b", "▁a", "a▁ b", " ▁ "]
    alphabets = [
        [chr(c) for c in range(128)],
        [chr(c) for c in range(256)],
        list(" \t\n\r\v\f\u0085\u00a0\u2028\u3000aZ0.,'-▁"),
        list("'sStTrReEvVmMlLdDſ  x"),
        list("0123456789²½Ⅷ٣८ a."),
        ["😀", "👩‍👩‍👧", "🏽", "é", "e\u0301", "ß", "世", "界", "한", "ا", "ש", "क", "्", " ", "\n", "!"],
        ["<s>", "</s>", "<unk>", "<|endoftext|>", "<|end_of_text|>", "<mask>", " ", "  ", "a", "<", "|>", "\n", "▁", "one"],
    ]
    for _ in range(3000):
        a = r.choice(alphabets)
        texts.append("".join(r.choice(a) for _ in range(r.randrange(1, 60))))
    for _ in range(1000):  # any characters
        texts.append("".join(chr(r.choice([r.randrange(0xD800), r.randrange(0xE000, 0x110000)])) for _ in range(r.randrange(1, 60))))
    for _ in range(500):  # random bytes, made valid
        texts.append(bytes(r.randrange(256) for _ in range(r.randrange(1, 80))).decode("utf-8", errors="replace"))
    for base in range(0, 0x110000, 64):  # every character, between letters
        texts.append("".join(f"a{chr(c)}b {chr(c)}{chr(c)}1" for c in range(base, base + 64) if not 0xD800 <= c < 0xE000))
    return [t for t in texts if t.isascii() or t.encode("utf-8", errors="ignore").decode() == t]


def write_cases(name, tok, texts):
    os.makedirs(f"{OUT}/{name}", exist_ok=True)
    with open(f"{OUT}/{name}/cases.bin", "wb") as f:
        for t in texts:
            b = t.encode()
            ids = tok.encode(t, add_special_tokens=False).ids
            full = tok.encode(t).ids
            f.write(struct.pack("<III", len(b), len(ids), len(full)) + b)
            f.write(struct.pack(f"<{len(ids)}I{len(full)}I", *ids, *full))
    print(name, tok.get_vocab_size(), "tokens,", len(texts), "texts,", sum(len(t.encode()) for t in texts), "bytes", flush=True)


def special(content, **kw):
    from tokenizers import AddedToken

    return AddedToken(content, normalized=kw.pop("normalized", False), special=True, **kw)


def main():
    os.makedirs(OUT, exist_ok=True)
    write_ranks()
    big, odd = read_texts(), odd_texts()
    texts = odd + big

    vocab, merges = over_bytes("gpt2")
    vocab["<|endoftext|>"] = len(vocab)
    os.makedirs(f"{OUT}/gpt2", exist_ok=True)
    json.dump(vocab, open(f"{OUT}/gpt2/vocab.json", "w"), ensure_ascii=False)
    with open(f"{OUT}/gpt2/merges.txt", "w") as f:
        f.write("#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in merges))
    tok = Tokenizer(models.BPE(vocab, merges))
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tok.post_processor = processors.ByteLevel(trim_offsets=False)
    tok.decoder = decoders.ByteLevel()
    tok.add_special_tokens([special("<|endoftext|>")])
    write_cases("gpt2", tok, texts)
    os.makedirs(f"{OUT}/gpt2json", exist_ok=True)
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tok.add_special_tokens([special("<mask>", lstrip=True, rstrip=True), special("one", single_word=True)])
    tok.save(f"{OUT}/gpt2json/tokenizer.json")
    write_cases("gpt2json", tok, texts)

    vocab, merges = over_bytes("cl100k")
    tok = Tokenizer(models.BPE(vocab, merges, ignore_merges=True))
    tok.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(LLAMA3), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tok.decoder = decoders.ByteLevel()
    tok.add_special_tokens([special("<|begin_of_text|>"), special("<|end_of_text|>"), special("<mask>", lstrip=True)])
    begin = tok.token_to_id("<|begin_of_text|>")
    tok.post_processor = processors.Sequence(
        [processors.ByteLevel(trim_offsets=False), processors.TemplateProcessing("<|begin_of_text|> $A", special_tokens=[("<|begin_of_text|>", begin)])]
    )
    os.makedirs(f"{OUT}/llama3", exist_ok=True)
    tok.save(f"{OUT}/llama3/tokenizer.json")
    write_cases("llama3", tok, texts)

    specials = ["<unk>", "<s>", "</s>"]
    byte_tokens = [f"<0x{b:02X}>" for b in range(256)]
    trainer = trainers.BpeTrainer(vocab_size=32000, special_tokens=specials + byte_tokens, limit_alphabet=4000, max_token_length=16, show_progress=False)
    tok = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    tok.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=True)
    tok.train_from_iterator(big, trainer)
    trained = json.loads(tok.to_str())

    def variant(name, added, **change):
        d = json.loads(json.dumps(trained))
        d["added_tokens"] = added
        d["model"].update(change.pop("model", {}))
        d.update(change)
        os.makedirs(f"{OUT}/{name}", exist_ok=True)
        json.dump(d, open(f"{OUT}/{name}/tokenizer.json", "w"), ensure_ascii=False)
        write_cases(name, Tokenizer.from_file(f"{OUT}/{name}/tokenizer.json"), texts)

    def added(normalized):
        return [
            {"id": i, "content": c, "single_word": False, "lstrip": False, "rstrip": False, "normalized": normalized, "special": True}
            for i, c in enumerate(specials)
        ]

    prepend = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]}
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    metaspace = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False}
    bos = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
    }
    strip = {
        "type": "Sequence",
        "decoders": [replace_decoder(), {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}],
    }
    variant("llama2", added(False), normalizer=prepend, pre_tokenizer=None, post_processor=bos, decoder=strip)
    variant("llama1", added(True), normalizer=prepend, pre_tokenizer=None, post_processor=bos, decoder=strip)
    variant("metaspace", added(False), normalizer=None, pre_tokenizer=metaspace, post_processor=bos, decoder=strip)
    variant("pieces", added(False), normalizer=None, pre_tokenizer=dict(metaspace, prepend_scheme="always", split=True), post_processor=None, decoder=strip)
    variant("gemma", added(False), normalizer=replace, pre_tokenizer={"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}, post_processor=bos, decoder=strip)
    # Characters without tokens for bytes: unknown ones are <unk>, one by one or together.
    plain = {"byte_fallback": False}
    variant("unknown", added(False), normalizer=prepend, pre_tokenizer=None, post_processor=None, decoder=strip, model=dict(plain, fuse_unk=False))
    variant("fused", added(False), normalizer=prepend, pre_tokenizer=None, post_processor=None, decoder=strip, model=dict(plain, fuse_unk=True))


def replace_decoder():
    return {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}


main()
