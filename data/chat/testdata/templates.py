# SPDX-License-Identifier: Apache-2.0
# Writes conversations drawn at random, and what apply_chat_template of the
# Hugging Face library transformers makes of them with each template in the
# folder templates: a hash of the text, and where the assistant's parts are in it
# if the template says so. The first texts are written in full. The templates are
# written for this test with the constructs of published ones.
#
#     pip install transformers==5.24.0 jinja2
#     python3 templates.py 200 1 > templates.json
#     python3 templates.py 2000 2 > /tmp/templates.json    # go test ./data/chat -run TestTemplates -templates /tmp/templates.json
import datetime
import hashlib
import json
import pathlib
import random as rand
import sys

import tokenizers
import transformers
from transformers.utils import chat_template_utils as utils

NUM, SEED = int(sys.argv[1]), int(sys.argv[2])
r = rand.Random(SEED)


class Clock(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls(2025, 3, 7, 9, 5, 2)


utils.datetime = Clock
WORDS = ["the", "fox", "Faust", "naïve", "世界", "😀", "e\u0301", "<b>&amp;", "'quoted'", '"double"', "\n", "\n\n", "  ", "\t", "{{ x }}", "{% if %}", "\\n", "/no_think", "/think", "</think>", "<think>", "a_b", "ß", "İ", "\u00a0", "ΟΔΟΣ", "\u200b", "don't"]


def words(n=8):
    return " ".join(r.choice(WORDS) for _ in range(r.randrange(0, n)))


def value(depth=0):
    k = r.randrange(0, 9 if depth < 2 else 6)
    if k == 6:
        return [value(depth + 1) for _ in range(r.randrange(3))]
    if k == 7:
        return {words(2) or "k": value(depth + 1) for _ in range(r.randrange(3))}
    return [r.randrange(-9, 10**6), r.choice([0.5, 1.0, 1e-7, 1e22, -2.25]), words(3), True, None, words(2), 0, 0, {}][k]


def tool():
    types = ["string", "integer", "number", "boolean", "array", "object", ["string", "null"], "date"]
    props = {}
    for name in r.sample(["city", "unit", "days", "items", "keys", "a b"], r.randrange(0, 4)):
        t = r.choice(types)
        props[name] = {"type": t, "description": words(4)}
        if t == "array":
            props[name]["items"] = {"type": r.choice(types[:4])}
        if t == "object" and r.random() < 0.5:
            props[name]["additionalProperties"] = {"type": "integer"}
    f = {"name": r.choice(["weather", "search", "run"]), "description": words(5), "parameters": {"type": "object", "properties": props, "required": list(props)[:1]}}
    return {"type": "function", "function": f}


def call():
    return {"id": "".join(r.choice("abc123") for _ in range(9)), "type": "function", "function": {"name": r.choice(["weather", "search"]), "arguments": {r.choice(["city", "n"]): value() for _ in range(r.randrange(0, 3))}}}


def content():
    if r.random() < 0.06:
        return [{"type": "text", "text": words()} for _ in range(r.randrange(1, 3))]
    return words()


def conversation():
    out = []
    if r.random() < 0.5:
        out.append({"role": "system", "content": words()})
    for _ in range(r.randrange(1, 4)):
        out.append({"role": "user", "content": content()})
        if r.random() < 0.15:
            out[-1]["name"] = r.choice(["Ada", "Bo"])
        if r.random() < 0.2:
            m = {"role": "assistant", "tool_calls": [call() for _ in range(r.choice([1, 1, 1, 2]))]}
            if r.random() < 0.4:
                m["content"] = r.choice([None, "", words()])
            out.append(m)
            for _ in m["tool_calls"]:
                out.append({"role": "tool", "content": words(), "tool_call_id": m["tool_calls"][0]["id"]})
        m = {"role": "assistant", "content": words()}
        if r.random() < 0.2:
            m[r.choice(["reasoning_content", "thinking", "reasoning"])] = words(5)
        if r.random() < 0.1:
            m = {"content": m["content"], "weight": 1, "role": "assistant"}
        out.append(m)
    if r.random() < 0.5:
        out.pop()
    return out


def options():
    o = {}
    if r.random() < 0.4:
        o["add_generation_prompt"] = True
    elif r.random() < 0.3:
        o["continue_final_message"] = True
    if r.random() < 0.3:
        o["tools"] = [tool() for _ in range(r.randrange(1, 3))]
    if r.random() < 0.2:
        o["documents"] = [{"title": words(3), "text": words()} for _ in range(r.randrange(1, 3))]
    for k, v in {"enable_thinking": [True, False], "tools_in_user_message": [False], "builtin_tools": [["weather", "code_interpreter"]], "date_string": ["1 Jan 2000"]}.items():
        if r.random() < 0.2:
            o[k] = r.choice(v)
    return o


tok = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizers.Tokenizer(tokenizers.models.BPE()), bos_token="<s>", eos_token="</s>")
templates = {p.stem: p.read_text() for p in sorted(pathlib.Path(__file__).parent.glob("templates/*.jinja"))}
cases = []
for i in range(NUM):
    messages, o = conversation(), options()
    case = {"messages": messages, "options": o, "texts": {}}
    for name, source in templates.items():
        try:
            text = tok.apply_chat_template(messages, chat_template=source, tokenize=False, **o)
        except Exception:
            continue  # the template refuses it
        case["texts"][name] = text if i < 3 and NUM <= 200 else hashlib.sha256(text.encode()).hexdigest()[:10]
        if "generation %}" in source and not o.get("continue_final_message"):
            kw = {k: v for k, v in o.items() if k not in ("add_generation_prompt", "tools", "documents")}
            _, spans = utils._render_with_assistant_indices(utils._compile_jinja_template(source), utils._alias_reasoning_fields(utils._normalize_chat_messages(messages)), o.get("tools"), o.get("documents"), False, bos_token="<s>", eos_token="</s>", **kw)
            case.setdefault("spans", {})[name] = spans
    cases.append(case)
json.dump({"transformers": transformers.__version__, "cases": cases}, sys.stdout, ensure_ascii=False, separators=(",", ":"))
