# SPDX-License-Identifier: Apache-2.0
"""Writes hooks_2.15.json: what 20 steps of PyTorch's DDP with communication hooks give, on ranks that talk by Gloo.

    python hooks.py
"""

import base64
import json
import os
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

CASES = {
    "none": {},
    "bf16": {"hook": "bf16"},
    "fp16": {"hook": "fp16"},
    "bf16 buckets": {"hook": "bf16", "bucket": 2048},
    "fp16 buckets, 3 ranks": {"hook": "fp16", "bucket": 2048, "ranks": 3},
    "powersgd": {"hook": "powersgd", "rank": 1},
    "powersgd rank 2": {"hook": "powersgd", "rank": 2},
    "powersgd rank 4, 3 ranks": {"hook": "powersgd", "rank": 4, "ranks": 3},
    "powersgd no feedback": {"hook": "powersgd", "rank": 2, "feedback": False},
    "powersgd cold": {"hook": "powersgd", "rank": 2, "warm": False},
    "powersgd all": {"hook": "powersgd", "rank": 2, "least": 0.25, "seed": 7, "epsilon": 1e-3},
    "own": {"hook": "own"},
}


def pattern(*shape, at):
    """Numbers that every language computes alike."""
    n = torch.Size(shape).numel()
    i = torch.arange(n, dtype=torch.int64)
    return (((i * 37 + at * 101 + (i * i) % 29) % 61 - 30).float() / 64).view(*shape)


def own(_, bucket):
    """Sends what is large alone, and halves it."""
    b = bucket.buffer()
    b = torch.where(b.abs() > 0.01, b, torch.zeros_like(b)) / (2 * dist.get_world_size())
    return dist.all_reduce(b, async_op=True).get_future().then(lambda f: f.value()[0])


def rank_main(rank, case, path, out):
    ranks = case.get("ranks", 2)
    dist.init_process_group("gloo", init_method="file://" + path, rank=rank, world_size=ranks)
    torch.set_num_threads(1)
    m = nn.Sequential(nn.Linear(24, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 6))
    with torch.no_grad():
        for i, p in enumerate(m.parameters()):
            p.copy_(pattern(*p.shape, at=i))
    options = {"bucket_cap_mb": case["bucket"] / 2**20} if "bucket" in case else {}
    d = DistributedDataParallel(m, **options)
    hook = case.get("hook")
    if hook == "bf16":
        d.register_comm_hook(None, default_hooks.bf16_compress_hook)
    if hook == "fp16":
        d.register_comm_hook(None, default_hooks.fp16_compress_hook)
    if hook == "own":
        d.register_comm_hook(None, own)
    if hook == "powersgd":
        state = powerSGD_hook.PowerSGDState(
            None,
            matrix_approximation_rank=case["rank"],
            start_powerSGD_iter=2,
            min_compression_rate=case.get("least", 2),
            use_error_feedback=case.get("feedback", True),
            warm_start=case.get("warm", True),
            orthogonalization_epsilon=case.get("epsilon", 0),
            random_seed=case.get("seed", 0),
        )
        d.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    opt = torch.optim.SGD(d.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for step in range(20):
        opt.zero_grad()
        at = step * ranks + rank
        loss = (d(pattern(8, 24, at=at)) - pattern(8, 6, at=at + 7)).square().mean()
        loss.backward()
        losses.append(loss.item())
        opt.step()
    if rank == 0:
        flat = torch.cat([p.detach().reshape(-1) for p in m.parameters()])
        with open(out, "w") as f:
            json.dump({"losses": losses, "weights": base64.b64encode(flat.numpy().tobytes()).decode()}, f)
    dist.destroy_process_group()


if __name__ == "__main__":
    results = {}
    for name, case in CASES.items():
        print(name)
        with tempfile.TemporaryDirectory() as d:
            out = os.path.join(d, "out")
            mp.spawn(rank_main, (case, os.path.join(d, "store"), out), nprocs=case.get("ranks", 2))
            with open(out) as f:
                results[name] = {**case, **json.load(f)}
    version = ".".join(torch.__version__.split(".")[:2])
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), f"hooks_{version}.json"), "w") as f:
        json.dump({"version": torch.__version__, "cases": results}, f, indent=1)
        f.write("\n")
