"""The pages flow's account: rounds.json and report.md."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from mathrl.core.files import write_text
from mathrl.core.markdown import code, table
from mathrl.corpus.corpus import Corpus
from mathrl.corpus.rounds import CollectedPages, domains
from mathrl.params.pages import Pages

EXAMPLES = 5  # pages shown on either side of the boundary
SHOWN = 20  # domains in the table


def account(out: CollectedPages, pages: Corpus, settings: Pages, seed: int) -> dict[str, Any]:
    """rounds.json; the same for the same inputs on any machine."""
    return {
        "seed": seed, "pages": len(pages), "near_duplicates": pages.stored - len(pages),
        "held_out": len(out.held_out), "stopped": out.stopped,
        "best_round": out.best + 1, "f1_of": out.f1_of, "worse": out.worse(), "doubts": out.doubts(),
        "rounds": [
            {
                "round": r.number, "positives": r.positives, "negatives": r.negatives,
                "collected": len(r.collected), "new_share": round(r.new_share, 6), "promoted": r.promoted,
                "lowest_score": round(r.lowest_score, 4), "precision": _round_figure(r.precision),
                "recall": _round_figure(r.recall), "expected_precision": round(r.expected_precision, 6),
                "expected_recall": round(r.expected_recall, 6), "f1": round(r.f1, 6),
            }
            for r in out.rounds
        ],
        "kept": len(out.kept), "contaminated": len(out.hits), "top_share": settings.top_share,
        "domain_share": settings.domain_share,
    }  # fmt: skip


def warnings(out: CollectedPages) -> list[str]:
    """What a person must know before the kept pages are used."""
    doubts = [f"the held-out estimate (F1 {out.rounds[out.best].f1:.3f}) cannot be trusted: {d}" for d in out.doubts()]
    return [*([worse] if (worse := out.worse()) else []), *doubts]


def kept_rows(out: CollectedPages, pages: Corpus) -> Iterable[dict[str, Any]]:
    """The kept pages' rows as they stand with their score (log-odds) as `score`, best first."""
    return ({**pages[i].row, "score": round(float(out.scores[i]), 4)} for i in out.kept)


def write_report(folder: Path, out: CollectedPages, pages: Corpus, settings: Pages) -> None:
    """report.md in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    by_domain = domains(out, pages)
    # Domains of many collected pages first; a promoted one before one that was not.
    order = sorted(
        by_domain, key=lambda h: (-bool(by_domain[h]["promoted_in_rounds"]), -by_domain[h]["collected"][out.best], h)
    )
    near = pages.stored - len(pages)
    cut = "the calibrated selection" if settings.top_share is None else f"the top {settings.top_share:g}"
    parts = [
        "# Pages report", "", *(line for warning in warnings(out) for line in (f"**Warning:** {warning}.", "")),
        f"{len(out.kept):,} of {len(pages):,} pages kept: {cut} of round {out.best + 1}, which has the best F1 on "
        f"held-out {out.f1_of}, less {len(out.hits):,} that share an n-gram with an evaluation set "
        f"(`contaminated.jsonl`). The rounds ended because {out.stopped}.",
        *(["", f"{near:,} pages read are near-duplicates of others and were dropped first."] if near else []),
        "", "## Rounds", "",
        *table(
            ("round", "positives", "negatives", "collected", "new", "domains promoted", "pages they add",
             "F1", "expected precision", "expected recall", "precision", "recall"),
            ((r.number, f"{r.positives:,}", f"{r.negatives:,}", f"{len(r.collected):,}", f"{r.new_share:.1%}",
              len(r.promoted), f"{sum(r.promoted.values()):,}", _share(r.f1), _share(r.expected_precision),
              _share(r.expected_recall), _share(r.precision), _share(r.recall))
             for r in out.rounds),
        ),
        "", f"F1 is that of held-out {out.f1_of}; the expected figures follow from calibrated probabilities. Precision "
        f"and recall are of {len(out.held_out):,} labelled pages that no round was trained on.",
        "", "## Domains", "",
        f"Promoted: more than {settings.domain_share:.0%} of the domain's pages collected in a round.", "",
        *table(
            ("domain", "pages", "collected by round", "kept", "promoted in", "made positives"),
            ((host, f"{d['pages']:,}", ", ".join(f"{n:,}" for n in d["collected"]), f"{d['kept']:,}",
              ", ".join(map(str, d["promoted_in_rounds"])), f"{d['pages_made_positives']:,}")
             for host in order[:SHOWN] for d in (by_domain[host],)),
        ),
        "", f"{len(order):,} domains; all stand in `domains.json`.", "", *_boundary(out, pages),
    ]  # fmt: skip
    write_text(folder / "report.md", "\n".join(parts) + "\n")


def _boundary(out: CollectedPages, pages: Corpus) -> list[str]:
    ranked = np.argsort(-out.scores, kind="stable")
    at = len(out.rounds[out.best].collected)
    parts = ["## At the boundary", "", "Scores are log-odds of being mathematics.", ""]
    for title, numbers in (
        ("The last that are in", ranked[max(0, at - EXAMPLES) : at]),
        ("The first that are out", ranked[at : at + EXAMPLES]),
    ):
        parts += [f"{title}:", ""]
        for i in map(int, numbers):
            page = pages[i]
            parts += [f"- {code(page.host + page.path)} ({out.scores[i]:.2f})", ""]
            parts += [f"  > {code(page.text[:600], 300)}", ""]
    return parts


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def _round_figure(value: float | None) -> float | None:
    return None if value is None else round(value, 6)
