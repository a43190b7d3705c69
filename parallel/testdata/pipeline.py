# SPDX-License-Identifier: Apache-2.0
"""Trains a chain of blocks by torch.distributed.pipelining, on the CPU over gloo.

    python3 pipeline.py

The losses of each schedule go to pipeline_2.15.json beside this script, and which PyTorch wrote
them. The weights and the inputs follow from formulas, which the test repeats.
"""

import json
import os
import pathlib
import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed import pipelining

RANKS, BLOCKS, WIDTH, CLASSES = 2, 4, 8, 5
ROWS, MICROBATCHES, STEPS, RATE = 3, 4, 6, 0.5

SCHEDULES = {  # and the stages of each rank
    "gpipe": (pipelining.ScheduleGPipe, [[0], [1]]),
    "1f1b": (pipelining.Schedule1F1B, [[0], [1]]),
    "interleaved": (pipelining.ScheduleInterleaved1F1B, [[0, 2], [1, 3]]),
    "interleaved-zb": (pipelining.ScheduleInterleavedZeroBubble, [[0, 2], [1, 3]]),
    "zbv": (pipelining.ScheduleZBVZeroBubble, [[0, 3], [1, 2]]),
    "dualpipev": (pipelining.ScheduleDualPipeV, [[0, 3], [1, 2]]),
}


def formula(seed, *shape):
    n = torch.Size(shape).numel()
    i = torch.arange(n, dtype=torch.int64)
    return (((i * 37 + seed * 11 + i * i * 3) % 23) - 11).to(torch.float32).reshape(shape) / 22


class Block(torch.nn.Module):
    def __init__(self, number):
        super().__init__()
        self.linear = torch.nn.Linear(WIDTH, WIDTH)
        self.linear.weight.data = formula(number, WIDTH, WIDTH)
        self.linear.bias.data = formula(number + 50, WIDTH)

    def forward(self, x):
        return torch.tanh(self.linear(x)) + x


class Head(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(WIDTH, CLASSES)
        self.linear.weight.data = formula(99, CLASSES, WIDTH)
        self.linear.bias.data = formula(98, CLASSES)

    def forward(self, x):
        return self.linear(x)


def stage_module(stage, num_stages):
    per = BLOCKS // num_stages
    parts = [Block(i) for i in range(stage * per, (stage + 1) * per)]
    if stage == num_stages - 1:
        parts.append(Head())
    return torch.nn.Sequential(*parts)


def batch(step):
    x = formula(1000 + step, MICROBATCHES * ROWS, WIDTH)
    y = (torch.arange(MICROBATCHES * ROWS) * 3 + step) % CLASSES
    return x, y


def train(rank, schedule, stages):
    num_stages = sum(len(s) for s in stages)
    x, _ = batch(0)
    parts = []
    for stage in stages[rank]:
        last = stage == num_stages - 1
        given = torch.empty(ROWS, WIDTH, requires_grad=stage > 0)
        out = torch.empty(ROWS, CLASSES if last else WIDTH, requires_grad=True)
        parts.append(pipelining.PipelineStage(
            stage_module(stage, num_stages), stage, num_stages, torch.device("cpu"), input_args=given, output_args=out))
    loss_fn = torch.nn.functional.cross_entropy
    one = len(parts) == 1
    s = schedule(parts[0] if one else parts, MICROBATCHES, loss_fn=loss_fn)
    params = [p for part in parts for p in part.submod.parameters()]
    optimizer = torch.optim.SGD(params, lr=RATE)
    has_last = any(part.is_last for part in parts)
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        x, y = batch(step)
        of = []
        args = (x,) if any(part.is_first for part in parts) else ()
        kwargs = {"target": y, "losses": of} if has_last else {}
        s.step(*args, **kwargs)
        optimizer.step()
        if has_last:
            losses.append(torch.stack(of).mean().item())
    return losses if has_last else None


def main(rank, port, results):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=RANKS)
    for name, (schedule, stages) in SCHEDULES.items():
        losses = train(rank, schedule, stages)
        if losses is not None:
            results[name] = losses
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    with mp.Manager() as manager:
        results = manager.dict()
        mp.spawn(main, (port, results), nprocs=RANKS)
        golden = {
            "torch": torch.__version__.split("+")[0], "blocks": BLOCKS, "width": WIDTH, "classes": CLASSES, "rows": ROWS,
            "microbatches": MICROBATCHES, "steps": STEPS, "rate": RATE, "losses": {n: results[n] for n in SCHEDULES},
        }
    out = pathlib.Path(__file__).with_name("pipeline_" + ".".join(golden["torch"].split(".")[:2]) + ".json")
    out.write_text(json.dumps(golden, indent=1) + "\n")
    print(out.name)
