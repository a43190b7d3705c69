# SPDX-License-Identifier: Apache-2.0
"""What the scripts of this folder share. Each, run with a Python that has torch
and safetensors, writes AREA.safetensors beside itself: for every case its
operands in0, in1, …, PyTorch's result out, the gradient of the result (weights)
and the gradients of the operands grad0, grad1, …, computed in float64.

    python basic.py
"""
import pathlib
import sys
import zlib

import torch
from safetensors.torch import save_file

_cases = {}


def case(name, fn, *shapes, positive=False, grad=True):
    """Adds a case: fn of one operand per shape, drawn from ±[0.2, 1.5], or from [0.5, 2] if positive."""
    assert f"{name}/out" not in _cases, name
    g = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    operands = []
    for shape in shapes:
        if positive:
            x = 0.5 + 1.5 * torch.rand(shape, generator=g)
        else:
            x = 0.2 + 1.3 * torch.rand(shape, generator=g)
            x = torch.where(torch.rand(shape, generator=g) < 0.5, -x, x)
        operands.append(x)
    wide = [x.double().requires_grad_(grad) for x in operands]
    out = fn(*wide)
    for i, x in enumerate(operands):
        _cases[f"{name}/in{i}"] = x
    _cases[f"{name}/out"] = out.detach().float() if out.is_floating_point() else out
    if grad:
        weights = torch.randn(out.shape, generator=g)
        (out * weights).sum().backward()
        _cases[f"{name}/weights"] = weights
        for i, x in enumerate(wide):
            if x.grad is not None:
                _cases[f"{name}/grad{i}"] = x.grad.float()


def write():
    path = pathlib.Path(sys.argv[0]).with_suffix(".safetensors")
    save_file({k: v.contiguous() for k, v in _cases.items()}, path, metadata={"torch": torch.__version__.split("+")[0]})
    print(f"{path}: {sum(k.endswith('/out') for k in _cases)} cases")
