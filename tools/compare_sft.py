# SPDX-License-Identifier: Apache-2.0
"""Compares supervised fine-tuning of a LoRA on prompts with completions: `cohort train lm`
beside transformers with PEFT, in one run, in turns. The model has the shape of Qwen3-0.6B
(random weights; DEPTH of its 28 layers), the LoRA the rank 16 beside all projections. A step
has 2 rows of 256 tokens, of which 156 are completions that count; AdamW, gradients clipped.
PEFT gets its tokens ready made. Prints the medians of tokens a second and the peak of memory.

    go build -o cohort ./cmd/cohort
    python tools/compare_sft.py ./cohort [DEPTH] [STEPS] [ROUNDS]     (needs torch, transformers, peft)

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

ROWS, TOKENS, PROMPT, RANK = 2, 256, 100, 16


def threads():
    return int(os.environ.get("OMP_NUM_THREADS") or os.cpu_count())


def make(folder, depth):
    """Writes the model and a tokenizer of bytes."""
    import torch
    import transformers as hf
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    tok = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, merges=[]))
    tok.pre_tokenizer, tok.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    hf.PreTrainedTokenizerFast(tokenizer_object=tok).save_pretrained(folder)
    torch.manual_seed(1)
    hf.Qwen3ForCausalLM(hf.Qwen3Config(
        vocab_size=151936, hidden_size=1024, intermediate_size=3072, num_hidden_layers=depth, num_attention_heads=16, num_key_value_heads=8, head_dim=128,
        tie_word_embeddings=True, max_position_embeddings=2048, eos_token_id=None, bos_token_id=None)).save_pretrained(folder)


def peer(folder, records, steps):
    """Trains with PEFT, in a process of its own; prints the tokens a second of each step."""
    import peft
    import torch
    import transformers as hf

    torch.set_num_threads(threads())
    tok = hf.AutoTokenizer.from_pretrained(folder)
    model = hf.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="sdpa", dtype=torch.float32)
    model = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", r=RANK, lora_alpha=2 * RANK, target_modules="all-linear"))
    model.train()
    params = [p for p in model.parameters() if p.requires_grad]
    opt = torch.optim.AdamW(params, lr=1e-3, weight_decay=0.01, fused=True)
    rows = [json.loads(line) for line in open(records)]
    ids = torch.tensor([tok(r["prompt"] + r["completion"]).input_ids for r in rows])
    labels = ids.clone()
    labels[:, :PROMPT] = -100
    for i in range(steps):
        begin, at = time.perf_counter(), slice(i * ROWS, (i + 1) * ROWS)
        opt.zero_grad()
        model(input_ids=ids[at], labels=labels[at], use_cache=False).loss.backward()
        torch.nn.utils.clip_grad_norm_(params, 1.0)
        opt.step()
        print(json.dumps({"tokens_per_s": ROWS * TOKENS / (time.perf_counter() - begin)}), flush=True)


def measure(command):
    """Returns the median of the tokens a second, without the first step, and MiB at the peak."""
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | {"COHORT_NUM_THREADS": str(threads()), "TOKENIZERS_PARALLELISM": "false"})
    steps = [s["tokens_per_s"] for s in map(json.loads, filter(lambda line: line.startswith("{"), child.stdout)) if "tokens_per_s" in s]
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = status
    if status:
        sys.exit(f"{command} failed")
    return statistics.median(steps[1:]), used.ru_maxrss / 1024


def main(cohort, depth, steps, rounds):
    with tempfile.TemporaryDirectory() as temp:
        folder, records, out = f"{temp}/model", f"{temp}/records.jsonl", f"{temp}/run"
        subprocess.run([sys.executable, __file__, "make", folder, str(depth)], check=True)
        r = random.Random(1)
        letters = "abcdefghijklmnopqrstuvwxyz "
        with open(records, "w") as f:
            for _ in range(ROWS * steps + 1):  # the last is held out
                text = "".join(r.choices(letters, k=TOKENS + 1))
                f.write(json.dumps({"prompt": text[:PROMPT], "completion": text[PROMPT:]}) + "\n")

        def ours():
            shutil.rmtree(out, ignore_errors=True)
            return measure([cohort, "train", "lm", "--ranks", "1", "--init-from", folder, "--data", records, "--lora", str(RANK), "--lora-targets", "all",
                            "--steps", str(steps), "--batch", str(ROWS), "--context", str(TOKENS), "--sample-tokens", "0", "--eval-tokens", str(TOKENS), "--best=false",
                            "--eval-every", "1000", "--save-every", "1000", "--json", "--out", out])

        def theirs():
            return measure([sys.executable, __file__, "peer", folder, records, str(steps)])

        got = {ours: [], theirs: []}
        for _ in range(rounds):
            for what in got:
                got[what].append(what())
        a, b = (statistics.median(x for x, _ in got[w]) for w in (ours, theirs))
        m, n = (max(x for _, x in got[w]) for w in (ours, theirs))
        print(f"LoRA of rank {RANK}, {depth} layers of Qwen3-0.6B, {ROWS} rows of {TOKENS} tokens, {threads()} threads: cohort {a:.1f} tokens/s and {m:.0f} MiB, "
              f"PEFT {b:.1f} tokens/s and {n:.0f} MiB: {a / b:.2f} times the rate (rounds {', '.join(f'{x / y:.2f}' for (x, _), (y, _) in zip(got[ours], got[theirs]))})")


if sys.argv[1] == "peer":
    peer(sys.argv[2], sys.argv[3], int(sys.argv[4]))
elif sys.argv[1] == "make":
    make(sys.argv[2], int(sys.argv[3]))
else:
    main(sys.argv[1], *(int(x) for x in (sys.argv[2:] + ["28", "4", "1"][len(sys.argv) - 2:])))
