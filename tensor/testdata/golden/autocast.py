# SPDX-License-Identifier: Apache-2.0
"""Operations under torch.autocast("cpu", torch.bfloat16): results and gradients
in the dtypes that PyTorch gives them. Cases that begin with "bf16" have operands
of bfloat16 and no autocast.

    python autocast.py
"""
import pathlib
import zlib

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

cases = {}


def case(name, fn, *shapes):
    g = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    low = name.startswith("bf16")
    operands = []
    for shape in shapes:
        x = 0.2 + 1.3 * torch.rand(shape, generator=g)
        x = torch.where(torch.rand(shape, generator=g) < 0.5, -x, x)
        operands.append((x.bfloat16() if low else x).requires_grad_())
    with torch.autocast("cpu", torch.bfloat16, enabled=not low):
        out = fn(*operands)
    weights = torch.randn(out.shape, generator=g)
    (out.float() * weights).sum().backward()
    cases[f"{name}/out"], cases[f"{name}/weights"] = out.detach(), weights
    for i, x in enumerate(operands):
        cases[f"{name}/in{i}"], cases[f"{name}/grad{i}"] = x.detach(), x.grad


def attention(q, k, v):
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)


def norm(x, w, b):
    return F.batch_norm(x, None, None, w.float(), b.float(), training=True)


targets = torch.tensor([2, -100, 0, 4, 1, 3])
for prefix in "", "bf16 ":
    case(prefix + "matmul", lambda x, y: x @ y, (5, 40), (40, 7))
    case(prefix + "matmul batched", lambda x, y: x @ y, (3, 5, 8), (3, 8, 7))
    case(prefix + "matmul broadcast", lambda x, y: x @ y, (2, 1, 5, 8), (3, 8, 7))
    case(prefix + "linear", F.linear, (2, 3, 33), (17, 33), (17,))
    case(prefix + "attention", attention, (2, 9, 2, 8), (2, 9, 2, 8), (2, 9, 2, 8))
    case(prefix + "layer norm", lambda x, w, b: F.layer_norm(x, (24,), w, b), (2, 3, 24), (24,), (24,))
    case(prefix + "softmax", lambda x: x.softmax(-1), (3, 9))
    case(prefix + "cross entropy", lambda x: F.cross_entropy(x.float() if prefix else x, targets), (6, 5))
    case(prefix + "mse", lambda x, y: F.mse_loss(x.float(), y.float()) if prefix else F.mse_loss(x, y), (3, 4), (3, 4))
    case(prefix + "embedding", lambda w: F.embedding(torch.tensor([[3, 1, 3], [0, 2, 3]]), w), (4, 6))
    case(prefix + "gelu", F.gelu, (4, 9))
    case(prefix + "sum", lambda x: x.sum(0), (33, 5))
    for stride in 1, 2:
        case(prefix + f"conv2d stride {stride}", lambda x, w, b: F.conv2d(x, w, b, stride, 1), (2, 5, 9, 8), (6, 5, 3, 3), (6,))
    case(prefix + "batch norm", lambda x, w, b: norm(x, w, b), (3, 4, 5, 6), (4,), (4,))
    case(prefix + "group norm", lambda x, w, b: F.group_norm(x, 2, w, b), (3, 4, 5, 6), (4,), (4,))
    case(prefix + "max pool", lambda x: F.max_pool2d(x, 2), (2, 3, 6, 8))
    case(prefix + "adaptive avg pool", lambda x: F.adaptive_avg_pool2d(x, 1), (2, 3, 6, 8))
# What follows a product has bfloat16 operands under autocast.
case("norm of linear", lambda x, w, g, b: F.layer_norm(F.linear(x, w), (24,), g, b), (6, 16), (24, 16), (24,), (24,))
case("loss of linear", lambda x, w, b: F.cross_entropy(F.linear(x, w, b), targets), (6, 16), (5, 16), (5,))
case("residual", lambda x, w: x + F.gelu(F.linear(x, w)), (5, 16), (16, 16))
case("softmax of linear", lambda x, w: F.linear(x, w).softmax(-1), (5, 16), (7, 16))
case("norm of conv2d", lambda x, w, g, b: norm(F.conv2d(x, w, padding=1), g, b).relu(), (3, 4, 7, 8), (6, 4, 3, 3), (6,), (6,))
case("residual norm of conv2d", lambda x, w, g, b: (norm(F.conv2d(x, w, padding=1), g, b) + x).relu(), (3, 6, 7, 8), (6, 6, 3, 3), (6,), (6,))
case("linear twice", lambda x, w, v: F.linear(F.relu(F.linear(x, w)), v), (5, 16), (12, 16), (9, 12))
path = pathlib.Path(__file__).with_suffix(".safetensors")
save_file({k: v.contiguous() for k, v in cases.items()}, path, metadata={"torch": torch.__version__.split("+")[0]})
print(f"{path}: {sum(k.endswith('/out') for k in cases)} cases")
