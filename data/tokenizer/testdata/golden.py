# SPDX-License-Identifier: Apache-2.0
# Writes golden.json: the tokens that the Hugging Face tokenizers package gives
# with tokenizer.json (which the tests write with `go test -run Golden -update`)
# for a set of texts.
#
#     pip install tokenizers
#     python3 golden.py > golden.json
import hashlib
import json
import random
import unicodedata

import tokenizers

tok = tokenizers.Tokenizer.from_file("tokenizer.json")
r = random.Random(5)

GO = """// Package heap provides heap operations.
package heap

import "sort"

\t// An IntHeap\u2026 is \u4e16\u754c.
func (h *IntHeap) Pop() any {
\told := *h\r\n\tn := len(old)   // spaces   here
\tif err != nil || x_1 == 0x7fff {
\t\treturn fmt.Errorf("%w: %q", err, `raw`)
\t}


\tx := old[n-1] + 'a' - '\\n'
        indented(by, spaces)
 \t mixed \t\n \n"""

texts = ["", " ", "  ", "\n", "\t\t", "a", " a", "  a", " \n", "a ", "!", " !", "  !\n\n\t\tx", "\u00a0\u2028\u3000x", "a\u0301", "\U0001f600\U0001f600 !", GO, GO * 3]
texts.append("".join(chr(b) for b in range(256)))
texts.append("abcdefgh" * 40)  # one long word
texts.append("\u00e9" * 200 + "=" * 300)
texts.append("return" * 30 + "\n\t" * 60)


def char(kind):
    if kind == 0:
        return chr(r.randrange(128))
    if kind == 1:
        return chr(r.randrange(256))
    if kind == 2:
        return r.choice(" \t\n\r  \t\n ._-(){}[]=:;,\"'x0")
    if kind == 3:
        return r.choice("aeinorst_ return if err func")
    while True:
        c = chr(r.randrange(0x110000))
        if unicodedata.category(c) != "Cs":
            return c


for i in range(400):
    kinds = [r.randrange(5) for _ in range(r.randrange(1, 4))]
    texts.append("".join(char(r.choice(kinds)) for _ in range(r.randrange(1, 120))))
for i in range(20):  # random bytes, made valid
    texts.append(bytes(r.randrange(256) for _ in range(300)).decode("utf-8", "replace"))

cases = []
for t in texts:
    ids = tok.encode(t, add_special_tokens=False).ids
    assert tok.decode(ids, skip_special_tokens=False) == t, t
    cases.append({"text": t, "ids": ids})
print(json.dumps({"tokenizers": tokenizers.__version__, "cases": cases}, separators=(",", ":")))
