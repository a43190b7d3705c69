# SPDX-License-Identifier: Apache-2.0
"""Writes protocol-2.pt to protocol-5.pt: the same value saved with each protocol of pickles that torch.save takes. The files here
are of PyTorch 2.15:  python protocols.py"""
import collections
import torch

weight = torch.arange(6, dtype=torch.float32).view(2, 3).t()
value = collections.OrderedDict(w=weight, tied=weight, eight=torch.tensor([1.0, -2.0]).to(torch.float8_e5m2), raw=b"\x00\xff", kinds={1}, big=2**40,
                                nested=[(1, {"x": torch.tensor(True)})])
for protocol in range(2, 6):
    torch.save(value, f"protocol-{protocol}.pt", pickle_protocol=protocol)
