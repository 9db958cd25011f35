"""Figures as they are written down: as many digits as mean something."""

from __future__ import annotations

from typing import Any

DIGITS = 6  # of a number that was measured: float32 holds seven


def significant(value: Any, digits: int = DIGITS) -> Any:
    """A float to so many significant digits, and never -0.0; anything else as it is."""
    return float(f"{value:z.{digits}g}") if isinstance(value, float) else value
