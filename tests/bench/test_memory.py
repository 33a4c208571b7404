"""Memory: peaks of calls whose memory is known, and what layers keep against what their formulas need."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from flyk.bench._memory import ENVIRONMENT, RESET, activations, kept, measured

linux = pytest.mark.skipif(not RESET.exists(), reason="needs Linux's /proc/self/clear_refs")
KNOWN = """
import torch
from flyk.bench._memory import peak
print(peak(lambda: torch.ones(10_000_000)), peak(lambda: (torch.ones(10_000_000) + 1).sum()), peak(lambda: None))
"""


@linux
def test_peaks_of_known_calls() -> None:
    done = subprocess.run(
        [sys.executable, "-c", KNOWN], env={**os.environ, **ENVIRONMENT}, check=True, capture_output=True, text=True
    )
    one, two, none = map(int, done.stdout.split())
    assert one == pytest.approx(40e6, abs=2e6)
    assert two == pytest.approx(80e6, abs=2e6)
    assert none <= 1e6


@linux
def test_every_rival_of_a_case_has_a_peak() -> None:
    (case,) = measured(["winner_take_all"], quick=True)
    assert (case["op"], case["inputs"]) == ("winner_take_all", 256 * 2000 * 4)
    assert case["rivals"]["published"]["peak"] > 256 * 2000 * 4 * 0.9  # the magnitudes
    assert 0 < case["rivals"]["flyk"]["peak"] < case["rivals"]["published"]["peak"]


def test_a_wrong_operator_is_refused_before_the_child_starts() -> None:
    with pytest.raises(ValueError, match="operators must be among"):
        measured(["ema"], quick=True)


def test_kept_counts_a_storage_once_and_leaves_out_the_frozen() -> None:
    x, w = torch.randn(7, requires_grad=True), torch.randn(7, requires_grad=True)
    assert kept(lambda: x * w, []) == 56
    assert kept(lambda: x * w, [w]) == 28
    assert kept(lambda: x * x, []) == 28
    assert kept(lambda: x + w, []) == 0
    assert kept(lambda: (x * w, x + w)[1], []) == 0  # freed with the product


def test_layers_keep_what_their_formulas_need() -> None:
    (found,) = activations(sequence=64, widths=(96,))
    rank, winners = found["r"], found["k"]
    assert found["kept"] == {
        "LoRA": 64 * 4 * (96 + rank),  # x for the gradient of A, its projection for that of B
        "LoRA-FA": 64 * 4 * rank,
        "published FlyLoRA": 64 * 4 * 2 * rank,  # the mask, and the masked projection
        "flyk": 64 * winners * (4 + 8),  # winners and their indices
    }
