# SPDX-License-Identifier: Apache-2.0
"""Trains a small model under PyTorch's fully_shard, on the CPU over gloo.

    python3 fully_shard.py

writes fully_shard_VERSION.json beside itself: the first values, the batches, and
of each mesh and optimizer the losses, the norms of the gradients, and the shard
that each rank has of each parameter after the last step. pytorch_fully_shard_test.go does
the same with parallel.FullyShard and compares.
"""

import json
import os
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

VERSION = ".".join(torch.__version__.split(".")[:2])
VOCABULARY, WIDTH, HIDDEN, BLOCKS = 13, 10, 7, 2
STEPS, ROWS, TIME, MAX_NORM = 4, 3, 5, 1.0
MESHES = {"2": (2,), "3": (3,), "2x2": (2, 2)}
OPTIMIZERS = {
    "sgd": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9),
    "adamw": lambda params: torch.optim.AdamW(params, lr=0.01, weight_decay=0.01, eps=1e-6),
}


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, HIDDEN)
        self.down = nn.Linear(HIDDEN, WIDTH)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Model(nn.Module):
    """The head is the embedding."""

    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, ids):
        x = self.tokens(ids)
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.tokens.weight)


def build():
    torch.manual_seed(7)
    model = Model()
    for p in model.parameters():  # norms and biases that are not all alike
        nn.init.normal_(p, 0.0, 0.5)
    return model


def batches(rank):
    g = torch.Generator().manual_seed(100 + rank)
    return [torch.randint(0, VOCABULARY, (2, ROWS, TIME), generator=g) for _ in range(STEPS)]


def numbers(t):
    """The shortest decimals that are the same float32."""
    return [float(str(x)) for x in t.detach().flatten().numpy()]


def run(rank, mesh_name, optimizer, folder):
    shape = MESHES[mesh_name]
    world = torch.Size(shape).numel()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world)
    names = ("replicate", "fsdp") if len(shape) == 2 else ("fsdp",)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
    model = build()
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    opt = OPTIMIZERS[optimizer](model.parameters())
    losses, norms = [], []
    for ids, targets in batches(rank):
        opt.zero_grad()
        loss = F.cross_entropy(model(ids).flatten(0, 1), targets.flatten())
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
        opt.step()
        losses.append(loss)
        norms.append(norm.full_tensor())
    shards = {
        name: {"shape": list(p.to_local().shape), "values": numbers(p.to_local())} for name, p in model.named_parameters()
    }
    with open(f"{folder}/{rank}.json", "w") as f:
        json.dump({"losses": numbers(torch.stack(losses)), "norms": numbers(torch.stack(norms)), "shards": shards}, f)
    dist.destroy_process_group()


def main():
    out = {
        "torch": torch.__version__,
        "initial": {name: {"shape": list(p.shape), "values": numbers(p)} for name, p in build().named_parameters()},
        "batches": [[{"ids": b[0].tolist(), "targets": b[1].tolist()} for b in batches(rank)] for rank in range(4)],
        "max_norm": MAX_NORM,
        "cases": [],
    }
    for mesh_name, shape in MESHES.items():
        for optimizer in OPTIMIZERS:
            world = torch.Size(shape).numel()
            with tempfile.TemporaryDirectory() as folder:
                mp.spawn(run, args=(mesh_name, optimizer, folder), nprocs=world)
                ranks = [json.load(open(f"{folder}/{rank}.json")) for rank in range(world)]
            out["cases"].append({"mesh": list(shape), "optimizer": optimizer, "ranks": ranks})
            print(mesh_name, optimizer, [r["losses"] for r in ranks], ranks[0]["norms"], file=sys.stderr)
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), f"fully_shard_{VERSION}.json")
    with open(path, "w") as f:
        json.dump(out, f, separators=(",", ":"))
        f.write("\n")


if __name__ == "__main__":
    main()
