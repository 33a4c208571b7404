"""Runs a case: what the dispatcher serves, held against the plain reference in float64."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from flyk.check import bounds, gradients
from flyk.check.bounds import Claim, Fault, Rounding
from flyk.check.cases import Case, double
from flyk.check.grids import SUBJECTS, Arguments, arguments_of

# Operators that round nothing: they must agree with the reference of the same dtype.
CHOICES = ("winner_take_all", "make_projection_", "count_winners_")
MODULES = {name: importlib.import_module(f"flyk.ops.{name}") for name in SUBJECTS}


@dataclass(frozen=True)
class Result:
    """The largest share of its tolerance that any part of a case's result used; above 1, or with a fault, it failed."""

    case: Case
    share: float
    where: str = ""
    fault: str | None = None

    @property
    def passed(self) -> bool:
        return self.fault is None and self.share <= 1

    def __str__(self) -> str:
        return f"{self.case.name}: {self.fault or f'{self.where} is off by {self.share:.3g} of its tolerance'}"


def serving(operator: str, device: str) -> str:
    """The backend ("cpu", "triton") that serves an operator on a device type ("cpu", "cuda"), or "reference"."""
    return MODULES[operator].OPERATOR.kernels.get(device.upper(), "reference")


def served(operator: str) -> Callable[..., Any]:
    """The public function, which goes through torch's dispatcher; for fly_lora the form that tells its winners."""
    return getattr(MODULES[operator], "fly_lora_with_winners" if operator == "fly_lora" else operator)


def written(operator: str) -> list[str]:
    """The arguments that an operator writes in place, by its schema."""
    schema = MODULES[operator].OPERATOR.overload._schema
    return [a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write]


def outputs(function: Callable[..., Any], operator: str, arguments: Arguments) -> list[Tensor]:
    """What a call gives: its results, or the tensors that it wrote."""
    result = function(**arguments)
    if result is None:
        return [arguments[name] for name in written(operator) if arguments[name] is not None]
    return list(result) if isinstance(result, tuple) else [result]


def check_case(case: Case, device: torch.device | str = "cpu") -> Result:
    """Run one case on one device."""
    try:
        claims = list(_gradient_claims(case, device) if case.gradient else _claims(case, device))
    except Fault as fault:
        return Result(case, torch.inf, fault=str(fault))
    except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
        return Result(case, torch.inf, fault=f"{type(error).__name__}: {str(error).splitlines()[0]}")
    share, where = max(((claim.share(), claim.name) for claim in claims), default=(0.0, ""))
    return Result(case, share, where)


def _claims(case: Case, device: torch.device | str) -> Iterable[Claim]:
    reference = MODULES[case.operator].OPERATOR.reference
    got = outputs(served(case.operator), case.operator, arguments_of(case, device))
    arguments = arguments_of(case, device)
    if case.operator in CHOICES:
        want = outputs(reference, case.operator, arguments)
        return [bounds.equal(f"output {i}", *pair) for i, pair in enumerate(zip(got, want, strict=True))]
    want = outputs(reference, case.operator, double(arguments))
    dtype = arguments["G"].dtype if "G" in written(case.operator) else case.dtype
    r = Rounding(dtype, exact=case.exact)
    return getattr(bounds, case.operator)(double(arguments), got, want, r)


def gradients_of(function: Callable[..., Any], arguments: Arguments, names: Iterable[str], grad: Tensor) -> Arguments:
    """The gradients to the arguments `names` of the first output, for the incoming gradient `grad`."""
    inputs = {name: arguments[name].detach().requires_grad_() for name in names}
    out = function(**{**arguments, **inputs})
    out = out[0] if isinstance(out, tuple) else out
    if not out.requires_grad:  # a reference that had no row to look at
        return {name: torch.zeros_like(value) for name, value in inputs.items()}
    found = torch.autograd.grad(out, list(inputs.values()), grad.to(out.dtype), materialize_grads=True)
    return dict(zip(inputs, found, strict=True))


def _gradient_claims(case: Case, device: torch.device | str) -> Iterable[Claim]:
    function, reference = served(case.operator), MODULES[case.operator].OPERATOR.reference
    arguments = arguments_of(case, device)
    names = [name for name in SUBJECTS[case.operator].differentiable if arguments[name] is not None]
    exact, r = double(arguments), Rounding(case.dtype, exact=case.exact)
    out = outputs(function, case.operator, arguments)[0]
    draw = torch.Generator().manual_seed(0)
    grad = torch.randint(-2, 3, out.shape, generator=draw).to(out.dtype).to(device)
    grad = grad * gradients.clear(case.operator, exact, r)
    got = gradients_of(function, arguments, names, grad)
    want = gradients.folded(case.operator, gradients_of(reference, exact, names, grad))
    slack = getattr(gradients, case.operator)(exact, grad.double(), r)
    for name in names:
        yield r.claim(f"gradient of {name}", got[name], want[name], slack[name])
