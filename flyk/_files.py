"""Writing files without halves."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def write_whole(path: Path) -> Iterator[Path]:
    """Gives a temporary path beside `path` that takes its place at the end, or is deleted if the block raises.

    A reader sees the old file or the whole new one, whoever else writes it at the same time.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.stem}-{uuid.uuid4().hex}{path.suffix}")
    try:
        yield part
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def safetensors_path(path: str | Path) -> Path:
    """`path` as one that ends so.

    Raises:
        ValueError: it does not.
    """
    path = Path(path)
    if path.suffix != ".safetensors":
        raise ValueError(f"path must end with .safetensors, got {path}")
    return path
