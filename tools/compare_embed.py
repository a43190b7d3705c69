# SPDX-License-Identifier: Apache-2.0
"""Compares contrastive training of an encoder of MiniLM's shape (6 layers, width 384, random
weights): `cohort train embed` beside sentence-transformers, in one run, in turns. A step has
32 pairs of texts of 128 tokens; AdamW, gradients clipped. sentence-transformers gets its
tokens ready made. Prints the medians of tokens a second and the peak of memory.

    go build -o cohort ./cmd/cohort
    python tools/compare_embed.py ./cohort [STEPS] [ROUNDS]     (needs torch, transformers, sentence-transformers)

Both use as many threads as OMP_NUM_THREADS says, else all cores.
"""
import json
import os
import pathlib
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

PAIRS, TOKENS = 32, 128
TINY = pathlib.Path(__file__).parent.parent / "train" / "testdata" / "encoder"


def threads():
    return int(os.environ.get("OMP_NUM_THREADS") or os.cpu_count())


def make(folder):
    """Writes the model, with the tokenizer of a tiny one."""
    import torch
    import transformers as hf

    shutil.copytree(TINY, folder)
    (pathlib.Path(folder) / "model.safetensors").unlink()
    path = pathlib.Path(folder) / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"model_max_length": TOKENS}))
    torch.manual_seed(1)
    hf.BertModel(hf.BertConfig(vocab_size=30522, hidden_size=384, intermediate_size=1536, num_hidden_layers=6, num_attention_heads=12, pad_token_id=1)).save_pretrained(folder)


def peer(folder, records, steps):
    """Trains with sentence-transformers, in a process of its own; prints the tokens a second of each step."""
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.losses import MultipleNegativesRankingLoss

    torch.set_num_threads(threads())
    model = SentenceTransformer(folder, device="cpu").train()
    model.max_seq_length = TOKENS
    loss, opt = MultipleNegativesRankingLoss(model), torch.optim.AdamW(model.parameters(), lr=2e-5, weight_decay=0.01, fused=True)
    rows = [json.loads(line) for line in open(records)]
    batches = [[model.tokenize([row[k] for row in rows[i * PAIRS:(i + 1) * PAIRS]]) for k in ("anchor", "positive")] for i in range(steps)]
    for features in batches:
        tokens, begin = sum(f["input_ids"].numel() for f in features), time.perf_counter()
        opt.zero_grad()
        loss([dict(f) for f in features], None).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        print(json.dumps({"tokens_per_s": tokens / (time.perf_counter() - begin)}), flush=True)


def measure(command):
    """Returns the median of the tokens a second, without the first step, and MiB at the peak."""
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | {"COHORT_NUM_THREADS": str(threads()), "TOKENIZERS_PARALLELISM": "false"})
    steps = [s["tokens_per_s"] for s in map(json.loads, filter(lambda line: line.startswith("{"), child.stdout)) if "tokens_per_s" in s]
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = status
    if status:
        sys.exit(f"{command} failed")
    return statistics.median(steps[1:]), used.ru_maxrss / 1024


def main(cohort, steps, rounds):
    with tempfile.TemporaryDirectory() as temp:
        folder, records, out = f"{temp}/model", f"{temp}/pairs.jsonl", f"{temp}/run"
        subprocess.run([sys.executable, __file__, "make", folder], check=True)
        r = random.Random(1)
        words = ["tea", "bread", "milk", "boat", "lamp", "chair", "train", "coat", "soup", "rice", "clock", "bell"]
        with open(records, "w") as f:
            for _ in range(PAIRS * steps):
                f.write(json.dumps({k: " ".join(r.choices(words, k=TOKENS + 20)) for k in ("anchor", "positive")}) + "\n")

        def ours():
            shutil.rmtree(out, ignore_errors=True)
            return measure([cohort, "train", "embed", "--ranks", "1", "--init-from", folder, "--data", records, "--batch", str(PAIRS), "--epochs", "1", "--validation", "0",
                            "--eval-every", "0", "--save-every", "1000", "--best=false", "--json", "--out", out])

        def theirs():
            return measure([sys.executable, __file__, "peer", folder, records, str(steps)])

        got = {ours: [], theirs: []}
        for _ in range(rounds):
            for what in got:
                got[what].append(what())
        a, b = (statistics.median(x for x, _ in got[w]) for w in (ours, theirs))
        m, n = (max(x for _, x in got[w]) for w in (ours, theirs))
        print(f"{PAIRS} pairs of {TOKENS} tokens, MiniLM's shape, {threads()} threads: cohort {a:.0f} tokens/s and {m:.0f} MiB, sentence-transformers {b:.0f} tokens/s and {n:.0f} MiB: "
              f"{a / b:.2f} times the rate (rounds {', '.join(f'{x / y:.2f}' for (x, _), (y, _) in zip(got[ours], got[theirs]))})")


if sys.argv[1] == "peer":
    peer(sys.argv[2], sys.argv[3], int(sys.argv[4]))
elif sys.argv[1] == "make":
    make(sys.argv[2])
else:
    main(sys.argv[1], *(int(x) for x in (sys.argv[2:] + ["6", "1"][len(sys.argv) - 2:])))
