# SPDX-License-Identifier: Apache-2.0
"""Writes the folder sharded: what PyTorch's HuggingFaceStorageWriter saves from two ranks, with
tensors that are cut by rows and by columns, and whole ones. Element i of a tensor is i."""

import os
import pathlib
import shutil

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from torch.distributed.checkpoint import HuggingFaceStorageWriter
from torch.distributed.tensor import DeviceMesh, Replicate, Shard, distribute_tensor

PATH = pathlib.Path(__file__).parent / "sharded"


def rank(number):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29544", RANK=str(number), WORLD_SIZE="2")
    dist.init_process_group("gloo")
    mesh = DeviceMesh("cpu", [0, 1])

    def tensor(*shape, dtype=torch.float32):
        n = 1
        for s in shape:
            n *= s
        return torch.arange(n).to(dtype).reshape(shape)

    state = {
        "rows": distribute_tensor(tensor(5, 3), mesh, [Shard(0)]),
        "columns": distribute_tensor(tensor(3, 6, dtype=torch.bfloat16), mesh, [Shard(1)]),
        "everywhere": distribute_tensor(tensor(4), mesh, [Replicate()]),
        "plain": tensor(2, 2, dtype=torch.int64),
    }
    dcp.save(state, storage_writer=HuggingFaceStorageWriter(str(PATH), save_distributed=True))
    dist.destroy_process_group()


if __name__ == "__main__":
    shutil.rmtree(PATH, ignore_errors=True)
    mp.spawn(rank, nprocs=2)
