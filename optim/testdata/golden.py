# SPDX-License-Identifier: Apache-2.0
"""Writes golden.json: what PyTorch's optimizers make of parameters in 10 steps, for each option; learning rates of its
schedules over 50 steps; ReduceLROnPlateau on sequences of losses; an exponential average. Run with any PyTorch 2 on a
processor with fused multiply-add:  python golden.py > golden.json"""
import json
import math
import warnings
import torch
from torch.optim import lr_scheduler as L

SIZES, STEPS, RATES = (101, 37), 10, 50
TABLE, TOUCHED = (7, 5), ([0, 3], [1, 3, 6], [3], [], [0, 1, 2, 3, 4, 5, 6], [5, 6], [0], [2, 4], [1, 2, 3], [6])
warnings.simplefilter("ignore")  # schedules step here without the optimizer


def values(n, salt):
    """The same pseudo-random values in [-0.5, 0.5) as the Go test makes."""
    bits = ((torch.arange(n, dtype=torch.int64) + 1 + 1000 * salt) * 2654435761) % (1 << 32)
    return (bits >> 8).to(torch.float32) / (1 << 24) - 0.5


def bits(t):
    return t.detach().contiguous().view(torch.int32).flatten().tolist()


def dense(kind, options):
    """Gradients of step s are 2^-s times as large for odd s: moments meet values of other sizes."""
    params = [torch.nn.Parameter(values(n, i)) for i, n in enumerate(SIZES)]
    opt = getattr(torch.optim, kind)(params, foreach=False, **options)
    for step in range(STEPS):
        for i, p in enumerate(params):
            p.grad = values(SIZES[i], 10 + 2 * step + i) * 2.0 ** (-step if step % 2 else 0)
        opt.step()
    state = {k: [bits(opt.state[p][k]) for p in params] for k in opt.state[params[0]] if opt.state[params[0]][k] is not None}
    return {"optimizer": kind, "options": options, "params": [bits(p) for p in params], "state": state}


def sparse(kind, options):
    p = torch.nn.Parameter(values(TABLE[0] * TABLE[1], 0).view(TABLE))
    opt = getattr(torch.optim, kind)([p], **options)
    for step, ids in enumerate(TOUCHED):
        rows = values(len(ids) * TABLE[1], 10 + step).view(len(ids), TABLE[1])
        p.grad = torch.sparse_coo_tensor(torch.tensor([ids], dtype=torch.int64), rows, TABLE)
        opt.step()
    return {"optimizer": kind, "options": options, "params": [bits(p)]}


def optimizer(momentum=False):
    groups = [{"params": [torch.nn.Parameter(torch.zeros(1))], "lr": lr} for lr in (0.1, 0.03)]
    return torch.optim.SGD(groups, momentum=0.9 if momentum else 0)


def rates(name, options, make, momentum=False):
    opt = optimizer(momentum)
    s = make(opt)
    lrs, momenta = [], []
    for _ in range(RATES):
        lrs.append([g["lr"] for g in opt.param_groups])
        momenta.append(opt.param_groups[0]["momentum"])
        s.step()
    return {"schedule": name, "options": options, "lrs": lrs, "momenta": momenta if momentum else []}


def simple(kind, **options):
    return rates(kind, options, lambda opt: getattr(L, kind)(opt, **options))


def one_cycle(**options):
    return rates("OneCycleLR", options, lambda opt: L.OneCycleLR(opt, **options), momentum=True)


def plateau(losses, **options):
    opt = optimizer()
    s = L.ReduceLROnPlateau(opt, **options)
    lrs = []
    for loss in losses:
        s.step(loss)
        lrs.append([g["lr"] for g in opt.param_groups])
    return {"options": options, "losses": losses, "lrs": lrs}


def average(decay):
    model = torch.nn.Linear(3, 2, bias=False)
    model.weight.data = values(6, 0).view(2, 3)
    ema = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(decay))
    for step in range(6):
        model.weight.data = values(6, 1 + step).view(2, 3)
        ema.update_parameters(model)
    return {"decay": decay, "values": bits(ema.module.weight)}


DENSE = [
    ("SGD", {"lr": 0.1}),
    ("SGD", {"lr": 0.1, "weight_decay": 0.1}),
    ("SGD", {"lr": 0.1, "momentum": 0.9}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.3, "weight_decay": 0.1}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01, "maximize": True}),
    ("Adam", {}),
    ("Adam", {"lr": 0.01, "betas": [0.8, 0.95], "eps": 1e-6, "weight_decay": 0.1}),
    ("Adam", {"lr": 0.01, "amsgrad": True}),
    ("Adam", {"lr": 0.01, "amsgrad": True, "weight_decay": 0.01, "maximize": True}),
    ("Adam", {"lr": 0.01, "betas": [0.0, 0.9]}),
    ("Adam", {"lr": 0.01, "betas": [0.4, 0.9]}),
    ("AdamW", {"weight_decay": 0.01}),
    ("AdamW", {"lr": 0.01, "weight_decay": 0.1, "amsgrad": True}),
    ("AdamW", {"lr": 0.01, "weight_decay": 0.1, "maximize": True}),
    ("Adagrad", {}),
    ("Adagrad", {"lr": 0.1, "lr_decay": 0.1, "weight_decay": 0.01, "initial_accumulator_value": 0.2, "eps": 1e-6}),
    ("Adagrad", {"lr": 0.1, "maximize": True}),
    ("RMSprop", {}),
    ("RMSprop", {"lr": 0.01, "alpha": 0.9, "eps": 1e-6, "weight_decay": 0.1}),
    ("RMSprop", {"momentum": 0.9}),
    ("RMSprop", {"centered": True}),
    ("RMSprop", {"centered": True, "momentum": 0.5, "weight_decay": 0.01, "maximize": True}),
    ("RMSprop", {"alpha": 0.3, "centered": True}),
]
SPARSE = [
    ("SparseAdam", {}),
    ("SparseAdam", {"lr": 0.1, "betas": [0.8, 0.9], "eps": 1e-6, "maximize": True}),
    ("Adagrad", {"lr": 0.1, "lr_decay": 0.1, "initial_accumulator_value": 0.1}),
    ("Adagrad", {"lr": 0.1, "maximize": True}),
    ("SGD", {"lr": 0.1}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.3}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True, "maximize": True}),
]
SCHEDULES = [
    simple("ConstantLR", factor=0.25, total_iters=7),
    simple("StepLR", step_size=8, gamma=0.3),
    simple("MultiStepLR", milestones=[30, 5, 5, 12], gamma=0.5),
    simple("ExponentialLR", gamma=0.9),
    simple("LinearLR", start_factor=0.1, end_factor=1.0, total_iters=13),
    simple("LinearLR", start_factor=1.0, end_factor=0.2, total_iters=70),
    simple("PolynomialLR", total_iters=31, power=2.0),
    simple("PolynomialLR", total_iters=60, power=0.7),
    simple("CosineAnnealingLR", T_max=60, eta_min=0.001),
    simple("CosineAnnealingLR", T_max=15, eta_min=0.002),
    simple("CosineAnnealingWarmRestarts", T_0=7, T_mult=1, eta_min=0.001),
    simple("CosineAnnealingWarmRestarts", T_0=5, T_mult=2, eta_min=0.0),
    rates("LambdaLR", {}, lambda opt: L.LambdaLR(opt, lambda step: 1 / (1 + step))),
    rates("SequentialLR", {}, lambda opt: L.SequentialLR(opt, [
        L.LinearLR(opt, start_factor=0.1, total_iters=10), L.CosineAnnealingLR(opt, T_max=25, eta_min=0.001), L.ExponentialLR(opt, gamma=0.8)],
        milestones=[10, 35])),
    rates("ChainedScheduler", {}, lambda opt: L.ChainedScheduler([
        L.LinearLR(opt, start_factor=0.1, total_iters=10), L.ExponentialLR(opt, gamma=0.9), L.StepLR(opt, step_size=20, gamma=0.5)])),
    one_cycle(max_lr=0.5, total_steps=60),
    one_cycle(max_lr=0.5, total_steps=51, three_phase=True, pct_start=0.4, anneal_strategy="linear"),
    one_cycle(max_lr=0.2, total_steps=55, pct_start=0.25, base_momentum=0.7, max_momentum=0.9, div_factor=10.0, final_div_factor=100.0),
]
FALLING = [1.0, 0.9, 0.8, 0.80001, 0.79999, 0.81, 0.82, 0.6, 0.6, 0.6, 0.6, 0.6, 0.61, 0.5, 0.7, 0.7, 0.7, 0.7, 0.7, 0.7, 0.7, 0.7, 0.7, 0.7]
print(json.dumps({
    "torch": torch.__version__.split("+")[0], "capability": torch.backends.cpu.get_cpu_capability(), "steps": STEPS,
    "dense": [dense(*c) for c in DENSE], "touched": TOUCHED, "sparse": [sparse(*c) for c in SPARSE], "schedules": SCHEDULES,
    "plateaus": [
        plateau(FALLING, patience=2),
        plateau(FALLING, factor=0.5, patience=1, cooldown=2, min_lr=0.01),
        plateau(FALLING, factor=0.5, patience=1, threshold=0.05, threshold_mode="abs"),
        plateau([-x for x in FALLING], mode="max", patience=1, threshold=0.01),
        plateau([1 - x for x in FALLING], mode="max", patience=1, threshold=0.1, threshold_mode="abs", eps=0.05),
    ],
    "averages": [average(d) for d in (0.9, 0.999, 0.3)]}))
