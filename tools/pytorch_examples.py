#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs scripts of PyTorch's examples repository, unchanged, under cohort run, and prints
a table in Markdown of which ran, and of what the others lacked.

    git clone https://github.com/pytorch/examples
    go build -o cohort ./cmd/cohort
    python3 tools/pytorch_examples.py --cohort ./cohort --examples examples --python VENV/bin/python --python /usr/bin/python3

Those that make ranks of their own (rpc) run as one rank with --store rank0, the others as
--nproc-per-node says. They need what their requirements.txt lists; a script that ends because a
package or a GPU is missing is said to, with its own words. --stand-in gives scripts that
end themselves without GPUs the processor for one: a module that Python loads before them answers
their questions to torch.accelerator, and no line of theirs is changed."""
import argparse
import os
import re
import subprocess
import sys
import tempfile
import time

STAND_IN = """
import os, sys
if "RANK" in os.environ:
    import torch
    a = torch.accelerator
    asked = lambda: not sys._getframe(2).f_globals["__name__"].startswith("torch")
    real = a.is_available, a.device_count, a.current_accelerator
    a.is_available = lambda: asked() or real[0]()
    a.device_count = lambda: int(os.environ["LOCAL_WORLD_SIZE"]) if asked() else real[1]()
    a.current_accelerator = lambda *x, **y: torch.device("cpu") if asked() else real[2](*x, **y)
    a.set_device_index = a.device_index = lambda *x: None
"""

SCRIPTS = [
    ("distributed/ddp/example.py", 2),
    ("distributed/tensor_parallelism/tensor_parallel_example.py", 2),
    ("distributed/tensor_parallelism/sequence_parallel_example.py", 2),
    ("distributed/tensor_parallelism/fsdp_tp_example.py", 4),
    ("distributed/FSDP2/example.py", 2),
    ("distributed/rpc/batch/parameter_server.py", 1),
    ("distributed/rpc/batch/reinforce.py", 1),
    ("distributed/rpc/rl/main.py", 1),
    ("distributed/rpc/rnn/main.py", 1),
    ("distributed/rpc/ddp_rpc/main.py", 1),
]


def run(args, python, script, ranks):
    path = os.path.join(os.path.abspath(args.examples), script)
    command = [os.path.abspath(args.cohort), "run", "--nproc-per-node", str(ranks), "--store", "auto" if ranks > 1 else "rank0", os.path.basename(path)]
    env = dict(os.environ, PYTHON_EXEC=python, PYTHONPATH=args.path)
    began = time.time()
    try:
        p = subprocess.run(command, cwd=os.path.dirname(path), env=env, capture_output=True, text=True, timeout=args.limit)
    except subprocess.TimeoutExpired as e:
        said = (e.stdout or b"").decode(errors="replace").strip().splitlines()
        return "went on after %d s: `%s`" % (args.limit, plain(said[-1]) if said else "nothing was printed")
    said = (p.stdout + p.stderr).splitlines()
    wants = [plain(line) for line in said if "Unable to locate sufficient" in line]
    if wants:
        return "ended by itself, exit code %d: `%s`" % (p.returncode, wants[0])
    if p.returncode == 0:
        out = p.stdout.strip().splitlines()
        return "ran, %.0f s: `%s`" % (time.time() - began, plain(out[-1]) if out else "")
    errors = [plain(line) for line in said if re.search(r"Error\b: \S", line)]
    return "failed: `%s`" % (errors[-1] if errors else said[-1] if said else "nothing was printed")


def plain(line):
    """A line without its prefix, short enough for a table."""
    line = re.sub(r"^(\[\w+\]:? )+", "", line).strip().replace("|", "/").replace("`", "'")
    return line if len(line) <= 120 else line[:117] + "..."


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--cohort", default="./cohort")
    p.add_argument("--examples", default="examples")
    p.add_argument("--python", action="append", help="a Python with PyTorch; may be given several times")
    p.add_argument("--path", default="", help="PYTHONPATH of the scripts")
    p.add_argument("--limit", type=float, default=600, help="seconds for a script")
    p.add_argument("--stand-in", action="store_true", help="let the processor stand in for GPUs")
    p.add_argument("--scripts", default="", help="only those whose paths contain this")
    args = p.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        if args.stand_in:
            with open(os.path.join(directory, "sitecustomize.py"), "w") as f:
                f.write(STAND_IN)
            args.path = os.pathsep.join(filter(None, [directory, args.path]))
        table(args)


def table(args):
    pythons = args.python or [sys.executable]
    names = [subprocess.run([py, "-c", "import torch; print(torch.__version__)"], capture_output=True, text=True).stdout.strip() or "no PyTorch" for py in pythons]
    print("| script | ranks | %s |" % " | ".join("PyTorch " + n for n in names))
    print("|---|---|%s" % ("---|" * len(pythons)))
    for script, ranks in SCRIPTS:
        if args.scripts not in script:
            continue
        # One after the other: scripts that make their own ranks all use one port.
        results = [run(args, python, script, ranks) for python in pythons]
        print("| %s | %d | %s |" % (script, ranks, " | ".join(results)), flush=True)


if __name__ == "__main__":
    main()
