# SPDX-License-Identifier: Apache-2.0
# Writes families.json: small tokenizers of the families of GPT-2, Llama 3 and
# Llama 2, trained by the Hugging Face tokenizers package on this repository's
# pages and the sentences below, and the tokens that it gives for a set of
# texts, what it puts before them, and how it decodes all without special
# tokens where that is not the text; and the characters of its classes.
# big.py is the same with whole vocabularies.
#
#     pip install tokenizers
#     python3 families.py > families.json
import json
import random
import sys

import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = LLAMA3.replace("{1,3}", "")
SENTENCES = """Every rank reads its share of the text, and nobody reads it twice.
Jeder Rang liest seinen Teil des Textes, größer oder kleiner.
Chaque rang lit sa part du texte, où qu'il soit.
Каждый участник читает свою часть текста один раз.
每个进程读取自己的一份文本，不会重复。
各ランクは自分の分のテキストを一度だけ読みます。
각 프로세스는 자기 몫의 텍스트를 한 번만 읽습니다.
كل عملية تقرأ نصيبها من النص مرة واحدة.
हर प्रक्रिया अपना हिस्सा एक बार पढ़ती है।
Όλοι διαβάζουν το μερίδιό τους.
😀 👩‍👩‍👧 done! 🏽 x²+y² = 1½
"""
pages = [SENTENCES * 8] + [open(f"../../../{p}").read() for p in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md")]
code = open("../bpe.go").read()

r = random.Random(7)
texts = ["", " ", "  ", "\n", " \n ", "\n\n  x", "a  b   c", "x \n", "tab\tx\t\ty", "'s", "'S", "'ſ", "I'LL've 'lx 'Re we'd", "\u00a0x", "a\u3000 b"]
texts += ["<s>", "a <s> b", "<s><s>", " <s>", "▁<s>", "▁a", "a▁ b", " ▁ ", "<|endoftext|>x", "a <mask>  b <mask>", "  <mask>", "one", "one one1 (one) oneone", "<0x41>"]
texts += ["1234567 12 ٣٨ Ⅷ", "...\r\n\n  \r\n", "(a){b} !!c", "\U0002ebf0\U00016d40x", "x" * 70, "  12  3 ", "é" * 60, " " * 50 + "end", "世界" * 30]
texts += SENTENCES.splitlines() + [code[:1500], pages[1][:1500]]
alphabets = [
    [chr(c) for c in range(128)],
    [chr(c) for c in range(256)],
    list(" \t\n\r\v\f\u0085\u00a0\u2028\u3000aZ0.,'-▁"),
    list("'sStTrReEvVmMlLdDſ  x"),
    list("0123456789²½Ⅷ٣८ a."),
    ["😀", "👩‍👩‍👧", "🏽", "é", "e\u0301", "ß", "世", "界", "한", "ا", "ש", "क", "्", " ", "\n", "!"],
    ["<s>", "</s>", "<unk>", "<|endoftext|>", "<mask>", " ", "  ", "a", "<", "|>", "\n", "▁", "one"],
]
for a in alphabets:
    texts += ["".join(r.choice(a) for _ in range(r.randrange(1, 40))) for _ in range(10)]
for _ in range(15):  # any characters
    texts.append("".join(chr(r.choice([r.randrange(0xD800), r.randrange(0xE000, 0x110000)])) for _ in range(r.randrange(1, 30))))
for _ in range(15):  # random bytes, made valid
    texts.append(bytes(r.randrange(256) for _ in range(r.randrange(1, 60))).decode("utf-8", errors="replace"))

families = []


def ranges(regex):
    """The characters of a class, as first, last, first, last, …"""
    out = []
    for base in range(0, 0x110000, 4096):
        chars = "".join(chr(c) for c in range(base, base + 4096) if not 0xD800 <= c < 0xE000)
        for run, _ in pre_tokenizers.Split(Regex(regex), "removed", invert=True).pre_tokenize_str(chars) if chars else ():
            for c in map(ord, run):
                if out and out[-1] == c - 1:
                    out[-1] = c
                else:
                    out += [c, c]
    return out


def add(name, tok):
    tok = Tokenizer.from_str(tok if isinstance(tok, str) else tok.to_str())
    before = tok.encode("").ids
    cases = []
    for t in texts:
        ids = tok.encode(t, add_special_tokens=False).ids
        assert tok.encode(t).ids == before + ids
        decoded = tok.decode(before + ids)
        cases.append({"ids": ids} if decoded == t else {"ids": ids, "decoded": decoded})
    d = json.loads(tok.to_str())
    for f in families:  # share what is the same
        if all(f["tokenizer"]["model"].get(k) == d["model"][k] for k in ("vocab", "merges")):
            del d["model"]["vocab"], d["model"]["merges"]
            d["model"]["as"] = f["name"]
            break
    families.append({"name": name, "tokenizer": d, "before": before, "cases": cases})


def special(content, **kw):
    return AddedToken(content, normalized=False, special=True, **kw)


def over_bytes(size):
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tok.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), special_tokens=["<|endoftext|>"], show_progress=False)
    tok.train_from_iterator(pages, trainer)
    return tok


tok = over_bytes(500)
tok.post_processor = processors.ByteLevel(trim_offsets=False)
add("gpt2", tok)
tok = over_bytes(400)
tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
tok.add_special_tokens([special("<mask>", lstrip=True, rstrip=True), AddedToken("one", single_word=True)])
add("gpt2-added", tok)
tok = over_bytes(450)
tok.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
add("digits", tok)
for name, regex in (("llama3", LLAMA3), ("qwen2", QWEN2)):
    d = json.loads(over_bytes(450).to_str())
    d["model"]["ignore_merges"] = True
    d["model"]["merges"] = [m for i, m in enumerate(d["model"]["merges"]) if i % 7]  # some words are in the vocabulary alone
    d["model"]["merges"] = [m for m in d["model"]["merges"] if all(p in d["model"]["vocab"] for p in m)]
    tok = Tokenizer.from_str(json.dumps(d))
    tok.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(regex), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tok.add_special_tokens([special("<s>"), special("<mask>", lstrip=True)])
    template = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", tok.token_to_id("<s>"))])
    tok.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), template])
    add(name, tok)

specials = ["<unk>", "<s>", "</s>"]
trainer = trainers.BpeTrainer(
    vocab_size=700, special_tokens=specials + [f"<0x{b:02X}>" for b in range(256)], limit_alphabet=150, max_token_length=16, show_progress=False
)
tok = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
tok.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=True)
tok.train_from_iterator(pages, trainer)
trained = json.loads(tok.to_str())
PREPEND = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]}
REPLACE = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
METASPACE = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False}
AT_SPACES = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}
BOS = {
    "type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
    "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
}
BACK = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
STRIP = {"type": "Sequence", "decoders": [BACK, {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}


def over_characters(name, normalizer, pre_tokenizer, normalized=False, post_processor=BOS, **model):
    d = json.loads(json.dumps(trained))
    d["model"].update(model)
    d.update(normalizer=normalizer, pre_tokenizer=pre_tokenizer, post_processor=post_processor, decoder=STRIP)
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": normalized, "special": True}
    d["added_tokens"] = [dict(flags, id=i, content=c) for i, c in enumerate(specials)]
    add(name, json.dumps(d))


over_characters("llama2", PREPEND, None)
over_characters("llama1", PREPEND, None, normalized=True)
over_characters("metaspace", None, METASPACE)
over_characters("pieces", None, dict(METASPACE, prepend_scheme="always", split=True), post_processor=None)
over_characters("gemma", REPLACE, AT_SPACES)
# Characters without tokens for bytes: unknown ones are <unk>, one by one or together.
over_characters("unknown", PREPEND, None, byte_fallback=False, fuse_unk=False)
over_characters("fused", PREPEND, None, byte_fallback=False, fuse_unk=True)

def word_ranges():
    """The characters that may not touch a token which wants to be a word of its own."""
    tok = Tokenizer(models.BPE({"a": 0, "one": 1}, []))
    tok.add_tokens([AddedToken("one", single_word=True)])
    out = []
    for c in range(0x110000):
        if not 0xD800 <= c < 0xE000 and tok.encode("one" + chr(c)).ids != [1]:
            if out and out[-1] == c - 1:
                out[-1] = c
            else:
                out += [c, c]
    return out


kinds = {"letter": ranges(r"\p{L}"), "number": ranges(r"\p{N}"), "space": ranges(r"\s"), "word": word_ranges()}
json.dump({"tokenizers": tokenizers.__version__, "kinds": kinds, "texts": texts, "families": families}, sys.stdout, ensure_ascii=False, separators=(",", ":"))
print()
