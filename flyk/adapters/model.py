"""FlyLoRAModel: a model with task-gated adapters, whose tasks are switched by name."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from torch import nn

from flyk.adapters import _linears
from flyk.adapters.apply import adapters, unload, wrap_all
from flyk.nn import TaskGatedFlyLoRALinear, _check
from flyk.nn._adapter import Adapter


class FlyLoRAModel(nn.Module):
    """A model in which each named linear layer has a `TaskGatedFlyLoRALinear` around it.

    The grouped form that popular summaries of FlyLoRA describe; `flyk.adapters.apply` gives the paper's. Calls and
    attributes go to the base model, which is changed in place.

    Args:
        base_model: any module.
        target_modules: names of linear layers: a whole name, or the end of one after a dot, such as "q_proj".
        rank, num_experts, sparsity, temperature, learn_temperature, alpha: of each layer, see `TaskGatedFlyLoRALinear`.
        tasks: their names; the first is current at the start.
        seed: of the adapters; each layer's own is made from it and the layer's name.

    Attributes:
        base_model: the model given.
        tasks: list of names.
        task: the current one.

    Raises:
        ValueError, TypeError: as `flyk.adapters.apply`; or tasks that are not different names.
    """

    def __init__(
        self,
        base_model: nn.Module,
        target_modules: str | Iterable[str],
        rank: int = 8,
        num_experts: int = 4,
        sparsity: float = 0.8,
        tasks: Sequence[str] = ("default",),
        *,
        temperature: float | None = None,
        learn_temperature: bool = False,
        alpha: float | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        seed = _check.integer("seed", seed, 0)
        self.tasks = _linears.names("tasks", tasks)
        if not self.tasks or len(set(self.tasks)) < len(self.tasks):
            raise ValueError(f"tasks must be at least one name and all different, got {self.tasks}")
        options: dict[str, Any] = {
            "rank": rank,
            "num_experts": num_experts,
            "sparsity": sparsity,
            "num_tasks": len(self.tasks),
            "temperature": temperature,
            "learn_temperature": learn_temperature,
            "alpha": alpha,
        }

        def wrap(name: str, base: nn.Module, sizes: tuple[int, int]) -> Adapter:
            _linears.check_rank("rank", _check.integer("rank", rank, 1), *sizes)  # what is saved can be loaded
            return TaskGatedFlyLoRALinear(*sizes, base=base, seed=_linears.layer_seed(seed, name), **options)

        self.base_model = wrap_all(base_model, target_modules, (), wrap)
        self.task = self.tasks[0]

    def set_task(self, task: str) -> None:
        """Make `task` the one that forward serves."""
        number = self._number(task)
        for layer in self._layers():
            layer.set_task(number)
        self.task = task

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.base_model(*args, **kwargs)

    def merge_and_unload(self, task: str) -> nn.Module:
        """The base model with `task` merged into its weights: the same outputs, and no adapter.

        The base model is changed in place, so this model is of no use afterwards.

        Raises:
            ValueError: there is no such task.
            TypeError: a layer cannot be merged, see `TaskGatedFlyLoRALinear.merge`. Nothing has changed then.
        """
        number = self._number(task)
        self._layers()
        return unload(self.base_model, lambda layer: layer.merge(number))

    def _layers(self) -> list[TaskGatedFlyLoRALinear]:
        return [layer for layer in adapters(self.base_model).values() if isinstance(layer, TaskGatedFlyLoRALinear)]

    def _number(self, task: str) -> int:
        if task not in self.tasks:
            raise ValueError(f"task must be one of {', '.join(map(repr, self.tasks))}, got {task!r}")
        return self.tasks.index(task)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "base_model":
                raise
            return getattr(self.base_model, name)
