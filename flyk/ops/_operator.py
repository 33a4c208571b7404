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
        self._written = [i for i, a in enumerate(self._arguments) if a.alias_info is not None and a.alias_info.is_write]
        self._types = [_types(a.type) for a in self._arguments]
        self._plain: dict[tuple[type, ...], tuple[list[int], list[int]] | None] = {}
        self._kernel: Callable[..., Any]  # the CPU's: the reference until a backend brings one
        self._record: Callable[..., Any] | None = None
        self.register(reference, "CompositeExplicitAutograd")
        checks = self._checks[:1] if check is not None else []
        torch.library.register_fake(f"flyk::{self.name}", _after(checks, fake), lib=_library)
        if backward is not None and setup_context is not None:
            self._record = _recorder(self.overload, backward, setup_context)
            kernel = _autograd_kernel(self.overload, self._record)
            _library.impl(self.name, kernel, "Autograd", with_keyset=True)
        if autocast:
            names = [argument.name for argument in self._arguments]
            for device in ("CPU", "CUDA"):
                kernel = _autocast_kernel(self.overload, names, frozenset(autocast), device, autocast_dtype)
                _library.impl(self.name, kernel, f"Autocast{device}")

    def register(self, kernel: Callable[..., Any], key: str) -> None:
        """Make `kernel` the one that serves dispatch key `key` ("CPU", "CUDA"); the operator's checks run before it."""
        self.kernels[key] = kernel.__module__.removeprefix("flyk.backends.").partition(".")[0]
        if self._written:
            kernel = _counted(kernel, self._written)
        checked = _after(self._checks, kernel)
        _library.impl(self.name, checked, key)
        if key in ("CompositeExplicitAutograd", "CPU"):
            self._kernel = checked

    def __call__(self, *args: Any) -> Any:
        if torch.compiler.is_compiling():
            return self.overload(*args)
        recorded = torch.is_grad_enabled() and torch._C._any_requires_grad(*args)
        if _DIRECT and self._is_plain(args):  # the dispatcher would come to the same kernel, 10 to 40 us later
            if not recorded:
                return self._kernel(*args)
            if self._record is not None:
                return self._record(*args, self._kernel)
        try:
            if recorded:
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

    def _is_plain(self, args: tuple[Any, ...]) -> bool:
        """Whether the arguments are exactly the schema's and the dispatcher would do nothing but call the CPU kernel.

        That is: no mode, transform, tracer, autocast or profiler is on, and each tensor is an ordinary one of the CPU.
        """
        if _switches() != _NOTHING_ON or _autocast() or _function_mode():
            return False
        if torch.autograd.profiler._is_profiler_enabled:
            return False
        kinds = tuple(map(type, args))
        try:
            places = self._plain[kinds]
        except KeyError:
            places = self._plain[kinds] = self._places(kinds)
        if places is None:
            return False
        tensors, lists = places
        for i in tensors:
            if _keys(args[i]) != _ORDINARY:
                return False
        return all({float}.issuperset(map(type, args[i])) for i in lists)

    def _places(self, kinds: tuple[type, ...]) -> tuple[list[int], list[int]] | None:
        """Where tensors and lists stand among arguments of these types; None where the schema has no such types."""
        if len(kinds) != len(self._types) or any(k not in t for k, t in zip(kinds, self._types, strict=True)):
            return None
        return [i for i, k in enumerate(kinds) if k in _TENSORS], [i for i, k in enumerate(kinds) if k in _LISTS]


_TENSORS = (Tensor, torch.nn.Parameter)
_LISTS = (tuple, list)
try:
    # The dispatch keys that are on when nothing is, and those of a tensor on the CPU that has no negation pending.
    _Key = torch._C.DispatchKey
    _NOTHING_ON = torch._C.DispatchKeySet(_Key.BackendSelect) | torch._C.DispatchKeySet(_Key.ADInplaceOrView)
    _keys = torch._C._dispatch_keys
    _ORDINARY = _keys(torch.empty(0, device="cpu"))
    _switches = torch._C._dispatch_tls_local_include_set
    _autocast = torch._C._is_any_autocast_enabled
    _function_mode = torch._C._is_torch_function_mode_enabled
    _DIRECT = hasattr(torch.autograd.profiler, "_is_profiler_enabled")
except AttributeError:  # torch's own names, which a release may drop: every call then goes to the dispatcher
    _DIRECT = False


def _types(of: Any) -> tuple[type, ...]:
    """The Python types that a schema's type takes as they are."""
    if isinstance(of, torch.OptionalType):
        return (*_types(of.getElementType()), type(None))
    if isinstance(of, torch.ListType):
        return _LISTS
    kinds = {"Tensor": _TENSORS, "int": (int,), "SymInt": (int,), "float": (float,), "bool": (bool,), "str": (str,)}
    return kinds[str(of)]


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


def _counted(kernel: Callable[..., Any], written: list[int]) -> Callable[..., Any]:
    """`kernel`, which may write by address; autograd is told, so that it knows a saved tensor to be stale."""

    @functools.wraps(kernel)
    def counted(*args: Any) -> Any:
        result = kernel(*args)
        for tensor in map(args.__getitem__, written):
            if tensor is not None and not tensor.is_inference():
                torch.autograd.graph.increment_version(tensor)
        return result

    return counted


def _recorder(overload: Any, backward: Callable[..., Any], setup_context: Callable[..., None]) -> Callable[..., Any]:
    """Takes an operator's arguments and the kernel to call, and records the gradient of what that gives.

    What `torch.library.register_autograd` makes takes 30 us more.
    """
    defaults = tuple(a.default_value for a in overload._schema.arguments)

    class Recorded(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *args: Any) -> Any:
            *inputs, kernel = args  # last, so that the inputs keep their places in ctx.needs_input_grad
            ctx.set_materialize_grads(False)  # no zeros for outputs without a gradient
            result = kernel(*inputs)
            setup_context(ctx, inputs, result)
            return result

        @staticmethod
        def backward(ctx: Any, *grads: Tensor | None) -> Any:
            if grads[0] is None:
                return (None,) * (len(defaults) + 1)
            return (*backward(ctx, *grads), None)

    def record(*args: Any) -> Any:
        *inputs, kernel = args
        # The dispatcher leaves out trailing arguments that equal their defaults.
        return Recorded.apply(*inputs, *defaults[len(inputs) :], kernel)

    return record


def _autograd_kernel(overload: Any, record: Callable[..., Any]) -> Callable[..., Any]:
    below = torch._C._after_autograd_keyset

    def kernel(keyset: Any, *args: Any) -> Any:
        def run(*args: Any) -> Any:
            with torch._C._AutoDispatchBelowAutograd():
                return overload.redispatch(keyset & below, *args)

        if torch.is_grad_enabled() and torch._C._any_requires_grad(*args):
            return record(*args, run)
        return run(*args)

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
