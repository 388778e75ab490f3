"""Line charts and bars as inline SVG: nothing is loaded, drawn or installed to see them.

Colours are CSS classes (c0, c1, …) of the page that they stand in.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from html import escape

Points = Sequence[tuple[float, float]]
WIDTH, HEIGHT = 340, 190
LEFT, RIGHT, TOP, BOTTOM = 46, 12, 10, 28
FEW = 20  # points that get a dot each, with its value


def line_chart(
    series: Mapping[str, Points],
    *,
    low: float | None = None,
    high: float | None = None,
    bands: Mapping[str, Sequence[tuple[float, float, float]]] | None = None,
    logarithmic: bool = False,
    across: str = "step",
) -> str:
    """One line a series, over a common x; `bands` are (x, low, high) around a line, by its name.

    Points that are not numbers are left out. With `logarithmic` x is drawn by its logarithm.
    """
    drawn = {name: [p for p in points if math.isfinite(p[1])] for name, points in series.items()}
    every = [point for points in drawn.values() for point in points]
    if not every:
        return "<p class='none'>no values</p>"
    edges = [(x, v) for band in (bands or {}).values() for x, a, b in band for v in (a, b)]
    frame = Frame([*every, *edges], low, high, logarithmic)
    parts = [frame.axes(across)]
    for number, (name, points) in enumerate(drawn.items()):
        band = (bands or {}).get(name, ())
        if band:
            edge = [frame.place(x, b) for x, _, b in band] + [frame.place(x, a) for x, a, _ in reversed(band)]
            parts.append(f"<polygon points='{' '.join(edge)}' class='band c{number % 6}'/>")
        line = " ".join(frame.place(x, y) for x, y in points)
        parts.append(f"<polyline points='{line}' class='line c{number % 6}'/>")
        if len(points) <= FEW:
            parts += [frame.dot(x, y, name, number) for x, y in points]
    return "".join([*parts, "</svg>"])


def scatter(series: Mapping[str, Points], *, across: str) -> str:
    """A dot a point; y from 0 to 1."""
    frame = Frame([point for points in series.values() for point in points], 0.0, 1.0, False)
    dots = [frame.dot(x, y, name, n) for n, (name, points) in enumerate(series.items()) for x, y in points]
    return "".join([frame.axes(across), *dots, "</svg>"])


class Frame:
    """Where points lie in the picture."""

    def __init__(self, points: Points, low: float | None, high: float | None, logarithmic: bool) -> None:
        self.xs = sorted({x for x, _ in points})
        ys = [y for _, y in points]
        self.ticks = nice_ticks(min(ys) if low is None else low, max(ys) if high is None else high)
        self.logarithmic = logarithmic
        self.scale: Callable[[float], float] = math.log2 if logarithmic else float

    def place(self, x: float, y: float) -> str:
        """ "x,y" in the picture's units."""
        first, last = self.scale(self.xs[0]), self.scale(self.xs[-1])
        share = (self.scale(x) - first) / (last - first) if last > first else 0.5
        bottom, top = self.ticks[0], self.ticks[-1]
        height = (min(max(y, bottom), top) - bottom) / (top - bottom)
        over = LEFT + share * (WIDTH - LEFT - RIGHT)
        return f"{over:.1f},{HEIGHT - BOTTOM - height * (HEIGHT - TOP - BOTTOM):.1f}"

    def axes(self, across: str) -> str:
        parts = [f"<svg viewBox='0 0 {WIDTH} {HEIGHT}' role='img'>"]
        for tick in self.ticks:
            y = self.place(self.xs[0], tick).split(",")[1]
            parts.append(f"<line x1='{LEFT}' x2='{WIDTH - RIGHT}' y1='{y}' y2='{y}' class='grid'/>")
            parts.append(f"<text x='{LEFT - 6}' y='{float(y) + 3.5:.1f}' class='end'>{tick:g}</text>")
        for x in self.xs if self.logarithmic else {self.xs[0], self.xs[-1]}:
            at = self.place(x, self.ticks[0]).split(",")[0]
            parts.append(f"<text x='{at}' y='{HEIGHT - 12}' class='mid'>{x:g}</text>")
        middle = (LEFT + WIDTH - RIGHT) / 2
        return "".join([*parts, f"<text x='{middle}' y='{HEIGHT - 2}' class='mid'>{escape(across)}</text>"])

    def dot(self, x: float, y: float, name: str, number: int) -> str:
        cx, cy = self.place(x, y).split(",")
        tip = f"{escape(name)}: {y:.4g} at {x:g}"
        return f"<circle cx='{cx}' cy='{cy}' r='3' class='dot c{number % 6}'><title>{tip}</title></circle>"


def nice_ticks(low: float, high: float, about: int = 4) -> list[float]:
    """Round numbers from at most `low` to at least `high`.

    >>> nice_ticks(0.03, 0.94)
    [0.0, 0.25, 0.5, 0.75, 1.0]
    """
    if high - low < 1e-5 * abs(high) + 1e-12:
        low, high = (low - abs(low) / 2, high + abs(high) / 2) if low else (0.0, 1.0)
    raw = (high - low) / about
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(number * step, 12) for number in range(first, last + 1)]
