# SPDX-License-Identifier: Apache-2.0
"""Writes what transformers and sentence-transformers make of texts with the tiny encoder of
encoder.py, for the tests of package train/predict: classifier, a random head for three classes
beside the encoder, and predict.json, its probabilities and the vectors of the encoder alone.

    python predict.py      (needs torch, transformers, sentence-transformers)
"""
import json
import pathlib

import torch
import transformers as hf
from sentence_transformers import SentenceTransformer

HERE = pathlib.Path(__file__).parent
TEXTS = ["tea in the kitchen, warm and lovely", "soup", "  two  spaces, and a dash – here  ", "Is there a boat in the harbour?",
         "a text that is far too long for the model: " + "bread and milk and salt " * 12, "äöü 漢字 🙂"]

torch.manual_seed(3)
names = {0: "calm", 1: "glad", 2: "sad"}
model = hf.RobertaForSequenceClassification.from_pretrained(HERE / "encoder", num_labels=3, id2label=names, label2id={v: k for k, v in names.items()})
for p in model.classifier.parameters():
    torch.nn.init.normal_(p, std=0.15)
model.eval().half().save_pretrained(HERE / "classifier")
for f in ("tokenizer.json", "tokenizer_config.json"):
    (HERE / "classifier" / f).write_bytes((HERE / "encoder" / f).read_bytes())

tok = hf.AutoTokenizer.from_pretrained(HERE / "classifier")
model = hf.AutoModelForSequenceClassification.from_pretrained(HERE / "classifier", dtype=torch.float32)
pipe = hf.pipeline("text-classification", model=model, tokenizer=tok, top_k=None)
told = [{s["label"]: s["score"] for s in each} for each in pipe(TEXTS, truncation=True, max_length=32)]
encoder = SentenceTransformer(str(HERE / "encoder"), device="cpu")
encoder.max_seq_length = 32
vectors = encoder.encode(TEXTS).tolist()
(HERE / "predict.json").write_text(json.dumps({"texts": TEXTS, "classes": told, "vectors": vectors}, indent=1) + "\n")
