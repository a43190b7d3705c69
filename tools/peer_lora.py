# SPDX-License-Identifier: Apache-2.0
"""Fine-tuning of a model of GPT-2's size (random weights, 124 million parameters),
whole and by LoRA of rank 8, in PyTorch with PEFT and by `cohort train lm`: processor
time and memory, one process of one thread (threads that wait would count), 4 sequences of 128 tokens a step, AdamW,
gradients clipped. Each is run with few and with more steps, in turn, and what a step
takes is the difference, so that loading does not count; processor time hardly
depends on what else the machine does.

    go build -o cohort ./cmd/cohort
    python tools/peer_lora.py ./cohort [ROUNDS]      (needs torch, transformers, peft)
"""
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile

FEW, MORE = 2, 6
TINY = pathlib.Path(__file__).parent.parent / "train" / "testdata" / "finetune"


def peer(folder, rank, steps):
    """Trains in PyTorch, in a process of its own."""
    import peft
    import torch
    import torch.nn.functional as F
    import transformers as hf

    torch.set_num_threads(1)
    model = hf.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="sdpa")
    if rank:
        model = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", r=rank, lora_alpha=2 * rank))
    model.train()
    for m in model.modules():
        if isinstance(m, torch.nn.Dropout):
            m.p = 0.0
    params = [p for p in model.parameters() if p.requires_grad]
    opt = torch.optim.AdamW(params, lr=1e-4, fused=True)
    ids = torch.randint(0, 300, (4, 129))
    for _ in range(steps):
        opt.zero_grad()
        logits = model(input_ids=ids[:, :-1], use_cache=False).logits
        F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten()).backward()
        torch.nn.utils.clip_grad_norm_(params, 1.0)
        opt.step()


def measure(command):
    """Returns the processor seconds of a command, and its memory in MiB."""
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=os.environ | {"COHORT_NUM_THREADS": "1"})
    _, status, used = os.wait4(child.pid, 0)
    if status:
        sys.exit(f"{command} failed")
    return used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


def main(cohort, rounds):
    import torch
    import transformers as hf

    with tempfile.TemporaryDirectory() as temp:
        model, run = f"{temp}/model", f"{temp}/run"
        torch.manual_seed(0)
        hf.GPT2LMHeadModel(hf.GPT2Config()).save_pretrained(model)
        shutil.copy(TINY / "gpt2" / "tokenizer.json", model)

        def ours(rank, steps):
            shutil.rmtree(run, ignore_errors=True)
            return measure([cohort, "train", "lm", "--ranks", "1", "--init-from", model, "--data", str(TINY / "text.txt"), "--lora", str(rank),
                            "--steps", str(steps), "--batch", "4", "--context", "128", "--sample-tokens", "0", "--eval-tokens", "128",
                            "--eval-every", "1000", "--save-every", "1000", "--out", run])

        def theirs(rank, steps):
            return measure([sys.executable, __file__, "peer", model, str(rank), str(steps)])

        for rank in [8, 0]:
            took, memory = {ours: [], theirs: []}, {ours: 0, theirs: 0}
            for _ in range(rounds):
                for what in took:
                    few, more = what(rank, FEW), what(rank, MORE)
                    took[what].append((more[0] - few[0]) / (MORE - FEW))
                    memory[what] = max(memory[what], more[1])
            a, b = (statistics.median(took[w]) for w in [ours, theirs])
            print(f"{'LoRA of rank 8' if rank else 'all weights'}: cohort {a:.2f} s and {memory[ours]:.0f} MiB, "
                  f"PyTorch {torch.__version__} {b:.2f} s and {memory[theirs]:.0f} MiB: {a / b:.2f} of the processor time "
                  f"(rounds {', '.join(f'{x / y:.2f}' for x, y in zip(took[ours], took[theirs]))})", flush=True)


if sys.argv[1] == "peer":
    peer(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
else:
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 3)
