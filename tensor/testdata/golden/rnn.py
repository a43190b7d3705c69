# SPDX-License-Identifier: Apache-2.0
import torch
from golden import case, write


def run(kind, x, state, weight, bias=None):
    """PyTorch's layer with a weight of the inputs that passes them on."""
    weight_ih = torch.eye(x.shape[2], dtype=x.dtype)
    zeros = torch.zeros(x.shape[2], dtype=x.dtype)
    flat = [weight_ih, weight, zeros, zeros if bias is None else bias]
    return getattr(torch._VF, kind)(x, state, flat, True, 1, 0.0, True, False, False)


def lstm(x, h, c, w, reverse=False):
    out, _, cn = run("lstm", x.flip(0) if reverse else x, (h[None], c[None]), w)
    return (out.flip(0) if reverse else out), cn[0]


def gru(x, h, w, b=None, reverse=False):
    out, _ = run("gru", x.flip(0) if reverse else x, h[None], w, b)
    return out.flip(0) if reverse else out


case("lstm", lambda *a: lstm(*a)[0], (4, 2, 12), (2, 3), (2, 3), (12, 3))
case("lstm reverse", lambda *a: lstm(*a, reverse=True)[0], (3, 2, 12), (2, 3), (2, 3), (12, 3))


def with_cell(*a):
    out, cn = lstm(*a)
    return torch.cat([out.reshape(-1, 3), cn * cn])


case("lstm cell state", with_cell, (2, 2, 12), (2, 3), (2, 3), (12, 3))
case("gru", gru, (4, 2, 9), (2, 3), (9, 3), (9,))
case("gru reverse", lambda *a: gru(*a, reverse=True), (3, 2, 9), (2, 3), (9, 3), (9,))
case("gru without bias", gru, (2, 1, 6), (1, 2), (6, 2))
write()
