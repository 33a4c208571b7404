"""Statistics in state dicts and in files: told what they are of, and refused where they do not fit."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from flyk import checkpoint

if TYPE_CHECKING:
    from typing_extensions import Self

    from flyk.nn.random_projection import RandomProjection


class Stored(nn.Module):
    """A module that has learned statistics, kept by a form of REAR under the names STATISTICS.

    A form says by `settings` what it is made with, by `_kind` what its statistics are of beside the seed of R, and by
    `_load_statistics` which fit.
    """

    # Plain tensors and not buffers: DDP overwrites the buffers of a process with the first one's.
    STATISTICS: ClassVar[tuple[str, ...]] = ("counts", "dropped")
    BY_EXPERT: ClassVar[tuple[str, ...]] = ("counts", "dropped")  # those whose last dimension is the experts'
    dtype: torch.dtype
    projection: RandomProjection

    def flush(self) -> None:
        raise NotImplementedError

    def settings(self) -> dict[str, Any]:
        raise NotImplementedError

    def _kind(self) -> dict[str, Any]:
        raise NotImplementedError

    def _widen(self, num_experts: int) -> None:
        raise NotImplementedError

    def _forget(self) -> None:
        raise NotImplementedError

    def save(self, path: str | Path) -> None:
        """Write settings and statistics to one .safetensors file, whole or not at all, with a checksum.

        In place of R stands its seed, and of G the lower triangle alone.

        Raises:
            OSError: the file cannot be written; an old one is intact.
            ValueError: `path` does not end with .safetensors.
        """
        self.flush()
        about = {"form": type(self).__name__, "settings": self.settings(), "kind": self._kind()}
        checkpoint.save(path, about | {"statistics": self._stored()})

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """The router that `save` stored.

        Raises:
            ValueError: the file is missing, damaged, of a newer version or of another form.
        """
        state = checkpoint.load(path)
        try:
            form, settings, statistics = state["form"], dict(state["settings"]), state["statistics"]
            if form != cls.__name__:
                raise ValueError(f"it holds a {form}")
            settings["dtype"] = {"float32": torch.float32, "float64": torch.float64}[settings["dtype"]]
            settings["num_experts"] = len(statistics["counts"])  # as many as the file has room for
            router = cls(**settings)
            if state["kind"] != router._kind():
                raise ValueError(f"it is of {state['kind']}, not of {router._kind()}")
            router._load_statistics(*router._restored(statistics))
        except (LookupError, ValueError, TypeError, AttributeError, RuntimeError) as error:
            why = str(error).partition("\n")[0]
            raise ValueError(f"path must name a {cls.__name__} that flyk saved, got {path}: {why}") from error
        return router

    def _stored(self) -> dict[str, Tensor]:
        """The statistics as a file has them."""
        return {name: getattr(self, name) for name in self.STATISTICS}

    def _restored(self, statistics: dict[str, Tensor]) -> list[Tensor]:
        """The statistics in the order of STATISTICS, of what `_stored` made."""
        for name in self.STATISTICS:
            if not statistics[name].isfinite().all():
                raise ValueError(f"{name} must be finite")
        return [statistics[name] for name in self.STATISTICS]

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        self.flush()
        destination[prefix + "kind"] = torch.tensor(list(json.dumps(self._kind()).encode()), dtype=torch.uint8)
        destination |= {prefix + name: getattr(self, name) for name in self.STATISTICS}

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )
        keys = [prefix + name for name in ("kind", *self.STATISTICS)]
        unexpected_keys[:] = [key for key in unexpected_keys if key not in keys]
        missing = [key for key in keys if key not in state_dict]
        missing_keys += missing
        try:
            if not missing:
                self._check_kind(state_dict[keys[0]])
                self._load_statistics(*(state_dict[key] for key in keys[1:]))
                return
        except (ValueError, TypeError) as error:
            error_msgs.append(f"{prefix}{error}")
        if (seed := prefix + "projection.seed") in state_dict:
            state_dict[seed] = self.projection.seed  # R stays with the statistics that stay

    def _check_kind(self, kind: Tensor) -> None:
        """A state's expansion is this one's; its seed may be another, for R is made anew."""
        try:
            theirs = json.loads(bytes(kind.tolist()))
            wrong = {name: (mine, theirs[name]) for name, mine in self._kind().items() if theirs[name] != mine}
        except (ValueError, KeyError, TypeError, RecursionError):
            raise ValueError("kind must be the JSON that state_dict made, got something else") from None
        for name, (mine, got) in wrong.items():
            raise ValueError(f"kind must have {name} {mine!r}, as this router, got {got!r}")

    def _load_statistics(self, *statistics: Tensor) -> None:
        """Take these, in the order of STATISTICS, in place of what was learned; experts that they lack are unseen.

        Raises:
            ValueError, TypeError: one does not fit; nothing has changed then.
        """
        raise NotImplementedError

    def _replace(self, statistics: Sequence[Tensor]) -> None:
        """Copy these, of no other size but in experts, over this router's own."""
        self._widen(statistics[-1].shape[-1])
        for name, theirs in zip(self.STATISTICS, statistics, strict=True):
            mine = getattr(self, name)
            mine[..., : theirs.shape[-1]].copy_(theirs)
            mine[..., theirs.shape[-1] :].zero_()
        self._reduced = False
        self._forget()
