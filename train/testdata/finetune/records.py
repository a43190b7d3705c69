# SPDX-License-Identifier: Apache-2.0
"""Records for TestRecordsAgainstTransformers, and what transformers makes of them:

    python records.py

writes records/*.jsonl, records/chat_template.jinja and records/golden.json. The loss is the sum over all tokens that
count, divided by their number, as transformers' Trainer computes it over the batches of a step (num_items_in_batch).
"""
import json, pathlib, random

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

here = pathlib.Path(__file__).parent
out = here / "records"
random.seed(3)
words = "zero one two three four five six seven eight nine ten".split()
template = (
    "{% for m in messages %}{% if m.role == 'assistant' %}assistant: {% generation %}{{ m.content + eos_token + '\\n' }}{% endgeneration %}"
    "{% else %}{{ m.role + ': ' + m.content + '\\n' }}{% endif %}{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
)
(out / "chat_template.jinja").write_text(template)

def say(n):
    return " ".join(random.choice(words) for _ in range(random.randint(1, n)))

chats, shared, pairs, texts = [], [], [], []
for i in range(13):
    turns = [{"role": "system", "content": "be brief"}] if i % 3 == 0 else []
    for _ in range(random.randint(1, 2)):
        turns += [{"role": "user", "content": say(4)}, {"role": "assistant", "content": say(5)}]
    chats.append({"messages": turns})
    names = {"system": "system", "user": "human", "assistant": "gpt"}
    shared.append({"conversations": [{"from": names[t["role"]], "value": t["content"]} for t in turns]})
    pairs.append({"prompt": say(5) + " is ", "completion": say(6)})
    texts.append({"text": say(12), "id": i})
for name, rows in {"messages": chats, "conversations": shared, "completion": pairs, "text": texts}.items():
    with open(out / f"{name}.jsonl", "w") as f:
        for r in rows:
            f.write(json.dumps(r) + "\n")

model = AutoModelForCausalLM.from_pretrained(here / "llama", dtype=torch.float32).eval()
tok = AutoTokenizer.from_pretrained(here / "llama")
eos = tok.eos_token_id

def chat(messages):
    r = tok.apply_chat_template(messages, chat_template=template, return_dict=True, return_assistant_tokens_mask=True, tokenize=True)
    return r["input_ids"], r["assistant_masks"]

def pair(r):
    prompt, both = tok(r["prompt"])["input_ids"], tok(r["prompt"] + r["completion"])["input_ids"]
    n = 0
    while n < min(len(prompt), len(both)) and prompt[n] == both[n]:
        n += 1
    return both + [eos], [int(i >= n) for i in range(len(both) + 1)]

def text(r):
    ids = tok(r["text"])["input_ids"] + [eos]
    return ids, [1] * len(ids)

golden = {}
for name, rows in {"messages": [chat(r["messages"]) for r in chats], "completion": [pair(r) for r in pairs], "text": [text(r) for r in texts]}.items():
    total, count = 0.0, 0
    for ids, mask in rows[:12]:  # the last record is held out
        x = torch.tensor([ids])
        labels = torch.tensor([[i if m else -100 for i, m in zip(ids, mask)]])
        n = int((labels[:, 1:] != -100).sum())
        with torch.no_grad():
            total += model(input_ids=x, labels=labels).loss.item() * n
        count += n
    golden[name] = {"loss": total / count, "rows": [{"ids": ids, "mask": mask} for ids, mask in rows]}
(out / "golden.json").write_text(json.dumps(golden) + "\n")
