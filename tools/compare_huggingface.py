# SPDX-License-Identifier: Apache-2.0
"""Times opening and loading a Hugging Face folder in PyTorch and in Cohort.

    go test -c -o huggingface.test ./checkpoint/huggingface
    VENV/bin/python tools/compare_huggingface.py ./huggingface.test --dir out/folder --ranks 4 --rounds 3

The folder has the bfloat16 weights of a Llama in shards of about 256 MiB. The script makes the
folder if it is not there. A round runs ours, then PyTorch's, so that both meet the same noise. A
figure is the median over the rounds.

    open     names, dtypes and shapes of all tensors: HuggingFaceStorageReader.read_metadata
    load     all tensors on one rank, in place: torch.distributed.checkpoint.load with that reader
    rows     ours: N ranks load, each has some rows of each matrix (FSDP)
    columns  ours: N ranks load, each has some columns of each matrix (tensor parallelism)

rows and columns also tell what all ranks together have read, by the size of the files. The files
are in the system's cache, on both sides. With --cold they are dropped from it before each load.
It needs PyTorch 2.7 or later, with safetensors.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import time

WIDTH, HIDDEN, VOCAB, SHARD = 2048, 5632, 32000, 256 << 20


def shapes(layers):
    yield "model.embed_tokens.weight", (VOCAB, WIDTH)
    for i in range(layers):
        at = f"model.layers.{i}."
        for name in "qkvo":
            yield f"{at}self_attn.{name}_proj.weight", (WIDTH, WIDTH)
        yield at + "mlp.gate_proj.weight", (HIDDEN, WIDTH)
        yield at + "mlp.up_proj.weight", (HIDDEN, WIDTH)
        yield at + "mlp.down_proj.weight", (WIDTH, HIDDEN)
        yield at + "input_layernorm.weight", (WIDTH,)
        yield at + "post_attention_layernorm.weight", (WIDTH,)
    yield "model.norm.weight", (WIDTH,)
    yield "lm_head.weight", (VOCAB, WIDTH)


def make(folder, layers):
    """Writes the folder."""
    import torch
    from safetensors.torch import save_file

    os.makedirs(folder)
    shards, left = [{}], SHARD
    for name, shape in shapes(layers):
        t = torch.randn(shape).to(torch.bfloat16)
        if t.nbytes > left and shards[-1]:
            shards.append({})
            left = SHARD
        shards[-1][name] = t
        left -= t.nbytes
    where = {}
    for i, tensors in enumerate(shards):
        file = f"model-{i + 1:05}-of-{len(shards):05}.safetensors"
        save_file(tensors, os.path.join(folder, file), metadata={"format": "pt"})
        where |= dict.fromkeys(tensors, file)
    with open(os.path.join(folder, "model.safetensors.index.json"), "w") as f:
        json.dump({"metadata": {"total_size": sum(t.nbytes for s in shards for t in s.values())}, "weight_map": where}, f)


def weights(folder):
    return [os.path.join(folder, name) for name in os.listdir(folder) if name.endswith(".safetensors")]


def drop(folder):
    """Drops the files from the system's cache."""
    for path in weights(folder):
        fd = os.open(path, os.O_RDONLY)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def peer(o):
    """Measures PyTorch and prints the seconds of each case."""
    import torch
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint import HuggingFaceStorageReader

    torch.set_num_threads(os.cpu_count())

    def timed(do, reps, before):
        times = []
        for i in range(reps + 1):
            if before:
                drop(o.dir)
            start = time.perf_counter()
            do()
            if i:  # the first one pays for what is made once
                times.append(time.perf_counter() - start)
        return statistics.median(times)

    def load():
        dcp.load(state, storage_reader=HuggingFaceStorageReader(o.dir, **threads), no_dist=True)

    found = {"open": timed(lambda: HuggingFaceStorageReader(o.dir).read_metadata(), 10, False)}
    state = {name: torch.ones(shape, dtype=torch.bfloat16) for name, shape in shapes(o.layers)}
    threads = {}
    found["load"] = timed(load, 2, o.cold)
    threads = {"thread_count": os.cpu_count()}
    found["load_threads"] = timed(load, 2, o.cold)
    print(json.dumps(found))


def ours(o, case, reps):
    """Returns the seconds and what is read of a case of the benchmark."""
    if o.cold:
        drop(o.dir)
    args = [o.program, "-test.run", "^$", "-test.bench", f"Folder/{case}$", "-test.benchtime", f"{reps}x", "-folder", o.dir, "-ranks", str(o.ranks)]
    text = subprocess.run(args, stdout=subprocess.PIPE, text=True, check=True).stdout
    took = float(re.search(r"([\d.]+) ns/op", text)[1]) / 1e9
    read = re.search(r"([\d.]+) read/size", text)
    return took, float(read[1]) if read else None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", help="the test program of ./checkpoint/huggingface")
    parser.add_argument("--dir", default="out/folder")
    parser.add_argument("--layers", type=int, default=9, help="9 are 1.1 GiB")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--peer", action="store_true", help=argparse.SUPPRESS)
    o = parser.parse_args()
    o.dir = os.path.abspath(o.dir)
    if o.peer:
        return peer(o)
    if not os.path.exists(o.dir):
        make(o.dir, o.layers)
    size = sum(map(os.path.getsize, weights(o.dir)))
    for path in weights(o.dir):  # into the cache
        with open(path, "rb") as f:
            while f.read(1 << 24):
                pass
    mine, theirs, read = {}, {}, {}
    for _ in range(o.rounds):
        for case, reps in ("open", 50), ("load", 3), ("rows", 3), ("columns", 3):
            took, read[case] = ours(o, case, 1 if o.cold and case != "open" else reps)
            mine.setdefault(case, []).append(took)
        text = subprocess.run([sys.executable, __file__, *sys.argv[1:], "--peer"], stdout=subprocess.PIPE, text=True, check=True).stdout
        for case, took in json.loads(text.splitlines()[-1]).items():
            theirs.setdefault(case, []).append(took)
    print(f"{size / 2**30:.2f} GiB in {len(weights(o.dir))} files, {'not in the cache' if o.cold else 'in the cache'}, {o.ranks} ranks for rows and columns")
    for side, found in ("ours", mine), ("PyTorch", theirs):
        for case, list_ in found.items():
            took = statistics.median(list_)
            rate = "" if case == "open" else f"  {size / took / 1e9:6.2f} GB/s"
            told = f"  read {read[case]:.3f} × the files" if side == "ours" and read[case] else ""
            print(f"{side:8} {case:12} {took * 1e3:9.2f} ms{rate}{told}")
    m, t = ({case: statistics.median(list_) for case, list_ in found.items()} for found in (mine, theirs))
    print(f"open is {t['open'] / m['open']:.1f} × PyTorch, load {t['load'] / m['load']:.1f} × PyTorch ({t['load_threads'] / m['load']:.1f} × with its threads)")


if __name__ == "__main__":
    main()
