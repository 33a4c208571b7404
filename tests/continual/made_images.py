"""Small images, packs and folders for the tests."""

import io

import numpy as np
from PIL import Image


def picture(value: int, size: tuple[int, int] = (9, 7)) -> Image.Image:
    return Image.new("RGB", size, (value, 2 * value, 255 - value))


def png(value: int) -> bytes:
    out = io.BytesIO()
    picture(value).save(out, "PNG")
    return out.getvalue()


def make_pack(path, **change):
    files = [png(value) for value in (10, 20, 30, 40)]
    arrays = {
        "data": np.frombuffer(b"".join(files), dtype=np.uint8),
        "off": np.cumsum([0] + [len(file) for file in files]),
        "y": np.array([2, 0, 2, 0], dtype=np.int16),
        "split": np.array([0, 0, 1, 1], dtype=np.uint8),
        "names": np.array(["ant", "bee", "cat"]),
    } | change
    np.savez(path, **{name: value for name, value in arrays.items() if value is not None})
    return str(path)


def save(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    picture(value).save(path)
