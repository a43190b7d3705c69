# SPDX-License-Identifier: Apache-2.0
"""Writes golden.safetensors with the reference library, or checks files against it.

    python golden.py                  writes golden.safetensors beside this script
    python golden.py check FILE       opens FILE, written by this package's test
                                      (go test -run GoldenWrite . -out FILE),
                                      and compares every tensor

Made with safetensors 0.8.0 and numpy 2.4.
"""
import ctypes
import os
import sys

import safetensors
from safetensors import TensorSpec, safe_open

HERE = os.path.dirname(os.path.abspath(__file__))


def pattern(n, seed):
    # Tensor 6 is boolean: its bytes are 0 and 1.
    return bytes((i * 7 + seed * 31 + 3) % (2 if seed == 6 else 113) for i in range(n))


# name, dtype as the library spells it, shape, bytes an element
TENSORS = [
    ("w", "float32", [3, 5], 4),
    ("blocks.0.attn.weight", "bfloat16", [4, 2], 2),
    ("half", "float16", [6], 2),
    ("ids", "int64", [2, 2], 8),
    ("double", "float64", [2], 8),
    ("bytes", "uint8", [7], 1),
    ("mask", "bool", [5], 1),
    ("scalar", "float32", [], 4),
    ("empty", "float32", [0, 4], 4),
    ('na"me\\ \t\x01 é 層 \U0001f600', "int32", [1], 4),
]


def tensors():
    for seed, (name, dtype, shape, size) in enumerate(TENSORS):
        n = size
        for s in shape:
            n *= s
        yield name, dtype, shape, pattern(n, seed)


if len(sys.argv) == 3 and sys.argv[1] == "check":
    with safe_open(sys.argv[2], framework="numpy") as f:
        names = set(f.keys())
        assert f.metadata() == {"format": "pt"}, f.metadata()
        f.get_tensor("w")
    with open(sys.argv[2], "rb") as f:
        got = dict(safetensors.deserialize(f.read()))
    assert names == set(got) == {t[0] for t in TENSORS}, names
    for name, dtype, shape, data in tensors():
        assert list(got[name]["shape"]) == shape, (name, got[name]["shape"])
        assert bytes(got[name]["data"]) == data, name
    print("all", len(TENSORS), "tensors agree")
else:
    keep = {name: ctypes.create_string_buffer(data, max(len(data), 1)) for name, _, _, data in tensors()}
    specs = {
        name: TensorSpec(dtype=dtype, shape=shape, data_ptr=ctypes.addressof(keep[name]), data_len=len(data))
        for name, dtype, shape, data in tensors()
    }
    path = os.path.join(HERE, "golden.safetensors")
    with open(path, "wb") as f:
        f.write(safetensors.serialize(specs, {"format": "pt"}))
    print("wrote", path)
