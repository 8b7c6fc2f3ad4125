"""The programs of the package. Both are part of its library, so that a wheel has one copy of everything."""

from __future__ import annotations

import signal
import sys

from . import _native


def _run(program: str) -> int:
    # The library handles signals like the standalone programs.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    return _native.main(program, sys.argv[1:])


def specconv() -> int:
    """Runs ``specconv`` with the arguments of the process."""
    return _run("specconv")


def specrun() -> int:
    """Runs ``specrun`` with the arguments of the process."""
    return _run("specrun")
