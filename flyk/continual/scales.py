"""Ridge and learning rates read against the scale of the features, so that defaults fit features of any norm.

The constants were chosen on a held-out quarter of training data, never on test data: the digits and Caltech-101, both
through EfficientNet-Lite0, REAR at expansion 4096.
"""

from __future__ import annotations

from torch import Tensor


def ridge(h: Tensor, expansion: int, share: float = 0.1) -> float:
    """lambda = share * expansion * mean(|h|^2) / 2, that is `share` of the mean squared length of an expanded row.

    For R ~ N(0, 1) the mean square of each of the `expansion` entries of relu(h R) is |h|^2 / 2 (it shows in the
    diagonal of the Gram; FlyPrompt, arXiv 2602.01976). The default share came within 0.6 points of the best one for
    digits (0.03) and within 0.4 for Caltech-101 (0.3).
    """
    return share * expansion * _mean_of_rows(h.double().square()) / 2


def adam_rate(h: Tensor, share: float = 1.0) -> float:
    """share / mean(|h|_1): Adam moves each weight by about the rate, and so a logit by about `share` a step.

    Of 0.3, 1 and 5, the default was best for digits and second best for Caltech-101, with three steps a batch.
    """
    return share / _mean_of_rows(h.double().abs())


def sgd_rate(h: Tensor, share: float = 0.1) -> float:
    """share / mean(|h|^2): gradient steps of a linear head grow with the square of the features.

    Of 0.03 to 3, the default was best for both data sets together; three steps a batch were no better.
    """
    return share / _mean_of_rows(h.double().square())


def _mean_of_rows(values: Tensor) -> float:
    return values.sum(dim=1).mean().item()
