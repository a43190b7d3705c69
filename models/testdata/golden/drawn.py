# SPDX-License-Identifier: Apache-2.0
"""Draws models of the known families at random: sizes, settings, how they are
said in config.json, names and types of the tensors, shards. Writes each to a
folder of its own, with expected.safetensors: ids, and what transformers
computes of them once it has read the folder.

    python drawn.py DIR COUNT SEED             (needs torch, transformers, peft,
    python drawn.py DIR COUNT SEED adapters     safetensors)
    python drawn.py check DIR                  compares folders that somebody else wrote

With adapters each folder has a base and a LoRA of PEFT's beside it, whose
config names it by the path from the folder of the tests.
"""
import json
import pathlib
import random
import re
import shutil
import sys

import torch
import transformers as hf
from safetensors.torch import load_file, save_file

hf.logging.set_verbosity_error()
ACTIVATIONS = ["gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh", "gelu_python", "gelu_accurate", "gelu_10", "quick_gelu", "silu", "swish",
               "relu", "relu2", "relu6", "tanh", "sigmoid", "mish", "leaky_relu", "linear", "hardswish"]


def some(r, **choices):
    """Each key or not, with one of its values."""
    return {k: r.choice(v) for k, v in choices.items() if r.random() < 0.5}


def gpt2(r):
    heads = r.choice([1, 2, 4])
    c = dict(model_type="gpt2", vocab_size=r.randint(9, 19), n_positions=16, n_embd=heads * r.choice([2, 3, 4]), n_head=heads, n_layer=r.randint(1, 2))
    c |= some(r, n_inner=[None, 7, 20], activation_function=ACTIVATIONS, layer_norm_epsilon=[1e-3, 1e-6], tie_word_embeddings=[True, False],
              scale_attn_weights=[True, False], scale_attn_by_inverse_layer_idx=[True, False], reorder_and_upcast_attn=[True, False],
              attn_pdrop=[0.0, 0.3], n_ctx=[16], summary_type=["cls_index"], use_cache=[False], pad_token_id=[None, 0])
    if r.random() < 0.2:  # under the names that other families have
        for own, common in {"n_embd": "hidden_size", "n_head": "num_attention_heads", "n_layer": "num_hidden_layers", "n_positions": "max_position_embeddings"}.items():
            if r.random() < 0.5:
                c[common] = c.pop(own)
    return c


def rotated(r):
    heads = r.choice([1, 2, 4])
    head_dim = r.choice([2, 4, 6])
    c = dict(vocab_size=r.randint(9, 19), hidden_size=heads * r.choice([2, 4, 6]), intermediate_size=r.randint(5, 12), num_hidden_layers=r.randint(1, 2),
             num_attention_heads=heads, max_position_embeddings=r.choice([16, 32, 64]), head_dim=head_dim)
    c["num_key_value_heads"] = r.choice([n for n in (1, 2, 4, None) if n is None or heads % n == 0])
    if c["hidden_size"] == heads * head_dim and r.random() < 0.5:
        c["head_dim"] = None
    c |= some(r, rms_norm_eps=[1e-5, 1e-3], hidden_act=["silu"] + ACTIVATIONS, tie_word_embeddings=[True, False], attention_dropout=[0.0, 0.2],
              pretraining_tp=[1, 2], pad_token_id=[None, 0], rope_interleaved=[False], logit_scale=[None, 1.0], partial_rotary_factor=[1.0])
    llama3 = dict(rope_type="llama3", factor=r.choice([2.0, 8.0]), low_freq_factor=1.0, high_freq_factor=4.0)
    if r.random() < 0.6:
        llama3["original_max_position_embeddings"] = r.choice([4, 8])
    scaling = r.choice([None, None, {}, {"rope_type": "linear", "factor": 3.0}, {"type": "linear", "factor": 2}, llama3, {"rope_type": "default"},
                        {"type": "linear", "rope_type": "default", "factor": 2.0}])
    if r.random() < 0.5:
        c["rope_scaling"] = scaling
        if scaling and r.random() < 0.2:
            scaling["rope_theta"] = 300.0
    if r.random() < 0.5:
        c["rope_parameters"] = r.choice([None, {"rope_type": "default", "rope_theta": 500.0}, {"rope_type": "linear", "factor": 4.0}, dict(llama3, rope_theta=700)])
    c |= some(r, rope_theta=[10000, 100.0], original_max_position_embeddings=[8])
    return c


def llama(r):
    return rotated(r) | dict(model_type="llama") | some(r, attention_bias=[True, False], mlp_bias=[True, False], sliding_window=[None, 64])


def mistral(r):
    c = rotated(r)
    if c["num_key_value_heads"] is None:  # not allowed here
        c["num_key_value_heads"] = 1
    return c | dict(model_type="mistral") | some(r, sliding_window=[None, 3, 8, 12, 4096], attention_bias=[False])


def bert(r):
    heads = r.choice([1, 2, 4])
    c = dict(model_type="bert", vocab_size=r.randint(9, 19), max_position_embeddings=16, hidden_size=heads * r.choice([2, 3, 4]), num_attention_heads=heads,
             num_hidden_layers=r.randint(1, 2), intermediate_size=r.randint(5, 12))
    return c | some(r, hidden_act=ACTIVATIONS, layer_norm_eps=[1e-6, 1e-3], type_vocab_size=[1, 3], tie_word_embeddings=[True, False], pad_token_id=[None, 3],
                    hidden_dropout_prob=[0.0, 0.2], attention_probs_dropout_prob=[0.0, 0.3], classifier_dropout=[None, 0.1], position_embedding_type=["absolute"],
                    gradient_checkpointing=[False], pooler_type=["first_token_transform"])


def tensors(r, config, model):
    """The tensors under names and with types that published files have."""
    state = {k: v.detach().clone() for k, v in model.state_dict().items()}
    kind = config["model_type"]
    table, output = {"gpt2": ("transformer.wte.weight", "lm_head.weight"), "bert": ("bert.embeddings.word_embeddings.weight", "cls.predictions.decoder.weight")}.get(
        kind, ("model.embed_tokens.weight", "lm_head.weight"))
    if output in state and model.config.tie_word_embeddings:
        how = r.choice(["table", "table", "output", "both", "other"])
        if how == "table":
            del state[output]
        elif how == "output":
            del state[table]
        elif how == "other":
            state[output] = torch.randn_like(state[output])
    bare, own = "cls.predictions.bias", "cls.predictions.decoder.bias"
    if own in state:
        how = r.choice(["bare", "own", "both", "other"]) if model.config.tie_word_embeddings else "both"
        if how == "bare":
            del state[own]
        elif how == "own":
            del state[bare]
        elif how == "other":
            state[own] = torch.randn_like(state[own])
    prefix = {"gpt2": "transformer.", "bert": "bert."}.get(kind, "model.")
    if not any(k.startswith(prefix) for k in state) and r.random() < 0.5:
        state = {prefix + k: v for k, v in state.items()}
    elif any(k.startswith(prefix) for k in state) and r.random() < 0.3:
        state = {k.removeprefix(prefix): v for k, v in state.items()}
    if kind == "bert":
        if r.random() < 0.3:
            state = {re.sub("LayerNorm.bias$", "LayerNorm.beta", re.sub("LayerNorm.weight$", "LayerNorm.gamma", k)): v for k, v in state.items()}
        if r.random() < 0.3:
            state["bert.embeddings.position_ids"] = torch.arange(16).reshape(1, 16)
        if r.random() < 0.3 and any(k.startswith("cls.") for k in state):
            state["cls.seq_relationship.weight"] = torch.randn(2, model.config.hidden_size)
    if kind == "gpt2" and r.random() < 0.3:
        state["transformer.h.0.attn.bias"] = torch.ones(1, 1, 16, 16).tril()
        state["transformer.h.0.attn.masked_bias"] = torch.tensor(-1e4)
    if kind in ("llama", "mistral") and r.random() < 0.3:
        state["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(1)
    dtypes = r.choice([[torch.float32], [torch.float32], [torch.float64], [torch.float16], [torch.bfloat16], [torch.float32, torch.float64, torch.bfloat16, torch.float16]])
    return {k: v.to(r.choice(dtypes)).contiguous() if v.is_floating_point() else v for k, v in state.items()}


def draw(r, folder):
    config = r.choice([gpt2, llama, mistral, bert])(r)
    causal = config["model_type"] != "bert"
    make = hf.AutoModelForCausalLM if causal else r.choice([hf.AutoModelForMaskedLM, hf.AutoModelForMaskedLM, hf.AutoModel])
    torch.manual_seed(r.randrange(1 << 30))
    model = make.from_config(hf.AutoConfig.for_model(**json.loads(json.dumps(config))), attn_implementation="eager")
    with torch.no_grad():
        for n, p in model.named_parameters():
            p.copy_(torch.randn_like(p) * (0.5 if p.dim() > 1 else 0.4) + (1 if p.dim() == 1 and n.endswith("weight") else 0))
    config["architectures"] = [type(model).__name__]
    config |= some(r, dtype=["float32"], torch_dtype=["float32", "bfloat16"], transformers_version=["4.40.0"], eos_token_id=[1, [1, 2]], _name_or_path=["a/b"])
    state = tensors(r, config, model)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    if r.random() < 0.2 and len(state) > 3:
        names = sorted(state)
        cut = r.randrange(1, len(names))
        where = {n: f"model-0000{1 + (i >= cut)}-of-00002.safetensors" for i, n in enumerate(names)}
        for shard in set(where.values()):
            save_file({n: state[n] for n in names if where[n] == shard}, folder / shard, metadata={"format": "pt"})
        index = {"weight_map": where} | r.choice([{"metadata": {}}, {"metadata": {"total_size": 1e3, "total_parameters": 5}}])
        (folder / "model.safetensors.index.json").write_text(json.dumps(index) + "\n")
    else:
        save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    model, info = make.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
    missing = [k for k in info["missing_keys"] if "pooler" not in k and k != "cls.predictions.bias"]
    assert not missing and not info["mismatched_keys"], (folder, info)
    ids = torch.randint(0, model.config.vocab_size, (2, 14))
    with torch.no_grad():
        out = model.eval()(input_ids=ids)
    out = out.logits if hasattr(out, "logits") else out.last_hidden_state
    assert out.isfinite().all(), folder
    save_file({"ids": ids, "logits": out.float().contiguous()}, folder / "expected.safetensors")


def draw_adapter(r, folder):
    import peft

    config = (dict(model_type="gpt2", vocab_size=11, n_positions=16, n_embd=8, n_head=2, n_layer=2) if r.random() < 0.5 else
              dict(model_type=r.choice(["llama", "mistral"]), vocab_size=11, max_position_embeddings=16, hidden_size=8, intermediate_size=10, num_hidden_layers=2,
                   num_attention_heads=2, num_key_value_heads=1))
    gpt = config["model_type"] == "gpt2"
    torch.manual_seed(r.randrange(1 << 30))
    model = hf.AutoModelForCausalLM.from_config(hf.AutoConfig.for_model(**config))
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn_like(p) * 0.5)
    model.save_pretrained(folder / "base")
    names = ["c_attn", "c_proj", "c_fc"] if gpt else ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    blocks = "transformer.h" if gpt else "model.layers"
    targets = r.choice([r.sample(names, r.randint(1, 3)), names, "all-linear", f"{blocks}.[01].*({'|'.join(names[:2])})".replace(".", r"\.", 1)])
    pattern = lambda: r.choice([names[0], names[-1], "|".join(names[:2]), f"{blocks}.1.*", f"{blocks}.0.*{names[1]}", ".*proj", r"[01]\..*", "^" + names[0], "nothing"])
    c = dict(r=r.randint(1, 4), lora_alpha=r.choice([1, 4, 16]), target_modules=targets, use_rslora=r.random() < 0.3, fan_in_fan_out=gpt or r.random() < 0.2,
             rank_pattern={pattern(): r.randint(1, 5) for _ in range(r.randint(0, 3))}, alpha_pattern={pattern(): r.choice([1, 2.5, 32]) for _ in range(r.randint(0, 3))})
    if isinstance(targets, list):
        if r.random() < 0.3:
            c["layers_to_transform"] = r.choice([0, 1, [1], [0, 1]])
            if r.random() < 0.5:
                c["layers_pattern"] = r.choice(["h" if gpt else "layers", ["x", "h" if gpt else "layers"]])
        if r.random() < 0.3 and len(targets) > 1:
            c["exclude_modules"] = r.choice([targets[:1], f"{blocks}.0.*{targets[0]}"])
    model = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", **c))
    with torch.no_grad():
        for n, p in model.named_parameters():
            if "lora_" in n:
                p.copy_(torch.randn_like(p) * 0.5)
    model.peft_config["default"].base_model_name_or_path = str(folder / "base")
    model.save_pretrained(folder / "adapter")
    (folder / "adapter" / "README.md").unlink(missing_ok=True)
    base = hf.AutoModelForCausalLM.from_pretrained(folder / "base")
    try:
        model = peft.PeftModel.from_pretrained(base, folder / "adapter")
    except RuntimeError:  # patterns are saved in another order, which PEFT then cannot read
        return shutil.rmtree(folder)
    ids = torch.randint(0, 11, (2, 14))
    with torch.no_grad():
        logits = model.eval()(input_ids=ids).logits
    save_file({"ids": ids, "logits": logits.contiguous()}, folder / "expected.safetensors")


def check(folder):
    """Whether a folder computes what is expected, or how far it is from it."""
    want = load_file(folder / "expected.safetensors")
    if (folder / "adapter").exists():
        import peft

        model, info = peft.AutoPeftModelForCausalLM.from_pretrained(folder / "adapter", dtype=torch.float32), {}
    else:
        name = json.loads((folder / "config.json").read_text())["architectures"][0]
        model, info = getattr(hf, name).from_pretrained(folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
    missing = [k for k in info.get("missing_keys", []) if "pooler" not in k and k != "cls.predictions.bias"]
    with torch.no_grad():
        out = model.eval()(input_ids=want["ids"])
    out = out.logits if hasattr(out, "logits") else out.last_hidden_state
    far = ((out - want["logits"]).abs().max() / want["logits"].abs().max().clamp_min(1e-3)).item()
    return missing or info.get("unexpected_keys") or far > 1e-4 and f"differs by {far:.1e} of the largest"


if __name__ == "__main__":
    if sys.argv[1] == "check":
        wrong = {f.name: w for f in sorted(pathlib.Path(sys.argv[2]).iterdir()) if (w := check(f))}
        print(wrong or "all equal")
        sys.exit(bool(wrong))
    directory, count, seed = pathlib.Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    for i in range(count):
        (draw_adapter if "adapters" in sys.argv[4:] else draw)(random.Random(seed * 1_000_003 + i), directory / f"{seed}-{i:05d}")
