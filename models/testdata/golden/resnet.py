# SPDX-License-Identifier: Apache-2.0
"""Writes resnet.safetensors: what PyTorch computes with ResNet-18 and ResNet-50,
in float64. Run it with a Python that has torch and safetensors.

The weights and images are not in the file: both sides draw them from one
generator, uniformly, in the order of the parameters (see fill). In the file are
the loss, the losses of 20 steps of SGD, and of each parameter's gradient the
largest magnitude and up to 64 elements, evenly spaced."""
import math
import pathlib
import sys

import torch
from safetensors.torch import save_file

here = pathlib.Path(__file__).parent
sys.path.insert(0, str(here.parents[2] / "tools"))
import peer_vision

STEPS = 20


def fill(model, g):
    for name, p in model.named_parameters():
        if p.dim() == 4:
            bound = math.sqrt(6 / (p.shape[0] * p.shape[2] * p.shape[3]))
            low, high = -bound, bound
        elif name.startswith("fc."):
            low, high = -0.02, 0.02
        elif name.endswith(("bn2.weight", "bn3.weight")):
            low, high = 0.1, 0.3  # blocks that are nearly the identity: rounding grows less on the way
        elif name.endswith(".weight"):
            low, high = 0.5, 1.5
        elif name.endswith(("bn2.bias", "bn3.bias")):
            low, high = 0.1, 0.5  # few elements near the kink of the ReLU behind
        else:
            low, high = 0.5, 2
        with torch.no_grad():
            p.uniform_(low, high, generator=g)


def losses(model, x, y, lr):
    opt = torch.optim.SGD(model.parameters(), lr=lr)
    out = []
    for _ in range(STEPS):
        opt.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        if not out:
            grads = {name: p.grad.clone() for name, p in model.named_parameters()}
        opt.step()
        out.append(loss.item())
    return out, grads


tensors = {}
for name, make, batch, size, classes, lr in (("resnet18", peer_vision.resnet18, 8, 64, 10, 2e-3), ("resnet50", peer_vision.resnet50, 2, 64, 1000, 2e-4)):
    runs = {}
    for dtype in (torch.float64, torch.float32):
        g = torch.Generator().manual_seed(3)
        model = make(classes=classes)
        fill(model, g)
        x = torch.empty(batch, 3, size, size).uniform_(-1, 1, generator=g)
        y = torch.arange(batch) * 7 % classes
        runs[dtype] = (*losses(model.to(dtype), x.to(dtype), y, lr), model)
    exact, grads, model = runs[torch.float64]
    worst = max(abs(a - b) / b for a, b in zip(runs[torch.float32][0], exact))
    off = max(((runs[torch.float32][1][k] - v).abs().max() / v.abs().max()).item() for k, v in grads.items())
    print(f"{name}: losses {exact[0]:.4f} … {exact[-1]:.4f}; in float32, losses are off by {worst:.1e} and gradients by {off:.1e}")
    tensors[f"{name}.losses"] = torch.tensor(exact, dtype=torch.float32)
    for key, grad in grads.items():
        flat = grad.flatten()
        step = max(1, flat.numel() // 64)
        tensors[f"{name}.grad.{key}"] = flat[::step][:64].float()
        tensors[f"{name}.largest.{key}"] = flat.abs().max().float()
    for key, b in model.named_buffers():
        if key.startswith("bn1."):
            tensors[f"{name}.{key}"] = b if key.endswith("tracked") else b.float()
save_file({k: v.contiguous() for k, v in tensors.items()}, here / "resnet.safetensors", metadata={"torch": torch.__version__.split("+")[0]})
