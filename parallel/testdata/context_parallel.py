# SPDX-License-Identifier: Apache-2.0
"""Computes attention by PyTorch's own ring, on the CPU over gloo.

    python3 context_parallel.py

writes context_parallel_VERSION.json beside itself: queries, keys, values and the gradient of the
result, and for each number of ranks the result and the gradients of the whole sequence, and
which tokens each rank has. Where PyTorch's ring has no answer (lengths that do not divide), they are those of its
attention on one rank. context_golden_test.go does the same with axis cp and compares.
"""

import json
import os
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch.distributed.tensor.experimental._context_parallel import _attention as ring
from torch.distributed.tensor.experimental._context_parallel._load_balancer import _HeadTailLoadBalancer

VERSION = ".".join(torch.__version__.split(".")[:2])
BATCH, HEADS, DIM = 2, 2, 4
aten = torch.ops.aten


def forward(q, k, v, is_causal, **_):
    return aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, is_causal)


def backward(query, key, value, out, logsumexp, is_causal, grad_out, **_):
    return aten._scaled_dot_product_flash_attention_for_cpu_backward(
        grad_out, query, key, value, out, logsumexp, 0.0, is_causal
    )


def draw(time):
    torch.manual_seed(time)
    return [torch.randn(BATCH, HEADS, time, DIM) for _ in range(4)]


def run(rank, ranks, time, causal, address, out):
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=ranks)
    ring._cp_options.enable_load_balance = causal
    tokens = list(range(time))
    if causal:
        tokens = _HeadTailLoadBalancer(time, ranks, "cpu")._generate_indices().flatten().tolist()
    mine = torch.tensor(tokens).chunk(ranks)[rank]
    q, k, v, g = [x[:, :, mine].contiguous() for x in draw(time)]
    group = dist.group.WORLD
    y, lse = ring._templated_ring_attention(group, 2, forward, q, k, v, is_causal=causal)[:2]
    grads = ring._templated_ring_attention_backward(group, 2, backward, g, "grad_out", q, k, v, y, lse, causal)[:3]
    parts = [None] * ranks
    dist.all_gather_object(parts, (mine.tolist(), [y, *grads]))
    if rank == 0:
        whole = [torch.zeros(BATCH, HEADS, time, DIM) for _ in range(4)]
        for at, values in parts:
            for w, x in zip(whole, values):
                w[:, :, at] = x
        with open(out, "w") as f:
            json.dump({"tokens": [at for at, _ in parts] if causal else None, **named(whole)}, f)
    dist.destroy_process_group()


def named(values):
    return dict(zip(("out", "dq", "dk", "dv"), map(flat, values)))


def flat(x):
    """[batch, heads, time, dim] as [batch, time, heads, dim]."""
    return [float(f"{v:.8g}") for v in x.transpose(1, 2).flatten().tolist()]


def alone(time, causal):
    q, k, v, g = draw(time)
    for x in (q, k, v):
        x.requires_grad_()
    y = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
    return {"tokens": None, **named([y.detach(), *torch.autograd.grad(y, (q, k, v), g)])}


def main():
    cases = []
    for ranks, time, causal, rings in [(2, 16, True, True), (4, 16, True, True), (2, 16, False, True), (3, 17, True, False), (3, 17, False, False)]:
        if rings:
            with tempfile.TemporaryDirectory() as d:
                out = os.path.join(d, "out.json")
                mp.spawn(run, (ranks, time, causal, f"file://{d}/meet", out), nprocs=ranks)
                with open(out) as f:
                    got = json.load(f)
        else:
            got = alone(time, causal)
        cases.append({"ranks": ranks, "time": time, "causal": causal, "ring": rings, **got})
    inputs = {time: dict(zip(("q", "k", "v", "g"), map(flat, draw(time)))) for time in (16, 17)}
    name = os.path.join(os.path.dirname(os.path.abspath(__file__)), f"context_parallel_{VERSION}.json")
    with open(name, "w") as f:
        json.dump({"torch": torch.__version__, "batch": BATCH, "heads": HEADS, "dim": DIM, "inputs": inputs, "cases": cases}, f, separators=(",", ":"))
        f.write("\n")


if __name__ == "__main__":
    main()
