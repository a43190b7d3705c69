# SPDX-License-Identifier: Apache-2.0
"""Writes tiny random encoders with each of their heads as transformers'
save_pretrained does, and beside each what they compute: expected.safetensors
with ids, attention_mask, labels, logits, loss, the gradient of every parameter
(grad.NAME) and the losses of twenty steps of AdamW.

    python encoders.py       (needs torch, transformers, safetensors)

    python encoders.py check DIR...    opens folders that somebody else saved, beside
                                       which an expected.safetensors lies, and compares
"""
import json
import pathlib
import sys

import torch
import transformers as hf
from safetensors.torch import load_file, save_file

hf.logging.set_verbosity_error()
HERE = pathlib.Path(__file__).parent / "encoders"
VOCAB, CONTEXT, BATCH, TIME = 31, 16, 3, 9
SIZE = dict(vocab_size=VOCAB, max_position_embeddings=CONTEXT + 2, hidden_size=12, intermediate_size=20, num_hidden_layers=2, num_attention_heads=3,
            hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
DISTILLED = dict(vocab_size=VOCAB, max_position_embeddings=CONTEXT, dim=12, hidden_dim=20, n_layers=2, n_heads=3, dropout=0.0, attention_dropout=0.0)
NAMES = ["anger", "joy", "none", "fear"]


def labels(kind, num):
    return dict(id2label={i: n for i, n in enumerate(NAMES[:num])}, label2id={n: i for i, n in enumerate(NAMES[:num])}, problem_type=kind)


def check(folder):
    want = load_file(folder / "expected.safetensors")
    name = json.loads((folder / "config.json").read_text())["architectures"][0]
    model, info = getattr(hf, name).from_pretrained(folder, output_loading_info=True)
    model.eval()
    inputs = {k: want[k] for k in ("attention_mask", "token_type_ids") if k in want}
    with torch.no_grad():
        out = model(input_ids=want["ids"], **inputs)
    out = out.logits if hasattr(out, "logits") else out.last_hidden_state
    keep = want["attention_mask"].bool() if out.dim() == 3 else slice(None)
    far = ((out - want["logits"])[keep].abs().max() / want["logits"].abs().max()).item()
    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"], (folder, info)
    assert far < 1e-5, (folder, far)
    assert "names" not in want or [model.config.id2label[i] for i in range(len(model.config.id2label))] == NAMES[: len(model.config.id2label)], folder


if sys.argv[1:2] == ["check"]:
    for f in sys.argv[2:]:
        check(pathlib.Path(f))
    sys.exit()


def write(name, model, segments=False):
    torch.manual_seed(len(name))
    with torch.no_grad():
        for n, p in model.named_parameters():
            p.copy_(torch.randn_like(p) * (0.3 if p.dim() > 1 else 0.2) + (1 if "norm" in n.lower() and n.endswith("weight") else 0))
    model.eval()
    model.save_pretrained(HERE / name)
    pad = model.config.pad_token_id
    ids = torch.randint(4, VOCAB, (BATCH, TIME))
    mask = torch.ones(BATCH, TIME, dtype=torch.int64)
    for row, n in ((1, 5), (2, 7)):
        mask[row, n:] = 0
        ids[row, n:] = pad
    inputs = dict(attention_mask=mask)
    if segments:
        inputs["token_type_ids"] = (torch.arange(TIME) > 3).long().expand(BATCH, TIME).contiguous()
    kind, num = model.config.problem_type, model.config.num_labels
    architecture = type(model).__name__
    if architecture.endswith("ForSequenceClassification"):
        target = {"regression": torch.randn(BATCH, num), "multi_label_classification": (torch.rand(BATCH, num) > 0.5).float()}.get(
            kind, torch.randint(0, num, (BATCH,)))
    elif architecture.endswith("ForTokenClassification"):
        target = torch.where(mask.bool(), torch.randint(0, num, (BATCH, TIME)), -100)
    elif architecture.endswith("ForMaskedLM"):
        target = torch.where((torch.rand(BATCH, TIME) < 0.4) & mask.bool(), torch.randint(0, VOCAB, (BATCH, TIME)), -100)
    else:
        target = None

    def loss():
        if target is None:
            h = model(input_ids=ids, **inputs).last_hidden_state
            return h, (h * mask[..., None]).square().mean()
        out = model(input_ids=ids, labels=target, **inputs)
        return out.logits, out.loss

    logits, first = loss()
    first.backward()
    out = dict(ids=ids, logits=logits.detach(), loss=first.detach().reshape(1), **inputs)
    if target is not None:
        out["labels"] = target
    prefix = "" if target is not None else model.base_model_prefix + "."
    out |= {"grad." + prefix + n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    losses = []
    for _ in range(20):
        opt.zero_grad()
        _, now = loss()
        losses.append(now.item())
        now.backward()
        opt.step()
    out["losses"] = torch.tensor(losses)
    save_file({k: v.contiguous() for k, v in out.items()}, HERE / name / "expected.safetensors")
    print(name, architecture, f"losses {losses[0]:.4f} … {losses[-1]:.4f}")


roberta, xlmr = hf.RobertaConfig(**SIZE), hf.XLMRobertaConfig(**SIZE)
write("bert-features", hf.BertModel(hf.BertConfig(**SIZE)), segments=True)
write("bert-single", hf.BertForSequenceClassification(hf.BertConfig(**SIZE, **labels("single_label_classification", 3))), segments=True)
write("bert-tokens", hf.BertForTokenClassification(hf.BertConfig(**SIZE, **labels(None, 4))))
write("roberta-masked", hf.RobertaForMaskedLM(roberta))
write("roberta-features", hf.RobertaModel(roberta))
write("roberta-multi", hf.RobertaForSequenceClassification(hf.RobertaConfig(**SIZE, **labels("multi_label_classification", 4))))
write("xlmr-regression", hf.XLMRobertaForSequenceClassification(hf.XLMRobertaConfig(**SIZE, **labels("regression", 1))))
write("xlmr-tokens", hf.XLMRobertaForTokenClassification(hf.XLMRobertaConfig(**SIZE, **labels(None, 3))))
write("distilbert-masked", hf.DistilBertForMaskedLM(hf.DistilBertConfig(**DISTILLED)))
write("distilbert-single", hf.DistilBertForSequenceClassification(hf.DistilBertConfig(**DISTILLED, seq_classif_dropout=0.0, **labels(None, 3))))
