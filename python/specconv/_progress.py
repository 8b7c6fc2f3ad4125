"""Progress of long work."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Optional, Union


@dataclass(frozen=True)
class Progress:
    """State of a task, such as writing a file."""

    label: str
    done: int
    total: int
    unit: str
    """``bytes``, or the plural name of the steps."""


ProgressCallback = Callable[[Progress], None]

ProgressArgument = Union[ProgressCallback, bool, None]


class _Bars:
    """One tqdm bar for each task."""

    def __init__(self) -> None:
        self._tqdm: Any = importlib.import_module("tqdm.auto").tqdm
        self._bars: dict[str, Any] = {}

    def __call__(self, progress: Progress) -> None:
        bar = self._bars.get(progress.label)
        if bar is None:
            in_bytes = progress.unit == "bytes"
            bar = self._tqdm(
                total=progress.total,
                desc=progress.label,
                unit="B" if in_bytes else f" {progress.unit}",
                unit_scale=in_bytes,
            )
            self._bars[progress.label] = bar
        bar.update(progress.done - bar.n)
        if progress.done >= progress.total:
            bar.close()


def callback(progress: ProgressArgument) -> Optional[Callable[[str, int, int, str], None]]:
    """Returns the function that the library calls: ``True`` shows bars of tqdm."""
    if progress is None or progress is False:
        return None
    show = _Bars() if progress is True else progress
    return lambda label, done, total, unit: show(Progress(label, done, total, unit))
