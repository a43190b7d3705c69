# SPDX-License-Identifier: Apache-2.0
"""Trains a small perceptron with PyTorch on ranks of this machine, and saves and loads it with torch.distributed.checkpoint.
The ranks are forked, so that PyTorch is imported once. Several commands, with "--" in between, print one line each.

  python mlp.py RANKS save KIND DIR      train 3 steps, save to DIR, write DIR.pt (whole tensors), print the losses of the next 3 steps
  python mlp.py RANKS load KIND DIR      load DIR, print the losses of the next 3 steps
  python mlp.py 1 file plain FILE        load a file of torch.save, print the losses of the next 3 steps
  python mlp.py RANKS compare KIND DIR   load DIR into targets of a kind, compare them with the whole tensors of DIR.pt

KIND is plain, fsdp, tp, hsdp or fsdp+tp."""
import json
import os
import sys
import tempfile
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


def build(kind, world):
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(6, 10), nn.Tanh(), nn.Linear(10, 7), nn.Tanh(), nn.Linear(7, 3))
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    if kind == "fsdp":
        fully_shard(model, mesh=init_device_mesh("cpu", (world,)))
    elif kind == "hsdp":
        fully_shard(model, mesh=init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("replicate", "shard")))
    elif kind == "tp":
        parallelize_module(model, init_device_mesh("cpu", (world,)), plan)
    elif kind == "fsdp+tp":
        mesh = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("dp", "tp"))
        parallelize_module(model, mesh["tp"], plan)
        fully_shard(model, mesh=mesh["dp"])
    groups = [{"params": [p for n, p in model.named_parameters() if n.endswith("weight")]},
              {"params": [p for n, p in model.named_parameters() if n.endswith("bias")], "weight_decay": 0.0}]
    return model, torch.optim.AdamW(groups, lr=0.01, betas=(0.8, 0.95), weight_decay=0.1)


def values(n, salt):
    """The same pseudo-random values in [-0.5, 0.5) as the Go test makes."""
    bits = ((torch.arange(n, dtype=torch.int64) + 1 + 1000 * salt) * 2654435761) % (1 << 32)
    return (bits >> 8).to(torch.float32) / (1 << 24) - 0.5


def step(model, opt, n):
    x, y = values(30, n).view(5, 6), values(15, n + 500).view(5, 3)
    loss = ((model(x) - y) ** 2).mean()
    loss.backward()
    opt.step()
    opt.zero_grad()
    return loss.item()


def state_of(model, opt):
    m, o = get_state_dict(model, opt)
    return {"model": m, "optim": o, "extra": {"epoch": 3, "name": "é", "tuple": (1, 2.5)}}


def load(model, opt, folder):
    state = state_of(model, opt)
    del state["extra"]
    dcp.load(state, checkpoint_id=folder, no_dist=not dist.is_initialized())
    set_state_dict(model, opt, model_state_dict=state["model"], optim_state_dict=state["optim"])


def whole(model, opt):
    m, o = get_state_dict(model, opt, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    return {"model": m, "optim": o}


def flat(prefix, v, out):
    if isinstance(v, dict):
        for k, x in v.items():
            flat(f"{prefix}.{k}", x, out)
    elif isinstance(v, list):
        for k, x in enumerate(v):
            flat(f"{prefix}.{k}", x, out)
    else:
        out[prefix] = v
    return out


def run(rank, world, command, kind, folder, meeting):
    if world > 1:
        dist.init_process_group("gloo", init_method="file://" + meeting, rank=rank, world_size=world)
    model, opt = build(kind, world)
    losses = []
    if command == "save":
        for n in range(3):
            step(model, opt, n)
        dcp.save(state_of(model, opt), checkpoint_id=folder, no_dist=world == 1)
        full = whole(model, opt)
        if rank == 0:
            torch.save(full, folder + ".pt")
        losses = [step(model, opt, n) for n in range(3, 6)]
    elif command == "file":
        saved = torch.load(folder, weights_only=True)
        model.load_state_dict(saved["model"])
        opt.load_state_dict(saved["optimizer"])
        losses = [step(model, opt, n) for n in range(3, 6)]
    else:
        load(model, opt, folder)
        if command == "load":
            losses = [step(model, opt, n) for n in range(3, 6)]
        else:
            got, want = flat("", whole(model, opt), {}), None
            if rank == 0:
                want = flat("", torch.load(folder + ".pt", weights_only=True), {})
                assert got.keys() == want.keys(), (sorted(set(got) ^ set(want)))
                for k, w in want.items():
                    same = torch.equal(got[k], w) if isinstance(w, torch.Tensor) else got[k] == w
                    assert same, (k, got[k], w)
                print(len(want))
    if rank == 0 and losses:
        print(json.dumps(losses))
    if world > 1:
        dist.barrier()
        dist.destroy_process_group()


def fork(f, *args):
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            torch.set_num_threads(1)
            f(*args)
            code = 0
        finally:
            sys.stdout.flush()
            os._exit(code)
    return pid


def main():
    commands = [[]]
    for arg in sys.argv[1:]:
        if arg == "--":
            commands.append([])
        else:
            commands[-1].append(arg)
    for world, command, kind, folder in commands:
        with tempfile.TemporaryDirectory() as d:
            children = [fork(run, rank, int(world), command, kind, folder, os.path.join(d, "meet")) for rank in range(int(world))]
            failed = [status for status in (os.waitpid(pid, 0)[1] for pid in children) if status]
            assert not failed, failed


main()
