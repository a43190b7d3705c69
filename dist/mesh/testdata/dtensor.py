# SPDX-License-Identifier: Apache-2.0
"""Writes dtensor_VERSION.json: where PyTorch says that the parts of sharded tensors are, and what its DTensors
hold after distribute_tensor and redistribute on gloo. Run it with torch:

    python dtensor.py

"layouts" has one entry for each shape, mesh and placements: by rank, the local shape and the global offset, and for
tensors of one dim the elements.

"fsdp_of_tp" has dims of all sizes that tensor parallelism chunks first and FSDP then: by rank, the elements that
torch.chunk gives it, and those that PyTorch's function for the placements [_StridedShard(0, tp), Shard(0)] gives it. They
differ where FSDP has no chunk left of the first piece and one of a later piece.

"moves" has one entry for each redistribution: by rank, the elements before and after."""

import itertools
import json
import os
import random

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor._utils import _compute_local_shape_and_global_offset
from torch.distributed.tensor.placement_types import _StridedShard

HERE = os.path.dirname(os.path.abspath(__file__))
SEED = 17
MESHES = [(1,), (2,), (3,), (4,), (8,), (2, 2), (2, 3), (3, 2), (2, 4), (4, 2), (2, 2, 2)]
SHAPES = [(), (0,), (1,), (2,), (5,), (7,), (8,), (12,), (13,), (97,), (2, 3), (5, 4), (1, 7), (0, 3), (8, 8), (4, 6, 5), (3, 1, 2), (2, 3, 2, 2)]


def text(p):
    """The placement as Go prints it."""
    if isinstance(p, _StridedShard):
        return f"StridedShard({p.dim}, {p.split_factor})"
    if isinstance(p, Shard):
        return f"Shard({p.dim})"
    if isinstance(p, Partial):
        return f"Partial({p.reduce_op})"
    return "Replicate"


def draw(rng, shape, mesh, partial=True, strided=True):
    """Placements that are valid for the shape: the factor of a strided shard is what the later axes cut."""
    out = [None] * len(mesh)
    for a in reversed(range(len(mesh))):
        later = [b for b in range(a + 1, len(mesh)) if isinstance(out[b], (Shard, _StridedShard))]
        k = rng.randrange(8)
        if not shape or k == 0:
            out[a] = Replicate()
        elif k == 1 and partial:
            out[a] = Partial("sum")
        elif k == 2 and strided:
            d = rng.randrange(len(shape))
            cuts = [b for b in later if out[b].dim == d]
            if cuts and not any(isinstance(out[b], _StridedShard) for b in cuts):
                factor = 1
                for b in cuts:
                    factor *= mesh[b]
            elif cuts:
                out[a] = Replicate()
                continue
            else:
                factor = rng.choice([2, 3])
            out[a] = _StridedShard(d, split_factor=factor) if factor > 1 else Shard(d)
        else:
            out[a] = Shard(rng.randrange(len(shape)))
    return out


def elements(shape, mesh, coordinate, placements):
    """The indices of dim 0 that a rank holds, by PyTorch's own split of a range."""
    t = torch.arange(shape[0])
    for a, p in enumerate(placements):
        if isinstance(p, (Shard, _StridedShard)):
            t = p._split_tensor(t, mesh[a], with_padding=False, contiguous=True)[0][coordinate[a]]
    return t.tolist()


def layouts():
    rng = random.Random(SEED)
    seen, out = set(), []
    for shape, mesh in itertools.product(SHAPES, MESHES):
        for _ in range(6):
            placements = draw(rng, shape, mesh)
            key = (shape, mesh, tuple(map(text, placements)))
            if key in seen:
                continue
            seen.add(key)
            entry = {"shape": shape, "mesh": mesh, "placements": list(map(text, placements)), "local": [], "offset": []}
            if len(shape) == 1:
                entry["elements"] = []
            for coordinate in itertools.product(*map(range, mesh)):
                local, offset = _compute_local_shape_and_global_offset(shape, mesh, list(coordinate), placements)
                entry["local"].append(local)
                entry["offset"].append(offset)
                if len(shape) == 1:
                    entry["elements"].append(elements(shape, mesh, coordinate, placements))
            out.append(entry)
    return out


def chunk(t, n, i):
    parts = torch.chunk(t, n)
    return parts[i] if i < len(parts) else t[:0]


def fsdp_of_tp():
    out = []
    for n, dp, tp in itertools.product([1, 3, 8, 9, 10, 17, 33, 97], [2, 3, 4], [2, 3]):
        entry = {"size": n, "mesh": (dp, tp), "chunks": [], "placements": []}
        for i, j in itertools.product(range(dp), range(tp)):
            entry["chunks"].append(chunk(chunk(torch.arange(n), tp, j), dp, i).tolist())
            entry["placements"].append(elements((n,), (dp, tp), (i, j), [_StridedShard(0, split_factor=tp), Shard(0)]))
        out.append(entry)
    return out


def moves(rank, world, port, results):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(world))
    dist.init_process_group("gloo")
    rng = random.Random(SEED * world)
    for mesh_shape in MESHES:
        size = 1
        for n in mesh_shape:
            size *= n
        if size != world:
            continue
        mesh = init_device_mesh("cpu", mesh_shape)
        for _ in range(16):
            shape = rng.choice([s for s in SHAPES if s and s != (97,)])
            before = draw(rng, shape, mesh_shape, strided=False)
            after = draw(rng, shape, mesh_shape, strided=False)
            # PyTorch has no way from a shard to a partial sum.
            after = [p if not isinstance(p, Partial) or isinstance(q, Partial) else Replicate() for p, q in zip(after, before)]
            whole = torch.arange(1, 1 + torch.Size(shape).numel(), dtype=torch.float64).reshape(shape)
            held = [Replicate() if isinstance(p, Partial) else p for p in before]
            part = distribute_tensor(whole, mesh, held).to_local()
            # Each rank of a partial sum has a multiple of the value: 1, 2, 3 times and so on.
            for a, p in enumerate(before):
                if isinstance(p, Partial):
                    part = part * (1 + mesh.get_coordinate()[a])
            x = DTensor.from_local(part, mesh, before, run_check=False, shape=whole.shape, stride=whole.stride())
            y = x.redistribute(placements=after).to_local()
            mine = {"before": x.to_local().flatten().tolist(), "after": y.flatten().tolist(), "local": list(y.shape)}
            all_ranks = [None] * world
            dist.all_gather_object(all_ranks, mine)
            if rank == 0:
                results.append(
                    {
                        "shape": shape,
                        "mesh": mesh_shape,
                        "from": list(map(text, before)),
                        "to": list(map(text, after)),
                        "before": [r["before"] for r in all_ranks],
                        "after": [r["after"] for r in all_ranks],
                        "local": [r["local"] for r in all_ranks],
                    }
                )
    dist.destroy_process_group()


def main():
    golden = {"pytorch": torch.__version__, "layouts": layouts(), "fsdp_of_tp": fsdp_of_tp(), "moves": []}
    for i, world in enumerate([2, 4, 6, 8]):
        with mp.Manager() as manager:
            results = manager.list()
            mp.spawn(moves, args=(world, 29610 + i, results), nprocs=world)
            golden["moves"] += list(results)
    version = ".".join(torch.__version__.split(".")[:2])
    with open(os.path.join(HERE, f"dtensor_{version}.json"), "w") as f:
        f.write('{"pytorch": ' + json.dumps(golden["pytorch"]))
        for name in ["layouts", "fsdp_of_tp", "moves"]:
            rows = ",\n".join(json.dumps(r, separators=(",", ":")) for r in golden[name])
            f.write(f',\n"{name}": [\n{rows}\n]')
        f.write("}\n")


if __name__ == "__main__":
    main()
