# SPDX-License-Identifier: Apache-2.0
"""Writes value-2.pickle to value-5.pickle, one for each protocol: a value with everything that the decoder knows. Run here with
any Python 3.8 or later:  python pickles.py"""
import collections
import pickle

shared = ("a", 1)
value = {
    "none": None, "bools": (True, False),
    "ints": [0, 255, 256, 65535, 65536, -1, 2**31 - 1, -2**31, 2**31, -2**63, 2**63 - 1, 2**63, -2**63 - 1, 2**80],
    "floats": (0.5, -1e300), "text": "é\n", "long": "x" * 300, "bytes": b"\x00\xff", "array": bytearray(b"ab"), "empty": ((), [], {}),
    "four": (1, 2, 3, 4), "set": {7}, "frozen": frozenset([8]), "ordered": collections.OrderedDict([("b", 1), ("a", 2)]),
    "shared": [shared, shared], 1: "one", (1, 2): "pair",
}
for protocol in range(2, 6):
    with open(f"value-{protocol}.pickle", "wb") as f:
        pickle.dump(value, f, protocol=protocol)
