# SPDX-License-Identifier: Apache-2.0
"""Makes ResNets of timm and torchvision with random weights, for TestPretrainedImages.

    python pretrained_images.py make DIR          writes DIR/timm, DIR/torchvision.safetensors, DIR/photo.jpg
    python pretrained_images.py open DIR PHOTO    opens a checkpoint of Cohort by both; prints logits of the photo
(needs torch, timm, torchvision, safetensors, pillow)
"""
import json
import sys

import timm
import torch
import torchvision
from PIL import Image
from safetensors.torch import load_file, save_file
from timm.models._hub import save_for_hf

torch.set_num_threads(1)


def logits(model, transform, photo):
    with torch.no_grad():
        return model.eval()(transform(Image.open(photo).convert("RGB")).unsqueeze(0))[0].tolist()


def timm_logits(model, photo):
    config = timm.data.resolve_data_config({}, model=model)
    return logits(model, timm.data.create_transform(**config, is_training=False), photo)


if sys.argv[1] == "make":
    folder = sys.argv[2]
    torch.manual_seed(1)
    m = Image.effect_noise((150, 110), 60).convert("RGB").resize((300, 220), Image.Resampling.BICUBIC)
    photo = f"{folder}/photo.jpg"
    m.save(photo, quality=92)
    model = timm.create_model("resnet18", num_classes=5)
    for p in model.buffers():  # statistics that are not those of a new model
        if p.dtype == torch.float32:
            p.copy_(torch.rand(p.shape) + 0.5)
    save_for_hf(model, f"{folder}/timm", safe_serialization=True, model_config={
        "label_names": ["ant", "bee", "cat", "dog", "elk"],
        "pretrained_cfg": {"input_size": (3, 96, 96), "interpolation": "bicubic", "crop_pct": 0.95, "mean": (0.5, 0.4, 0.3), "std": (0.2, 0.25, 0.3)}})
    other = torchvision.models.resnet50(num_classes=7)
    save_file(other.state_dict(), f"{folder}/torchvision.safetensors")
    transform = torchvision.models.ResNet50_Weights.IMAGENET1K_V1.transforms(antialias=True)
    print(json.dumps({"timm": timm_logits(timm.create_model(f"local-dir:{folder}/timm", pretrained=True), photo), "torchvision": logits(other, transform, photo)}))
else:
    folder, photo = sys.argv[2:]
    model = timm.create_model(f"local-dir:{folder}", pretrained=True)
    config = json.load(open(f"{folder}/config.json"))
    other = getattr(torchvision.models, config["architecture"])(num_classes=config["num_classes"])
    other.load_state_dict(load_file(f"{folder}/model.safetensors"))
    same = torch.equal(*(torch.cat([v.flatten().double() for _, v in sorted(m.state_dict().items())]) for m in (model, other)))
    print(json.dumps({"timm": timm_logits(model, photo), "same": same}))
