"""What only a GPU can show: its streams, its graphs, another one's tensors. Skipped where there is none."""

from __future__ import annotations

import pytest
import torch
from samples import IN_PLACE, OPERATORS, each, same
from torch import Tensor

from flyk.check import Case, arguments_of
from flyk.check.run import outputs, served

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
two = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
# LAPACK's and cuSOLVER's ways of saying that a matrix is not positive definite must be waited for.
FREE = [name for name in OPERATORS if name != "ridge_solve"]


@two
@pytest.mark.parametrize("case", each())
def test_tensors_of_a_gpu_that_is_not_current(case: Case) -> None:
    with torch.cuda.device(0):
        got = outputs(served(case.operator), case.operator, arguments_of(case, "cuda:1"))
        assert torch.cuda.current_device() == 0
    with torch.cuda.device(1):
        want = outputs(served(case.operator), case.operator, arguments_of(case, "cuda:1"))
    assert all(t.device == torch.device("cuda:1") for t in got)
    assert same(got, want)


@gpu
@pytest.mark.parametrize("case", each())
def test_twice_the_same_bits(case: Case) -> None:
    first, second = (outputs(served(case.operator), case.operator, arguments_of(case, "cuda")) for _ in range(2))
    assert same(first, second)


@gpu
@pytest.mark.parametrize("case", each([name for name in FREE if name not in IN_PLACE]))
def test_a_captured_graph_is_replayed_on_new_data(case: Case) -> None:
    arguments = arguments_of(case, "cuda")
    name = next(n for n, t in arguments.items() if isinstance(t, Tensor) and t.is_floating_point())
    function = served(case.operator)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        outputs(function, case.operator, arguments)  # compiled before the capture
        torch.cuda.set_sync_debug_mode("error")
        try:
            outputs(function, case.operator, arguments)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = outputs(function, case.operator, arguments)
    arguments[name].copy_(torch.randn_like(arguments[name]))
    graph.replay()
    torch.cuda.synchronize()
    assert same(captured, outputs(function, case.operator, arguments))
