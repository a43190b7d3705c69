# SPDX-License-Identifier: Apache-2.0

"""Writes which rank has which parameter in PyTorch's ZeroRedundancyOptimizer.

    python zero_partition.py > zero_partition_2.15.json

Each case has the numbers of elements of the parameters of each group, and the
ranks that PyTorch gives them to. No rank is started: the group is a fake one.
"""

import json
import random

import torch
import torch.distributed as dist
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.testing._internal.distributed.fake_pg import FakeStore

cases = []
draw = random.Random(25)
for i in range(40):
    ranks = draw.choice([1, 2, 3, 4, 7, 8, 16])
    sizes = [
        [draw.choice([1, 2, 3, 8, 8, 8, 50, 64, 1000, 1009, 4096]) for _ in range(draw.randint(1, 12))]
        for _ in range(draw.randint(1, 3))
    ]
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    params = [[torch.nn.Parameter(torch.zeros(n)) for n in group] for group in sizes]
    optimizer = ZeroRedundancyOptimizer([{"params": group} for group in params], torch.optim.SGD, lr=0.1)
    owner = {}
    for rank, groups in enumerate(optimizer._partition_parameters()):
        for group in groups:
            for p in group["params"]:
                owner[id(p)] = rank
    # The order in which a rank's parameters are broadcast.
    place = {id(p): [g, k] for g, group in enumerate(params) for k, p in enumerate(group)}
    order = [[place[id(p)] for group in groups for p in group["params"]] for groups in optimizer._partition_parameters()]
    cases.append({"ranks": ranks, "sizes": sizes, "owners": [[owner[id(p)] for p in group] for group in params], "order": order})
    dist.destroy_process_group()

print("[\n" + ",\n".join(" " + json.dumps(c) for c in cases) + "\n]")
