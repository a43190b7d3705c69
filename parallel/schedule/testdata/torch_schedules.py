# SPDX-License-Identifier: Apache-2.0
"""Writes the orders of PyTorch's pipeline schedules, for a grid of ranks, stages and microbatches.

    python3 torch_schedules.py

writes torch_schedules_VERSION.json.gz beside itself: for each name of a schedule, by "ranks
stages microbatches", the actions of each rank in one text, or null if PyTorch refuses the
numbers. No rank runs: the classes of torch.distributed.pipelining compute their orders from
the numbers of a stage. torch_test.go compares them with those of package schedule.
"""

import gzip
import json
import os

import torch
from torch.distributed.pipelining import schedules
from torch.distributed.pipelining.stage import _PipelineStageBase

VERSION = ".".join(torch.__version__.split(".")[:2])
CLASSES = {
    "gpipe": schedules.ScheduleGPipe,
    "1f1b": schedules.Schedule1F1B,
    "interleaved": schedules.ScheduleInterleaved1F1B,
    "interleaved-zb": schedules.ScheduleInterleavedZeroBubble,
    "zbv": schedules.ScheduleZBVZeroBubble,
    "dualpipev": schedules.ScheduleDualPipeV,
}
RANKS = (1, 2, 3, 4, 5, 8)
PER_RANK = (1, 2, 3)
MICROBATCHES = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 15, 16, 21, 32)
COMPUTE = ("F", "B", "I", "W")


class Stage(_PipelineStageBase):
    """The numbers of a stage, without a module."""

    def __init__(self, ranks, stages, index):
        self.group_size, self.num_stages = ranks, stages
        self.group_rank, self.stage_index = 0, index
        self.group, self.has_backward = None, True
        self.stage_index_to_group_rank = None
        self.submod = None

    def _create_grad_recv_info(self, *args, **kwargs):
        return None

    def _prepare_forward_infra(self, *args, **kwargs):
        pass

    def _prepare_backward_infra(self, *args, **kwargs):
        pass


class RecordedStage(Stage):
    """A stage that writes down what a schedule does with it."""

    def __init__(self, ranks, stages, index):
        super().__init__(ranks, stages, index)
        self.done = []

    def forward_one_chunk(self, microbatch, *args, **kwargs):
        self.done.append(f"{self.stage_index}F{microbatch}")

    def backward_one_chunk(self, microbatch, *args, **kwargs):
        self.done.append(f"{self.stage_index}B{microbatch}")

    def no_messages(self, *args):
        return []

    get_fwd_recv_ops = get_fwd_send_ops = get_bwd_recv_ops = get_bwd_send_ops = no_messages
    release_fwd_send_outputs = perform_reduce_grad = no_messages


def executed(name, ranks, microbatches):
    """The order that a class for one stage a rank executes. What it lists is not the same: in
    PyTorch 2.15 Schedule1F1B lists microbatches 1 to n for the last rank, and executes 0 to n-1."""
    order = []
    for rank in range(ranks):
        stage = RecordedStage(ranks, ranks, rank)
        schedule = CLASSES[name](stage, microbatches)
        schedule._initialize_stage = lambda *args, **kwargs: None
        schedule._step_microbatches()
        order.append(" ".join(stage.done))
    return order


def flat(action):
    """The actions of a rank that compute, without the pauses between them."""
    if action is None:
        return []
    if action.sub_actions is not None:
        return [a for sub in action.sub_actions for a in flat(sub)]
    return [str(action)] if action.computation_type.value in COMPUTE else []


def order(name, ranks, stages, microbatches):
    try:
        if name in ("gpipe", "1f1b"):
            return executed(name, ranks, microbatches) if stages == ranks else None
        schedule = CLASSES[name]([Stage(ranks, stages, i) for i in range(stages // ranks)], microbatches)
    except ValueError:
        return None
    return [" ".join(text for a in schedule.pipeline_order[rank] for text in flat(a)) for rank in range(ranks)]


def main():
    orders = {name: {} for name in CLASSES}
    for name in CLASSES:
        for ranks in RANKS:
            for per_rank in PER_RANK:
                for n in MICROBATCHES:
                    stages = ranks * per_rank
                    orders[name][f"{ranks} {stages} {n}"] = order(name, ranks, stages, n)
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), f"torch_schedules_{VERSION}.json.gz")
    with open(path, "wb") as file, gzip.GzipFile("", "wb", 9, file, 0) as out:
        out.write(json.dumps(orders, indent=0).encode())
    for name, grid in orders.items():
        print(name, len(grid), "of which refused:", sum(o is None for o in grid.values()))


main()
