"""The HTML page of `mathrl inspect`: one file, loaded from nowhere."""

from mathrl.core.files import encodable
from mathrl.data.inspection import Inspection
from mathrl.data.quality import DESCRIPTIONS
from mathrl.reports.lineage_picture import render


def inspection_page(inspection: Inspection, title: str) -> str:
    """The page about a file of problems."""
    sniffed = inspection.sniffed
    return encodable(
        render(
            "inspection.html",
            title=title,
            inspection=inspection,
            descriptions=DESCRIPTIONS,
            keys=[(key, getattr(sniffed.shape, key), reason) for key, reason in sniffed.reasons.items()],
            readings=[(kind, n, n / inspection.readings.total()) for kind, n in inspection.readings.most_common()],
            languages=[(name, n, n / len(inspection.problems)) for name, n in inspection.languages.most_common(12)],
            lengths=[("prompts", inspection.prompts), ("solutions", inspection.solutions)],
            groups=[("level", sorted(inspection.levels.items())), ("subject", inspection.subjects.most_common(30))],
        )
    )
