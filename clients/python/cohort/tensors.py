# SPDX-License-Identifier: Apache-2.0
"""Tensors of a message: NumPy's arrays or PyTorch's tensors, as raw bytes on the wire."""

import sys

import numpy as np

from .errors import RPCError

MAX_TENSORS, MAX_DIMS = 65536, 16

# The wire's number of an element type: its name, its bytes, and NumPy's type for it.
TYPES = {
    1: ("float32", 4, np.dtype("<f4")), 2: ("int64", 8, np.dtype("<i8")), 3: ("bfloat16", 2, None),
    4: ("float16", 2, np.dtype("<f2")), 5: ("float64", 8, np.dtype("<f8")), 6: ("int32", 4, np.dtype("<i4")),
    7: ("int8", 1, np.dtype("i1")), 8: ("uint8", 1, np.dtype("u1")), 9: ("bool", 1, np.dtype("?")),
}
_NUMBERS = {name: number for number, (name, _, _) in TYPES.items()}


def _torch():
    """PyTorch, if the program has imported it."""
    return sys.modules.get("torch")


class Outgoing:
    """The tensors of a message that is being made."""

    def __init__(self):
        self.specs, self.data, self.index = [], [], {}

    def add(self, v):
        """Returns the index of v, which may come several times, or None if it is no tensor."""
        torch = _torch()
        if torch is not None and isinstance(v, torch.Tensor):
            spec, data = _from_torch(torch, v)
        elif isinstance(v, np.ndarray):
            spec, data = _from_numpy(v)
        else:
            return None
        if id(v) in self.index:
            return self.index[id(v)][0]
        n = len(self.specs)
        if n == MAX_TENSORS:
            raise ValueError("more than %d tensors in a message" % MAX_TENSORS)
        self.index[id(v)] = n, v  # v is kept, so that nothing else gets its id
        self.specs.append(spec)
        self.data.append(data)
        return n


def _from_numpy(v):
    name = v.dtype.name
    if name not in _NUMBERS:
        raise TypeError("an array of %s cannot travel: the element types are %s" % (name, ", ".join(_NUMBERS)))
    if v.ndim > MAX_DIMS:
        raise ValueError("an array of %d dims: the most are %d" % (v.ndim, MAX_DIMS))
    number = _NUMBERS[name]
    wire = TYPES[number][2]
    flat = np.ascontiguousarray(v if wire is None else v.astype(wire, copy=False))
    return [number] + list(v.shape), memoryview(flat.reshape(-1).view(np.uint8)) if flat.size else memoryview(b"")


def _from_torch(torch, v):
    name = str(v.dtype).replace("torch.", "")
    if name not in _NUMBERS:
        raise TypeError("a tensor of %s cannot travel: the element types are %s" % (name, ", ".join(_NUMBERS)))
    if v.dim() > MAX_DIMS:
        raise ValueError("a tensor of %d dims: the most are %d" % (v.dim(), MAX_DIMS))
    flat = v.detach().cpu().contiguous().reshape(-1)
    if flat.dtype == torch.bfloat16:
        flat = flat.view(torch.int16)
    data = memoryview(flat.numpy().view(np.uint8)) if flat.numel() else memoryview(b"")
    return [_NUMBERS[name]] + list(v.shape), data


def check(specs, size):
    """Checks what a message says of its tensors against the bytes that it has for them.

    Returns for each the name of its element type, its shape and its bytes.
    """
    if specs is None:
        specs = []
    if not isinstance(specs, list) or len(specs) > MAX_TENSORS:
        raise RPCError("protocol", "a list of tensors that is none")
    out, total = [], 0
    for s in specs:
        if not (isinstance(s, list) and 1 <= len(s) <= MAX_DIMS + 1 and all(type(x) is int and x >= 0 for x in s)) or s[0] not in TYPES:
            raise RPCError("protocol", "the tensor %.100r, which no element type and shape are" % (s,))
        n = TYPES[s[0]][1]
        for dim in s[1:]:
            n *= dim
        total += n
        out.append((s[0], tuple(s[1:]), n))
    if total != size:
        raise RPCError("protocol", "tensors of %d bytes, of which %d came" % (total, size))
    return out


def receive(specs, read_into, kind):
    """Reads the tensors that check has passed, as kind ("numpy", "widened" or "torch") wants them."""
    out = []
    for number, shape, n in specs:
        buffer = np.empty(n, np.uint8)
        if n:
            read_into(memoryview(buffer))
        out.append(_KINDS[kind](buffer, number, shape))
    return out


def _to_widened(buffer, number, shape):
    """Like _to_numpy, but bfloat16 becomes float32: its bits are the upper half of a float32's."""
    if TYPES[number][0] != "bfloat16":
        return _to_numpy(buffer, number, shape)
    return (buffer.view("<u2").astype(np.uint32) << 16).view(np.float32).reshape(shape)


def _to_numpy(buffer, number, shape):
    name, _, dtype = TYPES[number]
    if dtype is None:
        try:
            import ml_dtypes
        except ImportError:
            raise RPCError("types", "NumPy has no bfloat16 of its own: install ml_dtypes, or connect(…, tensors=\"torch\")") from None
        dtype = np.dtype(ml_dtypes.bfloat16)
    return buffer.view(dtype).reshape(shape)


def _to_torch(buffer, number, shape):
    import torch
    dtype = getattr(torch, TYPES[number][0])
    if buffer.size == 0:
        return torch.empty(shape, dtype=dtype)
    return torch.from_numpy(buffer).view(dtype).reshape(shape)


_KINDS = {"numpy": _to_numpy, "widened": _to_widened, "torch": _to_torch}
