# SPDX-License-Identifier: Apache-2.0
"""Writes LoRA adapters of the models of huggingface.py as PEFT's
save_pretrained does, and beside each what it computes: expected.safetensors
with ids, labels, logits, loss, the gradient of every added matrix
(grad.NAME) and the losses of twenty steps of AdamW.

    python lora.py       (needs torch, transformers, peft, safetensors)

    python lora.py open BASE ADAPTER     prints the logits of an adapter of somebody
    python lora.py open MODEL            else's, or of a model, for the tokens 0 to 15
"""
import os
import pathlib
import sys

import peft
import torch
import torch.nn.functional as F
import transformers as hf
from safetensors.torch import save_file

HERE = pathlib.Path(__file__).parent
VOCAB, BATCH, TIME = 61, 3, 16

if sys.argv[1:2] == ["open"]:
    model = hf.AutoModelForCausalLM.from_pretrained(sys.argv[2])
    if len(sys.argv) > 3:
        model = peft.PeftModel.from_pretrained(model, sys.argv[3])
    model.eval()
    with torch.no_grad():
        for v in model(input_ids=torch.arange(16).reshape(1, 16)).logits.flatten().tolist():
            print(v)
    sys.exit()


def write(name, base, **config):
    folder = HERE / name
    model = hf.AutoModelForCausalLM.from_pretrained(HERE / base)
    model = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", **config))
    torch.manual_seed(7)
    with torch.no_grad():
        for n, p in model.named_parameters():
            if "lora_" in n:
                p.copy_(torch.randn_like(p) * 0.2)
    model.eval()
    # As the tests, which run two folders up, find it.
    model.peft_config["default"].base_model_name_or_path = f"testdata/golden/{base}"
    model.save_pretrained(folder)
    os.remove(folder / "README.md")
    ids = torch.randint(0, VOCAB, (BATCH, TIME))
    labels = torch.randint(0, VOCAB, (BATCH, TIME))

    def loss():
        logits = model(input_ids=ids).logits
        return logits, F.cross_entropy(logits.reshape(-1, VOCAB), labels.reshape(-1))

    logits, first = loss()
    first.backward()
    out = {"ids": ids, "labels": labels, "logits": logits.detach(), "loss": first.detach().reshape(1)}
    out |= {"grad." + n.replace(".default", ""): p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    opt = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=3e-3, weight_decay=0.01)
    losses = []
    for _ in range(20):
        opt.zero_grad()
        _, now = loss()
        losses.append(now.item())
        now.backward()
        opt.step()
    out["losses"] = torch.tensor(losses)
    save_file({k: v.contiguous() for k, v in out.items()}, folder / "expected.safetensors")
    print(name, [f.name for f in sorted(folder.iterdir())], f"losses {losses[0]:.4f} … {losses[-1]:.4f}")


write("gpt2-lora", "gpt2", r=4, lora_alpha=8, target_modules=["c_attn", "mlp.c_proj"])
write("llama-lora", "llama", r=2, lora_alpha=6, use_rslora=True, target_modules="all-linear")
