"""``python -m specconv`` runs the program ``specconv``."""

import sys

from ._cli import specconv

sys.exit(specconv())
