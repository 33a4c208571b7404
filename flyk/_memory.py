"""How much memory a device has, asked before a large tensor is made: where there is too little, systems kill."""

from __future__ import annotations

import os
from pathlib import Path

import torch

CGROUPS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def total(device: torch.device) -> int | None:
    """Bytes that the device has, or that this process may use of the machine's; None where nobody knows."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    if device.type != "cpu" or not hasattr(os, "sysconf"):
        return None
    sizes = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for limit in map(Path, CGROUPS):
        if limit.exists() and (text := limit.read_text().strip()).isdigit():
            sizes.append(int(text))
    return min(sizes)


def need(name: str, size: int, device: torch.device | None = None) -> None:
    """Refuses the argument `name` that asks for more bytes than the device (the default one) has at all.

    Raises:
        ValueError: with the bytes that are needed.
    """
    device = torch.get_default_device() if device is None else device
    there = total(device)
    if there is not None and size > there:
        raise ValueError(
            f"{name} must need at most the {text(there)} of memory that {device} has, got one that needs {text(size)}"
        )


def text(size: float) -> str:
    """Bytes for people: 381.5 MiB."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} bytes" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
