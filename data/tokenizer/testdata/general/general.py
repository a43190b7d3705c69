# SPDX-License-Identifier: Apache-2.0
# Trains small tokenizers of the kinds of published models with the Hugging Face
# library tokenizers, and writes what it gives: for ten parts of a text hashes of
# the ids and of the decoded text, and whole examples, of pairs of texts too, cut
# in all ways. The text is made by a generator that the test in Go has as well.
#
#     pip install tokenizers==0.23.3 sentencepiece==0.2.3
#     python3 general.py | gzip -9n > general.json.gz
#     python3 general.py small 100000 | gzip -9n > /tmp/general.json.gz    # a million characters; go test -run General -general /tmp/general.json.gz
#     python3 general.py nmt_nfkc | gzip -9n > /tmp/general.json.gz    # with the table of T5 and XLM-R
import hashlib
import io
import json
import struct
import sys
import tempfile

import sentencepiece
from sentencepiece import sentencepiece_model_pb2 as pb
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers import __version__ as version

WORDS = ["the", " the", " fox", " jumps", "ing", " un", "happy", " I'm", "I'LL", " don't", " do not", "HTTPServer", " x1y2", " 12345", " 3.14", "\n", "\n\n", "  ", "   ", "\t", "\r\n", " ", ".", ",", "!", " - ", "(a)", "naïve", "cafe\u0301", "é", " straße", "İstanbul", " ΟΔΟΣ", "привет", " мир", "世界", "你好", "日本語", "カタカナ", "ｶﾞ", "한국어", "\u1112\u1161\u11ab", "العربية", "हिन्दी", "ไทย", "ﬁn", "Å", "½", "①", "😀", "👍🏽", "👨‍👩‍👧", "🇩🇪", "\u200b", "\u00a0", "\u3000", "\u00ad", "\ufeff", "\u2028", "<s>", "[SEP]", "<|im_end|>", "a_b", "$5", "a/b", "``", "▁", " ▁x", "\u0000", "\u0007", "\ufffd", "\U0010fffd"]
BLOCKS = [(0x20, 0x7f), (0x80, 0x250), (0x300, 0x370), (0x370, 0x400), (0x400, 0x460), (0x5d0, 0x5f0), (0x600, 0x700), (0x900, 0x980), (0xe00, 0xe5c), (0x1100, 0x1200), (0x1e00, 0x1f00), (0x2000, 0x2070), (0x20a0, 0x20c0), (0x2100, 0x2200), (0x2460, 0x2500), (0x2e80, 0x2f00), (0x3000, 0x3100), (0x4e00, 0x5000), (0xac00, 0xae00), (0xf900, 0xfb00), (0xfb00, 0xfb50), (0xfe00, 0xfe70), (0xff00, 0xfff0), (0x1d400, 0x1d500), (0x1f300, 0x1f650), (0x20000, 0x20100), (0, 0x20)]


class Text:
    def __init__(self, seed):
        self.state = seed

    def draw(self, n):
        self.state = (self.state * 6364136223846793005 + 1442695040888963407) % 2**64
        return (self.state >> 33) % n

    def take(self, chars):
        out, n = [], 0
        while n < chars:
            if self.draw(14) == 0:
                lo, hi = BLOCKS[self.draw(len(BLOCKS))]
                p = chr(lo + self.draw(hi - lo))
            else:
                p = WORDS[self.draw(len(WORDS))]
            out.append(p)
            n += len(p)
        return "".join(out)


QWEN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
GPT4O = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
TEKKEN = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
DEEPSEEK = [r"\p{N}{1,3}", r"[一-龥぀-ゟ゠-ヿ]+", "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"]
PARTS, PART = 10, int(sys.argv[2]) if len(sys.argv) > 2 else 10_000
P, N, D = pre_tokenizers, normalizers, decoders
corpus = [Text(99).take(200) for _ in range(200)]


def bpe(pre, normalizer=None, post=None, decoder=None, vocab=600, special=("<|endoftext|>", "<|im_end|>"), **options):
    t = Tokenizer(models.BPE(**options))
    t.pre_tokenizer, t.decoder = pre, decoder or D.ByteLevel()
    if normalizer:
        t.normalizer = normalizer
    t.train_from_iterator(corpus, trainers.BpeTrainer(vocab_size=vocab, special_tokens=list(special), initial_alphabet=P.ByteLevel.alphabet() if decoder is None else [], show_progress=False))
    if post:
        t.post_processor = post(t)
    return t


def level(*patterns, behavior="isolated"):
    return P.Sequence([P.Split(Regex(p), behavior) for p in patterns] + [P.ByteLevel(add_prefix_space=False, use_regex=False)])


def around(single, pair, *names):
    return lambda t: processors.TemplateProcessing(single=single, pair=pair, special_tokens=[(n, t.token_to_id(n)) for n in names])


def bert(normalizer, vocab=500):
    t = Tokenizer(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=20))
    t.normalizer, t.pre_tokenizer, t.decoder = normalizer, P.BertPreTokenizer(), D.WordPiece()
    t.train_from_iterator(corpus, trainers.WordPieceTrainer(vocab_size=vocab, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"], show_progress=False, limit_alphabet=300))
    t.post_processor = around("[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", "[CLS]", "[SEP]")(t)
    return t


def unigram(normalizer, pre, decoder, post=None, special=("<s>", "<pad>", "</s>", "<unk>", "<mask>"), byte_fallback=False):
    t = Tokenizer(models.Unigram())
    t.normalizer, t.pre_tokenizer, t.decoder = normalizer, pre, decoder
    t.train_from_iterator(corpus, trainers.UnigramTrainer(vocab_size=700, special_tokens=list(special), unk_token="<unk>", show_progress=False))
    if byte_fallback:
        m = json.loads(t.to_str())
        m["model"]["vocab"] += [[f"<0x{b:02X}>", -20.0] for b in range(256)]
        m["model"]["byte_fallback"] = True
        t = Tokenizer.from_str(json.dumps(m))
    if post:
        t.post_processor = post(t)
    return t


def charsmap():
    rules = {"ﬁ": "fi", "①": "1", "½": "1/2", "\u3000": " ", "\u00a0": " ", "\t": " ", "\n": " ", "\r": " ", "\u200b": "", "\u212b": "\u00c5", "e\u0301": "é", "ｶﾞ": "ガ", "ｶ": "カ", "\u0007": "", "ς": "σ", "ϐ": "β", "\ufeff": "", "\u00ad": "", "\u1112\u1161": "하", "２": "2", "\u0e33": "\u0e4d\u0e32"}
    with tempfile.NamedTemporaryFile("w", suffix=".tsv") as f:
        for k, v in rules.items():
            f.write(" ".join(f"{ord(c):X}" for c in k) + "\t" + " ".join(f"{ord(c):X}" for c in v) + "\n")
        f.flush()
        out = io.BytesIO()
        how = dict(normalization_rule_name=sys.argv[1]) if sys.argv[1:] and sys.argv[1] != "small" else dict(normalization_rule_tsv=f.name)
        sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(["the fox jumps", "a b c"] * 20), model_writer=out, vocab_size=40, hard_vocab_limit=False, minloglevel=2, **how)
    m = pb.ModelProto()
    m.ParseFromString(out.getvalue())
    return m.normalizer_spec.precompiled_charsmap


def wordlevel(pre, normalizer):
    t = Tokenizer(models.WordLevel(unk_token="<unk>"))
    t.normalizer, t.pre_tokenizer = normalizer, pre
    t.train_from_iterator(corpus, trainers.WordLevelTrainer(vocab_size=400, special_tokens=["<unk>"], show_progress=False))
    return t


meta = lambda **k: P.Metaspace(replacement="▁", **k)
xlmr = around("<s> $A </s>", "<s> $A </s> </s> $B </s>", "<s>", "</s>")
families = {
    "qwen": bpe(level(QWEN), N.NFC()),
    "llama3": bpe(level(LLAMA3), post=around("<|endoftext|> $A", "<|endoftext|> $A <|endoftext|>:1 $B:1", "<|endoftext|>"), ignore_merges=True),
    "gpt4o": bpe(level(GPT4O)),
    "tekken": bpe(level(TEKKEN)),
    "deepseek": bpe(level(*DEEPSEEK)),
    "smollm": bpe(P.Sequence([P.Digits(individual_digits=True), P.ByteLevel(add_prefix_space=False)])),
    "roberta": bpe(P.ByteLevel(add_prefix_space=False), special=["<s>", "<pad>", "</s>", "<unk>", "<mask>"], post=lambda t: processors.RobertaProcessing(("</s>", 2), ("<s>", 0))),
    "bert uncased": bert(N.BertNormalizer()),
    "bert cased": bert(N.BertNormalizer(lowercase=False)),
    "bert accents": bert(N.BertNormalizer(lowercase=True, strip_accents=False, handle_chinese_chars=False)),
    "xlm-r": unigram(N.Sequence([N.Precompiled(charsmap()), N.Replace(Regex(" {2,}"), " ")]), P.Sequence([P.WhitespaceSplit(), meta()]), D.Metaspace(), xlmr),
    "t5": unigram(N.Precompiled(charsmap()), meta(prepend_scheme="always"), D.Metaspace(), around("$A </s>", "$A </s> $B </s>", "</s>")),
    "bytes": unigram(N.Sequence([N.NFKC(), N.Replace(" ", "▁")]), None, D.Sequence([D.Replace("▁", " "), D.ByteFallback(), D.Fuse()]), byte_fallback=True),
    "albert": unigram(N.Sequence([N.Nmt(), N.NFKD(), N.StripAccents(), N.Lowercase(), N.Strip()]), meta(prepend_scheme="first", split=False), D.Metaspace(prepend_scheme="first")),
    "words": wordlevel(P.Sequence([P.Whitespace(), P.Punctuation(), P.Digits()]), N.Sequence([N.NFD(), N.Lowercase(), N.StripAccents()])),
    "characters": bpe(P.Sequence([P.WhitespaceSplit(), P.Digits()]), N.Sequence([N.NFKC(), N.Lowercase()]), decoder=D.Fuse(), special=["<unk>"], unk_token="<unk>", fuse_unk=True),
    "others": wordlevel(P.Sequence([P.CharDelimiterSplit("x"), P.Punctuation("merged_with_next"), P.Split("the", "merged_with_previous"), P.Split(Regex(r"[0-9]+"), "contiguous"), P.Split(" ", "removed", invert=False), P.Split(Regex(r"\p{Lu}+"), "merged_with_next"), P.Split(Regex(r"\p{L}+|\s"), "isolated", invert=True)]), N.Prepend("_")),
}
families["bert uncased"].add_tokens([AddedToken("New Token", normalized=True), AddedToken("[E1]", single_word=True)])
families["xlm-r"].add_special_tokens([AddedToken("<mask>", lstrip=True)])
families["qwen"].add_special_tokens(["<|im_start|>"])


def digest(ids):
    return hashlib.sha256(b"".join(struct.pack("<I", i) for i in ids)).hexdigest()[:16]


out = []
for name, t in families.items():
    parts, text = [], Text(7)
    for _ in range(PARTS):
        ids = t.encode(text.take(PART)).ids
        parts.append([len(ids), digest(ids), hashlib.sha256(t.decode(ids, skip_special_tokens=False).encode()).hexdigest()[:16]])
    examples = []
    text = Text(8)
    for i in range(30):
        a, b = text.take(1 + 7 * i), text.take(1 + 3 * i)
        e = t.encode(a)
        x = {"a": a, "ids": e.ids, "text": t.decode(e.ids)}
        if i < 20:
            x["b"] = b
            for how in ["longest_first", "only_first", "only_second"]:
                for n in [0, 12, 21]:
                    t.no_truncation()
                    if n:
                        t.enable_truncation(n, strategy=how)
                    try:
                        e = t.encode(a, b)
                        x[f"{how} {n}"] = [e.ids, e.type_ids, e.special_tokens_mask]
                    except BaseException:
                        x[f"{how} {n}"] = None
            t.no_truncation()
        examples.append(x)
    out.append({"name": name, "tokenizer": json.loads(t.to_str()), "parts": parts, "examples": examples})
json.dump({"tokenizers": version, "part": PART, "words": WORDS, "blocks": BLOCKS, "families": out}, sys.stdout, ensure_ascii=True, separators=(",", ":"))
