# SPDX-License-Identifier: Apache-2.0
"""Writes optimizer.json: parameters after some steps of PyTorch's optimizers.

Run with any PyTorch 2 on a processor with fused multiply-add:
    python optimizer.py > optimizer.json
"""
import json
import torch

N, STEPS = 101, 20


def values(salt):
    """The same pseudo-random values in [-0.5, 0.5) as the Go test makes."""
    i = torch.arange(N, dtype=torch.int64)
    bits = ((i + 1 + 1000 * salt) * 2654435761) % (1 << 32)
    return (bits >> 8).to(torch.float32) / (1 << 24) - 0.5


def run(make):
    p = torch.nn.Parameter(values(0))
    opt = make([p])
    for step in range(1, STEPS + 1):
        p.grad = values(step)
        opt.step()
    return p.detach().view(torch.int32).tolist()


cases = []
for momentum, dampening, decay, nesterov in [
    (0, 0, 0, False), (0, 0, 0.01, False), (0.9, 0, 0, False), (0.9, 0, 0.01, False),
    (0.9, 0.1, 0.01, False), (0.9, 0, 0.01, True),
]:
    cases.append({"optimizer": "sgd", "lr": 0.1, "momentum": momentum, "dampening": dampening,
                  "decay": decay, "nesterov": nesterov,
                  "bits": run(lambda ps: torch.optim.SGD(ps, lr=0.1, momentum=momentum, dampening=dampening,
                                                         weight_decay=decay, nesterov=nesterov, foreach=False))})
for lr, decay in [(1e-3, 0.01), (3e-4, 0.1), (1e-2, 0)]:
    cases.append({"optimizer": "adamw", "lr": lr, "decay": decay,
                  "bits": run(lambda ps: torch.optim.AdamW(ps, lr=lr, weight_decay=decay, foreach=False))})
print(json.dumps({"torch": torch.__version__.split("+")[0], "capability": torch.backends.cpu.get_cpu_capability(),
                  "steps": STEPS, "cases": cases}))
