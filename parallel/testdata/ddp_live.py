# SPDX-License-Identifier: Apache-2.0
"""A PyTorch rank of the jobs in pytorch_live_test.go: reads a job a line, and answers with the parameters that its
DistributedDataParallel has at the end of each case, as bits."""

import contextlib
import datetime
import json
import os
import sys
import warnings

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

warnings.simplefilter("ignore")
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from ddp_pytorch import MLP, Branches  # noqa: E402


def linears():
    """As many parameters as MLP, with more dims."""
    return nn.Sequential(nn.Linear(8, 6), nn.Linear(6, 6), nn.Linear(6, 4))


def large():
    """Two buckets of the usual sizes."""
    return nn.Sequential(nn.Linear(8, 600), nn.Linear(600, 600), nn.Linear(600, 600), nn.Linear(600, 4))


def wide():
    m = MLP()
    m.fc2 = nn.Linear(6, 5)
    return m


class DTypes(nn.Module):
    """Parameters of some dtypes, whose values do not depend on random numbers."""

    def __init__(self, names, rank):
        super().__init__()
        self.params = nn.ParameterList(
            [nn.Parameter(torch.full((3,), 0.25 * (i + 1) + rank, dtype=getattr(torch, n))) for i, n in enumerate(names)]
        )
        self.at = rank

    def forward(self, _):
        self.at += 1
        x = (torch.arange(1.0, 4.0) + self.at % 5) / 8
        y = sum((p * x.to(p.dtype)).float().sum() for p in self.params)
        return y - y.detach() + 1  # whatever order y was added up in


def play(case, rank):
    torch.manual_seed(100 + rank)
    name, _, dtypes = case["model"].partition(" ")
    model = DTypes(dtypes.split(), rank) if name == "dtypes" else {"mlp": MLP, "branches": Branches, "linears": linears, "large": large, "wide": wide}[case["model"]]()
    m = DistributedDataParallel(model, **case.get("ddp", {}))
    if "hook" in case:
        m.register_comm_hook(None, getattr(default_hooks, case["hook"] + "_compress_hook"))
    opt = getattr(torch.optim, case["optimizer"])(m.parameters(), **case["options"])
    counts = case["steps"]
    join = case.get("join")

    def loop():
        for step in range(counts[rank % len(counts)]):
            if case["model"] == "branches":
                model.on = bool(case.get("on")) or step % 2 == 0 and (rank + step) % 3 == 0
            accumulate = case.get("accumulate", 1)
            opt.zero_grad(set_to_none=True)  # 1.13 leaves zeros otherwise, by which momentum goes on
            for i in range(accumulate):
                with m.no_sync() if i < accumulate - 1 else contextlib.nullcontext():
                    m(torch.randn(5, 8)).square().mean().backward()
            opt.step()
            if case.get("eval"):
                m.eval()
                with torch.no_grad():
                    m(torch.randn(5, 8))
                m.train()

    if join is None:
        loop()
    else:
        with m.join(**join):
            loop()
    bits = [p.detach().reshape(-1).float().view(torch.int32) for p in m.parameters()]
    if case["model"] == "large":
        sums = [(b.long() * torch.arange(1, len(b) + 1)).sum().view(1).view(torch.int32) for b in bits]
        return [s.tolist() for s in sums]
    return [b.tolist() for b in bits]


def main():
    torch.set_num_threads(1)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # where Gloo has things to say in 2.7 to 2.9
    print(json.dumps({"version": torch.__version__}), file=answers, flush=True)
    for line in sys.stdin:
        job = json.loads(line)
        os.environ.update({k: str(v) for k, v in job["env"].items()})
        try:
            dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=job.get("timeout", 30)))
            answer = {"cases": [play(c, dist.get_rank()) for c in job["cases"]]}
        except Exception as e:  # the Go side judges it
            answer = {"error": f"{type(e).__name__}: {e}"}
        if dist.is_initialized():
            dist.destroy_process_group()
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
