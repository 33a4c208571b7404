"""Small streams' material for the tests: blobs of features, and images of noise in front of a tiny ViT."""

import torch
import transformers

from flyk.continual.batch import Part
from flyk.continual.material import Material
from flyk.continual.promptable import PromptableViT

PIXELS = 28
OPTIONS = {
    "flyprompt": {"prompt_length": 2, "prompt_layers": 2, "expansion": 64, "ridge": 10.0},
    "ranpac": {"expansion": 64},
    "l2p": {"pool_size": 3, "top": 2, "length": 2, "prompt_layers": 2},
    "dualprompt": {"general": 1, "special": 1, "length": 2},
    "codaprompt": {"components": 2, "length": 2, "prompt_layers": 2},
    "mvp": {"pool_size": 3, "length": 2, "prompt_layers": 2},
    "misa": {"length": 2, "prompt_layers": 2},
}


def blobs(per_class=12, classes=6, features=16, spread=3.0):
    """Train and test features around one centre for each class."""
    generator = torch.Generator().manual_seed(0)
    centres = spread * torch.randn(classes, features, generator=generator)
    parts = []
    for size in (per_class, 5):
        labels = torch.arange(classes).repeat(size)
        parts.append(Part(labels, (centres[labels] + torch.randn(len(labels), features, generator=generator))[None]))
    return Material("blobs", [f"class {c}" for c in range(classes)], *parts)


def tiny_vit():
    torch.manual_seed(0)
    sizes = {
        "hidden_size": 32,
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
        "image_size": PIXELS,
        "patch_size": 14,
    }
    return PromptableViT(transformers.Dinov2Model(transformers.Dinov2Config(**sizes)), "a tiny ViT", PIXELS, "tiny")


def pictures(per_class=8, classes=6):
    """Images of one colour for each class and noise, through a tiny ViT of random weights."""
    generator, backbone = torch.Generator().manual_seed(0), tiny_vit()
    colours = torch.randn(classes, 3, 1, 1, generator=generator)
    parts = []
    for size in (per_class, 3):
        labels = torch.arange(classes).repeat(size)
        images = colours[labels] + 0.3 * torch.randn(len(labels), 3, PIXELS, PIXELS, generator=generator)
        features = torch.stack([backbone.embed(images), backbone.embed(images.flip(-1))])
        parts.append(Part(labels, features, lambda rows, images=images: images[rows], backbone.embed))
    return Material("pictures", [f"class {c}" for c in range(classes)], *parts, backbone=backbone)
