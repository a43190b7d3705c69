# SPDX-License-Identifier: Apache-2.0
"""Makes gpt.safetensors: a small GPT with its weights, one batch, the gradients by name, and the losses of
20 steps with SGD and with AdamW, computed by PyTorch. Run with any PyTorch 2 and the safetensors package."""
import torch, torch.nn.functional as F
from safetensors.torch import save_file

VOCAB, CONTEXT, WIDTH, HEADS, LAYERS, BATCH, TIME, STEPS = 61, 24, 32, 4, 2, 3, 17, 20
torch.manual_seed(11)


def weights():
    w = {"transformer.wte.weight": torch.randn(VOCAB, WIDTH) * 0.1, "transformer.wpe.weight": torch.randn(CONTEXT, WIDTH) * 0.1}
    for i in range(LAYERS):
        p = f"transformer.h.{i}."
        for norm in ("ln_1", "ln_2"):
            w[p + norm + ".weight"], w[p + norm + ".bias"] = 1 + 0.1 * torch.randn(WIDTH), 0.1 * torch.randn(WIDTH)
        for name, n_in, n_out in (("attn.c_attn", WIDTH, 3 * WIDTH), ("attn.c_proj", WIDTH, WIDTH),
                                  ("mlp.c_fc", WIDTH, 4 * WIDTH), ("mlp.c_proj", 4 * WIDTH, WIDTH)):
            w[p + name + ".weight"], w[p + name + ".bias"] = torch.randn(n_in, n_out) * 0.15, 0.1 * torch.randn(n_out)
    w["transformer.ln_f.weight"], w["transformer.ln_f.bias"] = 1 + 0.1 * torch.randn(WIDTH), 0.1 * torch.randn(WIDTH)
    return w


def forward(w, ids):
    norm = lambda x, p: F.layer_norm(x, (WIDTH,), w[p + ".weight"], w[p + ".bias"], 1e-5)
    proj = lambda x, p: x @ w[p + ".weight"] + w[p + ".bias"]
    b, t = ids.shape
    x = w["transformer.wte.weight"][ids] + w["transformer.wpe.weight"][:t]
    for i in range(LAYERS):
        p = f"transformer.h.{i}."
        q, k, v = proj(norm(x, p + "ln_1"), p + "attn.c_attn").view(b, t, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, WIDTH)
        x = x + proj(y, p + "attn.c_proj")
        x = x + proj(F.gelu(proj(norm(x, p + "ln_2"), p + "mlp.c_fc")), p + "mlp.c_proj")
    return norm(x, "transformer.ln_f") @ w["transformer.wte.weight"].T


def loss_of(w, ids, targets):
    return F.cross_entropy(forward(w, ids).view(-1, VOCAB), targets.view(-1))


start = weights()
ids, targets = torch.randint(0, VOCAB, (BATCH, TIME)), torch.randint(0, VOCAB, (BATCH, TIME))
out = {"ids": ids, "targets": targets} | {"weight." + k: v for k, v in start.items()}
for name, make in (("sgd", lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)),
                   ("adamw", lambda p: torch.optim.AdamW(p, lr=3e-3, weight_decay=0.1))):
    w = {k: v.clone().requires_grad_() for k, v in start.items()}
    opt, losses = make(list(w.values())), []
    for step in range(STEPS):
        opt.zero_grad()
        loss = loss_of(w, ids, targets)
        loss.backward()
        if step == 0 and name == "sgd":
            out |= {"grad." + k: v.grad.clone() for k, v in w.items()}
        opt.step()
        losses.append(loss.item())
    out["losses." + name] = torch.tensor(losses)
save_file(out, "gpt.safetensors", {"torch": torch.__version__})
