"""For every test: NaN in fresh memory, threads put back, and how hypothesis draws."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import settings

# Drawn examples are the same in every run, and none is failed for being slow on a busy machine.
settings.register_profile("flyk", deadline=None, max_examples=60, derandomize=True)
settings.load_profile("flyk")


def _poison(t: torch.Tensor) -> torch.Tensor:
    if t.is_floating_point():
        return t.fill_(torch.nan)
    return t.fill_(True) if t.dtype == torch.bool else t.fill_(torch.iinfo(t.dtype).min)


@pytest.fixture
def poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """What torch hands out as uninitialised holds NaN, or the smallest integer, so that unwritten outputs show."""

    def wrap(allocate: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def poisoned_allocation(*args: Any, **kwargs: Any) -> torch.Tensor:
            return _poison(allocate(*args, **kwargs))

        return poisoned_allocation

    for owner, names in ((torch, ("empty", "empty_like", "empty_strided")), (torch.Tensor, ("new_empty",))):
        for name in names:
            monkeypatch.setattr(owner, name, wrap(getattr(owner, name)))


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    """Sets torch's number of threads for one test."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)
