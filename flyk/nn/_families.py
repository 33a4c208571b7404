"""What `PromptPool` and `FlyPrompt` know of backbones: where their blocks, the position of CLS and the features are.

Models of transformers are told by `config.model_type`, models of timm by the name of their class; neither is imported.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

# By type: how the output becomes features, the first of these that there is; and whether there is a CLS token.
TRANSFORMERS: dict[str, tuple[tuple[str, ...], bool]] = {
    "vit": (("first token",), True),  # its pooler is a layer that many checkpoints lack
    "deit": (("first token",), True),
    "dinov2": (("first token",), True),
    "dinov2_with_registers": (("first token",), True),
    "dinov3_vit": (("first token",), True),
    "beit": (("pooler", "first token"), True),
    "clip_vision_model": (("pooler",), True),
    "siglip_vision_model": (("pooler", "mean"), False),
    "bert": (("mean",), True),
    "roberta": (("mean",), True),
    "xlm-roberta": (("mean",), True),
    "camembert": (("mean",), True),
    "distilbert": (("mean",), True),
}
TIMM = ("VisionTransformer", "Eva")
SUPPORTED = (
    f"a model of transformers of type {', '.join(TRANSFORMERS)}, a {' or '.join(TIMM)} of timm, or a module around one"
)


@dataclass(frozen=True)
class Family:
    """A backbone as `find` understood it.

    Attributes:
        owner: the model that was found, with its head where it has one.
        model: the same without the head; its blocks are these.
        blocks: in order; each takes (N, S, embed_dim) first and returns such a tensor, alone or first in a tuple.
        embed_dim: the width of a token.
        prefix: None where prompts go to the end, else the number of tokens after which they go in.
        positions: the module and attribute that hold the table of positions, None where CLS has no row in one.
        pooled: how the model's output becomes features; empty where `forward_head` of timm does it.
    """

    owner: nn.Module
    model: nn.Module
    blocks: nn.ModuleList | nn.Sequential
    embed_dim: int
    prefix: int | None
    positions: tuple[nn.Module, str] | None
    pooled: tuple[str, ...]

    def cls_position(self) -> Tensor | None:
        """(embed_dim,) the position that the backbone adds to its CLS token, None where it adds none."""
        table = None if self.positions is None else getattr(*self.positions)
        if not isinstance(table, nn.Embedding):
            return None if table is None else table[0, 0]
        pad = table.padding_idx  # RoBERTa counts positions from the one after its padding
        return table.weight[0 if pad is None else pad + 1]

    def num_features(self, backbone: nn.Module) -> int:
        """The width of `features`; a module around the model says it as `num_features`, or has that of a token."""
        if backbone is not self.owner:
            return getattr(backbone, "num_features", self.embed_dim)
        return self.embed_dim if self.pooled else getattr(self.owner, "head_hidden_size", self.embed_dim)

    def features(self, backbone: nn.Module, x: Tensor | Mapping[str, Any]) -> Tensor:
        """(N, d) features of a batch; of a module around the model, what it returns where that is a tensor."""
        model: Any = self.model if backbone is self.owner else backbone
        if backbone is self.owner and not self.pooled:
            return model.forward_head(model.forward_features(x), pre_logits=True)
        output = model(**x) if isinstance(x, Mapping) else model(x)
        if isinstance(output, Tensor):
            return output
        return self._pool(output, x.get("attention_mask") if isinstance(x, Mapping) else None)

    def _pool(self, output: Any, mask: Tensor | None) -> Tensor:
        tokens = output.last_hidden_state
        if "pooler" in self.pooled and output.pooler_output is not None:
            return output.pooler_output
        if "mean" not in self.pooled:
            return tokens[:, 0]
        if mask is None:
            return tokens.mean(1)
        weights = mask.to(tokens.dtype)[..., None]  # of tokens that are no padding
        return (tokens * weights).sum(1) / weights.sum(1).clamp(min=1)


def find(backbone: nn.Module) -> Family:
    """The one model in `backbone`, itself included, that takes prompts.

    Raises:
        TypeError: it is no module.
        ValueError: it is of a family that does not take prompts, which the sentence names.
    """
    if not isinstance(backbone, nn.Module):
        raise TypeError(f"backbone must be an nn.Module, got {type(backbone).__name__}")
    for module in backbone.modules():
        bases = {base.__name__ for base in type(module).__mro__}
        if "PreTrainedModel" in bases:
            return _transformers(module)
        if hasattr(module, "forward_features") and hasattr(module, "forward_head"):
            return _timm(module, bases)
    raise ValueError(f"backbone must be {SUPPORTED}, and no part of this {type(backbone).__name__} is one")


def _transformers(owner: Any) -> Family:
    config, name = owner.config, type(owner).__name__
    kind = config.model_type
    if kind not in TRANSFORMERS:
        of_two = hasattr(config, "vision_config") and hasattr(owner, "vision_model")
        hint = ": give its vision_model" if of_two else f"; wanted {SUPPORTED}"
        raise ValueError(f"backbone: {name} (type {kind}) does not take prompts{hint}")
    biases = ("use_relative_position_bias", "use_shared_relative_position_bias")
    if any(getattr(config, bias, False) for bias in biases):
        raise ValueError(f"backbone: {name} has a relative position bias, which has no entries for prompts")
    if getattr(config, "is_decoder", False):
        raise ValueError(f"backbone: {name} is a decoder (is_decoder=True), whose tokens do not see prompts after them")
    pooled, has_cls = TRANSFORMERS[kind]
    model = owner if hasattr(owner, "embeddings") else owner.base_model
    lists = [m for m in model.modules() if isinstance(m, nn.ModuleList) and len(m) == config.num_hidden_layers]
    if not lists:
        raise ValueError(f"backbone: no list of {config.num_hidden_layers} blocks was found in {name}")
    names = [name for name in ("position_embeddings", "position_embedding") if hasattr(model.embeddings, name)]
    positions = (model.embeddings, names[0]) if has_cls and names else None
    # Its rotary positions belong to the last tokens, as many as there are patches.
    prefix = 1 + config.num_register_tokens if kind == "dinov3_vit" else None
    return Family(owner, model, lists[0], config.hidden_size, prefix, positions, pooled)


def _timm(model: Any, bases: set[str]) -> Family:
    if not bases.intersection(TIMM) or not hasattr(model, "blocks"):
        raise ValueError(f"backbone: {type(model).__name__} does not take prompts; wanted {SUPPORTED}")
    # The table may leave out the tokens before the patches: then CLS has no position of its own.
    whole = model.pos_embed is not None and not model.no_embed_class
    positions = (model, "pos_embed") if whole and model.cls_token is not None else None
    prefix = model.num_prefix_tokens if "Eva" in bases else None  # rotary: all after these are patches with positions
    return Family(model, model, model.blocks, model.embed_dim, prefix, positions, ())
