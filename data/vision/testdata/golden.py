# SPDX-License-Identifier: Apache-2.0
"""Writes golden.json: checksums of what Pillow makes of an image.

    python golden.py        (with pillow; the file says which)
"""
import json, zlib
import PIL
from PIL import Image


def pixels(width, height, channels):
    """Bytes of a linear congruence, as the test makes them."""
    s, out = 12345, bytearray()
    for _ in range(width * height * channels):
        s = (s * 1103515245 + 12345) % 2**31
        out.append(s >> 16 & 255)
    return bytes(out)


cases = []
for width, height, channels, box, size in [
    (64, 48, 3, (0, 0, 64, 48), (32, 24)), (61, 47, 3, (0, 0, 61, 47), (224, 224)), (500, 375, 3, (0, 0, 500, 375), (224, 224)),
    (500, 375, 3, (13, 21, 413, 300), (224, 224)), (8, 8, 1, (0, 0, 8, 8), (28, 28)), (33, 300, 1, (0, 0, 33, 300), (7, 5)),
    (40, 40, 3, (5, 5, 29, 40), (24, 12)), (40, 40, 3, (0, 3, 40, 27), (16, 24)), (1, 1, 3, (0, 0, 1, 1), (3, 2)), (300, 2, 3, (1, 0, 300, 2), (1, 1)),
    (1000, 9, 3, (0, 0, 1000, 9), (20, 9)), (17, 900, 3, (0, 0, 17, 900), (17, 31)), (224, 224, 3, (31, 32, 131, 140), (224, 224)),
]:
    m = Image.frombytes("L" if channels == 1 else "RGB", (width, height), pixels(width, height, channels))
    m = m.crop(box)
    # Rows first, which Pillow always did before version 13 and still does mostly.
    crc, cubic = (zlib.crc32(m.resize((size[0], m.height), how).resize(size, how).tobytes()) for how in (Image.Resampling.BILINEAR, Image.Resampling.BICUBIC))
    cases.append({"width": width, "height": height, "channels": channels, "box": box, "size": size, "crc": crc, "cubic": cubic})

# JPEG without luma.
m = Image.new("RGB", (30, 20), (200, 40, 90))
m.paste((10, 220, 60), (15, 0, 30, 20))
m.save("rgb.jpg", quality=95, keep_rgb=True)
m.convert("CMYK").save("cmyk.jpg", quality=95)

with open("golden.json", "w") as f:
    json.dump({"pillow": PIL.__version__, "resize": cases}, f, indent=1)
    f.write("\n")
