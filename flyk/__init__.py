"""flyk: fused kernels and layers for fly-inspired learning in PyTorch."""

from flyk import backends, ops, reference

__version__ = "0.1.0"
__all__ = ["__version__", "nn", "ops", "reference"]

backends.load()


def __getattr__(name: str):
    # The layers are loaded when first asked for, so that the operators alone stay light.
    if name == "nn":
        import flyk.nn

        return flyk.nn
    raise AttributeError(f"module 'flyk' has no attribute {name!r}")
