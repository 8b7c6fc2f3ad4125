"""Exceptions of the package."""

from __future__ import annotations

import sys
from typing import Any, Optional


class Error(Exception):
    """A command could not run. The message is that of the programs.

    ``hint`` is the advice that the programs print on the next line, or ``None``.
    """

    def __init__(self, message: str, hint: Optional[str] = None) -> None:
        super().__init__(message)
        self.hint = hint
        if hint is not None and sys.version_info >= (3, 11):
            self.add_note(f"hint: {hint}")


class CheckFailed(Error):
    """A check ran and failed, so nothing was written. ``report`` has the details."""

    def __init__(self, message: str, report: Any) -> None:
        super().__init__(message)
        self.report = report
