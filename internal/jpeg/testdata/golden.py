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


# What follows is made of parts of such files.
def segments(file):
    """The markers of a file with what belongs to them, a scan's codes too."""
    out, at = [], 2
    while file[at + 1] != 0xD9:
        end = at + 2 + file[at + 2] * 256 + file[at + 3]
        if file[at + 1] == 0xDA:
            while file[end] != 0xFF or file[end + 1] == 0 or 0xD0 <= file[end + 1] <= 0xD7:
                end += 1
        out.append(file[at:end])
        at = end
    return out


def joined(parts):
    return b"\xff\xd8" + b"".join(parts) + b"\xff\xd9"


JFIF = b"\xff\xe0\x00\x10JFIF\0\x01\x01\0\0\x01\0\x01\0\0"


def adobe(transform):
    return b"\xff\xee\x00\x0eAdobe\0d\0\0\0\0" + bytes([transform])


def planes(width, height, samplings, ids=b"\1\2\3\4", before=()):
    """A file with a scan of its own for each component, so that any sampling is sound."""
    h, v = max(s >> 4 for s in samplings), max(s & 15 for s in samplings)
    frame, scans, tables = b"\x08" + height.to_bytes(2, "big") + width.to_bytes(2, "big") + bytes([len(samplings)]), [], []
    for i, s in enumerate(samplings):
        w, t = -(-width * (s >> 4) // h), -(-height * (s & 15) // v)
        parts = segments(encode(picture(w, t).getchannel(i % 3), quality=80))
        tables = [x for x in parts if x[1] in (0xDB, 0xC4)]
        scan = next(x for x in parts if x[1] == 0xDA)
        frame += bytes([ids[i], s, 0])
        scans.append(scan[:5] + bytes([ids[i]]) + scan[6:])
    return joined([*before, *tables, b"\xff\xc0" + (2 + len(frame)).to_bytes(2, "big") + frame, *scans])


# Colours: JFIF's marker counts before Adobe's, and both before names.
sound = segments(encode(m, quality=85, subsampling=0))
plain = [x for x in sound if x[1] != 0xE0]
add("adobe-0.jpg", joined([adobe(0), *plain]))
add("adobe-1.jpg", joined([adobe(1), *plain]))
add("jfif-adobe-0.jpg", joined([JFIF, adobe(0), *plain]))
add("adobe-behind-frame.jpg", joined([*plain[:2], plain[2], adobe(0), *plain[3:]]))
add("no-markers.jpg", joined(plain))
add("named-rgb.jpg", planes(40, 30, [0x11, 0x11, 0x11], b"RGB"))
add("named-rgb-jfif.jpg", planes(40, 30, [0x11, 0x11, 0x11], b"RGB", [JFIF]))
add("rgb-sampled.jpg", planes(40, 30, [0x11, 0x22, 0x11], b"RGB"))
add("one-name.jpg", encode(m, quality=85).replace(b"\x03\x01\x22\x00\x02\x11\x01\x03\x11\x01", b"\x03\x01\x22\x00\x01\x11\x01\x01\x11\x01").replace(b"\x03\x01\x00\x02\x11\x03\x11", b"\x03\x01\x00\x01\x11\x01\x11"))
add("cmyk.jpg", encode(m.convert("CMYK"), quality=85))
add("cmyk-progressive.jpg", encode(m.convert("CMYK"), quality=85, progressive=True))
add("ycck.jpg", joined([adobe(2)] + [x for x in segments(encode(m.convert("CMYK"), quality=85)) if x[1] != 0xEE]))
add("ycck-sampled.jpg", planes(50, 37, [0x22, 0x11, 0x11, 0x22], before=[adobe(2)]))
add("cmyk-no-markers.jpg", planes(20, 20, [0x11] * 4))

# Samplings.
for name, samplings in {
    "unequal": [0x22, 0x21, 0x11], "unequal-2": [0x22, 0x12, 0x22], "411": [0x41, 0x11, 0x11], "410": [0x42, 0x11, 0x11], "441": [0x14, 0x11, 0x11],
    "coarse-luma": [0x11, 0x22, 0x22], "coarse-luma-2": [0x21, 0x22, 0x12], "thirds": [0x31, 0x11, 0x11], "thirds-down": [0x13, 0x11, 0x13],
}.items():
    add(f"sampled-{name}.jpg", planes(53, 37, samplings))
add("sampled-narrow.jpg", planes(4, 9, [0x22, 0x11, 0x12]))

# Without Huffman tables, as a frame of Motion JPEG: those of the standard.
add("no-tables.jpg", joined([x for x in segments(encode(m, quality=75)) if x[1] != 0xC4]))

# Progressive, without the last scans, or parts of them.
for name, options in {"420": {"subsampling": 2}, "444": {"subsampling": 0}, "grey": {}, "restart": {"restart_marker_blocks": 3}}.items():
    source = m.convert("L") if name == "grey" else m
    parts = segments(encode(source, quality=70, progressive=True, **options))
    at = [i for i, x in enumerate(parts) if x[1] == 0xDA]
    for n in (1, 2, 4):
        add(f"scans-{name}-{n}.jpg", joined(parts[: at[n - 1] + 1]))
    for n in (0, 1, 3):
        last = parts[at[n]]
        add(f"scans-{name}-{n}-half.jpg", joined([*parts[: at[n]], last[: len(last) // 2].removesuffix(b"\xff")]))
parts = segments(encode(m, quality=70, progressive=True))
add("scans-luma.jpg", joined([x for x in parts if x[1] != 0xDA or x[4] == 3 or x[5] == 1]))
add("scans-missing-component.jpg", joined([*[x for x in segments(planes(30, 20, [0x11] * 3)) if x[1] != 0xDA], next(x for x in segments(planes(30, 20, [0x11] * 3)) if x[1] == 0xDA)]))

# Sequential with missing or wrong codes.
whole = encode(m, quality=85, subsampling=2)
add("half.jpg", whole[: len(whole) * 2 // 3].removesuffix(b"\xff") + b"\xff\xd9")
parts = segments(encode(m, quality=60, restart_marker_blocks=3))
codes = parts[-1]
marks = [i for i in range(14, len(codes) - 1) if codes[i] == 0xFF and 0xD0 <= codes[i + 1] <= 0xD7]
for name, damaged in {
    "missing": codes[: marks[3]] + codes[marks[3] + 2 :], "twice": codes[: marks[3]] + codes[marks[3] : marks[3] + 2] + codes[marks[3] :],
    "segment": codes[: marks[2]] + codes[marks[3] :], "segments": codes[: marks[2]] + codes[marks[5] :], "other": codes[: marks[3] + 1] + b"\xd6" + codes[marks[3] + 2 :],
    "unknown": codes[: marks[3] + 1] + b"\x5a" + codes[marks[3] + 2 :], "filled": codes[: marks[3]] + b"\xff\xff" + codes[marks[3] :],
    "cut": codes[: marks[4] + 20].removesuffix(b"\xff"),
}.items():
    add(f"restart-{name}.jpg", joined([*parts[:-1], damaged]))
with open("golden.json", "w") as f:
    json.dump(golden, f, indent=1)
    f.write("\n")
