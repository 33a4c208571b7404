"""Work in units that are kept on disk, so that a run that was stopped goes on where it was."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tqdm import tqdm

from flyk._files import write_whole


class Units:
    """A folder of results, one JSON file for each unit, and a progress bar over all of them.

    Args:
        folder: where; a folder in it bears a checksum of `about`, so that what was made otherwise is never taken.
        about: all that the results depend on, as JSON can hold it.
        total: number of units, for the bar.
    """

    def __init__(self, folder: Path, about: Any, total: int) -> None:
        checksum = hashlib.sha256(json.dumps(about, sort_keys=True, default=str).encode()).hexdigest()
        self.folder = folder / f"units-{checksum[:12]}"
        self.found = 0
        self.seconds = self.processor = 0.0
        self._bar = tqdm(total=total, unit="unit", smoothing=0.1)

    def get(self, name: str, make: Callable[[], Any]) -> Any:
        """What the unit's file holds, or make() written there.

        The seconds that it took, and those of all threads of the processor, are added to `seconds` and `processor`.
        """
        self._bar.set_description(name)
        path = self.folder / f"{name}.json"
        stored = _read(path)
        if stored is None:
            begin, used = time.perf_counter(), time.process_time()
            result = make()
            seconds = {"seconds": time.perf_counter() - begin, "processor": time.process_time() - used}
            stored = {"result": result, **seconds}
            with write_whole(path) as part:
                part.write_text(json.dumps(stored), encoding="utf-8")
        else:
            self.found += 1
        self.seconds += stored["seconds"]
        self.processor += stored["processor"]
        self._bar.update()
        return stored["result"]

    def close(self) -> None:
        self._bar.close()


def _read(path: Path) -> dict[str, Any] | None:
    """A unit's file; None where there is none, or one that is damaged and will be made anew."""
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        return stored if set(stored) == {"result", "seconds", "processor"} else None
    except (OSError, ValueError):
        return None
