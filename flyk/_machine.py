"""Where a figure was measured, and what the run took of memory."""

from __future__ import annotations

import datetime
import importlib
import os
import platform
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def machine() -> dict[str, Any]:
    """What a reader needs to know of where figures come from."""
    import flyk
    from flyk import backends

    if "cpu" in backends.missing:
        kernels = f"none ({backends.missing['cpu']})"
    else:
        kernels = importlib.import_module("flyk._C").isa()
    return {
        "flyk": flyk.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "processor": processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "kernels": kernels,
        "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
    }


def processor() -> str:
    """The processor's name, as far as the system tells it."""
    try:
        with open("/proc/cpuinfo") as info:
            names = [line.split(":", 1)[1].strip() for line in info if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.processor() or "unknown"


def versions() -> dict[str, str]:
    """Of Python and of the packages that decide a run."""
    found = {"python": platform.python_version()}
    for package in ("flyk", "torch", "numpy", "matplotlib"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found


def resident(field: str) -> int:
    """Bytes of this process's resident memory on Linux: "VmRSS", what is there now, or "VmHWM", the peak."""
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(field))
    return 1024 * int(line.split()[1])


def forget_peak_memory() -> None:
    """Lets the peak begin anew at what is resident now, where the system can do that (Linux)."""
    if RESET.exists():
        RESET.write_text("5")


def peak_memory_mib() -> float | None:
    """The largest resident memory of this process in MiB, since it began or since `forget_peak_memory`.

    None where the system does not tell.
    """
    if RESET.exists():
        return resident("VmHWM") / 2**20
    try:
        import resource
    except ModuleNotFoundError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)
