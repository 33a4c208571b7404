"""RandomProjection: a frozen random matrix as a layer, kept as its seed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from flyk.nn import _check
from flyk.ops._check import choice
from flyk.ops.make_projection_ import KINDS, make_projection_
from flyk.ops.project import project


class RandomProjection(nn.Module):
    """``forward(x) = act(x Rᵀ)`` for a frozen random matrix R (out_features, in_features).

    R is a pure function of the arguments: the same bits on every machine, device and torch version (see
    `flyk.ops.make_projection_`). It is not trained and not saved. The state dict holds the seed alone, an int64 scalar,
    and loading a state with another seed makes R anew; it does not say kind, nnz or std, so a module must be
    constructed with those that the state was saved from.

    R is always made in float32 and rounded once to the module's dtype, also by ``.to(dtype)`` and ``.to_empty()``, so
    that no detour through bfloat16 or the meta device changes it. A new module is of torch's default dtype and device.

    Args:
        in_features, out_features: columns and rows of R.
        kind: "gaussian" (dense, N(0, std²)), "sparse_gaussian", "sparse_sign" (±std) or "binary" (std).
        nnz: entries in each row of a sparse kind, from 1 to in_features; None for "gaussian".
        std: standard deviation or size of an entry.
        seed: from 0 to 2^63 - 1. Matrices of different seeds are independent.

    Attributes:
        values: (out_features, nnz); for "gaussian" (out_features, in_features).
        indices: (out_features, nnz) int32, ascending within a row; for "gaussian" None.
        seed: () int64.

    Raises:
        ValueError, TypeError: an argument that does not fit.
    """

    values: Tensor
    indices: Tensor | None
    seed: Tensor

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        kind: str,
        nnz: int | None = None,
        std: float = 1.0,
        seed: int = 0,
    ) -> None:
        super().__init__()
        choice("kind", kind, KINDS)
        if kind == "gaussian" and nnz is not None:
            raise ValueError(f"nnz must be None for kind 'gaussian', which is dense, got {nnz}")
        if kind != "gaussian" and nnz is None:
            raise ValueError(f"nnz must be given for kind {kind!r}: how many entries a row has, got None")
        self.in_features = _check.integer("in_features", in_features, 0)
        self.out_features = _check.integer("out_features", out_features, 0)
        self.kind = kind
        self.nnz = None if nnz is None else _check.integer("nnz", nnz, 0)
        self.std = _check.number("std", std, 0)
        self._seed = _check.integer("seed", seed, 0)
        for name in ("values", "indices", "seed"):
            self.register_buffer(name, None, persistent=name == "seed")
        self._build(torch.get_default_device(), torch.get_default_dtype())

    def _build(self, device: torch.device, dtype: torch.dtype) -> None:
        self.values, self.indices = self._make(0, self.out_features, device, dtype)
        self.seed = torch.tensor(self._seed, device=device)

    def _make(self, begin: int, end: int, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
        shape = (end - begin, self.in_features if self.nnz is None else self.nnz)
        values = torch.empty(shape, device=device, dtype=torch.float32)
        indices = None if self.nnz is None else torch.empty(shape, device=device, dtype=torch.int32)
        make_projection_(values, indices, self.kind, self.in_features, self.std, self._seed, begin)
        return values.to(dtype), indices

    def forward(self, x: Tensor, activation: str = "none") -> Tensor:
        """x (..., in_features) to (..., out_features), in x's dtype; activation "none" or "relu"."""
        _check.features("x", x, self.in_features)
        return project(x, self.values, self.indices, activation=activation)

    def rows(self, begin: int, end: int) -> tuple[Tensor, Tensor | None]:
        """Rows begin .. end - 1 of R as (values, indices), made alone: bitwise those of the attributes."""
        begin = _check.integer("begin", begin, 0, self.out_features)
        end = _check.integer("end", end, begin, self.out_features)
        return self._make(begin, end, self.values.device, self.values.dtype)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> RandomProjection:
        before = self.values
        try:
            super()._apply(fn, recurse)
        except NotImplementedError:  # off the meta device, where there is nothing to copy and nothing is needed
            if not before.is_meta:
                raise
            like = fn(torch.empty(0, dtype=before.dtype, device="cpu"))
            self._build(like.device, like.dtype)
            return self
        if self.values is not before:  # moved or cast: what stands there may be rounded twice, or never written
            self._build(self.values.device, self.values.dtype)
        return self

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        saved = state_dict.get(prefix + "seed")
        if saved is None or saved.is_meta:
            super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)
        elif saved.dtype != torch.int64 or saved.shape != () or saved < 0:
            # A state dict cast to a half type has lost its seed.
            error_messages = args[-1]
            error_messages.append(f"{prefix}seed must be an int64 scalar of at least 0, got {saved}")
        else:
            super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)
            self._seed = int(saved)
            if self.values.is_meta:
                self._build(self.seed.device, self.values.dtype)
                return
            # In place, for a graph that was captured reads them where they are.
            made = self._make(0, self.out_features, self.values.device, self.values.dtype)
            for mine, new in zip((self.values, self.indices), made, strict=True):
                if mine is not None and new is not None:
                    mine.copy_(new)

    def extra_repr(self) -> str:
        nnz = "" if self.nnz is None else f", nnz={self.nnz}"
        return f"{self.in_features}, {self.out_features}, kind={self.kind!r}{nnz}, std={self.std:g}, seed={self._seed}"
