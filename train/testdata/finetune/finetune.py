# SPDX-License-Identifier: Apache-2.0
"""What transformers and PEFT make of the fine-tuning that TestFineTuning does.

    python finetune.py models     writes text.txt and the folders gpt2 and llama: tiny models
                                  that know a part of the text, and tokenizers made from it
    go test ../.. -run TestFineTuning -update
                                  writes inputs.safetensors into the folder of each case: the
                                  batches and learning rates of its steps, and a LoRA's first
                                  matrices
    python finetune.py expected   trains in PyTorch on these, and writes expected.safetensors:
                                  losses, and the logits of the trained model for one text;
                                  eval.json, how well the models foretell text.txt; and
                                  generate.json, what they write
    python finetune.py open DIR [ADAPTER]
                                  prints the logits of a saved model for the tokens 0 to 15

Needs torch, transformers, peft, tokenizers, safetensors.
"""
import json
import math
import pathlib
import random
import sys

import peft
import torch
import torch.nn.functional as F
import transformers as hf
from safetensors.torch import load_file, save_file
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

HERE = pathlib.Path(__file__).parent
VOCAB, CONTEXT = 320, 64
END = "<|endoftext|>"
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def number(n):
    ones = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen".split()
    tens = "_ _ twenty thirty forty fifty sixty seventy eighty ninety".split()
    if n < 20:
        return ones[n]
    if n < 100:
        return tens[n // 10] + ("-" + ones[n % 10] if n % 10 else "")
    return ones[n // 100] + " hundred" + (" and " + number(n % 100) if n % 100 else "")


def write_models():
    lines = [f"{number(a)} times {number(b)} is {number(a * b)}, and {a} × {b} = {a * b}.\n" for a in range(21) for b in range(21)]
    random.Random(3).shuffle(lines)
    text = "".join(lines)
    (HERE / "text.txt").write_text(text)
    for name, make in {
        "gpt2": lambda: hf.GPT2LMHeadModel(hf.GPT2Config(
            vocab_size=VOCAB + 12, n_positions=CONTEXT, n_embd=32, n_layer=2, n_head=4, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0,
            bos_token_id=VOCAB - 1, eos_token_id=VOCAB - 1)),
        "llama": lambda: hf.LlamaForCausalLM(hf.LlamaConfig(
            vocab_size=VOCAB, max_position_embeddings=CONTEXT, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=2, rms_norm_eps=1e-6, bos_token_id=VOCAB - 1, eos_token_id=VOCAB - 1)),
    }.items():
        tok = Tokenizer(models.BPE())
        if name == "gpt2":
            tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
            tok.post_processor = processors.ByteLevel(trim_offsets=False)
        else:  # as Llama 3's
            tok.pre_tokenizer = pre_tokenizers.Sequence([
                pre_tokenizers.Split(Regex(LLAMA3), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
        tok.decoder = decoders.ByteLevel()
        tok.train_from_iterator([text], trainers.BpeTrainer(
            vocab_size=VOCAB - 1, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
        tok.add_special_tokens([END])
        if name == "llama":
            tok.post_processor = processors.Sequence([
                processors.ByteLevel(trim_offsets=False),
                processors.TemplateProcessing(single=f"{END} $A", pair=f"{END} $A {END} $B", special_tokens=[(END, VOCAB - 1)])])
        hf.PreTrainedTokenizerFast(tokenizer_object=tok, bos_token=END, eos_token=END).save_pretrained(HERE / name)
        tok.save(str(HERE / name / "tokenizer.json"))
        torch.manual_seed(5)
        model = make()
        # What it can do before it is tuned: the words, not the figures.
        ids = torch.tensor(tok.encode("".join(line.split(", and")[0] + ".\n" for line in lines), add_special_tokens=False).ids)
        opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
        for _ in range(150):
            at = torch.randint(0, len(ids) - 33, (8,))
            rows = torch.stack([ids[i:i + 33] for i in at])
            opt.zero_grad()
            F.cross_entropy(model(input_ids=rows[:, :-1]).logits.flatten(0, 1), rows[:, 1:].flatten()).backward()
            opt.step()
        model.save_pretrained(HERE / name)
        for extra in ["generation_config.json"]:
            (HERE / name / extra).unlink(missing_ok=True)
        print(name, tok.get_vocab_size(), sorted(f.name for f in (HERE / name).iterdir()))


def write_expected():
    for folder in sorted(p.parent for p in HERE.glob("*/inputs.safetensors")):
        inputs = load_file(folder / "inputs.safetensors")
        settings = json.loads((folder / "settings.json").read_text())
        model = hf.AutoModelForCausalLM.from_pretrained(HERE / settings["base"])
        if settings["rank"]:
            model = peft.get_peft_model(model, peft.LoraConfig(
                task_type="CAUSAL_LM", r=settings["rank"], lora_alpha=settings["alpha"], target_modules=settings["targets"]))
            with torch.no_grad():
                for n, p in model.named_parameters():
                    if p.requires_grad:
                        p.copy_(inputs[n.replace(".default", "")])
        model.train()
        params = [p for p in model.parameters() if p.requires_grad]
        opt = torch.optim.AdamW([
            {"params": [p for p in params if p.dim() >= 2], "weight_decay": settings["weight_decay"]},
            {"params": [p for p in params if p.dim() < 2], "weight_decay": 0.0},
        ], betas=(0.9, settings["beta2"]))
        losses = []
        for tokens, rate in zip(inputs["tokens"], inputs["rates"].tolist()):
            opt.zero_grad()
            logits = model(input_ids=tokens[:, :-1]).logits
            loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
            loss.backward()
            torch.nn.utils.clip_grad_norm_(params, settings["clip"])
            for g in opt.param_groups:
                g["lr"] = rate
            opt.step()
            losses.append(loss.item())
        model.eval()
        with torch.no_grad():
            logits = model(input_ids=torch.arange(16).reshape(1, 16)).logits
        save_file({"losses": torch.tensor(losses), "logits": logits.contiguous()}, folder / "expected.safetensors")
        print(folder.name, f"losses {losses[0]:.4f} … {losses[-1]:.4f}")
    figures, written = {}, {}
    for base in ["gpt2", "llama"]:  # of `cohort eval --from BASE --data text.txt --all`
        model = hf.AutoModelForCausalLM.from_pretrained(HERE / base).eval()
        tok = Tokenizer.from_file(str(HERE / base / "tokenizer.json"))
        text = (HERE / "text.txt").read_text()
        ids = tok.encode(text, add_special_tokens=False).ids
        windows = (len(ids) - 1) // CONTEXT
        x = torch.tensor(ids[:windows * CONTEXT]).reshape(windows, CONTEXT)
        y = torch.tensor(ids[1:windows * CONTEXT + 1])
        with torch.no_grad():
            loss = F.cross_entropy(model(input_ids=x).logits.flatten(0, 1).double(), y).item()
        size = len(tok.decode(y.tolist(), skip_special_tokens=False).encode())
        # And of `cohort generate --from BASE --temperature 0 --tokens 20`, from each prompt.
        texts = {}
        for prompt in ["six times", "", "19 × 7 = 133.\nüber, l'été 東京", END + "nine"]:
            ids = tok.encode(prompt).ids or tok.encode("\n").ids  # a text has a beginning
            out = model.generate(torch.tensor([ids]), max_new_tokens=20, do_sample=False, pad_token_id=0)[0].tolist()
            texts[prompt] = tok.decode([i for i in out[len(ids):] if i < VOCAB], skip_special_tokens=True)
        written[base] = texts
        figures[base] = {"tokens": windows * CONTEXT, "loss": loss, "perplexity": math.exp(loss), "bits_per_byte": loss * len(y) / math.log(2) / size}
    (HERE / "eval.json").write_text(json.dumps(figures, indent=1) + "\n")
    (HERE / "generate.json").write_text(json.dumps(written, indent=1, ensure_ascii=False) + "\n")
    print(figures, written)


def open_model(base, adapter=None):
    model = hf.AutoModelForCausalLM.from_pretrained(base)
    if adapter:
        model = peft.PeftModel.from_pretrained(model, adapter)
    hf.AutoTokenizer.from_pretrained(adapter or base)  # must open too
    model.eval()
    with torch.no_grad():
        for v in model(input_ids=torch.arange(16).reshape(1, 16)).logits.flatten().tolist():
            print(v)


{"models": write_models, "expected": write_expected, "open": open_model}[sys.argv[1]](*sys.argv[2:])
