# SPDX-License-Identifier: Apache-2.0
"""Writes small JPEG files of all kinds, and golden.json with the size and the
checksum of the pixels that Pillow decodes them to.

    python golden.py        (with pillow)
"""
import io, json, math, zlib
import PIL
from PIL import Image, features


def picture(width, height):
    """Waves and edges in colour."""
    out = bytearray()
    for y in range(height):
        for x in range(width):
            edge = 60 if (x // 5 + y // 7) % 2 else 0
            for c in range(3):
                v = 100 + edge + 50 * math.sin((x * (c + 1) + y * 2) / 6.0) + 40 * math.cos((x - y * (3 - c)) / 9.0)
                out.append(max(0, min(255, int(v))))
    return Image.frombytes("RGB", (width, height), bytes(out))


golden = {"pillow": PIL.__version__, "libjpeg_turbo": features.version("libjpeg_turbo"), "files": {}}


def add(name, file):
    m = Image.open(io.BytesIO(file)).convert("RGB")
    with open(name, "wb") as f:
        f.write(file)
    golden["files"][name] = [m.width, m.height, zlib.crc32(m.tobytes())]


def encode(m, **options):
    b = io.BytesIO()
    m.save(b, "jpeg", **options)
    return b.getvalue()


m = picture(75, 53)
for sampling, name in enumerate(["444", "422", "420"]):
    for progressive in (False, True):
        add(f"{name}{'-progressive' if progressive else ''}.jpg", encode(m, quality=85, subsampling=sampling, progressive=progressive, optimize=progressive))
add("grey.jpg", encode(m.convert("L"), quality=70))
add("grey-progressive.jpg", encode(m.convert("L"), quality=70, progressive=True))
add("restart.jpg", encode(m, quality=60, restart_marker_blocks=3))
add("restart-progressive.jpg", encode(m, quality=60, restart_marker_blocks=2, progressive=True))
add("fine.jpg", encode(m, quality=100, subsampling=2))
add("coarse.jpg", encode(m, quality=3, subsampling=2))
for width, height in [(1, 1), (2, 3), (3, 2), (5, 16), (17, 33)]:
    add(f"{width}x{height}.jpg", encode(picture(width, height), quality=90, subsampling=2))
# Pillow writes no 4:4:0. Where a 4:2:2 file has as many blocks across as down, its
# frame may say so as well: another image, but a sound file.
file = bytearray(encode(picture(48, 48), quality=85, subsampling=1))
at = file.index(b"\xff\xc0") + 11
assert file[at] == 0x21
file[at] = 0x12
add("440.jpg", bytes(file))
with open("golden.json", "w") as f:
    json.dump(golden, f, indent=1)
    f.write("\n")
