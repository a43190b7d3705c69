# SPDX-License-Identifier: Apache-2.0
"""Writes small files of records, and what pyarrow, pandas and webdataset read of them (golden.json):

    python golden.py
"""
import gzip, json, pathlib, random

import pandas
import pyarrow as pa
import pyarrow.parquet as pq
import webdataset

here = pathlib.Path(__file__).parent
random.seed(1)
words = "zero one zwei drei vier 五 😀 \"quoted\" back\\slash line\nend".split(" ")

def say(n):
    return " ".join(random.choice(words) for _ in range(random.randint(0, n)))

rows = []
for i in range(40):
    rows.append({
        "text": None if i % 11 == 3 else say(6),
        "i8": random.randint(-128, 127), "i64": random.choice([None, -2**63, 2**63 - 1, i]), "u32": random.randint(0, 2**32 - 1),
        "f32": random.choice([0.5, -1.25, 3.0]), "f64": random.choice([None, 0.1, 1e300, -2.5e-10]), "ok": random.choice([True, False, None]),
        "tags": random.choice([None, [], ["a"], ["b", None, "c"]]),
        "messages": [{"role": random.choice(["user", "assistant"]), "content": random.choice([None, say(3)])} for _ in range(random.randint(0, 3))],
        "deep": random.choice([None, {"x": [[1, 2], [], None, [3]], "y": {"z": "q"}}, {"x": None, "y": None}]),
    })
schema = pa.schema([
    ("text", pa.string()), ("i8", pa.int8()), ("i64", pa.int64()), ("u32", pa.uint32()), ("f32", pa.float32()), ("f64", pa.float64()), ("ok", pa.bool_()),
    ("tags", pa.list_(pa.string())), ("messages", pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))),
    ("deep", pa.struct([("x", pa.list_(pa.list_(pa.int32()))), ("y", pa.struct([("z", pa.string())]))])),
])
table = pa.Table.from_pylist(rows, schema)
files = {
    "snappy.parquet": dict(compression="snappy", row_group_size=7),
    "zstd.parquet": dict(compression="zstd", row_group_size=13, data_page_version="2.0", use_dictionary=False, data_page_size=64),
    "gzip.parquet": dict(compression="gzip", data_page_size=32, write_batch_size=2),
    "none.parquet": dict(compression="none", use_dictionary=False, column_encoding={"i64": "DELTA_BINARY_PACKED", "text": "DELTA_BYTE_ARRAY"}),
    "large.parquet": dict(compression="snappy"),
}
golden = {}
for name, o in files.items():
    t = table
    if name == "large.parquet":  # as polars and new versions of datasets write texts
        t = table.select(["text", "messages"]).cast(pa.schema([("text", pa.large_string()), ("messages", schema.field("messages").type)]))
    pq.write_table(t, here / name, **o)
    golden[name] = pq.read_table(here / name).to_pylist()

lines = "".join(json.dumps(r, ensure_ascii=i % 2 == 0) + "\n" for i, r in enumerate(rows))
(here / "lines.jsonl").write_text(lines)
(here / "lines.jsonl.gz").write_bytes(gzip.compress(lines[:900].encode(), mtime=0) + gzip.compress(lines[900:].encode(), mtime=0))  # two members
pa.output_stream(str(here / "lines.jsonl.zst"), compression="zstd").write(lines.encode())
frame = pandas.read_json(here / "lines.jsonl", lines=True, dtype=False, convert_dates=False, precise_float=True)
for name in ["lines.jsonl", "lines.jsonl.gz", "lines.jsonl.zst"]:
    golden[name] = [json.loads(line) for line in lines.splitlines()]
    assert list(frame["i8"]) == [r["i8"] for r in golden[name]]
# A shard, as WebDataset writes and reads it; the fields of its objects stand in the record.
with webdataset.TarWriter(str(here / "shard.tar"), mtime=0, user="", group="") as w:
    for i, r in enumerate(rows[:6]):
        sample = {"__key__": f"part/{i:04d}", "txt": r["text"] or "", "json": {"ok": r["ok"], "deep": r["deep"]}, "cls": i, "left.png": bytes([0, 255, i])}
        if i == 3:  # a name longer than the header holds
            sample["__key__"] = "part/" + "long" * 30
        w.write(sample)

def plain(sample):
    out = {k: v for k, v in sample.items() if not k.startswith("__") or k == "__key__"}
    out |= out.pop("json")
    return {k: v.hex() if isinstance(v, bytes) else v for k, v in out.items()}

shards = webdataset.WebDataset(str(here / "shard.tar"), shardshuffle=False, empty_check=False)
golden["shard.tar"] = [plain(s) for s in shards.decode(only=["txt", "json", "cls"])]
(here / "shard.tar.gz").write_bytes(gzip.compress((here / "shard.tar").read_bytes(), mtime=0))
golden["shard.tar.gz"] = golden["shard.tar"]
(here / "golden.json").write_text(json.dumps(golden) + "\n")
