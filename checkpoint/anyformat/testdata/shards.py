# SPDX-License-Identifier: Apache-2.0
"""Writes a folder with shards of torch.save, as transformers did before safetensors.

    python shards.py DIR      needs torch

The element i of the n-th tensor is n + i / 8.
"""

import json
import os
import sys

import torch


def main(folder):
    os.makedirs(folder)
    tensors = {name: (torch.arange(6) / 8 + n).reshape(2, 3) for n, name in enumerate(["a.weight", "b.weight", "c.weight"])}
    tensors["b.weight"] = tensors["b.weight"].t().contiguous().t()  # strides that are not those of rows
    where = {}
    for i, names in enumerate([["a.weight", "b.weight"], ["c.weight"]]):
        file = f"pytorch_model-{i + 1:05}-of-00002.bin"
        torch.save({name: tensors[name] for name in names}, os.path.join(folder, file))
        where |= dict.fromkeys(names, file)
    with open(os.path.join(folder, "pytorch_model.bin.index.json"), "w") as f:
        json.dump({"metadata": {"total_size": 72}, "weight_map": where}, f, indent=2)
    with open(os.path.join(folder, "config.json"), "w") as f:
        f.write("{}")


if __name__ == "__main__":
    main(sys.argv[1])
