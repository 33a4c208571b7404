"""FlyLoRA in the Trainer of transformers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback

from flyk.adapters.apply import update_routing_bias

if TYPE_CHECKING:
    from flyk.adapters.monitor import RoutingMonitor


class RoutingCallback(TrainerCallback):
    """Updates the routing bias once per optimizer step, and logs what a monitor sees every so many steps.

    Args:
        monitor: of the model that is trained; None to watch nothing.
        every: steps between two logs.
    """

    def __init__(self, monitor: RoutingMonitor | None = None, every: int = 100) -> None:
        self.monitor, self.every = monitor, every

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.monitor is not None:
            self.monitor.__enter__()

    def on_optimizer_step(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        update_routing_bias(model)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if self.monitor is None or logs is None or state.global_step % self.every:
            return
        report = [found for found in self.monitor.report().values() if found["tokens"]]
        if report:
            logs["routing_entropy"] = sum(found["entropy"] for found in report) / len(report)
            logs["dead_ranks"] = sum(len(found["dead"]) for found in report)
        self.monitor.reset()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.monitor is not None:
            self.monitor.__exit__()
