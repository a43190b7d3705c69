# SPDX-License-Identifier: Apache-2.0
"""Writes golden.json: PNG files of every kind, made by hand of random bytes, with
the size and the checksum of the pixels that Pillow's convert("RGB") gives.

    python golden.py        (with pillow)
"""
import base64, io, json, random, struct, warnings, zlib
import PIL
from PIL import Image

warnings.simplefilter("ignore")  # Pillow's advice about palettes with alpha
r = random.Random(1)
PASSES = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)]
CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
DEPTHS = {0: [1, 2, 4, 8, 16], 2: [8, 16], 3: [1, 2, 4, 8], 4: [8, 16], 6: [8, 16]}


def chunk(name, data):
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def paeth(a, b, c):
    p = a + b - c
    return min((abs(p - a), 0, a), (abs(p - b), 1, b), (abs(p - c), 2, c))[2]


def filtered(width, height, bits):
    """Random rows, each under a random filter."""
    n, step = (width * bits + 7) // 8, max(1, bits // 8)
    out, above = bytearray(), bytes(n)
    for _ in range(height):
        row, f = r.randbytes(n), r.randrange(5)
        out.append(f)
        for i, v in enumerate(row):
            a, b, c = (row[i - step] if i >= step else 0), above[i], (above[i - step] if i >= step else 0)
            out.append((v - (0, a, b, (a + b) // 2, paeth(a, b, c))[f]) & 255)
        above = row
    return bytes(out)


def make(kind, depth, interlaced, transparent, colours=None):
    width, height = r.randrange(1, 20), r.randrange(1, 20)
    bits, raw = CHANNELS[kind] * depth, b""
    for x, y, dx, dy in PASSES if interlaced else [(0, 0, 1, 1)]:
        w, h = (width - x + dx - 1) // dx, (height - y + dy - 1) // dy
        if w > 0 and h > 0:
            raw += filtered(w, h, bits)
    b = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, kind, 0, 0, interlaced))
    if kind == 3:
        n = colours or 1 << depth
        b += chunk(b"PLTE", r.randbytes(3 * n))
        if transparent:
            b += chunk(b"tRNS", bytes(r.choice([0, 1, 2, 100, 255]) for _ in range(n)))
    elif transparent:
        b += chunk(b"tRNS", b"".join(struct.pack(">H", r.randrange(1 << depth)) for _ in range(CHANNELS[kind])))
    z = zlib.compress(raw)
    cut = r.randrange(len(z) + 1)
    return b + chunk(b"IDAT", z[:cut]) + chunk(b"IDAT", z[cut:]) + chunk(b"IEND", b"")


files = []


def add(name, file):
    m = Image.open(io.BytesIO(file))
    if m.mode == "I;16":  # of which convert would make white: see the package's doc
        m = Image.frombytes("L", m.size, m.tobytes()[1::2])
    m = m.convert("RGB")
    files.append({"name": name, "file": base64.b64encode(file).decode(), "width": m.width, "height": m.height, "crc": zlib.crc32(m.tobytes())})


for kind in CHANNELS:
    for depth in DEPTHS[kind]:
        for interlaced in (0, 1):
            for transparent in (False, True) if kind in (0, 2, 3) else (False,):
                add(f"kind {kind}, {depth} bits{', interlaced' if interlaced else ''}{', transparent' if transparent else ''}", make(kind, depth, interlaced, transparent))
add("a palette that is too short", make(3, 8, 0, False, 3))
whole = make(2, 8, 0, False)
add("no end", whole[:-12])
with open("golden.json", "w") as f:
    json.dump({"pillow": PIL.__version__, "files": files}, f, indent=0)
    f.write("\n")
