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
    measures,
    routing_accuracy,
)
from flyk.continual.streams import ClassIncrementalStream, DomainIncrementalStream, JointStream, SiBlurryStream, Stream

__all__ = [
    "ClassIncrementalStream",
    "DomainIncrementalStream",
    "JointStream",
    "SiBlurryStream",
    "Stream",
    "a_auc",
    "a_avg",
    "a_last",
    "accuracy",
    "backward_transfer",
    "class_accuracies",
    "forgetting",
    "home_experts",
    "measures",
    "routing_accuracy",
]
