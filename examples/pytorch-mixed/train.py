# SPDX-License-Identifier: Apache-2.0
"""PyTorch's ranks of `go run ./examples/pytorch-mixed`: an ordinary DDP script."""

import os
import sys

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

EPOCHS, BATCH = 4, 32


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
        self.norm = nn.BatchNorm2d(16)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.out = nn.Linear(32 * 7 * 7, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.norm(self.conv1(x))), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.out(x.flatten(1))


def idx(name):
    """Reads a file in MNIST's format: a header with the length of each dimension, then bytes."""
    with open(os.path.join(sys.argv[1], name), "rb") as f:
        raw = f.read()
    dims = [int.from_bytes(raw[4 + 4 * i : 8 + 4 * i], "big") for i in range(raw[3])]
    return torch.frombuffer(bytearray(raw), dtype=torch.uint8, offset=4 + 4 * raw[3]).reshape(dims)


def dataset(split):
    images = (idx(split + "-images-idx3-ubyte")[:, None].float() / 255 - 0.3) / 0.4
    return TensorDataset(images, idx(split + "-labels-idx1-ubyte").long())


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    training, (images, labels) = dataset("train"), dataset("t10k").tensors
    sampler = DistributedSampler(training)
    loader = DataLoader(training, batch_size=BATCH, sampler=sampler)
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(Net())
    opt = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-4)
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        model.train()
        total = 0.0
        for x, y in loader:
            opt.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            opt.step()
            total += loss.item()
        model.eval()
        with torch.no_grad():
            right = (model.module(images[rank::world]).argmax(1) == labels[rank::world]).sum().item()
        both = torch.tensor([total / len(loader), right])
        dist.all_reduce(both)
        if rank == 0:
            print(f"epoch {epoch + 1}  loss {both[0] / world:.3f}  test accuracy {100 * both[1] / len(labels):.1f} %", flush=True)
    bits = torch.cat([p.detach().reshape(-1) for p in model.parameters()]).view(torch.int32).long()
    mine = (bits * torch.arange(1, len(bits) + 1)).sum()
    most, least = mine.clone(), mine.clone()
    dist.all_reduce(most, op=dist.ReduceOp.MAX)
    dist.all_reduce(least, op=dist.ReduceOp.MIN)
    verdict = "the same as everywhere" if most == least else "not those of other ranks"
    print(f"PyTorch {torch.__version__.split('+')[0]}: {len(bits)} parameters, sum {mine.item() % (1 << 64):016x}, {verdict}", flush=True)
    dist.destroy_process_group()  # or Python's end may abort, with a thread of PyTorch still at work


main()
