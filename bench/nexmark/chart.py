"""The chart of the ratios, as SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence

from bench.nexmark.report import best_spark, bound, spark_ratios, times
from bench.nexmark.runs import Run

_TITLE = "Headrace against hand-written Structured Streaming: events per second, ratio"
_HEIGHT, _LEFT, _WIDTH = 24, 80, 560
_LEAST = 0.5
"""The ratio at the left end."""
_MARKS = (1, 2, 5, 10, 20, 50, 100, 200, 500)


def chart(runs: Sequence[Run]) -> str:
    """Bars of the ratios to Structured Streaming, on a logarithmic scale."""
    bars = spark_ratios(runs)
    longest = max([10.0, *(ratio for _, ratio in bars)]) * 1.2
    scale = _WIDTH / math.log10(longest / _LEAST)

    def at(value: float) -> float:
        return _LEFT + scale * math.log10(max(value, _LEAST) / _LEAST)

    total = _HEIGHT * len(bars) + 62
    size = f'width="{_LEFT + _WIDTH + 80}" height="{total}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="13">',
        f'<rect {size} fill="white"/>',
        f'<text x="{_LEFT}" y="20" font-weight="bold">{_TITLE}</text>',
    ]
    for mark in (value for value in _MARKS if value <= longest):
        x, stroke = at(mark), "#888" if mark == 1 else "#ddd"
        parts.append(f'<line x1="{x:.0f}" y1="30" x2="{x:.0f}" y2="{total - 26}" stroke="{stroke}"/>')
        parts.append(f'<text x="{x:.0f}" y="{total - 9}" fill="#666" text-anchor="middle">{mark}×</text>')
    for index, (query, ratio) in enumerate(bars):
        y, begin, end = 34 + index * _HEIGHT, at(min(1.0, ratio)), at(max(1.0, ratio))
        fill = "#2a6f97" if ratio >= 1 else "#c1121f"
        sign = "&gt; " if bound(best_spark(runs, query)) else ""
        parts.append(f'<text x="{_LEFT - 8}" y="{y + 13}" text-anchor="end">{query}</text>')
        parts.append(
            f'<rect x="{begin:.0f}" y="{y}" width="{max(1, end - begin):.0f}" height="17" fill="{fill}"/>'
        )
        parts.append(f'<text x="{end + 6:.0f}" y="{y + 13}">{sign}{times(ratio)}</text>')
    return "\n".join([*parts, "</svg>\n"])
