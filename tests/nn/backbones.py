"""Tiny backbones with random weights, one of each family of transformers that takes prompts, and inputs for them."""

import copy

import torch
import transformers as tf
from torch import nn

WIDTH, BLOCKS, IMAGE, PATCH, ROWS = 32, 4, 16, 8, 3
SIZES = {"hidden_size": WIDTH, "num_hidden_layers": BLOCKS, "num_attention_heads": 4, "intermediate_size": 48}
VISION = SIZES | {"image_size": IMAGE, "patch_size": PATCH}
TEXT = SIZES | {"vocab_size": 50, "max_position_embeddings": 40}
DISTIL = {"dim": WIDTH, "n_layers": BLOCKS, "n_heads": 4, "hidden_dim": 48, "vocab_size": 50}
DINO2 = {"hidden_size": WIDTH, "num_hidden_layers": BLOCKS, "num_attention_heads": 4, "image_size": 16, "patch_size": 8}

# name: how it is made, the table that has the position of CLS in row 0 (or the row that is said), and its pooling
WORDS = "embeddings.position_embeddings.weight"
FAMILIES = {
    "vit": (lambda: tf.ViTModel(tf.ViTConfig(**VISION)), "embeddings.position_embeddings"),
    "deit": (lambda: tf.DeiTModel(tf.DeiTConfig(**VISION)), "embeddings.position_embeddings"),
    "dinov2": (lambda: tf.Dinov2Model(tf.Dinov2Config(**DINO2)), "embeddings.position_embeddings"),
    "dinov2_with_registers": (
        lambda: tf.Dinov2WithRegistersModel(tf.Dinov2WithRegistersConfig(**DINO2, num_register_tokens=2)),
        "embeddings.position_embeddings",
    ),
    "dinov3": (lambda: tf.DINOv3ViTModel(tf.DINOv3ViTConfig(**VISION, num_register_tokens=2)), None),
    "beit": (
        lambda: tf.BeitModel(tf.BeitConfig(**VISION, use_absolute_position_embeddings=True)),
        "embeddings.position_embeddings",
    ),
    "clip": (lambda: tf.CLIPVisionModel(tf.CLIPVisionConfig(**VISION)), "embeddings.position_embedding.weight"),
    "siglip": (lambda: tf.SiglipVisionModel(tf.SiglipVisionConfig(**VISION)), None),
    "siglip without head": (
        lambda: tf.SiglipVisionModel(tf.SiglipVisionConfig(**VISION, vision_use_head=False)),
        None,
    ),
    "bert": (lambda: tf.BertModel(tf.BertConfig(**TEXT)), WORDS),
    "roberta": (lambda: tf.RobertaModel(tf.RobertaConfig(**TEXT)), f"{WORDS}[2]"),
    "xlm-roberta": (
        lambda: tf.XLMRobertaModel(tf.XLMRobertaConfig(**TEXT)),
        f"{WORDS}[2]",
    ),
    "camembert": (lambda: tf.CamembertModel(tf.CamembertConfig(**TEXT)), f"{WORDS}[2]"),
    "distilbert": (lambda: tf.DistilBertModel(tf.DistilBertConfig(**DISTIL)), WORDS),
}
TEXTS = ("bert", "roberta", "xlm-roberta", "camembert", "distilbert")
IMAGES = tuple(name for name in FAMILIES if name not in TEXTS)


def make(name="dinov2"):
    """The backbone, in eval mode, with no parameter at zero or one."""
    torch.manual_seed(0)
    model = FAMILIES[name][0]().eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.2)
    return model


def cls_position(name, model):
    """(WIDTH,) the position of CLS, found by this file's own table; zero where there is none."""
    where = FAMILIES[name][1]
    if where is None:
        return torch.zeros(WIDTH)
    path, _, row = where.rstrip("]").partition("[")
    table = model
    for attribute in path.split("."):
        table = getattr(table, attribute)
    return table.reshape(-1, WIDTH)[int(row or 0)].detach()


def images(rows=ROWS, seed=1):
    return torch.randn(rows, 3, IMAGE, IMAGE, generator=torch.Generator().manual_seed(seed))


def tokens(lengths=(7, 4, 6)):
    """Token ids and their mask: rows of these lengths, padded."""
    ids = torch.randint(3, 50, (len(lengths), max(lengths)), generator=torch.Generator().manual_seed(1))
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    return {"input_ids": ids.where(mask, 1), "attention_mask": mask.long()}


def inputs(name):
    """A batch for this family, by the names of its arguments."""
    return tokens() if name in TEXTS else {"pixel_values": images()}


def blocks_of(model):
    """The list of blocks and its owner's name for it."""
    for module in model.modules():
        for attribute, child in module.named_children():
            if isinstance(child, nn.ModuleList) and len(child) == BLOCKS:
                return module, attribute
    raise AssertionError("no blocks")


class Prompted(nn.Module):
    """A block written out by hand: tokens in, the block, tokens out."""

    def __init__(self, block, prompts, at):
        super().__init__()
        self.block, self.prompts, self.at = block, prompts, at

    def forward(self, x, *args, **kwargs):
        at, length = self.at or x.shape[1], self.prompts.shape[1]
        y = self.block(torch.cat([x[:, :at], self.prompts, x[:, at:]], dim=1), *args, **kwargs)
        return torch.cat([y[:, :at], y[:, at + length :]], dim=1)


def by_hand(model, prompts, at=None):
    """A copy of the model whose block i has `prompts[i]` (N, length, WIDTH) put in after `at` tokens or at the end."""
    copied = copy.deepcopy(model)
    owner, attribute = blocks_of(copied)
    blocks = getattr(owner, attribute)
    for layer, tokens_of_layer in prompts.items():
        blocks[layer] = Prompted(blocks[layer], tokens_of_layer, at)
    return copied
