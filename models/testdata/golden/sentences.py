# SPDX-License-Identifier: Apache-2.0
"""Writes tiny folders of sentence-transformers, and beside each the vectors of some
token ids: expected.safetensors. Writes losses.safetensors too: the values and gradients
of its losses for given vectors.

    python sentences.py      (needs torch, transformers, sentence-transformers)

    python sentences.py check DIR...    opens folders that somebody else saved, beside
                                        which an expected.safetensors lies, and compares
"""
import pathlib
import shutil
import sys
import tempfile

import torch
import transformers as hf
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer, losses, models

hf.logging.set_verbosity_error()
HERE = pathlib.Path(__file__).parent / "sentences"


def vectors(model, ids, mask):
    with torch.no_grad():
        return model({"input_ids": ids, "attention_mask": mask})["sentence_embedding"]


def check(folder):
    want = load_file(folder / "expected.safetensors")
    model = SentenceTransformer(str(folder), device="cpu").eval()
    far = (vectors(model, want["ids"], want["mask"]) - want["vectors"]).abs().max() / want["vectors"].abs().max()
    assert far < 1e-5, (folder, far)


if sys.argv[1:2] == ["check"]:
    for f in sys.argv[2:]:
        check(pathlib.Path(f))
    sys.exit()


def write(name, pooling, after, **about):
    torch.manual_seed(3)
    base = tempfile.mkdtemp()
    bert = hf.BertModel(hf.BertConfig(vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=12, max_position_embeddings=16))
    with torch.no_grad():
        for p in bert.parameters():
            p.add_(torch.randn_like(p) * 0.3)
    bert.save_pretrained(base)
    vocab = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmno"]
    (pathlib.Path(base) / "vocab.txt").write_text("\n".join(vocab) + "\n")
    hf.BertTokenizer(str(pathlib.Path(base) / "vocab.txt")).save_pretrained(base)
    model = SentenceTransformer(modules=[models.Transformer(base, max_seq_length=12), models.Pooling(8, pooling_mode=pooling), *after], device="cpu", **about).eval()
    shutil.rmtree(HERE / name, ignore_errors=True)
    model.save(str(HERE / name), create_model_card=False)
    ids = torch.randint(5, 20, (3, 9))
    mask = torch.ones(3, 9, dtype=torch.int64)
    for row, n in ((1, 4), (2, 7)):
        mask[row, n:] = 0
        ids[row, n:] = 0
    save_file({"ids": ids, "mask": mask, "vectors": vectors(model, ids, mask).contiguous()}, HERE / name / "expected.safetensors")


class Given(torch.nn.Module):
    """A model whose vectors are the inputs."""

    similarity_fn_name = "cosine"

    def forward(self, features):
        return {"sentence_embedding": features["x"]}


def write_losses():
    torch.manual_seed(4)
    out = {k: torch.randn(5, 6) for k in ("anchor", "positive", "negative")}
    scores = torch.rand(5)
    for name, make, columns, labels in [
        ("ranking", lambda m: losses.MultipleNegativesRankingLoss(m, scale=20.0), 2, None),
        ("ranking-negatives", lambda m: losses.MultipleNegativesRankingLoss(m, scale=10.0), 3, None),
        ("triplet", lambda m: losses.TripletLoss(m, distance_metric=losses.TripletDistanceMetric.EUCLIDEAN, triplet_margin=5), 3, None),
        ("triplet-cosine", lambda m: losses.TripletLoss(m, distance_metric=losses.TripletDistanceMetric.COSINE, triplet_margin=0.5), 3, None),
        ("triplet-manhattan", lambda m: losses.TripletLoss(m, distance_metric=losses.TripletDistanceMetric.MANHATTAN, triplet_margin=4), 3, None),
        ("cosine", lambda m: losses.CosineSimilarityLoss(m), 2, scores),
    ]:
        x = [out[k].clone().requires_grad_() for k in ("anchor", "positive", "negative")[:columns]]
        loss = make(Given())([{"x": v} for v in x], labels)
        loss.backward()
        out[name + ".loss"] = loss.detach().reshape(1)
        for k, v in zip(("anchor", "positive", "negative"), x):
            out[f"{name}.grad.{k}"] = v.grad
    out["scores"] = scores
    save_file({k: v.detach().contiguous().clone() for k, v in out.items()}, HERE / "losses.safetensors")


HERE.mkdir(exist_ok=True)
write("mean", "mean", [models.Normalize()], prompts={"query": "a b "}, default_prompt_name="query")
write("all", ["cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"], [models.Dense(48, 7), models.Normalize(), models.Dense(7, 5, bias=False, activation_function=torch.nn.Identity())],
      similarity_fn_name="dot")
write_losses()
