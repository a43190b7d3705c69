# SPDX-License-Identifier: Apache-2.0
"""Writes tiny random models as transformers' save_pretrained does, and beside
each what they compute: expected.safetensors with ids, labels, logits, loss,
the gradient of every parameter (grad.NAME) and the losses of twenty steps of
AdamW. Llama is saved in shards.

    python huggingface.py       (needs torch, transformers, safetensors)
"""
import pathlib

import torch
import torch.nn.functional as F
import transformers as hf
from safetensors.torch import save_file

HERE = pathlib.Path(__file__).parent
VOCAB, CONTEXT, BATCH, TIME = 61, 24, 3, 16


def write(name, model, shard="1GB", **inputs):
    folder = HERE / name
    torch.manual_seed(5)
    with torch.no_grad():  # weights far from their small first values: every part matters
        for n, p in model.named_parameters():
            p.copy_(torch.randn_like(p) * (0.2 if p.dim() > 1 else 0.3) + (1 if "norm" in n.lower() and n.endswith("weight") or ".ln_" in n and n.endswith("weight") else 0))
    model.eval()
    model.save_pretrained(folder, max_shard_size=shard)
    ids = torch.randint(0, VOCAB, (BATCH, TIME))
    labels = torch.randint(0, VOCAB, (BATCH, TIME))

    def loss():
        logits = model(input_ids=ids, **inputs).logits
        return logits, F.cross_entropy(logits.reshape(-1, VOCAB), labels.reshape(-1))

    logits, first = loss()
    first.backward()
    out = {"ids": ids, "labels": labels, "logits": logits.detach(), "loss": first.detach().reshape(1)}
    out |= {k: v for k, v in inputs.items()}
    out |= {"grad." + n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
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


write("gpt2", hf.GPT2LMHeadModel(hf.GPT2Config(
    vocab_size=VOCAB, n_positions=CONTEXT, n_embd=32, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0)))
write("llama", hf.LlamaForCausalLM(hf.LlamaConfig(
    vocab_size=VOCAB, max_position_embeddings=CONTEXT, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2, rms_norm_eps=1e-6)), shard="30KB")
write("llama3", hf.LlamaForCausalLM(hf.LlamaConfig(
    vocab_size=VOCAB, max_position_embeddings=64, hidden_size=32, intermediate_size=48, num_hidden_layers=1,
    num_attention_heads=4, num_key_value_heads=1, head_dim=16, tie_word_embeddings=True,
    rope_parameters={"rope_type": "llama3", "rope_theta": 500.0, "factor": 4.0, "low_freq_factor": 1.0,
                     "high_freq_factor": 4.0, "original_max_position_embeddings": 16})))
mask = torch.ones(BATCH, TIME, dtype=torch.int64)
mask[1, 10:] = 0
mask[2, 13:] = 0
segments = (torch.arange(TIME) > 6).long().expand(BATCH, TIME)
write("bert", hf.BertForMaskedLM(hf.BertConfig(
    vocab_size=VOCAB, max_position_embeddings=CONTEXT, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
    num_attention_heads=4)), attention_mask=mask, token_type_ids=segments)
