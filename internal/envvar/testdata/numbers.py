# SPDX-License-Identifier: Apache-2.0
"""Writes numbers.json: what Python makes of texts as integers and as numbers."""
import json

TEXTS = [
    "2", " 2 ", "2\r", "2\n", "\t2", "\v2\f", "\u00a02", "2\u2003", "\u30002", "\u20282", "\u200b2", "\ufeff2", "\x1c2\x1f", "\x852",
    "+2", "-2", "--2", "+-2", "+ 2", "2+", "", " ", "_", "_2", "2_", "1_0", "1__0", "1_000_000", "-1_0", "+_1", "1_ 0",
    "007", "0", "-0", "00", "0_0", "010", "0x10", "0b1", "0o7", "0X1", "1.", "1.0", ".5", "1.5", "1_0.5", "1._5", "1_.5", "1.5_0",
    "1e3", "1E3", "1e+3", "1e-3", "1_0e1_0", "1e", "e1", "1e_1", "inf", "-inf", "Infinity", "INF", "nan", "infinit", "1f", "1L", "1j",
    "\u0662", "\u0661\u0662", "\u0967\u0968", "\uff12", "\uff11\uff10", "\uff0b2", "\u22122", "\u00b2", "\u2161", "\u4e8c", "\U0001d7d0", "\u0661_\u0662", "1\u0662",
    "\u0661.\u0665", "two", "2 3", "2,3", "1,000", "99999999999", "0x1p4", "True", "'2'", "２", "\u0bef", "\U0001f102",
]


def made(kind, text):
    try:
        v = kind(text)
    except ValueError:
        return None
    return repr(v)


with open("numbers.json", "w") as f:
    json.dump([{"Text": t, "Int": made(int, t), "Float": made(float, t)} for t in TEXTS], f, indent=1, ensure_ascii=True)
    f.write("\n")
