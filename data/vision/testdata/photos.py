# SPDX-License-Identifier: Apache-2.0
"""Writes a folder of JPEG files of about the size and weight of ImageNet's
(500·375 pixels, 4:2:0, 98 KB): noise with the spectrum of photographs, and
edges.

    python photos.py DIR [COUNT]        (with pillow and numpy)
"""
import os, sys
import numpy as np
from PIL import Image, ImageDraw

out, count = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 640
rng = np.random.default_rng(1)


def pink(height, width, slope):
    f = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None])
    f[0, 0] = 1
    s = (rng.standard_normal(f.shape) + 1j * rng.standard_normal(f.shape)) / f**slope
    s[0, 0] = 0
    x = np.fft.irfft2(s, (height, width))
    return x / x.std()


total = 0
for i in range(count):
    w, h = (500, 333) if i % 7 == 0 else (500, 375) if i % 3 else (375, 500)
    base = pink(h, w, 1.15)
    planes = [base * 45 + pink(h, w, 1.4) * 18 + rng.uniform(90, 150) for _ in range(3)]
    m = Image.fromarray(np.clip(np.stack(planes, -1), 0, 255).astype("uint8"))
    d = ImageDraw.Draw(m)
    for _ in range(25):
        x, y, r = int(rng.integers(0, w)), int(rng.integers(0, h)), int(rng.integers(5, 60))
        colour = tuple(int(v) for v in rng.integers(0, 255, 3))
        (d.ellipse if rng.random() < 0.5 else d.rectangle)([x, y, x + r, y + r * rng.uniform(0.5, 2)], outline=colour, width=int(rng.integers(1, 4)))
    os.makedirs(f"{out}/c{i % 10}", exist_ok=True)
    path = f"{out}/c{i % 10}/{i:05d}.jpg"
    m.save(path, quality=int(rng.integers(85, 96)), subsampling=2)
    total += os.path.getsize(path)
print(f"{count} files of {total // count} bytes on average")
