"""How many word pieces a rate hides."""

from __future__ import annotations


def mask_budget(rate: float, count: int) -> int:
    """round(rate * count), halves to even, but at least 1; 0 at rate 0 and where there is nothing (methods: section 4.1)."""
    return max(1, round(rate * count)) if rate > 0 and count > 0 else 0
