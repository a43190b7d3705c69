# SPDX-License-Identifier: Apache-2.0
import torch
from golden import case, write


def split(x):
    a, b, c = x.split([2, 3, 1], 1)
    return torch.cat([c, a * a, b], 1)


def chunk(x):
    a, b, c = x.chunk(3, 0)
    return a * b - c


def unbind(x):
    a, b, c = x.unbind(1)
    return a * b + c


case("cat", lambda *x: torch.cat(x, 0), (2, 3), (1, 3), (2, 3))
case("cat middle", lambda x, y: torch.cat([x, y[:, :, :2]], 1), (2, 1, 2), (2, 2, 3))
case("stack", lambda *x: torch.stack(x, -1), (2, 3), (2, 3))
case("split", split, (2, 6))
case("chunk", chunk, (5, 2))
case("unbind", unbind, (2, 3))
case("squeeze", lambda x: x.squeeze(), (1, 3, 1, 2))
case("unsqueeze", lambda x: x.unsqueeze(1).unsqueeze(-1), (3, 2))
case("movedim", lambda x: x.movedim(0, -1), (2, 3, 4))
case("unflatten", lambda x: x.unflatten(1, (3, -1)), (2, 6))
case("diagonal", lambda x: x.diagonal(1, 0, 2), (3, 2, 4))
case("diagonal below", lambda x: x.diagonal(-1), (3, 4))
case("tril", lambda x: x.tril(1), (2, 3, 4))
case("triu", lambda x: x.triu(-1), (4, 3))
case("roll", lambda x: x.roll((1, -5), (0, 1)), (3, 4))
case("flip", lambda x: x.flip(0, 1), (2, 3))
case("repeat", lambda x: x.repeat(2, 1, 3), (2, 3))
case("repeat interleave", lambda x: x.repeat_interleave(2, 1), (2, 3))
case("repeat interleave by", lambda x: x.repeat_interleave(torch.tensor([2, 0, 3]), 0), (3, 2))
case("unfold", lambda x: x.unfold(1, 3, 2), (2, 6, 2))
write()
