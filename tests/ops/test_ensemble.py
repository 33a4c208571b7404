"""ensemble beyond its formula: many rows, few threads, banks that are views, numbers that are none."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from flyk import ops, reference

D, CLASSES, EXPERTS, HEADS = 19, 21, 3, 2


def arguments(rows: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    generator = torch.Generator().manual_seed(rows)
    shapes = ((rows, D), (CLASSES, D), (CLASSES,), (EXPERTS, HEADS, CLASSES, D), (EXPERTS, HEADS, CLASSES))
    floats = [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]
    return [*floats, torch.randint(EXPERTS, (rows,), generator=generator), torch.arange(CLASSES) % 4 > 0]


@pytest.fixture
def threads() -> object:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_more_rows_than_are_taken_at_once(dtype: torch.dtype) -> None:
    given = arguments(2500, dtype)
    want = reference.ensemble(*(t.double() if t.is_floating_point() else t for t in given))
    tolerance = 1e-5 if dtype == torch.float32 else 2.0**-8
    torch.testing.assert_close(ops.ensemble(*given).double(), want, rtol=tolerance, atol=1e-7)


def test_bits_do_not_depend_on_threads(threads) -> None:
    given = arguments(300)
    found = []
    for count in (1, 2, 3):
        threads(count)
        found.append(ops.ensemble(*given))
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


def test_a_bank_that_is_a_view() -> None:
    h, W, b, bank, bank_b, ids, seen = arguments(40)
    want = ops.ensemble(h, W, b, bank, bank_b, ids, seen)
    wider = torch.full((EXPERTS, CLASSES, HEADS, D + 3), torch.nan)
    view = wider[..., :D].transpose(1, 2)
    view.copy_(bank)
    assert torch.equal(ops.ensemble(h, W, b, view, bank_b, ids, seen), want)


def test_what_is_not_seen_has_no_part() -> None:
    given = arguments(40)
    want = ops.ensemble(*given)
    unseen = ~given[-1]
    given[1][unseen], given[2][unseen] = torch.nan, torch.inf
    given[3][:, :, unseen], given[4][..., unseen] = torch.inf, torch.nan
    assert torch.equal(ops.ensemble(*given), want)
    assert not want[:, unseen].any()


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_numbers_that_are_none_surface(bad: float) -> None:
    given = arguments(40)
    given[4][1, 0, 1] = bad
    p = ops.ensemble(*given)
    of_expert = given[5] == 1
    assert p[of_expert].isnan().all()
    assert not p[~of_expert].isnan().any()
