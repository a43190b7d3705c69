# SPDX-License-Identifier: Apache-2.0
"""Times saving and loading a sharded state in PyTorch and in `cohort bench ckpt`.

    go build -o cohort ./cmd/cohort
    VENV/bin/python tools/compare_ckpt.py ./cohort --bytes 512M --ranks 2 --dir out/bench --rounds 5

The state has float32 tensors of 16 MiB, cut over the ranks by their first dim. Each rank has one
thread. A round runs ours, then PyTorch's, so that both meet the same noise. A figure is the median
over the rounds of a run's own median. PyTorch's cases:

    torch_save, torch_load   torch.save and torch.load of each rank's part, to a file of its own;
                             saving ends with fsync
    dcp_save, dcp_load       torch.distributed.checkpoint of DTensors, with its own fsync

Files are in the system's cache when they are loaded, on both sides. Loading is in place for dcp
and ours; torch.load makes new tensors. It needs PyTorch 2.6 or later.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time

WIDTH, TENSOR = 2048, 16 << 20
OURS = ("disk", "memcpy", "save", "load", "reshard", "async_block")


def size(text):
    shift = {"K": 10, "M": 20, "G": 30}.get(text[-1], 0)
    return int(text[:-1] if shift else text) << shift


def peer(rank, o, port):
    """Runs a rank of PyTorch. Rank 0 prints the median of each case in microseconds."""
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=o.ranks)
    mesh = init_device_mesh("cpu", (o.ranks,))
    left, state = size(o.bytes), {}
    while left > 0:
        rows = max(1, min(left, TENSOR) // (4 * WIDTH))
        chunks = [len(c) for c in torch.arange(rows).chunk(o.ranks)] + [0] * o.ranks
        local = torch.randn(chunks[rank], WIDTH)
        state[f"layers.{len(state)}.weight"] = DTensor.from_local(local, mesh, [Shard(0)], run_check=False, shape=(rows, WIDTH), stride=(WIDTH, 1))
        left -= TENSOR
    plain = {name: t.to_local() for name, t in state.items()}
    folder, file = os.path.join(o.dir, "dcp"), os.path.join(o.dir, f"part-{rank}.pt")

    def torch_save():
        with open(file, "wb") as f:
            torch.save(plain, f)
            f.flush()
            os.fsync(f.fileno())

    def clean():
        dist.barrier()
        if rank == 0:
            shutil.rmtree(folder, ignore_errors=True)
        dist.barrier()

    cases = {
        "torch_save": (torch_save, lambda: None),
        "torch_load": (lambda: torch.load(file, weights_only=True), lambda: None),
        "dcp_save": (lambda: dcp.save(state, checkpoint_id=folder), clean),
        "dcp_load": (lambda: dcp.load(state, checkpoint_id=folder), lambda: None),
    }
    for name, (do, after) in cases.items():
        if name == "dcp_load":
            dcp.save(state, checkpoint_id=folder)
        times = []
        for i in range(o.reps + 1):
            dist.barrier()
            start = time.perf_counter()
            do()
            dist.barrier()
            if i:  # the first one pays for what is made once
                times.append(time.perf_counter() - start)
            after()
        if rank == 0:
            print(json.dumps({"case": name, "median_us": statistics.median(times) * 1e6}), flush=True)
    os.remove(file)
    clean()
    dist.destroy_process_group()


def objects(text):
    return {o["case"]: o["median_us"] for o in map(json.loads, filter(lambda line: line.startswith("{"), text.splitlines()))}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cohort", help="the program to measure")
    parser.add_argument("--bytes", default="512M")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--dir", default="out/bench")
    parser.add_argument("--reps", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peer", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, default=29561, help=argparse.SUPPRESS)
    o = parser.parse_args()
    if o.peer is not None:
        return peer(o.peer, o, o.port)
    os.makedirs(o.dir, exist_ok=True)
    found = {}
    for number in range(o.rounds):
        ours = subprocess.run([o.cohort, "bench", "ckpt", "--bytes", o.bytes, "--ranks", str(o.ranks), "--reps", str(o.reps), "--dir", o.dir, "--cases", ",".join(OURS), "--json"],
                              stdout=subprocess.PIPE, text=True, check=True).stdout
        ranks = [subprocess.Popen([sys.executable, __file__, o.cohort, "--peer", str(r), "--bytes", o.bytes, "--ranks", str(o.ranks), "--reps", str(o.reps), "--dir", o.dir, "--port", str(o.port + number)],
                                  stdout=subprocess.PIPE, text=True) for r in range(o.ranks)]
        theirs = [r.communicate()[0] for r in ranks]
        if any(r.returncode for r in ranks):
            sys.exit("compare_ckpt: a rank of PyTorch failed")
        for case, us in (objects(ours) | objects(theirs[0])).items():
            found.setdefault(case, []).append(us)
    medians = {case: statistics.median(list_) for case, list_ in found.items()}
    for case, us in medians.items():
        print(f"{case:12} {us / 1e3:10.1f} ms  {size(o.bytes) / us / 1e3:7.3f} GB/s")
    m = medians
    print(f"save is {m['disk'] / m['save']:.2f} × disk, {m['torch_save'] / m['save']:.2f} × torch.save, {m['dcp_save'] / m['save']:.2f} × DCP")
    print(f"load is {m['torch_load'] / m['load']:.2f} × torch.load, {m['dcp_load'] / m['load']:.2f} × DCP")
    print(f"async_block takes {m['async_block'] / m['memcpy']:.2f} × memcpy")
    if "reshard" in m:
        print(f"reshard is {m['load'] / m['reshard']:.2f} × load")


if __name__ == "__main__":
    main()
