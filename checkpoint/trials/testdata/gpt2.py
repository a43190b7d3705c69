# SPDX-License-Identifier: Apache-2.0
"""Trains a small GPT-2 of transformers with fully_shard on two ranks of this machine, and saves and loads it with
torch.distributed.checkpoint. Each command prints a line.

  python gpt2.py save=DIR   train 3 steps, save to DIR, print the losses of the next 3 steps
  python gpt2.py load=DIR   load DIR, print the losses of the next 3 steps"""
import json
import os
import sys
import tempfile
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from transformers import GPT2Config, GPT2LMHeadModel

WORLD, ROWS, TIME, VOCAB = 2, 4, 8, 61
TIED = "lm_head.weight"  # again what transformer.wte.weight is


def build():
    torch.manual_seed(1)
    config = GPT2Config(vocab_size=VOCAB, n_positions=TIME, n_embd=24, n_layer=2, n_head=2, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    model = GPT2LMHeadModel(config)
    mesh = init_device_mesh("cpu", (WORLD,))
    for block in model.transformer.h:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model, torch.optim.AdamW(model.parameters(), lr=0.01, betas=(0.9, 0.95), weight_decay=0.1)


def tokens(n):
    """The same pseudo-random tokens [rows, time + 1] as the Go test makes."""
    count = ROWS * (TIME + 1)
    bits = ((torch.arange(count, dtype=torch.int64) + 1 + 1000 * n) * 2654435761) % (1 << 32)
    return ((bits >> 8) % VOCAB).view(ROWS, TIME + 1)


def step(rank, model, opt, n):
    mine = tokens(n)[rank * ROWS // WORLD : (rank + 1) * ROWS // WORLD]
    logits = model(mine[:, :-1]).logits
    loss = F.cross_entropy(logits.reshape(-1, VOCAB), mine[:, 1:].reshape(-1))
    loss.backward()
    opt.step()
    opt.zero_grad()
    total = loss.detach().clone()
    dist.all_reduce(total)
    return total.item() / WORLD


def run(rank, command, folder, meeting):
    dist.init_process_group("gloo", init_method="file://" + meeting, rank=rank, world_size=WORLD)
    model, opt = build()
    if command == "save":
        for n in range(3):
            step(rank, model, opt, n)
    m, o = get_state_dict(model, opt)
    if command == "save":
        dcp.save({"model": m, "optim": o}, checkpoint_id=folder)
    else:
        del m[TIED]
        state = {"model": m, "optim": o}
        dcp.load(state, checkpoint_id=folder)
        set_state_dict(model, opt, model_state_dict=state["model"], optim_state_dict=state["optim"], options=StateDictOptions(strict=False))
    losses = [step(rank, model, opt, n) for n in range(3, 6)]
    if rank == 0:
        print(json.dumps(losses))
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
    for command, folder in (c.split("=", 1) for c in sys.argv[1:]):
        with tempfile.TemporaryDirectory() as d:
            children = [fork(run, rank, command, folder, os.path.join(d, "meet")) for rank in range(WORLD)]
            failed = [status for status in (os.waitpid(pid, 0)[1] for pid in children) if status]
            assert not failed, failed


main()
