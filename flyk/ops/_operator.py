"""How an operator of flyk is registered with torch's dispatcher.

Each file of `flyk.ops` makes one `Operator` from five plain functions: the reference (the definition of correct and
the default kernel on every device), the checks, the shape rule, the backward and what of it to keep. A backend adds a
faster kernel for one dispatch key; the checks run before it all the same, so no kernel ever sees bad input.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

_library = torch.library.Library("flyk", "DEF")
_WRONG_TYPE = re.compile(r"Expected a value of type '(.+?)' for argument '(\w+)' but instead found type '(.+?)'")


class Operator:
    """One operator of the `flyk` namespace.

    Args:
        schema: torch schema without the namespace, e.g. ``"ema_(Tensor(a!) bank, Tensor online, ...) -> ()"``.
        reference: plain PyTorch kernel, registered as CompositeExplicitAutograd.
        check: called with the operator's arguments by every kernel and by the shape rule; raises before any write.
            It looks at shapes, dtypes and devices only, so that it can be traced.
        check_values: the same for what only the data can tell (labels in range); called by kernels alone.
        fake: the shape rule.
        backward, setup_context: as `torch.library.register_autograd` wants them, for an operator whose first output
            alone is differentiable.
        autocast: names of the tensor arguments that autocast lowers to its dtype, as `nn.Linear` does; or
            a dtype they are raised to. Without it autocast leaves the operator alone.
    """

    def __init__(
        self,
        schema: str,
        *,
        reference: Callable[..., Any],
        fake: Callable[..., Any],
        check: Callable[..., None] | None = None,
        check_values: Callable[..., None] | None = None,
        backward: Callable[..., Any] | None = None,
        setup_context: Callable[..., None] | None = None,
        autocast: Sequence[str] = (),
        autocast_dtype: torch.dtype | None = None,
    ) -> None:
        self.name = schema.split("(", 1)[0]
        self.reference = reference
        self._checks = [f for f in (check, check_values) if f is not None]
        _library.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
        self.overload = getattr(torch.ops.flyk, self.name).default
        self._arguments = self.overload._schema.arguments
        self.kernels: dict[str, str] = {}  # dispatch key -> the backend that serves it
        self._written = [a.alias_info is not None and a.alias_info.is_write for a in self._arguments]
        self.register(reference, "CompositeExplicitAutograd")
        checks = self._checks[:1] if check is not None else []
        torch.library.register_fake(f"flyk::{self.name}", _after(checks, fake), lib=_library)
        if backward is not None and setup_context is not None:
            kernel = _autograd_kernel(self.overload, backward, setup_context)
            _library.impl(self.name, kernel, "Autograd", with_keyset=True)
        if autocast:
            names = [argument.name for argument in self._arguments]
            for device in ("CPU", "CUDA"):
                kernel = _autocast_kernel(self.overload, names, frozenset(autocast), device, autocast_dtype)
                _library.impl(self.name, kernel, f"Autocast{device}")

    def register(self, kernel: Callable[..., Any], key: str) -> None:
        """Make `kernel` the one that serves dispatch key `key` ("CPU", "CUDA"); the operator's checks run before it."""
        self.kernels[key] = kernel.__module__.removeprefix("flyk.backends.").partition(".")[0]
        if any(self._written):
            kernel = _counted(kernel, self._written)
        _library.impl(self.name, _after(self._checks, kernel), key)

    def __call__(self, *args: Any) -> Any:
        if torch.compiler.is_compiling():
            return self.overload(*args)
        try:
            if torch.is_grad_enabled() and torch._C._any_requires_grad(*args):
                return self.overload(*args)
            with torch._C._AutoDispatchBelowAutograd():  # nothing to record: autograd's kernel would cost 6 us
                return self.overload(*args)
        except AttributeError:  # the dispatcher takes None for any tensor; the checks then stumble over it
            for argument, value in zip(self._arguments, args, strict=False):
                if value is None and isinstance(argument.type, torch.TensorType):
                    raise TypeError(f"{self.name}: {argument.name} must be a Tensor, got None") from None
            raise
        except RuntimeError as error:
            found = _WRONG_TYPE.search(str(error))
            if found is None:
                raise
            wanted, argument, came = found.groups()
            if wanted == came:  # an int that int64 cannot hold
                raise ValueError(f"{self.name}: {argument} must fit 64 bits, got a larger {came}") from None
            raise TypeError(f"{self.name}: {argument} must be {wanted}, got {came}") from None


def _after(checks: list[Callable[..., None]], kernel: Callable[..., Any]) -> Callable[..., Any]:
    """`kernel`, run only once all `checks` have passed on the same arguments."""
    if not checks:
        return kernel

    @functools.wraps(kernel)
    def checked(*args: Any) -> Any:
        for check in checks:
            check(*args)
        return kernel(*args)

    return checked


def _counted(kernel: Callable[..., Any], written: list[bool]) -> Callable[..., Any]:
    """`kernel`, which may write by address; autograd is told, so that it knows a saved tensor to be stale."""

    @functools.wraps(kernel)
    def counted(*args: Any) -> Any:
        result = kernel(*args)
        for tensor, was_written in zip(args, written, strict=False):
            if was_written and tensor is not None and not tensor.is_inference():
                torch.autograd.graph.increment_version(tensor)
        return result

    return counted


def _autograd_kernel(overload: Any, backward: Callable[..., Any], setup_context: Callable[..., None]) -> Any:
    """What `torch.library.register_autograd` makes, without the 30 us that it takes to record a gradient."""
    below = torch._C._after_autograd_keyset
    defaults = tuple(a.default_value for a in overload._schema.arguments)

    def run(keyset: Any, args: Sequence[Any]) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            return overload.redispatch(keyset & below, *args)

    class Recorded(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *args: Any) -> Any:
            *inputs, keyset = args  # last, so that the inputs keep their places in ctx.needs_input_grad
            ctx.set_materialize_grads(False)  # no zeros for outputs without a gradient
            result = run(keyset, inputs)
            setup_context(ctx, inputs, result)
            return result

        @staticmethod
        def backward(ctx: Any, *grads: Tensor | None) -> Any:
            if grads[0] is None:
                return (None,) * (len(defaults) + 1)
            return (*backward(ctx, *grads), None)

    def kernel(keyset: Any, *args: Any) -> Any:
        if torch.is_grad_enabled() and torch._C._any_requires_grad(*args):
            # The dispatcher leaves out trailing arguments that equal their defaults.
            return Recorded.apply(*args, *defaults[len(args) :], keyset)
        return run(keyset, args)

    return kernel


def _autocast_kernel(
    overload: Callable[..., Any], names: list[str], cast: frozenset[str], device: str, dtype: torch.dtype | None
) -> Callable[..., Any]:
    """Casts the named floating tensors, then calls the operator below autocast."""
    exclude = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, f"Autocast{device}"))

    def lower(name: str, value: Any) -> Any:
        if name not in cast or not isinstance(value, Tensor) or not value.is_floating_point():
            return value
        if value.dtype == torch.float64:  # as torch's own autocast: float64 is left alone
            return value
        return value.to(dtype or torch.get_autocast_dtype(device.lower()))

    def kernel(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(exclude):
            return overload(
                *(lower(name, value) for name, value in zip(names, args, strict=False)),
                **{name: lower(name, value) for name, value in kwargs.items()},
            )

    return kernel
