# SPDX-License-Identifier: Apache-2.0
"""PyTorch's side of BenchmarkPhotos: DataLoader with Pillow, the transforms as
torchvision's. Prints images a second, the best of the epochs.

    python torch_loader.py DIR WORKERS train|eval [EPOCHS]        (with torch and pillow)
"""
import math, os, random, sys, time
import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

MEAN = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)
STD = torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)


class Folder(Dataset):
    def __init__(self, root, train):
        self.files = sorted(os.path.join(d, x) for d, _, fs in os.walk(root) for x in fs if x.endswith(".jpg"))
        self.train = train

    def __len__(self):
        return len(self.files)

    def __getitem__(self, i):
        with open(self.files[i], "rb") as f:
            m = Image.open(f).convert("RGB")
        w, h = m.size
        if self.train:
            m = m.crop(self.part(w, h)).resize((224, 224), Image.Resampling.BILINEAR)
            if random.random() < 0.5:
                m = m.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        else:
            m = m.resize((256, 256 * h // w) if w < h else (256 * w // h, 256), Image.Resampling.BILINEAR)
            left, top = (m.width - 224) // 2, (m.height - 224) // 2
            m = m.crop((left, top, left + 224, top + 224))
        x = torch.from_numpy(np.array(m)).permute(2, 0, 1).contiguous()
        return x.to(torch.float32).div_(255).sub_(MEAN).div_(STD), 0

    def part(self, w, h):
        for _ in range(10):
            area, ratio = w * h * random.uniform(0.08, 1), math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
            cw, ch = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if 0 < cw <= w and 0 < ch <= h:
                x, y = random.randint(0, w - cw), random.randint(0, h - ch)
                return x, y, x + cw, y + ch
        return 0, 0, w, h


if __name__ == "__main__":
    root, workers, case = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    torch.set_num_threads(1)  # more only take cores from the workers
    options = {"persistent_workers": True, "prefetch_factor": 4} if workers else {}
    loader = DataLoader(Folder(root, case == "train"), 32, shuffle=True, num_workers=workers, **options)
    rates = []
    for _ in range(int(sys.argv[4]) if len(sys.argv) > 4 else 3):
        batches = iter(loader)
        next(batches)  # warm up
        start, n = time.perf_counter(), 0
        for x, _ in batches:
            n += len(x)
        rates.append(n / (time.perf_counter() - start))
    print(f"{case}, {workers} workers: {max(rates):.0f} images/s")
