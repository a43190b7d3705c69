# SPDX-License-Identifier: Apache-2.0
import torch.nn.functional as F
from golden import case, write


def conv(name, x, w, bias, **options):
    shapes = [x, w] + ([(w[0],)] if bias else [])
    case(name, lambda *in_: F.conv2d(*in_, **options), *shapes)


conv("conv2d", (2, 3, 5, 4), (4, 3, 3, 3), True, padding=1)
conv("conv2d 1x1", (2, 3, 3, 2), (5, 3, 1, 1), False)
conv("conv2d stride", (1, 2, 7, 6), (3, 2, 3, 2), True, stride=(2, 3), padding=(1, 0))
conv("conv2d dilated", (1, 2, 7, 6), (2, 2, 3, 2), False, padding=(2, 1), dilation=(2, 3))
conv("conv2d grouped", (2, 4, 4, 4), (6, 2, 2, 2), True, groups=2)
conv("conv2d depthwise", (2, 3, 5, 5), (3, 1, 3, 3), True, stride=2, padding=1, groups=3)
case("conv2d strided operands",
     lambda x, w, b: F.conv2d(x.permute(2, 3, 0, 1), w.permute(3, 0, 1, 2), b.expand(2)), (4, 5, 2, 3), (3, 3, 3, 2), (1,))
case("conv1d", lambda x, w, b: F.conv1d(x, w, b, stride=2, padding=1), (2, 3, 8), (4, 3, 3), (4,))
case("conv transpose 2d",
     lambda x, w, b: F.conv_transpose2d(x, w, b, stride=(2, 3), padding=1, output_padding=(1, 0), groups=2),
     (2, 4, 3, 2), (4, 2, 3, 3), (4,))
write()
