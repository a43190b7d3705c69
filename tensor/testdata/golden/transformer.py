# SPDX-License-Identifier: Apache-2.0
import torch
import torch.nn.functional as F
from golden import case, write


def rope(x, positions):
    """As in Hugging Face's Llama; positions are [time] or [batch, time]."""
    dim = x.shape[-1]
    frequencies = 1 / 100 ** (torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    angles = positions[..., None].double() * frequencies
    angles = torch.cat([angles, angles], -1)[..., None, :]
    a, b = x.chunk(2, -1)
    return x * angles.cos() + torch.cat([-b, a], -1) * angles.sin()


case("rms norm", lambda x, w: F.rms_norm(x, (6,), w, 1e-6), (2, 3, 6), (6,))
case("rms norm without weight", lambda x: F.rms_norm(x, (5,), None, 1e-6), (3, 5))
case("swiglu", lambda x, y: F.silu(x) * y, (2, 3, 4), (2, 3, 4))
case("rope", lambda x: rope(x, torch.arange(4, 7)), (2, 3, 2, 6))
case("rope by batch", lambda x: rope(x, torch.arange(6).reshape(2, 3)), (2, 3, 2, 6))
case("rope strided", lambda x: rope(x.permute(0, 3, 2, 1), torch.arange(4, 7)), (2, 6, 2, 3))
write()
