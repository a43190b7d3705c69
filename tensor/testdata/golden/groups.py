# SPDX-License-Identifier: Apache-2.0
import torch
from golden import case, write

counts = [2, 0, 3, 1]
places = torch.tensor([4, 0, -1, 5, 1, 6, 3, -1, 7, 2]).reshape(5, 2)


def grouped(x, w, b=None):
    rows = torch.split(x, counts + [x.shape[0] - sum(counts)])
    out = [rows[e] @ w[e].T + (0 if b is None else b[e]) for e in range(len(counts))]
    return torch.cat(out + [torch.zeros(rows[-1].shape[0], w.shape[1], dtype=x.dtype)])


def spread(x):
    out = torch.zeros(10, 3, dtype=x.dtype)
    i, j = torch.nonzero(places >= 0, as_tuple=True)
    return out.index_put((places[i, j],), x[i])


def combine(y, scales=None):
    rows = torch.where((places >= 0)[..., None], y[places.clamp(0)], 0)
    return (rows if scales is None else rows * scales[..., None]).sum(1)


case("grouped linear", grouped, (8, 3), (4, 5, 3))
case("grouped linear bias", grouped, (8, 3), (4, 5, 3), (4, 5))
case("grouped linear transposed", lambda x, w: grouped(x, w.transpose(1, 2)), (8, 3), (4, 3, 5))
case("spread rows", spread, (5, 3))
case("combine rows", combine, (8, 3), (5, 2))
case("combine rows without scales", combine, (8, 3))
write()
