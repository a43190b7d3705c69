# SPDX-License-Identifier: Apache-2.0
"""Compares the rate of reading records with the tokenizer on: Cohort's loader against datasets and a DataLoader.

    python tools/compare_records.py [--records 20000] [--rounds 3]

Both read the same file in a shuffled order, in batches of 32, with two workers. The first pass of each, which makes
indexes and caches, is not counted. Prints the median of the rounds, which take turns. Needs Go, torch, datasets and
transformers; nothing else should run on the machine.
"""
import argparse, json, os, pathlib, random, re, statistics, subprocess, tempfile, time

p = argparse.ArgumentParser()
p.add_argument("--records", type=int, default=20000)
p.add_argument("--rounds", type=int, default=3)
p.add_argument("--workers", type=int, default=2)
a = p.parse_args()
root = pathlib.Path(__file__).resolve().parent.parent
model = root / "train/testdata/finetune/llama"
words = (root / "train/testdata/finetune/text.txt").read_text().split()
dir = pathlib.Path(tempfile.mkdtemp())
random.seed(1)
rows = [{"id": i, "text": " ".join(random.choice(words) for _ in range(random.randint(20, 400)))} for i in range(a.records)]
with open(dir / "records.jsonl", "w") as f:
    for r in rows:
        f.write(json.dumps(r) + "\n")
import pyarrow, pyarrow.parquet

pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), dir / "records.parquet")
binary = dir / "bench.test"
subprocess.run(["go", "test", "-c", "-o", binary, "./data/sequences"], cwd=root, check=True)
env = os.environ | {"COHORT_CACHE": str(dir / "cache"), "HF_HOME": str(dir / "hf"), "TOKENIZERS_PARALLELISM": "false"}

def ours(file):
    out = subprocess.run([binary, "-test.run", "^$", "-test.bench", "Sequences", "-test.benchtime", "1x", "-records", file, "-model", model,
        "-workers", str(a.workers)], cwd=root / "data/sequences", env=env, check=True, capture_output=True, text=True).stdout
    return float(re.search(r"([\d.e+]+) records/s", out)[1])

def theirs(kind, file):
    code = f"""
import time, torch, datasets, transformers
tok = transformers.AutoTokenizer.from_pretrained({str(model)!r})
d = datasets.load_dataset({kind!r}, data_files={str(file)!r}, split="train").shuffle(seed=1)
def collate(rows):
    ids = [tok(r["text"])["input_ids"] for r in rows]
    n = max(map(len, ids))
    return torch.tensor([i + [0] * (n - len(i)) for i in ids])
l = torch.utils.data.DataLoader(d, batch_size=32, num_workers={a.workers}, collate_fn=collate, drop_last=True)
begin, n = time.time(), 0
for b in l: n += len(b)
print(n / (time.time() - begin))
"""
    return float(subprocess.run([os.environ.get("PYTHON") or "python3", "-c", code], env=env, check=True, capture_output=True, text=True).stdout)

for kind, file in {"json": dir / "records.jsonl", "parquet": dir / "records.parquet"}.items():
    ours(file), theirs(kind, file)
    rates = [(ours(file), theirs(kind, file)) for _ in range(a.rounds)]
    us, them = statistics.median(r[0] for r in rates), statistics.median(r[1] for r in rates)
    print(f"{kind}: {us:.0f} records/s, datasets and DataLoader {them:.0f}: {us / them:.2f} times", flush=True)
