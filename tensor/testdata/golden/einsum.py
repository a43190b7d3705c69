# SPDX-License-Identifier: Apache-2.0
import torch
from golden import case, write


def einsum(name, *shapes):
    case(name, lambda *x: torch.einsum(name.split(" ")[0], *x), *shapes)


einsum("ij,jk->ik", (2, 3), (3, 4))
einsum("ij,jk", (2, 3), (3, 4))
einsum("ba", (2, 3))
einsum("bhqd,bkhd->bhqk", (2, 2, 3, 2), (2, 3, 2, 2))
einsum("bij,bjk->bki", (2, 2, 3), (2, 3, 2))
einsum("i,j->ij", (3,), (4,))
einsum("i,i->", (4,), (4,))
einsum("ij->j", (3, 4))
einsum("ii->i", (3, 3))
einsum("iji->j", (3, 2, 3))
einsum("...ij,...jk->...ik", (2, 2, 2, 3), (2, 3, 2))
einsum("...ij,jk->...ik", (2, 2, 3), (3, 2))
einsum("i...,i...", (3, 2, 2), (3, 2))
einsum("ij,kj->ik broadcast", (2, 1), (2, 3))
einsum("ab,bc,cd->ad", (2, 3), (3, 2), (2, 4))
einsum("bn,anm,bm->ba", (2, 3), (4, 3, 2), (2, 2))
einsum("ij,ij->ij", (2, 3), (2, 3))
einsum("ij,k->i", (2, 3), (4,))
case("dot", torch.dot, (4,), (4,))
case("outer", torch.outer, (3,), (4,))
write()
