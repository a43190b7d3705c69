# SPDX-License-Identifier: Apache-2.0
"""Writes optimizers.json: rows under rowwise Adagrad and FTRL, by their formulas in float64.

Row-wise Adagrad is that of FBGEMM's table-batched embeddings (EXACT_ROWWISE_ADAGRAD without
weight decay). FTRL is algorithm 1 of McMahan et al., Ad Click Prediction (KDD 2013), with the
accumulator of TensorFlow. PyTorch has neither. python optimizers.py needs no package.
"""
import json
import math

WIDTH, STEPS = 5, 8
KEYS = [3, -7, 11]


def gradient(step, key, i):
    return ((step * 7 + key * 3 + i * 5) % 11 - 5) / 4


def used(step, key):
    return (step + key) % 3 != 0


def rowwise(lr, eps, initial):
    rows = {k: [0.25] * WIDTH for k in KEYS}
    sums = {k: initial for k in KEYS}
    out = []
    for step in range(1, STEPS + 1):
        for k in KEYS:
            if used(step, k):
                g = [gradient(step, k, i) for i in range(WIDTH)]
                sums[k] += sum(x * x for x in g) / WIDTH
                for i in range(WIDTH):
                    rows[k][i] -= lr * g[i] / (math.sqrt(sums[k]) + eps)
        out.append([x for k in KEYS for x in rows[k]])
    return out


def ftrl(lr, beta, l1, l2, initial):
    rows = {k: [0.25] * WIDTH for k in KEYS}
    z = {k: [0.0] * WIDTH for k in KEYS}
    n = {k: [initial] * WIDTH for k in KEYS}
    out = []
    for step in range(1, STEPS + 1):
        for k in KEYS:
            if used(step, k):
                for i in range(WIDTH):
                    g = gradient(step, k, i)
                    sigma = (math.sqrt(n[k][i] + g * g) - math.sqrt(n[k][i])) / lr
                    z[k][i] += g - sigma * rows[k][i]
                    n[k][i] += g * g
                    if abs(z[k][i]) <= l1:
                        rows[k][i] = 0.0
                    else:
                        shrunk = z[k][i] - math.copysign(l1, z[k][i])
                        rows[k][i] = -shrunk / ((beta + math.sqrt(n[k][i])) / lr + l2)
        out.append([x for k in KEYS for x in rows[k]])
    return out


if __name__ == "__main__":
    cases = [
        {"optimizer": {"kind": "rowwise_adagrad", "lr": 0.05, "eps": 1e-8}, "rows": rowwise(0.05, 1e-8, 0.0)},
        {"optimizer": {"kind": "rowwise_adagrad", "lr": 0.5, "initial": 0.5}, "rows": rowwise(0.5, 1e-10, 0.5)},
        {"optimizer": {"kind": "ftrl", "lr": 0.1, "l1": 0.75, "l2": 0.5, "beta": 1.0}, "rows": ftrl(0.1, 1.0, 0.75, 0.5, 0.1)},
        {"optimizer": {"kind": "ftrl", "lr": 0.3, "initial": 0.2}, "rows": ftrl(0.3, 0.0, 0.0, 0.0, 0.2)},
    ]
    with open("optimizers.json", "w") as f:
        json.dump({"keys": KEYS, "width": WIDTH, "cases": cases}, f, indent=None, separators=(",", ":"))
        f.write("\n")
