"""A histogram of the report as SVG: shares along the left, values below, all pictures of one size."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from math import ceil, floor, log10

from drtk.retrieval.mining.figures import Spread

BINS = 40
WIDTH, HEIGHT = 460, 190  # of a picture, in pixels
_LEFT, _RIGHT, _ABOVE, _BELOW = 46, 16, 26, 24  # around the bars


def histogram(caption: str, spread: Spread) -> Iterator[str]:
    """Lines of a figure: bars, ticks at round numbers, and a caption with the least, the most and the mean."""
    shares, edges = spread.histogram(BINS)
    whole = all((edge - 0.5).is_integer() for edge in edges)  # bins around whole numbers
    up = ticks(0.0, max(shares), 3, beyond=True)
    wide, tall = WIDTH - _LEFT - _RIGHT, HEIGHT - _ABOVE - _BELOW
    bottom = _ABOVE + tall

    def across(value: float) -> float:
        return _LEFT + wide * (value - edges[0]) / (edges[-1] - edges[0])

    yield f'<figure><svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(caption)}">'
    yield f'<text x="0" y="12">share of {spread.count:,} negatives</text>'
    for share in up:
        y = bottom - tall * share / up[-1]
        yield f'<line x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.2f}" y2="{y:.2f}"/>'
        yield f'<text x="{_LEFT - 6}" y="{y + 4:.2f}" text-anchor="end">{100 * share:.4g}%</text>'
    width = wide / len(shares)
    for at, share in enumerate(shares):
        if share:
            height = tall * share / up[-1]
            yield (
                f'<rect x="{_LEFT + (at + 0.05) * width:.2f}" y="{bottom - height:.2f}" '
                f'width="{width * 0.9:.2f}" height="{height:.2f}"/>'
            )
    for value in ticks(edges[0], edges[-1], 8, least=1.0 if whole else 0.0):
        x = across(value)
        yield f'<line x1="{x:.2f}" x2="{x:.2f}" y1="{bottom}" y2="{bottom + 5}"/>'
        yield f'<text x="{x:.2f}" y="{bottom + 18}" text-anchor="middle">{value:z.6g}</text>'
    told = f"{caption}; {spread.least:z.4g} to {spread.most:z.4g}, mean {spread.mean:z.4g}"
    yield f"</svg><figcaption>{escape(told)}</figcaption></figure>"


def ticks(low: float, high: float, about: int, *, least: float = 0.0, beyond: bool = False) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten from `low` to `high`, about so many, at least `least` apart.

    beyond: whether the last is the first one that is not below `high`
    """
    rough = max((high - low) / about, least, 1e-9)
    power = 10.0 ** floor(log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))
    first, last = ceil(low / step - 1e-9), floor(high / step + 1e-9)
    if beyond:
        last = ceil(high / step - 1e-9)
    return [round(number * step, 12) for number in range(first, last + 1)]
