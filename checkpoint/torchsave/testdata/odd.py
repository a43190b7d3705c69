# SPDX-License-Identifier: Apache-2.0
"""Writes odd-VERSION.pt, a file of torch.save with tensors and containers of all kinds, and odd-VERSION.json with the dense
bytes of its tensors. Run in this folder with each PyTorch:  python odd.py. The files here are of PyTorch 1.13 and 2.15."""
import collections
import json
import torch

version = ".".join(torch.__version__.split(".")[:2])
base = torch.arange(24, dtype=torch.float32)
tied = torch.nn.Parameter(torch.tensor([1.5, -2.5]))
tensors = {
    "scalar": torch.tensor(3.25),
    "empty": torch.zeros(0, 3),
    "view": base[5:11].view(2, 3),
    "transposed": base.view(4, 6).t(),
    "permuted": base.view(2, 3, 4).permute(2, 0, 1),
    "strided": base[1::3],
    "expanded": torch.tensor([[7.0], [8.0]]).expand(2, 3),
    "channels": base.view(1, 2, 3, 4).contiguous(memory_format=torch.channels_last),
    "tied": tied, "tied too": tied,
    "bool": torch.tensor([True, False, True]),
    "int8": torch.tensor([-1, 2], dtype=torch.int8),
    "uint8": torch.tensor([255, 2], dtype=torch.uint8),
    "int16": torch.tensor([-300, 2], dtype=torch.int16),
    "int32": torch.tensor([-70000, 2], dtype=torch.int32),
    "int64": torch.tensor([-(2**40), 2]),
    "half": torch.tensor([1.5, -0.0], dtype=torch.float16),
    "bfloat16": torch.tensor([1.5, float("inf")], dtype=torch.bfloat16),
    "double": torch.tensor([1 / 3], dtype=torch.float64),
    "complex64": torch.tensor([1 + 2j, -3j]),
    "conjugated copy": torch.tensor([1 + 2j]).conj().resolve_conj() if hasattr(torch.Tensor, "resolve_conj") else torch.tensor([1 - 2j]),
    "grad": torch.ones(2, requires_grad=True),
}
for name in ("uint16", "uint32", "uint64"):
    if hasattr(torch, name):
        tensors[name] = torch.tensor([1, 65535], dtype=getattr(torch, name))
for name in ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"):
    if hasattr(torch, name):
        tensors[name] = torch.tensor([1.0, 2.0, 0.5]).to(getattr(torch, name))
refused = {
    "complex128": torch.tensor([1j], dtype=torch.complex128),
    "sparse": torch.eye(2).to_sparse(),
    "meta": torch.zeros(3, device="meta"),
    # PyTorch 1.13 loses the bit that says that the numbers are to be conjugated.
    "conjugated": torch.tensor([1 + 2j]).conj() if version[0] > "1" else torch.eye(2).to_sparse_csr(),
    "quantized": torch.quantize_per_tensor(torch.tensor([1.0, 2.0]), 0.1, 10, torch.quint8),
}
with_attribute = torch.tensor([9.0])
with_attribute.note = "kept by PyTorch"
value = {
    "tensors": collections.OrderedDict(tensors), "refused": refused, "attribute": with_attribute, "buffer": torch.nn.Parameter(torch.ones(1), False),
    "list": [1, 2.5, None, True, "é", (1, (2, torch.tensor([4])))], "size": torch.Size([2, 3]), "dtype": torch.bfloat16, "device": torch.device("cpu"),
    "bytes": b"\x00\xff", "complex": 1 + 2j, "set": {3}, "big": 2**70, "param_groups": [{"lr": 1e-3, "betas": (0.9, 0.999), "params": [0, 1]}],
    "module": torch.nn.Linear(2, 1).state_dict(), 7: torch.tensor([70]),
}


def raw(t):
    t = t.detach().contiguous().clone()
    storage = t.untyped_storage() if hasattr(t, "untyped_storage") else t.storage().untyped()
    return bytes(storage.tolist()).hex() if t.numel() else ""


torch.save(value, f"odd-{version}.pt")
known = {"tensors." + k: v for k, v in tensors.items()}
known.update({"attribute": with_attribute, "buffer": value["buffer"], "list.5.1.1": value["list"][5][1][1], "7": value[7]})
known.update({"module." + k: v for k, v in value["module"].items()})
with open(f"odd-{version}.json", "w") as f:
    json.dump({k: {"dtype": str(v.dtype)[6:], "shape": list(v.shape), "hex": raw(v)} for k, v in known.items()}, f, indent=0)
    f.write("\n")
