"""The operators of flyk. One file each: formula, schema, checks, shape rule, gradient and reference."""

from flyk.ops.ema_ import ema_
from flyk.ops.ensemble import ensemble
from flyk.ops.expand_gram_ import expand_gram_
from flyk.ops.fly_lora import fly_lora
from flyk.ops.gram_ import gram_
from flyk.ops.masked_cross_entropy import masked_cross_entropy
from flyk.ops.project import project
from flyk.ops.project_topk import project_topk
from flyk.ops.ridge_solve import ridge_solve
from flyk.ops.winner_take_all import winner_take_all

__all__ = [
    "ema_",
    "ensemble",
    "expand_gram_",
    "fly_lora",
    "gram_",
    "masked_cross_entropy",
    "project",
    "project_topk",
    "ridge_solve",
    "winner_take_all",
]
