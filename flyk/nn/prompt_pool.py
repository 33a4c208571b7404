"""PromptPool: learned tokens for each expert, shown to the first blocks of a frozen transformer by hooks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from flyk.nn import _check
from flyk.nn._families import Family, find
from flyk.ops import _check as _ops_check

NOTES = "_flyk_prompts"  # on a block's input, of the prompts it was given from each pool: it may be computed again
LOST = object()


class PromptPool(nn.Module):
    """The prompts of FlyPrompt, arXiv 2602.01976: for each expert `length` tokens before each of some blocks.

    A block (B) in `layers` is given the tokens of its sequence and, after them, the prompts of each row's expert, with
    the backbone's position of CLS added where it has one; what it returns for prompts is cut off:
    ``x ← B([x; P_e + pos_CLS])[:S]``. The next block in `layers` gets prompts of its own.

        pool = PromptPool(10, embed_dim=384)
        handle = pool.attach(backbone)
        pool.start_expert(0)
        with pool.use(0):
            h = backbone(images)

    Each expert's prompts are a parameter of their own, from U(0, 1) as in the published code. `start_expert` starts
    one at the mean of the earlier ones (Eq. 5) and puts copies in place of the earlier ones' parameters, frozen: what
    an optimizer still does to those it was given (momentum, weight decay, a step of LBFGS along its history) is
    without effect. Without `start_expert` all are ordinary parameters.

    Args:
        num_experts: E.
        length: tokens for each block.
        embed_dim: their width, that of the backbone.
        layers: the blocks, counted from 0, rising.

    Attributes:
        prompts: E parameters, each (len(layers), length, embed_dim).
        started: (E,) bool buffer, the experts that `start_expert` has started.
        current: the last of them, None before any; part of the state.

    Raises:
        ValueError, TypeError: an argument that does not fit.
    """

    started: Tensor

    def __init__(
        self, num_experts: int, length: int = 20, embed_dim: int = 768, layers: Sequence[int] = (0, 1, 2, 3, 4)
    ) -> None:
        super().__init__()
        self.num_experts = _check.integer("num_experts", num_experts, 1)
        self.length = _check.integer("length", length, 1)
        self.embed_dim = _check.integer("embed_dim", embed_dim, 1)
        self.layers = tuple(_check.integer("layers", layer, 0) for layer in _check.items("layers", layers))
        if not self.layers or list(self.layers) != sorted(set(self.layers)):
            raise ValueError(f"layers must be one or more rising numbers of blocks, got {tuple(layers)}")
        shape = (len(self.layers), length, embed_dim)
        self.prompts = nn.ParameterList(nn.init.uniform_(torch.empty(shape)) for _ in range(num_experts))
        self.register_buffer("started", torch.zeros(num_experts, dtype=torch.bool))
        self.current: int | None = None
        self._active: _Active | None = None

    @torch.no_grad()
    def start_expert(self, expert: int) -> None:
        """Make an expert the one that trains: its prompts start at the mean of the earlier ones, which are frozen.

        Give the optimizer, or a new one, the parameters that require a gradient now.

        Raises:
            ValueError, TypeError: no id of an expert, or of one that was started before, whose prompts may not change.
        """
        expert = _check.integer("expert", expert, 0, self.num_experts - 1)
        if self.started[expert]:
            raise ValueError(f"expert must be one that was not started before, got {expert}: its prompts are kept")
        earlier = [prompts for prompts, started in zip(self.prompts, self.started, strict=True) if started]
        if earlier:
            self.prompts[expert].copy_(torch.stack(earlier).mean(0))
        if self.current is not None:  # an optimizer may hold the parameter; from now on that is not the one in use
            self.prompts[self.current] = nn.Parameter(self.prompts[self.current].detach().clone())
        self.started[expert] = True
        self._train_only(expert)

    def _train_only(self, expert: int | None) -> None:
        self.current = expert
        for e, prompts in enumerate(self.prompts):
            prompts.requires_grad_(expert is None or e == expert)
            prompts.grad = None

    @contextmanager
    def use(self, expert_ids: int | Tensor) -> Iterator[None]:
        """Within it, attached backbones see these experts' prompts; outside they are as if nothing were attached.

        Prompts are read on entry: enter anew after a step of the optimizer. Gradients reach the experts named alone.

        Args:
            expert_ids: the expert of all rows, or (N,) int64 one for each, from 0 to E - 1.

        Raises:
            ValueError, TypeError: an id or shape that does not fit; within it also a backbone's number of rows.
            RuntimeError: it is entered already.
        """
        if self._active is not None:
            raise RuntimeError("use is entered already: leave it before it is entered again")
        self._active = self._read(expert_ids)
        try:
            yield
        finally:
            self._active = None

    @contextmanager
    def show(self, prompts: Tensor) -> Iterator[None]:
        """As `use`, but with prompts that were computed elsewhere, as methods do that mix them for each row.

        Args:
            prompts: (N, len(layers), length, embed_dim), those of each row; gradients reach them.

        Raises:
            ValueError, TypeError: a shape that does not fit; within it also a backbone's number of rows.
            RuntimeError: `use` or `show` is entered already.
        """
        _check.tensor("prompts", prompts)
        _ops_check.dtype("prompts", prompts)
        _ops_check.shape("prompts", prompts, "N", len(self.layers), self.length, self.embed_dim)
        if self._active is not None:
            raise RuntimeError("use is entered already: leave it before it is entered again")
        self._active = _Active(prompts, torch.arange(len(prompts), device=prompts.device), "prompts")
        try:
            yield
        finally:
            self._active = None

    def _read(self, expert_ids: int | Tensor) -> _Active:
        if not isinstance(expert_ids, Tensor):
            return _Active(self.prompts[_check.integer("expert_ids", expert_ids, 0, self.num_experts - 1)][None], None)
        _ops_check.dtype("expert_ids", expert_ids, (torch.int64,))
        _ops_check.shape("expert_ids", expert_ids, "N")
        device = self.started.device
        if expert_ids.is_meta or (expert_ids.device != device and expert_ids.device.type != "cpu"):
            raise ValueError(f"expert_ids must be on the pool's device, {device}, or the CPU, got {expert_ids.device}")
        _ops_check.in_range("expert_ids", expert_ids, self.num_experts)
        experts, rows = expert_ids.unique(return_inverse=True)
        if not len(experts):
            return _Active(self.prompts[0].new_empty(0, *self.prompts[0].shape), rows)
        return _Active(torch.stack([self.prompts[e] for e in experts.tolist()]), rows)

    def attach(self, backbone: nn.Module) -> PromptHandle:
        """Hook the blocks of a vision or text transformer, or of the one inside a module; docs/prompts.md lists them.

        Nothing of the backbone changes: neither its parameters nor the names in its state_dict.

        Raises:
            ValueError, TypeError: a family that does not take prompts, another width, too few blocks, or a backbone
                to which this pool is attached already.
        """
        family = find(backbone)
        if family.embed_dim != self.embed_dim:
            raise ValueError(f"backbone must have tokens of width {self.embed_dim} (embed_dim), got {family.embed_dim}")
        if self.layers[-1] >= len(family.blocks):
            raise ValueError(f"backbone must have a block {self.layers[-1]} (layers), got {len(family.blocks)} blocks")
        if is_attached(self, family):
            raise ValueError("backbone must be one to which this pool is not attached: remove the handle first")
        handles: list[RemovableHandle] = []
        for index, layer in enumerate(self.layers):
            block = family.blocks[layer]
            hooks = _Hooks(self, index, family, block)
            handles.append(block.register_forward_pre_hook(hooks.before, with_kwargs=True))
            # In front of others' hooks, which then see the block's output without prompts.
            handles.append(block.register_forward_hook(hooks.after, prepend=True, always_call=hooks.counts_prefix))
        return PromptHandle(handles)

    def get_extra_state(self) -> Tensor:
        """The current expert, -1 for none, and the layers."""
        return torch.tensor([-1 if self.current is None else self.current, *self.layers])

    def set_extra_state(self, state: Tensor) -> None:
        current, *layers = state.flatten().tolist()  # states used to be of the expert alone
        if layers and tuple(layers) != self.layers:
            raise ValueError(f"layers must be those of the state, {tuple(layers)}, got {self.layers}")
        current = _check.integer("current", current, -1, self.num_experts - 1)
        self._train_only(None if current < 0 else current)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        if f"{prefix}_extra_state" in state_dict:  # first, so that a state that is refused changes nothing
            self.set_extra_state(state_dict[f"{prefix}_extra_state"])
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    def extra_repr(self) -> str:
        return f"num_experts={self.num_experts}, length={self.length}, layers={self.layers}, current={self.current}"


class PromptHandle:
    """What `PromptPool.attach` returns."""

    def __init__(self, handles: Sequence[RemovableHandle]) -> None:
        self._handles = handles

    def remove(self) -> None:
        """Take the hooks off the backbone; a second time does nothing."""
        for handle in self._handles:
            handle.remove()


def is_attached(pool: PromptPool, family: Family) -> bool:
    """Whether the pool's hooks are on this backbone."""
    hooked = [getattr(hook, "__self__", None) for hook in family.blocks[pool.layers[0]]._forward_hooks.values()]
    return any(isinstance(hooks, _Hooks) and hooks.pool is pool for hooks in hooked)


@dataclass(frozen=True)
class _Active:
    """The prompts in use: `stack` (P, layers, length, embed_dim), and which of the P each row has, None for the one.

    `name` is the argument that said so.
    """

    stack: Tensor
    rows: Tensor | None
    name: str = "expert_ids"

    def tokens(self, index: int, like: Tensor) -> Tensor:
        """(N, length, embed_dim) prompts for the block `layers[index]`, of the rows and dtype of its input."""
        stack = self.stack[:, index]
        if self.rows is None:
            return stack.to(like.dtype).expand(like.shape[0], -1, -1)
        if len(self.rows) != like.shape[0]:
            raise ValueError(f"{self.name} must be one for each of {like.shape[0]} rows, got {len(self.rows)}")
        return stack.to(like.dtype)[self.rows]


class _Hooks:
    """The two hooks of one block."""

    def __init__(self, pool: PromptPool, index: int, family: Family, block: Any) -> None:
        self.pool, self.index, self.family = pool, index, family
        self.counts_prefix = family.prefix is not None and hasattr(getattr(block, "attn", None), "num_prefix_tokens")

    def before(self, block: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]] | None:
        """Puts the prompts into the block's input, and entries for them into its mask."""
        x, at = args[0], self.family.prefix
        active = self._prompts_of(x)
        if active is None:
            return None
        tokens, position = active.tokens(self.index, x), self.family.cls_position()
        if position is not None:
            tokens = tokens + position.to(x.dtype)
        joined = torch.cat([x, tokens] if at is None else [x[:, :at], tokens, x[:, at:]], dim=1)
        _hand_on(x, joined)
        args, kwargs = _widen_masks((joined, *args[1:]), kwargs, self.pool.length, at)
        if self.counts_prefix:
            block.attn.num_prefix_tokens += self.pool.length  # tokens that are turned by no angle
        return args, kwargs

    def after(self, block: Any, args: tuple[Any, ...], output: Any) -> Any:
        """Cuts the prompts off the block's output."""
        length, at = self.pool.length, self.family.prefix
        if self.counts_prefix:
            block.attn.num_prefix_tokens = at
        if output is None:  # the block has raised
            return None
        x = output[0] if isinstance(output, tuple) else output
        if self._prompts_of(args[0]) is not None:
            x = x[:, :-length] if at is None else torch.cat([x[:, :at], x[:, at + length :]], dim=1)
        _hand_on(args[0], x)  # the next block's input, where one checkpoint is around both
        return (x, *output[1:]) if isinstance(output, tuple) else x

    def _prompts_of(self, x: Tensor) -> _Active | None:
        """The prompts in use, noted on the block's input; for a block that a backward pass computes again, those noted.

        Raises:
            RuntimeError: a checkpoint has lost the note, or its input was used with other prompts since.
        """
        active, pool = self.pool._active, id(self.pool)
        if torch.compiler.is_compiling():
            return active
        if torch._C._current_graph_task_id() == -1:  # outside a backward pass
            if torch.is_grad_enabled():
                notes = getattr(x, NOTES, {})
                notes[pool] = active if notes.get(pool, active) is active else LOST
                setattr(x, NOTES, notes)
            return active
        note = getattr(x, NOTES, {}).get(pool, LOST)
        if note is LOST:
            raise RuntimeError(
                "the prompts of a checkpointed block are not known: a checkpoint must not be reentrant, be around one "
                "block or around blocks that all have prompts, and get an input of its own for each use"
            )
        return note


def _hand_on(x: Tensor, y: Tensor) -> None:
    if not torch.compiler.is_compiling() and hasattr(x, NOTES):
        setattr(y, NOTES, getattr(x, NOTES))


def _widen_masks(
    args: tuple[Any, ...], kwargs: dict[str, Any], length: int, prefix: int | None
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Gives the attention mask, which blocks take second or by name, entries for the prompts, which all tokens see."""
    if len(args) > 1:
        args = (args[0], _widen(args[1], length, prefix), *args[2:])
    for name in kwargs.keys() & {"attention_mask", "attn_mask"}:
        kwargs = kwargs | {name: _widen(kwargs[name], length, prefix)}
    return args, kwargs


def _widen(mask: Any, length: int, prefix: int | None) -> Tensor | None:
    if mask is None:
        return None
    if not isinstance(mask, Tensor) or mask.dim() not in (2, 4):
        what = f"of shape {tuple(mask.shape)}" if isinstance(mask, Tensor) else f"a {type(mask).__name__}"
        raise ValueError(f"attention_mask must be (N, S) or (N, 1, S, S) for blocks with prompts, got one {what}")
    at = mask.shape[-1] if prefix is None else prefix
    seen = not mask.is_floating_point()  # a mask of numbers is added to the scores
    columns = mask.new_full((*mask.shape[:-1], length), seen)
    mask = torch.cat([mask[..., :at], columns, mask[..., at:]], dim=-1)
    if mask.dim() == 2 or mask.shape[-2] == 1:
        return mask
    rows = mask[..., :1, :].expand(*mask.shape[:-2], length, -1)  # prompts see what the first token sees
    return torch.cat([mask[..., :at, :], rows, mask[..., at:, :]], dim=-2)
