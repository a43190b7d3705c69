# SPDX-License-Identifier: Apache-2.0
"""Writes torchrun's flags as its own parser has them: python torchrun_flags.py > torchrun_flags.json"""

import json
import os

for name in [n for n in os.environ if n.startswith("PET_")]:
    del os.environ[name]

import torch
from torch.distributed.run import get_args_parser

flags = []
for a in get_args_parser()._actions:
    if not a.option_strings or a.dest == "help":
        continue
    kind = type(a).__name__
    flags.append(
        {
            "names": a.option_strings,
            "pet": "PET_" + a.dest.upper() if kind in ("env", "check_env") else "",
            "bool": a.nargs == 0,
            "default": a.default if a.default is None or isinstance(a.default, (str, bool)) else str(a.default),
            "type": getattr(a.type, "__name__", ""),
        }
    )
print(json.dumps({"torch": torch.__version__.split("+")[0], "flags": flags}, indent=1))
