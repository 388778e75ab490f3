"""How pictures look: one palette, one matplotlib set-up, files and SVG texts that are equal for equal figures.

Okabe and Ito's colours, which colour-blind readers tell apart. matplotlib is imported when the first picture is
drawn: it takes half a second.
"""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

BLUE, VERMILION, GREEN, PURPLE = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
ORANGE, SKY, BLACK, GREY = "#E69F00", "#56B4E9", "#000000", "#999999"
SOFT, DARK = "#555555", "#222222"  # notes; error bars
LINES = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY)  # the metrics of one picture
# A model keeps its colour and marker in every picture; two further colours are Tol's.
MODELS = {"base": (GREY, "s"), "sft": (BLUE, "^"), "rl": (VERMILION, "o")}
FURTHER = (GREEN, PURPLE, ORANGE, SKY, BLACK, "#882255", "#332288")
FURTHER_MARKERS = "DvPX*"  # another once the colours repeat
STYLE = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": "#dddddd",
    "grid.linewidth": 0.8,
    "axes.axisbelow": True,
    "font.size": 10,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "legend.frameon": False,
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "mathrl",
}


def colour(model: str, place: int = 0) -> str:
    """The colour of a model; `place` counts the models of the picture."""
    return MODELS[model][0] if model in MODELS else FURTHER[place % len(FURTHER)]


def marker(model: str, place: int = 0) -> str:
    if model in MODELS:
        return MODELS[model][1]
    return FURTHER_MARKERS[place // len(FURTHER) % len(FURTHER_MARKERS)]


def plain(text: str) -> str:
    r"""The text so that matplotlib draws it as it stands: a name of data may have LaTeX in it that it cannot read.

    >>> print(plain(r"congruences $\pmod{n}$"))
    congruences \$\pmod{n}\$
    """
    return text.replace("$", r"\$")


@contextmanager
def panels(
    file: Path | io.StringIO,
    count: int,
    width: float,
    height: float,
    layout: str | None = "constrained",
    **options: Any,
) -> Iterator[list[Any]]:
    """`count` axes side by side in a figure of `width` x `height` inches, saved to `file` when the block ends.

    Without a time stamp, so that equal figures are equal bytes. A StringIO takes SVG, a path what it ends in. `options`
    are those of `Figure.subplots`; with `layout` None the margins are those of `gridspec_kw`, and a picture is drawn
    once, not twice.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure  # not pyplot: it looks for a display

    with rc_context(STYLE):
        figure = Figure(figsize=(width, height), layout=layout)  # type: ignore[arg-type]
        axes = figure.subplots(1, count, squeeze=False, **options)
        yield list(axes[0])
        if isinstance(file, Path):
            file.parent.mkdir(parents=True, exist_ok=True)
            figure.savefig(file, dpi=140, metadata={"Software": None})
        else:
            figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})


@contextmanager
def picture(file: Path | io.StringIO, width: float = 6.4, height: float = 3.8) -> Iterator[Any]:
    """The axes of a picture with one panel."""
    with panels(file, 1, width, height) as (axes,):
        yield axes
