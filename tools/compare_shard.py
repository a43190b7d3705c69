# SPDX-License-Identifier: Apache-2.0
"""Times training steps of a GPT that ranks share, in PyTorch over gloo and in `cohort bench shard`.

    go build -o cohort ./cmd/cohort
    VENV/bin/python tools/compare_shard.py ./cohort --rounds 7

The model is the gpt of cohort bench: 4 layers of width 256 with 8 heads, 8 sequences of 128
bytes, AdamW. Each rank has one thread. A round runs every case once: ours, then PyTorch's. So
both meet the same noise. A figure is the median over the rounds of a run's own median. Cases:

    single   every rank trains a model of its own at the same time (ours alone)
    ddp      DistributedDataParallel
    fsdp     fully_shard, each block and the rest
    tp       parallelize_module: queries, keys, values and the first half of the MLP by columns,
             the second halves by rows
    pp       Schedule1F1B with 4 microbatches

It needs PyTorch 2.6 or later. PyTorch's cases are classes and functions of torch.distributed as
its documentation shows them. Unlike ours, its tp keeps the embeddings and the output layer whole.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

VOCABULARY, TIME, WIDTH, HEADS, LAYERS, BATCH, MICROBATCHES = 256, 128, 256, 8, 4, 8, 4
CASES = {"single": "single", "ddp": "ddp", "fsdp": "fsdp", "tp": "tp", "pp": "pp:1f1b"}  # ours by case


def model(torch):
    nn, functional = torch.nn, torch.nn.functional

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

        def forward(self, x):
            q, k, v = (f(x).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2) for f in (self.query, self.key, self.value))
            y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            return self.out(y.transpose(1, 2).flatten(2))

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
            self.attention = Attention()
            self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

        def forward(self, x):
            x = x + self.attention(self.norm1(x))
            return x + self.down(functional.gelu(self.up(self.norm2(x))))

    class Part(nn.Module):
        """The blocks from first to last, with what is before the first and behind the last of all."""

        def __init__(self, first, last):
            super().__init__()
            self.blocks = nn.ModuleList(Block() for _ in range(first, last))
            self.tokens, self.places = (nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(TIME, WIDTH)) if first == 0 else (None, None)
            self.norm, self.head = (nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)) if last == LAYERS else (None, None)

        def forward(self, x):
            if self.tokens is not None:
                x = self.tokens(x) + self.places(torch.arange(x.shape[1]))
            for block in self.blocks:
                x = block(x)
            return x if self.head is None else self.head(self.norm(x))

    return Part


def step_of(torch, case, rank, ranks, x, y):
    """Returns the parameters, and a function that runs the passes of a step."""
    from torch.distributed.device_mesh import init_device_mesh

    part = model(torch)

    def loss_of(logits, targets):
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())

    if case == "pp":
        from torch.distributed.pipelining import PipelineStage, Schedule1F1B

        stage = part(rank * LAYERS // ranks, (rank + 1) * LAYERS // ranks)
        schedule = Schedule1F1B(PipelineStage(stage, rank, ranks, torch.device("cpu")), MICROBATCHES, loss_fn=loss_of)
        inputs = [x] if rank == 0 else []
        targets = {"target": y} if rank == ranks - 1 else {}
        return stage.parameters(), lambda: schedule.step(*inputs, **targets)
    whole = part(0, LAYERS)
    if case == "ddp":
        whole = torch.nn.parallel.DistributedDataParallel(whole)
    elif case == "fsdp":
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (ranks,))
        for block in whole.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(whole, mesh=mesh)
    elif case == "tp":
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

        plan = {f"attention.{name}": ColwiseParallel() for name in ("query", "key", "value")}
        plan |= {"attention.out": RowwiseParallel(), "up": ColwiseParallel(), "down": RowwiseParallel()}
        for block in whole.blocks:
            parallelize_module(block, init_device_mesh("cpu", (ranks,)), plan)
    return whole.parameters(), lambda: loss_of(whole(x), y).backward()


def peer(rank, case, ranks, steps, port):
    """Runs a rank of PyTorch. Rank 0 prints the median time of a step in microseconds."""
    import torch
    import torch.distributed as dist

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    torch.manual_seed(0)
    x, y = torch.randint(VOCABULARY, (BATCH, TIME)), torch.randint(VOCABULARY, (BATCH, TIME))
    parameters, run = step_of(torch, case, rank, ranks, x, y)
    optimizer, times = torch.optim.AdamW(parameters, lr=1e-3, weight_decay=0.01), []
    for _ in range(5 + steps):
        dist.barrier()
        began = time.perf_counter()
        optimizer.zero_grad()
        run()
        optimizer.step()
        dist.barrier()
        times.append(time.perf_counter() - began)
    if rank == 0:
        print(json.dumps({"version": torch.__version__, "median_us": statistics.median(times[5:]) * 1e6}), flush=True)
    dist.destroy_process_group()


def last_object(command):
    """Runs a command, and returns the last object that it printed."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode != 0 or not lines:
        sys.exit(f"{' '.join(command)} ended with code {done.returncode}\n{done.stderr[-2000:]}")
    return json.loads(lines[-1])


def show(case, ours, theirs):
    mine = statistics.median(r["median_us"] for r in ours)
    line = f"{case:8} Cohort {mine / 1e3:7.1f} ms  alone and even {statistics.median(r['predicted_us'] for r in ours) / 1e3:7.1f} ms"
    line += f"  exposed {statistics.median(r['exposed_us'] for r in ours) / 1e3:6.1f} ms"
    if "bubble" in ours[0]:
        line += f"  bubble {statistics.median(r['bubble'] for r in ours):.3f} (schedule {ours[0]['predicted_bubble']:.3f})"
    if theirs:
        peer_us = statistics.median(r["median_us"] for r in theirs)
        rounds = sorted(t["median_us"] / o["median_us"] for t, o in zip(theirs, ours))
        line += f"  PyTorch {theirs[0]['version']} {peer_us / 1e3:7.1f} ms  ratio {statistics.median(rounds):.2f} ({rounds[0]:.2f} to {rounds[-1]:.2f})"
    print(line, flush=True)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("cohort", help="the binary")
    p.add_argument("--ranks", type=int, default=2)
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--steps", type=int, default=20, help="of a run, that are measured")
    p.add_argument("--cases", default=",".join(CASES))
    p.add_argument("--peer", choices=[c for c in CASES if c != "single"], help=argparse.SUPPRESS)
    args = p.parse_args()
    if args.peer:
        import torch.multiprocessing

        port = 20000 + os.getpid() % 20000
        torch.multiprocessing.spawn(peer, args=(args.peer, args.ranks, args.steps, port), nprocs=args.ranks)
        return
    cases = args.cases.split(",")
    ours, theirs = {c: [] for c in cases}, {c: [] for c in cases}
    for _ in range(args.rounds):
        for case in cases:
            ours[case].append(last_object([args.cohort, "bench", "shard", "--model", "gpt", "--strategy", CASES[case],
                                           "--ranks", str(args.ranks), "--steps", str(args.steps), "--json"]))
            if case != "single":
                theirs[case].append(last_object([sys.executable, __file__, args.cohort, "--ranks", str(args.ranks),
                                                 "--steps", str(args.steps), "--peer", case]))
    for case in cases:
        show(case, ours[case], theirs[case])


if __name__ == "__main__":
    main()
