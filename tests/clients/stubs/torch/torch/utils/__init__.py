"""Part of the stand-in for torch."""
