"""flyk for scikit-learn: a random expansion, and ridge regression over it that learns from a stream."""

try:
    import sklearn as _sklearn  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError("flyk.estimators needs scikit-learn: pip install 'flyk[sklearn]'") from error

from flyk.estimators.classifier import FlyClassifier
from flyk.estimators.projection import FlyProjection
from flyk.estimators.regressor import FlyRegressor

__all__ = ["FlyClassifier", "FlyProjection", "FlyRegressor"]
