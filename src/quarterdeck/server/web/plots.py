"""Plots as SVG, made here: stacked bars by day, and bars by name. Colours are classes of the style sheet."""

import math
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

from markupsafe import Markup

from quarterdeck.server.web.text import seen

_WIDTH: Final = 720
_HEIGHT: Final = 220
_LEFT: Final = 54
_TOP: Final = 10
_BOTTOM: Final = 24
_SHADES: Final = 8

Worded = Callable[[float], str]


def by_day(
    days: Sequence[int],
    series: Mapping[str, Sequence[float]],
    label: str,
    worded: Worded,
    *,
    stacked: bool = True,
) -> Markup:
    """Bars for days, stacked or side by side; a legend names the series and each bar tells its value."""
    together = sum if stacked else max
    highest = max((together(values) for values in zip(*series.values(), strict=True)), default=0.0)
    top = _round_up(highest)
    width, height = _WIDTH - _LEFT - 8, _HEIGHT - _TOP - _BOTTOM
    step = width / max(len(days), 1)
    parts = [*_grid(top, width, height, worded)]
    for index, day in enumerate(days):
        base = float(_TOP + height)
        wide = step * 0.8 if stacked else step * 0.8 / max(len(series), 1)
        for number, (name, values) in enumerate(series.items()):
            tall = values[index] / top * height if top else 0.0
            if tall <= 0:
                continue
            left = _LEFT + index * step + step * 0.1 + (0 if stacked else number * wide)
            base = base - tall if stacked else _TOP + height - tall
            parts.append(
                Markup(
                    '<rect class="s{}" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}">'
                    "<title>{}: {} {}</title></rect>"
                ).format(
                    number % _SHADES,
                    left,
                    base,
                    max(wide, 1.0),
                    tall,
                    _date(day),
                    seen(name),
                    worded(values[index]),
                )
            )
        if _is_marked(index, len(days)):
            parts.append(
                Markup('<text class="tick-x" x="{:.1f}" y="{}">{}</text>').format(
                    _LEFT + (index + 0.5) * step, _HEIGHT - 8, _date(day)[5:]
                )
            )
    drawn = Markup('<svg class="plot" viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>').format(
        _WIDTH, _HEIGHT, label, Markup().join(parts)
    )
    return drawn + _legend(list(series))


def by_name(values: Sequence[tuple[str, float]], label: str, worded: Worded) -> Markup:
    """A bar for each name, with its value beside it."""
    row, name_width = 24, 170
    most = max((value for _, value in values), default=0.0)
    parts = []
    for index, (name, value) in enumerate(values):
        y = index * row
        wide = value / most * (_WIDTH - name_width - 110) if most else 0.0
        name = seen(name)  # noqa: PLW2901
        shown = name if len(name) <= 26 else name[:25] + "…"
        parts.append(
            Markup(
                '<text class="name" x="{}" y="{}">{}</text>'
                '<rect class="s0" x="{}" y="{}" width="{:.1f}" height="14"><title>{} {}</title></rect>'
                '<text class="value" x="{:.1f}" y="{}">{}</text>'
            ).format(
                *(name_width - 10, y + 16, shown),
                *(name_width, y + 5, max(wide, 1.0), name, worded(value)),
                *(name_width + wide + 8, y + 16, worded(value)),
            )
        )
    return Markup('<svg class="plot" viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>').format(
        _WIDTH, max(len(values) * row, row), label, Markup().join(parts)
    )


def _grid(top: float, width: int, height: int, worded: Worded) -> list[Markup]:
    parts = []
    for quarter in (0, 1, 2, 3, 4) if top else (0,):
        y = _TOP + height - height * quarter / 4
        parts.append(
            Markup(
                '<line class="grid" x1="{}" x2="{}" y1="{:.1f}" y2="{:.1f}"/>'
                '<text class="tick-y" x="{}" y="{:.1f}">{}</text>'
            ).format(_LEFT, _LEFT + width, y, y, _LEFT - 7, y + 4, worded(top * quarter / 4))
        )
    return parts


def _legend(names: Sequence[str]) -> Markup:
    entries = Markup().join(
        Markup(
            '<li><svg class="swatch" viewBox="0 0 10 10" aria-hidden="true">'
            '<rect class="s{}" width="10" height="10" rx="2"/></svg>{}</li>'
        ).format(number % _SHADES, seen(name))
        for number, name in enumerate(names)
    )
    return Markup('<ul class="legend">{}</ul>').format(entries)


def _round_up(value: float) -> float:
    """The next number that is pleasant to divide by four."""
    if value <= 0:
        return 0.0
    size = 10.0 ** math.floor(math.log10(value))
    return next(step * size for step in (1, 2, 4, 8, 10) if step * size >= value * 0.999)


def _date(day: int) -> str:
    return datetime.fromtimestamp(day * 86_400, UTC).date().isoformat()


def _is_marked(index: int, count: int) -> bool:
    every = max(1, math.ceil(count / 8))
    return (count - 1 - index) % every == 0
