# SPDX-License-Identifier: Apache-2.0
"""Writes a tiny random model of each family of decoders as transformers'
save_pretrained does, and beside each what it computes: expected.safetensors with
ids, labels, logits, the gradient of every parameter (grad.NAME), the losses of
twenty steps of AdamW, and what it generates greedily from a short prompt. The
sequences are longer than the windows. rope.json has the frequencies of rotations.

    python families.py [NAME]...       (needs torch, transformers 5, safetensors)
    python families.py check DIR...    opens folders that somebody else wrote
"""
import json
import pathlib
import shutil
import sys

import torch
import torch.nn.functional as F
import transformers as hf
from safetensors.torch import load_file, save_file

hf.logging.set_verbosity_error()
HERE = pathlib.Path(__file__).parent / "families"
VOCAB, BATCH, TIME, NEW = 29, 2, 11, 14
SIZES = dict(vocab_size=VOCAB, max_position_embeddings=48, hidden_size=16, intermediate_size=18, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, pad_token_id=None, bos_token_id=None, eos_token_id=None)


def yarn(factor=4.0, first=12, **more):
    return {"rope_type": "yarn", "rope_theta": 300.0, "factor": factor, "original_max_position_embeddings": first, **more}


FAMILIES = {
    "mistral": lambda: hf.MistralConfig(**SIZES, head_dim=6, sliding_window=4),
    "llama3": lambda: hf.LlamaConfig(**SIZES, head_dim=6, tie_word_embeddings=True, attention_bias=True, mlp_bias=True, rope_parameters={
        "rope_type": "llama3", "rope_theta": 500.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 12}),
    "smollm3": lambda: hf.SmolLM3Config(**SIZES, no_rope_layer_interval=2, use_sliding_window=True, sliding_window=4),
    "qwen2": lambda: hf.Qwen2Config(**SIZES, tie_word_embeddings=True, use_sliding_window=True, sliding_window=4, max_window_layers=1, rope_parameters=yarn()),
    "qwen3": lambda: hf.Qwen3Config(**SIZES, head_dim=6, tie_word_embeddings=True),
    "qwen3-window": lambda: hf.Qwen3Config(**(SIZES | dict(max_position_embeddings=16)), head_dim=6, attention_bias=True, use_sliding_window=True,
                                           sliding_window=5, layer_types=["sliding_attention", "full_attention"],
                                           rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 100.0}),
    "gemma2": lambda: hf.Gemma2Config(**SIZES, head_dim=6, query_pre_attn_scalar=10, sliding_window=4, attn_logit_softcapping=2.0, final_logit_softcapping=3.0),
    "gemma3": lambda: hf.Gemma3TextConfig(**SIZES, head_dim=6, query_pre_attn_scalar=10, sliding_window=4, sliding_window_pattern=2, rope_parameters={
        "sliding_attention": {"rope_type": "default", "rope_theta": 100.0}, "full_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1000.0}}),
    "mixtral": lambda: hf.MixtralConfig(**SIZES, head_dim=6, num_local_experts=4, num_experts_per_tok=2, sliding_window=4),
    "qwen2-moe": lambda: hf.Qwen2MoeConfig(**(SIZES | dict(num_hidden_layers=3)), num_experts=5, num_experts_per_tok=3, moe_intermediate_size=6, shared_expert_intermediate_size=10,
                                           mlp_only_layers=[1], use_sliding_window=True, sliding_window=4, max_window_layers=2),
    "qwen3-moe": lambda: hf.Qwen3MoeConfig(**SIZES, head_dim=6, tie_word_embeddings=True, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=6, norm_topk_prob=True),
}


def experts_eager(config):
    """The plain loop over experts: grouped products want widths of multiples of four."""
    return {"experts_implementation": "eager"} if hasattr(config, "num_experts_per_tok") else {}


def ours(name, model_type, x):
    """A tensor of the model under the names that the stacks of experts have in Cohort."""
    if model_type == "mixtral":
        name = name.replace(".mlp.", ".block_sparse_moe.")
    if name.endswith(".experts.gate_up_proj"):
        gate, up = x.chunk(2, dim=1)
        return {name.replace("gate_up_proj", "gate_proj"): gate, name.replace("gate_up_proj", "up_proj"): up}
    return {name: x}


def write(name):
    folder = HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    torch.manual_seed(5)
    config = FAMILIES[name]()
    model = hf.AutoModelForCausalLM.from_config(config, attn_implementation="eager", **experts_eager(config))
    plus_one = "gemma" in name
    with torch.no_grad():  # weights far from their small first values: every part matters
        for n, p in model.named_parameters():
            p.copy_(torch.randn_like(p) * (0.3 if p.dim() > 1 else 0.4) + (1 if "norm" in n and not plus_one else 0))
    model.eval()
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    ids, labels = torch.randint(0, VOCAB, (BATCH, TIME)), torch.randint(0, VOCAB, (BATCH, TIME))

    def loss():
        logits = model(input_ids=ids, use_cache=False).logits
        return logits, F.cross_entropy(logits.reshape(-1, VOCAB), labels.reshape(-1))

    generated = model.generate(ids[:1, :3], do_sample=False, max_new_tokens=NEW, min_new_tokens=NEW)
    logits, first = loss()
    first.backward()
    out = {"ids": ids, "labels": labels, "logits": logits.detach(), "generated": generated}
    for n, p in model.named_parameters():
        if p.grad is not None:
            out |= {"grad." + k: g.clone() for k, g in ours(n, config.model_type, p.grad).items()}
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
    print(name, sum(f.stat().st_size for f in folder.iterdir()), "bytes, losses", f"{losses[0]:.4f} … {losses[-1]:.4f}, generated", generated[0].tolist())


ROTATIONS = {
    "linear": {"rope_type": "linear", "factor": 3.0},
    "dynamic": {"rope_type": "dynamic", "factor": 2.0},
    "llama3": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
    "yarn, all": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "beta_fast": 20, "beta_slow": 2, "attention_factor": 0.7, "truncate": False},
    "yarn, mscale": {"rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 64, "mscale": 0.707, "mscale_all_dim": 1.2},
    "longrope": {"rope_type": "longrope", "factor": 4.0, "original_max_position_embeddings": 64,
                 "short_factor": [1 + i / 10 for i in range(8)], "long_factor": [1 + i for i in range(8)]},
    "longrope, no factor": {"rope_type": "longrope", "original_max_position_embeddings": 64, "attention_factor": 1.3,
                            "short_factor": [1.0] * 8, "long_factor": [2.0] * 8},
}


def rotations():
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    out = []
    for name, p in ROTATIONS.items():
        for length in (32, 256, 700):
            text = dict(model_type="llama", hidden_size=64, num_attention_heads=4, max_position_embeddings=256, rope_parameters=dict(p, rope_theta=5000.0))
            config = hf.LlamaConfig(**json.loads(json.dumps(text)))
            # As a pass asks for it: a tensor, where the length matters.
            frequencies, amplitude = ROPE_INIT_FUNCTIONS[p["rope_type"]](config, "cpu", seq_len=torch.tensor(length))
            out.append(dict(name=name, config=text, length=length, frequencies=frequencies.tolist(), amplitude=amplitude))
    (HERE / "rope.json").write_text("[\n" + ",\n".join(json.dumps(o) for o in out) + "\n]\n")


def check(folder):
    """Whether a folder computes what is expected of it, or how far it is from it."""
    want = load_file(folder / "expected.safetensors")
    eager = experts_eager(hf.AutoConfig.from_pretrained(folder))
    model, info = hf.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True, **eager)
    with torch.no_grad():
        out = model.eval()(input_ids=want["ids"]).logits
    far = ((out - want["logits"]).abs().max() / want["logits"].abs().max()).item()
    wrong = {k: sorted(v) for k, v in info.items() if v}
    return wrong or far > 1e-5 and f"differs by {far:.1e} of the largest"


if __name__ == "__main__":
    if sys.argv[1:2] == ["check"]:
        wrong = {f: w for f in sys.argv[2:] if (w := check(pathlib.Path(f)))}
        print(wrong or "all equal")
        sys.exit(bool(wrong))
    HERE.mkdir(exist_ok=True)
    for name in sys.argv[1:] or FAMILIES:
        write(name)
    rotations()
