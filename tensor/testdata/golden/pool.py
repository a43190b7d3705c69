# SPDX-License-Identifier: Apache-2.0
import torch.nn.functional as F
from golden import case, write

case("max pool", lambda x: F.max_pool2d(x, 2), (2, 1, 4, 4))
case("max pool stem", lambda x: F.max_pool2d(x, 3, 2, 1), (1, 2, 5, 6))
case("max pool ceil", lambda x: F.max_pool2d(x, (3, 2), 2, (1, 0), ceil_mode=True), (2, 5, 6))
case("max pool dilated", lambda x: F.max_pool2d(x, 2, 1, 1, 2), (1, 1, 5, 4))
case("avg pool", lambda x: F.avg_pool2d(x, 2), (2, 1, 4, 4))
case("avg pool padded", lambda x: F.avg_pool2d(x, 3, 2, 1), (1, 2, 5, 6))
case("avg pool ceil", lambda x: F.avg_pool2d(x, (3, 2), 2, (1, 0), ceil_mode=True), (2, 5, 6))
case("avg pool without padding", lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False), (1, 1, 6, 5))
case("avg pool divisor", lambda x: F.avg_pool2d(x, 2, divisor_override=3), (1, 1, 4, 5))
case("adaptive avg pool", lambda x: F.adaptive_avg_pool2d(x, (3, 2)), (2, 2, 5, 7))
case("global avg pool", lambda x: F.adaptive_avg_pool2d(x, 1), (2, 3, 4, 4))
case("adaptive max pool", lambda x: F.adaptive_max_pool2d(x, (2, 4)), (2, 1, 5, 6))
write()
