# SPDX-License-Identifier: Apache-2.0
"""Writes PyTorch's values of all numbers with eight bits to float8.json, and a file of torch.save,
nested.pt."""

import json
import pathlib

import torch

values = {}
for name, dtype in (("F8_E4M3", torch.float8_e4m3fn), ("F8_E5M2", torch.float8_e5m2)):
    floats = torch.arange(256, dtype=torch.uint8).view(dtype).double().tolist()
    values[name] = [repr(v) for v in floats]
path = pathlib.Path(__file__).parent / "float8.json"
path.write_text(json.dumps(values, separators=(",", ":")) + "\n")

# A model with the state of its optimizer, as programs of PyTorch save them together.
torch.manual_seed(1)
model = torch.nn.Linear(3, 2)
optimizer = torch.optim.AdamW(model.parameters())
model(torch.randn(4, 3)).sum().backward()
optimizer.step()
state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 1}
torch.save(state, path.parent / "nested.pt")
