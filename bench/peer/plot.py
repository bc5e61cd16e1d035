"""Line plots as plain SVG, both axes logarithmic: a long talk and a server hundreds of times slower need both.

The card is opaque and follows the reader's colour scheme, so it can be read on a light page and on a dark one.
"""

from math import log10
from typing import NamedTuple

WIDTH, HEIGHT = 820, 430
LEFT, RIGHT, TOP, BOTTOM = 86, 604, 62, 372  # the edges of the plot
STYLE = """
  svg { --card: #ffffff; --ink: #1f2328; --soft: #59636e; --grid: #e4e8ec; --a: #c2410c; --b: #1d4ed8; }
  @media (prefers-color-scheme: dark) {
    svg { --card: #14181d; --ink: #e6edf3; --soft: #9aa4af; --grid: #2b323a; --a: #fb923c; --b: #7aa7ff; }
  }
  text { font: 13px system-ui, sans-serif; fill: var(--soft); }
  .title { font-size: 16px; font-weight: 600; fill: var(--ink); }
  .name { font-weight: 600; }
  .grid { stroke: var(--grid); } .axis { stroke: var(--soft); }
  .lead { fill: none; stroke: var(--soft); stroke-dasharray: 1 4; }
  .a { stroke: var(--a); } text.a { fill: var(--a); stroke: none; }
  .b { stroke: var(--b); } text.b { fill: var(--b); stroke: none; }
  .line { fill: none; stroke-width: 2.25; stroke-linejoin: round; stroke-linecap: round; }
  .dashed { stroke-dasharray: 7 5; }
  .end { stroke: none; } .end.a { fill: var(--a); } .end.b { fill: var(--b); }
"""


class Line(NamedTuple):
    name: str
    style: str  # `a` or `b`
    dashed: bool
    points: list[tuple[float, float]]


def svg(title: str, vertical: str, lines: list[Line], ticks: dict[float, str]) -> str:
    """`ticks` are the labelled values of the vertical axis; those of the horizontal one are turns."""
    places, values = [x for line in lines for x, _ in line.points], [y for line in lines for _, y in line.points]
    first, last = min(places), max(places)
    low, high = min(values) / 1.5, max(values) * 1.5

    def across(x: float) -> float:
        return LEFT + (RIGHT - LEFT) * log10(x / first) / log10(last / first)

    def up(y: float) -> float:
        return BOTTOM - (BOTTOM - TOP) * log10(y / low) / log10(high / low)

    parts = [f'<text class="title" x="{LEFT}" y="30">{title}</text>']
    for value, label in ticks.items():
        if low <= value <= high:
            y = up(value)
            parts.append(f'<line class="grid" x1="{LEFT}" x2="{RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
            parts.append(f'<text x="{LEFT - 10}" y="{y + 4.5:.1f}" text-anchor="end">{label}</text>')
    for turn in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000):
        if first <= turn <= last:
            x = across(turn)
            parts.append(f'<line class="axis" x1="{x:.1f}" x2="{x:.1f}" y1="{BOTTOM}" y2="{BOTTOM + 5}"/>')
            parts.append(f'<text x="{x:.1f}" y="{BOTTOM + 21}" text-anchor="middle">{turn}</text>')
    parts.append(f'<line class="axis" x1="{LEFT}" x2="{RIGHT}" y1="{BOTTOM}" y2="{BOTTOM}"/>')
    parts.append(f'<text x="{(LEFT + RIGHT) / 2}" y="{HEIGHT - 14}" text-anchor="middle">turn (logarithmic)</text>')
    middle = (TOP + BOTTOM) / 2
    parts.append(
        f'<text transform="rotate(-90 22 {middle})" x="22" y="{middle}" text-anchor="middle">{vertical}</text>'
    )
    ends = _apart({line.name: up(line.points[-1][1]) for line in lines})
    for line in lines:
        path = " ".join(f"{across(x):.1f},{up(y):.1f}" for x, y in line.points)
        dashed = " dashed" if line.dashed else ""
        parts.append(f'<polyline class="line {line.style}{dashed}" points="{path}"/>')
        x, y = across(line.points[-1][0]), up(line.points[-1][1])
        parts.append(f'<circle class="end {line.style}" cx="{x:.1f}" cy="{y:.1f}" r="4"/>')
        parts.append(
            f'<text class="name {line.style}" x="{RIGHT + 14}" y="{ends[line.name] + 4.5:.1f}">{line.name}</text>'
        )
        if x < RIGHT - 1:  # it ends before the others: a thin line leads to its name
            path = f"{x + 8:.1f},{y:.1f} {RIGHT - 30},{y:.1f} {RIGHT + 10},{ends[line.name]:.1f}"
            parts.append(f'<polyline class="lead" points="{path}"/>')
    inner = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        f'role="img" aria-label="{title}">\n<style>{STYLE}</style>\n'
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="10" fill="var(--card)"/>\n{inner}\n</svg>\n'
    )


def _apart(places: dict[str, float], gap: float = 19) -> dict[str, float]:
    """The same places, moved so far down that no two names touch."""
    found: dict[str, float] = {}
    last = float("-inf")
    for name, place in sorted(places.items(), key=lambda item: item[1]):
        last = found[name] = max(place, last + gap)
    return found
