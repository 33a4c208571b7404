"""Where a run was made, and what it took of memory."""

from __future__ import annotations

import platform
import sys
from importlib import metadata

import torch


def versions() -> dict[str, str]:
    """Of Python and of the packages that decide a run."""
    found = {"python": platform.python_version()}
    for package in ("flyk", "torch", "numpy", "matplotlib"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found


def describe_machine(device: str) -> dict[str, str | int]:
    """System, threads and device."""
    machine: dict[str, str | int] = {
        "system": f"{platform.system()} {platform.machine()}",
        "threads": torch.get_num_threads(),
        "device": device,
    }
    if torch.device(device).type == "cuda":
        machine["gpu"] = torch.cuda.get_device_name(device)
    return machine


def peak_memory_mib() -> float | None:
    """The largest resident memory of this process so far in MiB; None where the system does not tell."""
    try:
        import resource
    except ModuleNotFoundError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)
