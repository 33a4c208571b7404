"""Online continual learning: Si-Blurry streams, measures, rivals and the demo."""

from flyk.continual.metrics import (
    a_auc,
    a_avg,
    a_last,
    accuracy,
    backward_transfer,
    class_accuracies,
    forgetting,
    home_experts,
    routing_accuracy,
)
from flyk.continual.streams import SiBlurryStream

__all__ = [
    "SiBlurryStream",
    "a_auc",
    "a_avg",
    "a_last",
    "accuracy",
    "backward_transfer",
    "class_accuracies",
    "forgetting",
    "home_experts",
    "routing_accuracy",
]
