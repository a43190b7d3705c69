# SPDX-License-Identifier: Apache-2.0
import torch
import torch.nn.functional as F
from golden import case, write

signs = torch.tensor([1, 0, 0, 1, 1, 0, 1, 0, 0, 1, 0, 1], dtype=torch.bool).reshape(3, 4)
one, column = ((3, 4),), ((3, 4), (3, 1))

for name in "abs square sin cos expm1 sign sigmoid".split():
    case(name, getattr(torch, name), *one)
for name in "rsqrt log1p".split():
    case(name, getattr(torch, name), *one, positive=True)
for name in "floor ceil round".split():
    case(name, lambda x: getattr(torch, name)(x * 0.3 + 2), *one)
case("pow scalar", lambda x: x**3, *one)
case("pow fraction", lambda x: x**-1.5, *one, positive=True)
case("pow zero", lambda x: x**0, *one)
case("pow", torch.pow, *column, positive=True)
case("clamp", lambda x: x.clamp(-0.9, 0.6), *one)
case("clamp below", lambda x: x.clamp(min=-0.9), *one)
case("maximum", torch.maximum, *column)
case("minimum", torch.minimum, *column)
case("maximum tied", lambda x: torch.maximum(x, x * 1), (5,))
case("scalars about", lambda x: (3 - x) / 4 - 1, *one, positive=True)
case("where", lambda x, y: torch.where(signs, x, y), (3, 4), (4,))
case("where compared", lambda x, y: torch.where(x > y, x * y, y.square()), *column)
case("masked fill", lambda x: x.masked_fill(signs, -7), *one)
case("lerp", lambda x, y: torch.lerp(x, y.expand(3, 4), 0.3), *column)
case("addcmul", lambda x, y: torch.addcmul(x, x, y, value=0.5), *column)
case("addcdiv", lambda x, y: torch.addcdiv(x, x, y, value=0.5), *column, positive=True)
case("silu", F.silu, *one)
case("log sigmoid", F.logsigmoid, *one)
case("leaky relu", lambda x: F.leaky_relu(x, 0.1), *one)
case("prelu", F.prelu, (2, 3, 2), (3,))
case("elu", lambda x: F.elu(x, 0.7), *one)
case("selu", F.selu, *one)
case("softplus", lambda x: F.softplus(x, 2, 2.8), *one)
case("hardtanh", lambda x: F.hardtanh(x, -0.9, 0.8), *one)
case("relu6", lambda x: F.relu6(5 * x), *one)
case("hardsigmoid", lambda x: F.hardsigmoid(3 * x), *one)
case("hardswish", lambda x: F.hardswish(3 * x), *one)
case("mish", F.mish, *one)
case("softmax first", lambda x: x.softmax(0), *one)
case("softmax middle", lambda x: x.softmax(1), (2, 3, 4))
case("log softmax", lambda x: x.log_softmax(-1), *one)
case("log softmax first", lambda x: x.log_softmax(0), *one)
case("logsumexp", lambda x: x.logsumexp((0, 2)), (2, 3, 4))
write()
