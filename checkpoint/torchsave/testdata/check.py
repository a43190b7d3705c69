# SPDX-License-Identifier: Apache-2.0
"""Loads files of this package with torch.load(weights_only=True) and prints for each a line of JSON with what is in it: dtype,
shape and dense bytes of each tensor, and repr of everything else. A file after "mmap:" is mapped into memory.
  python check.py FILE …"""
import json
import sys
import torch



def walk(out, name, v):
    if isinstance(v, torch.Tensor):
        t = v.detach().contiguous().clone()
        data = bytes(t.untyped_storage().tolist()).hex() if t.numel() else ""
        out[name] = {"dtype": str(v.dtype)[6:], "shape": list(v.shape), "hex": data, "grad": v.requires_grad, "parameter": isinstance(v, torch.nn.Parameter),
                     "storage": v.untyped_storage().data_ptr()}
    elif isinstance(v, dict):
        for k, x in v.items():
            walk(out, f"{name}.{k}" if name else str(k), x)
    elif isinstance(v, (list, tuple)) and not isinstance(v, torch.Size):
        for k, x in enumerate(v):
            walk(out, f"{name}.{k}", x)
    else:
        out[name] = {"repr": repr(v)}


for path in sys.argv[1:]:
    out = {}
    walk(out, "", torch.load(path.removeprefix("mmap:"), weights_only=True, mmap=path.startswith("mmap:")))
    print(json.dumps(out))
