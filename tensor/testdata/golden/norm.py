# SPDX-License-Identifier: Apache-2.0
import torch
import torch.nn.functional as F
from golden import case, write

mean, var = torch.tensor([0.5, -1, 0.25]).double(), torch.tensor([0.5, 2, 1]).double()


def batch_norm(x, w=None, b=None, training=True):
    return F.batch_norm(x, None if training else mean, None if training else var, w, b, training)


case("batch norm", batch_norm, (2, 3, 2, 3), (3,), (3,))
case("batch norm plain", batch_norm, (3, 2, 4))
case("batch norm of rows", batch_norm, (5, 3), (3,), (3,))
case("batch norm relu", lambda x, w, b: batch_norm(x, w, b).relu(), (2, 3, 2, 3), (3,), (3,))
case("batch norm add", lambda x, w, b, r: batch_norm(x, w, b) + r, (2, 2, 3), (2,), (2,), (2, 2, 3))
case("batch norm add relu", lambda x, w, b, r: (batch_norm(x, w, b) + r).relu(), (2, 2, 3, 2), (2,), (2,), (2, 2, 3, 2))
case("batch norm evaluation", lambda x, w, b: batch_norm(x, w, b, False), (2, 3, 4), (3,), (3,))
case("batch norm evaluation add relu", lambda x, w, b, r: (batch_norm(x, w, b, False) + r).relu(), (2, 3, 4), (3,), (3,), (2, 3, 4))
case("group norm", lambda x, w, b: F.group_norm(x, 2, w, b), (2, 4, 3, 2), (4,), (4,))
case("group norm plain", lambda x: F.group_norm(x, 1), (2, 3, 4))
case("instance norm", lambda x, w, b: F.instance_norm(x, weight=w, bias=b), (2, 3, 2, 3), (3,), (3,))
case("layer norm plain", lambda x: F.layer_norm(x, (6,)), (2, 3, 6))
case("layer norm without bias", lambda x, w: F.layer_norm(x, (6,), w), (2, 3, 6), (6,))
case("layer norm without weight", lambda x, b: F.layer_norm(x, (6,), None, b), (2, 3, 6), (6,))
case("batch norm without bias", lambda x, w: batch_norm(x, w), (3, 2, 4), (2,))
case("batch norm without weight", lambda x, b: batch_norm(x, None, b), (3, 2, 4), (2,))
case("group norm without bias", lambda x, w: F.group_norm(x, 2, w), (2, 4, 3), (4,))
case("group norm without weight", lambda x, b: F.group_norm(x, 2, None, b), (2, 4, 3), (4,))
write()
