# SPDX-License-Identifier: Apache-2.0
"""Writes groups.json: two parameters in groups with options of their own, after each of some steps of PyTorch's
optimizers. The second parameter has no gradient in the first three steps. Run with any PyTorch 2 on a processor with
fused multiply-add:  python groups.py > groups.json"""
import json
import math
import torch

SIZES, STEPS, LATE = (101, 37), 12, 3


def values(n, salt):
    """The same pseudo-random values in [-0.5, 0.5) as the Go test makes."""
    bits = ((torch.arange(n, dtype=torch.int64) + 1 + 1000 * salt) * 2654435761) % (1 << 32)
    return (bits >> 8).to(torch.float32) / (1 << 24) - 0.5


def schedule(step):
    """The factor of the learning rate: linear warm-up over 4 steps, then half a cosine to a tenth."""
    if step < 4:
        return (step + 1) / 4
    return 0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * (step - 4) / (STEPS - 4)))


def run(kind, groups, scheduled, clip):
    params = [torch.nn.Parameter(values(n, i)) for i, n in enumerate(SIZES)]
    opt = kind([{"params": [p], **g} for p, g in zip(params, groups)], foreach=False)
    rates = [g["lr"] for g in opt.param_groups]
    norms = []
    for step in range(STEPS):
        for i, p in enumerate(params):
            p.grad = None if i == 1 and step < LATE else values(SIZES[i], 10 + 2 * step + i)
        if clip:
            norms.append(torch.nn.utils.clip_grad_norm_(params, clip).item())
        if scheduled:
            for g, lr in zip(opt.param_groups, rates):
                g["lr"] = lr * schedule(step)
        opt.step()
    return {"scheduled": scheduled, "clip": clip, "norms": norms, "groups": groups,
            "bits": [p.detach().view(torch.int32).tolist() for p in params]}


cases = []
SGD, AdamW = torch.optim.SGD, torch.optim.AdamW
for name, kind, groups in [
    ("sgd", SGD, [{"lr": 0.1}, {"lr": 0.05, "weight_decay": 0.01}]),
    ("sgd", SGD, [{"lr": 0.1}, {"lr": 0.05, "momentum": 0.9}]),
    ("sgd", SGD, [{"lr": 0.1, "momentum": 0.9, "dampening": 0.1}, {"lr": 0.05, "momentum": 0.5, "dampening": 0.3, "weight_decay": 0.1}]),
    ("sgd", SGD, [{"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}, {"lr": 0.2}]),
    ("adamw", AdamW, [{"lr": 1e-3, "weight_decay": 0.01}, {"lr": 1e-2, "weight_decay": 0, "betas": [0.8, 0.95], "eps": 1e-6}]),
]:
    for scheduled, clip in ((False, 0), (True, 0), (False, 1.0)):
        cases.append({"optimizer": name, **run(kind, groups, scheduled, clip)})
print(json.dumps({"torch": torch.__version__.split("+")[0], "capability": torch.backends.cpu.get_cpu_capability(),
                  "steps": STEPS, "late": LATE, "cases": cases}))
