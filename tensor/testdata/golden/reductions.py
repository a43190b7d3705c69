# SPDX-License-Identifier: Apache-2.0
import torch
from golden import case, write

matrix = (3, 4)
case("amax", lambda x: x.amax(1), matrix)
case("amax all", lambda x: x.amax(), matrix)
case("amax ends", lambda x: x.amax((0, 2)), (2, 3, 4))
case("amin strided", lambda x: x.T.amin(1), (4, 3))
case("amin keep", lambda x: x - x.amin(0, keepdim=True), matrix)
case("max", lambda x: x.max(1).values, (2, 4, 3))
case("min", lambda x: x.min(-1).values, matrix)
case("prod", lambda x: x.prod(1), matrix)
case("prod ends", lambda x: x.prod(2).prod(0), (2, 3, 2))
case("prod all", lambda x: x.prod(), (2, 3))
case("var", lambda x: x.var(1), matrix)
case("var biased", lambda x: x.var((0, 2), correction=0), (2, 3, 4))
case("std", lambda x: x.std(), matrix)
case("norm", lambda x: torch.linalg.vector_norm(x, 2, 1), matrix)
case("norm 1", lambda x: torch.linalg.vector_norm(x, 1), matrix)
case("norm 3", lambda x: torch.linalg.vector_norm(x, 3, 0), matrix)
case("norm inf", lambda x: torch.linalg.vector_norm(x, float("inf"), 0), matrix)
write()
