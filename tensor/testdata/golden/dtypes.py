# SPDX-License-Identifier: Apache-2.0
"""Results of operations on every dtype, and so the dtypes of results: the
operands in0, in1, … and the result out of PyTorch, computed in those dtypes."""
import pathlib

import torch
from safetensors.torch import save_file

dtypes = {
    "float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "float64": torch.float64,
    "int64": torch.int64, "int32": torch.int32, "int8": torch.int8, "uint8": torch.uint8, "bool": torch.bool,
}
cases = {}
generator = torch.Generator().manual_seed(1)


def draw(dtype, *shape):
    if dtype.is_floating_point:
        x = 0.25 + 1.5 * torch.rand(shape, generator=generator, dtype=torch.float64)
        return torch.where(torch.rand(shape, generator=generator) < 0.3, -x, x).to(dtype)
    low = 0 if dtype in (torch.uint8, torch.bool) else -3
    return torch.randint(low, 4, shape, generator=generator).to(dtype)


def case(op, names, fn, *operands):
    try:
        out = fn(*operands)
    except RuntimeError:
        return  # PyTorch does not have it
    if out.dtype not in dtypes.values():
        return  # int16, which uint8 and int8 meet in
    key = f"{op} {names}"
    for i, x in enumerate(operands):
        cases[f"{key}/in{i}"] = x
    cases[f"{key}/out"] = out


binary = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div, "maximum": torch.maximum, "minimum": torch.minimum,
    "eq": torch.eq, "ne": torch.ne, "lt": torch.lt, "le": torch.le, "gt": torch.gt, "ge": torch.ge,
    "and": torch.logical_and, "or": torch.logical_or, "xor": torch.logical_xor,
}
unary = {
    "neg": torch.neg, "abs": torch.abs, "square": lambda x: x * x, "exp": torch.exp, "sqrt": lambda x: x.abs().sqrt(), "sin": torch.sin,
    "sigmoid": torch.sigmoid, "relu": torch.relu, "gelu": torch.nn.functional.gelu, "silu": torch.nn.functional.silu,
    "floor": torch.floor, "sign": torch.sign, "not": torch.logical_not, "isnan": torch.isnan, "isinf": torch.isinf,
    "add 2": lambda x: x + 2, "mul 2": lambda x: x * 2, "add 0.5": lambda x: x + 0.5, "mul 0.5": lambda x: x * 0.5,
    "div 2": lambda x: x / 2, "pow 2": lambda x: x**2, "lt 1": lambda x: x < 1, "clamp": lambda x: x.clamp(-1, 1),
    "sum": torch.sum, "sum 1": lambda x: x.sum(1), "prod": torch.prod, "amax": torch.amax, "amin 0": lambda x: x.amin(0),
    "max 1": lambda x: x.max(1).values, "argmax": lambda x: x.argmax(1), "argmin": lambda x: x.argmin(0),
    "all": torch.all, "any 1": lambda x: x.any(1), "mean": torch.mean, "var 1": lambda x: x.var(1), "norm": torch.norm,
    "softmax": lambda x: x.softmax(1), "log softmax": lambda x: x.log_softmax(0), "logsumexp": lambda x: x.logsumexp(1),
    "leaky": lambda x: torch.nn.functional.leaky_relu(x, 0.1),
}
for a, da in dtypes.items():
    for op, fn in unary.items():
        if da == torch.bool and op == "square":
            continue  # a product of bool is one here as there, but not a square
        if op == "prod" and da.itemsize == 2 and da.is_floating_point:
            continue  # rounded after each product there, once here
        if da == torch.uint8 and op in ("all", "any 1"):
            continue  # uint8 there, bool here as for every other dtype
        case(op, a, fn, draw(da, 3, 4))
    for b, db in dtypes.items():
        for op, fn in binary.items():
            if a != b and op not in ("add", "div", "maximum", "lt"):
                continue
            case(op, f"{a} {b}", fn, draw(da, 3, 4), draw(db, 4).abs() + 1 if op == "div" and db.is_signed else draw(db, 4))
        case("add", f"{a} {b} without dims", torch.add, draw(da, 3, 4), torch.tensor(0.5 if db.is_floating_point else 1).to(db))
        case("where", f"{a} {b}", torch.where, draw(torch.bool, 3, 1), draw(da, 3, 4), draw(db, 4))

path = pathlib.Path(__file__).with_suffix(".safetensors")
save_file({k: v.contiguous() for k, v in cases.items()}, path, metadata={"torch": torch.__version__.split("+")[0]})
print(f"{path.name}: {sum(k.endswith('/out') for k in cases)} cases")
