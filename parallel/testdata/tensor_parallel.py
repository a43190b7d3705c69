# SPDX-License-Identifier: Apache-2.0
"""Losses of a small transformer that PyTorch's parallelize_module shares between ranks: tensor_parallel.json.

python tensor_parallel.py [RANKS]  (PyTorch 2.15, gloo on the CPU)
"""
import json
import os
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, loss_parallel, parallelize_module

VOCAB, TIME, WIDTH, HEADS, LAYERS, BATCH, STEPS = 50, 12, 32, 4, 2, 4, 12


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(3 * WIDTH, WIDTH)

    def forward(self, x):
        h = self.norm1(x)
        heads = lambda t: t.view(*t.shape[:2], -1, WIDTH // HEADS).transpose(1, 2)
        a = F.scaled_dot_product_attention(heads(self.query(h)), heads(self.key(h)), heads(self.value(h)), is_causal=True)
        x = x + self.out(a.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.blocks = nn.Embedding(VOCAB, WIDTH), nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCAB)

    def forward(self, ids):
        return self.head(self.norm(self.blocks(self.tokens(ids))))


def fill(model):
    """Values that every program can make: sines, around 1 for the weights of norms."""
    for k, (name, p) in enumerate(model.named_parameters()):
        wave = 0.15 * torch.sin(torch.arange(p.numel(), dtype=torch.float64) * (0.37 + 0.01 * k) + k)
        with torch.no_grad():
            p.copy_((wave + ("norm" in name and name.endswith("weight"))).float().view(p.shape))


def batch(step):
    i = torch.arange(BATCH * TIME) + 3 * step
    ids, targets = (i * i * 7 + i * 3) % VOCAB, (i * 11 + 5) % VOCAB
    targets[1] = -100
    return ids.view(BATCH, TIME), targets.view(BATCH, TIME)


def plan(model, mesh, sequence, lossy):
    between = Shard(1) if sequence else Replicate()
    column = lambda **k: ColwiseParallel(input_layouts=between, **k)
    row = lambda: RowwiseParallel(output_layouts=between)
    norm = dict(norm1=SequenceParallel(), norm2=SequenceParallel()) if sequence else {}
    for b in model.blocks:
        parallelize_module(b, mesh, dict(query=column(), key=column(), value=column(), out=row(), up=column(), down=row(), **norm))
    last = dict(output_layouts=Shard(-1), use_local_output=False) if lossy else dict(output_layouts=Replicate())
    top = dict(tokens=RowwiseParallel(input_layouts=Replicate(), output_layouts=between), head=column(**last))
    if sequence:
        top["norm"] = SequenceParallel()
    parallelize_module(model, mesh, top)


def run(rank, ranks, sequence, lossy, port, out):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    model = Model()
    fill(model)
    plan(model, init_device_mesh("cpu", (ranks,)), sequence, lossy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    losses = []
    for step in range(STEPS):
        ids, targets = batch(step)
        optimizer.zero_grad()
        if lossy:
            with loss_parallel():
                loss = F.cross_entropy(model(ids).flatten(0, 1), targets.flatten())
                loss.backward()
            loss = loss.full_tensor()
        else:
            loss = F.cross_entropy(model(ids).flatten(0, 1), targets.flatten())
            loss.backward()
        optimizer.step()
        losses.append(loss.item())
    if rank == 0:
        out.put(losses)
    dist.destroy_process_group()


if __name__ == "__main__":
    ranks = int(sys.argv[1]) if len(sys.argv) > 1 else 2
    golden = {"pytorch": torch.__version__, "ranks": ranks}
    for k, (name, sequence, lossy) in enumerate([("tensor", False, False), ("sequence", True, False), ("sequence_loss", True, True)]):
        out = mp.get_context("spawn").SimpleQueue()
        mp.spawn(run, args=(ranks, sequence, lossy, 29710 + k, out), nprocs=ranks)
        golden[name] = out.get()
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "tensor_parallel.json"), "w") as f:
        json.dump(golden, f, indent=1)
        f.write("\n")
