# SPDX-License-Identifier: Apache-2.0
"""Asks a server of a language model, and one of an encoder, with OpenAI's client.

    python client.py http://HOST:PORT/v1 http://HOST:PORT/v1      (needs openai)
"""
import sys

import openai

key = "key-of-the-client"
c = openai.OpenAI(base_url=sys.argv[1], api_key=key, max_retries=0)
assert [m.id for m in c.models.list()] == ["tiny"]
assert c.models.retrieve("tiny").id == "tiny"

whole = c.completions.create(model="tiny", prompt="func main", temperature=0, max_tokens=8)
stream = c.completions.create(model="tiny", prompt="func main", temperature=0, max_tokens=8, stream=True)
pieces = [e.choices[0].text for e in stream]
assert "".join(pieces) == whole.choices[0].text and len(pieces) > 3, (pieces, whole)
assert whole.usage.completion_tokens == 8 and whole.choices[0].finish_reason == "length", whole

messages = [{"role": "user", "content": "hi"}]
chat = c.chat.completions.create(model="tiny", messages=messages, temperature=0, max_completion_tokens=6, seed=1)
assert chat.choices[0].message.role == "assistant", chat
text, usage = "", None
for e in c.chat.completions.create(model="tiny", messages=messages, temperature=0, max_completion_tokens=6, stream=True, stream_options={"include_usage": True}):
    text += "".join(choice.delta.content or "" for choice in e.choices)
    usage = e.usage or usage
assert text == chat.choices[0].message.content, (text, chat)
assert usage.completion_tokens == chat.usage.completion_tokens, usage
assert len(c.chat.completions.create(model="tiny", messages=messages, n=3, max_tokens=2).choices) == 3

for call, error in [
    (lambda: c.completions.create(model="tiny", prompt="a", logit_bias={"1": 2}), openai.BadRequestError),
    (lambda: c.completions.create(model="other", prompt="a"), openai.NotFoundError),
    (lambda: c.embeddings.create(model="tiny", input="a"), openai.BadRequestError),
    (lambda: openai.OpenAI(base_url=sys.argv[1], api_key="wrong", max_retries=0).models.list(), openai.AuthenticationError),
]:
    try:
        call()
    except error as e:
        print(type(e).__name__, e.body["message"])
    else:
        raise AssertionError(f"no {error.__name__}")

c = openai.OpenAI(base_url=sys.argv[2], api_key=key, max_retries=0)
by_client = c.embeddings.create(model="tiny", input=["one text", "another"])  # in base64, which the client decodes
as_numbers = c.embeddings.create(model="tiny", input=["one text", "another"], encoding_format="float")
for a, b in zip(by_client.data, as_numbers.data):
    assert len(a.embedding) == 32 and max(abs(x - y) for x, y in zip(a.embedding, b.embedding)) < 1e-6
print(openai.__version__, "agrees")
