# SPDX-License-Identifier: Apache-2.0
"""Writes linear.json: the first values that PyTorch gives linear layers that are made one after the other from one
seed. Run with any PyTorch 2:  python linear.py > linear.json"""
import json
import torch

cases = []
for seed, sizes in [(0, [(1, 1), (3, 2), (7, 5)]), (1234, [(24, 17), (17, 10)]), (-5, [(5, 4)]), (2**40 + 3, [(10, 100), (97, 4)])]:
    torch.manual_seed(seed)
    layers = []
    for n_in, n_out in sizes:
        layer = torch.nn.Linear(n_in, n_out)
        bits = lambda p: p.detach().flatten().view(torch.int32).tolist()
        layers.append({"in": n_in, "out": n_out, "weight": bits(layer.weight), "bias": bits(layer.bias)})
    cases.append({"seed": seed, "layers": layers})
print(json.dumps({"torch": torch.__version__.split("+")[0], "cases": cases}))
