# SPDX-License-Identifier: Apache-2.0
"""Writes images-idx3-ubyte.gz and labels-idx1-ubyte.gz from scikit-learn's digits.csv.gz.

    python convert.py .../sklearn/datasets/data/digits.csv.gz
"""
import csv, gzip, struct, sys

with gzip.open(sys.argv[1], "rt") as f:
    rows = [[int(v) for v in row] for row in csv.reader(f)]
assert len(rows) == 1797 and all(len(r) == 65 and max(r[:64]) <= 16 and r[64] < 10 for r in rows)


def write(name, dims, values):
    head = struct.pack(">HBB", 0, 8, len(dims)) + b"".join(struct.pack(">I", d) for d in dims)
    with open(name, "wb") as f, gzip.GzipFile("", "wb", 9, f, mtime=0) as z:
        z.write(head + bytes(values))


write("images-idx3-ubyte.gz", [1797, 8, 8], [v for r in rows for v in r[:64]])
write("labels-idx1-ubyte.gz", [1797], [r[64] for r in rows])
