"""An audit in a folder of reports/audits: the sample, a person's labels, the rates, a page, and the wrong verdicts.

sample.json   where the responses come from, the strata's sizes, the sampled responses
labels.jsonl  {"key": "9f3c…", "label": "y"} per label, appended as they come: an audit resumes from it
audit.json    the rates; audit.html: the page; cases.jsonl: wrong verdicts as cases for the tests
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mathrl.core.errors import UserError
from mathrl.core.files import read_json, read_jsonl, read_numbered_jsonl, write_json, write_jsonl, write_text
from mathrl.core.hashing import digest_path
from mathrl.core.paths import AUDITS, RECIPES
from mathrl.core.records import records_folder
from mathrl.core.types import read_problems
from mathrl.evaluation.audit import LABELS, ErrorRates, Label, Sampled, draw_sample, error_rates
from mathrl.reports.pictures import render
from mathrl.rollout.rollout_files import WHOLE
from mathrl.rollout.rollout_files import read_responses as read_kept

NAMES = ("responses.jsonl", "samples.jsonl", WHOLE)
TRUTHS = ("answers", "ground_truth")


@dataclass
class Audit:
    """An audit in its folder; `outputs` are the digests of what the stage wrote, for the registry's gate."""

    folder: Path
    source: str
    outputs: list[str]
    sizes: dict[str, int]
    sample: list[Sampled]
    labels: dict[str, Label]

    @property
    def open(self) -> list[Sampled]:
        """The responses without a label."""
        return [item for item in self.sample if item.key not in self.labels]

    def add(self, key: str, label: Label) -> None:
        """Keep a label at once."""
        self.labels[key] = label
        with (self.folder / "labels.jsonl").open("a", encoding="utf-8") as stream:
            stream.write(json.dumps({"key": key, "label": label}) + "\n")

    def take(self, file: Path) -> int:
        """Add the labels that the page saved in `file`; their number.

        Raises:
            UserError: a row is no label, or one of another audit.
        """
        keys = {item.key for item in self.sample}
        rows = list(read_numbered_jsonl(file))
        for number, row in rows:
            if row.get("key") not in keys or row.get("label") not in LABELS:
                raise UserError(f"{file}, line {number}: no label of this audit; give the file that its page saved")
        for _, row in rows:
            self.add(row["key"], row["label"])
        return len(rows)

    def write(self, annotator_error: float = 0.0) -> ErrorRates:
        """Write rates, page and cases, from the labels so far."""
        rates = error_rates(self.sample, self.sizes, self.labels, annotator_error=annotator_error)
        write_json(self.folder / "audit.json", {"source": self.source, "outputs": self.outputs, **asdict(rates)})
        items = [{"key": i.key, "label": self.labels.get(i.key, ""), **row_to_show(i.row)} for i in self.sample]
        page = {"title": self.folder.name, "items": items, "lines": rates.lines()}
        write_text(self.folder / "audit.html", render("audit.html", **page))
        write_jsonl(self.folder / "cases.jsonl", self.cases())
        return rates

    def cases(self) -> list[dict[str, Any]]:
        """The wrong verdicts as rows of tests/grading/audited-NAME.jsonl."""
        return [
            {
                "response": item.row["response"],
                "ground_truth": item.row["truths"],
                "right": self.labels[item.key] == "y",
                "source": f"{self.folder.name} {item.key}",
            }
            for item in self.sample
            if item.key in self.labels
            and self.labels[item.key] != "unsure"
            and (self.labels[item.key] == "y") != item.is_accepted
        ]


def row_to_show(row: Mapping[str, Any]) -> dict[str, str]:
    """What a person sees of a response. The verdict is not part of it, so that it does not sway the label."""
    return {
        "question": str(row.get("question", "")),
        "truth": " or ".join(map(str, row["truths"])),
        "extracted": "nothing" if row.get("extracted") is None else str(row["extracted"]),
        "response": str(row["response"]),
    }


def find_responses(text: str) -> Path:
    """The graded responses that RUN names.

    Raises:
        UserError: there are none.
    """
    here = Path(text)
    if here.is_file():
        return here
    places = [here, here / "report", here / "reports" / "evaluate", Path("reports") / text]
    places += [RECIPES / text / "report", RECIPES / text, Path("runs") / text / "reports" / "evaluate"]
    places += [here / "rollouts", records_folder() / text / "rollouts", Path("runs") / text / "reports" / "rl"]
    for folder in places:
        for name in NAMES:
            if (folder / name).is_file():
                return folder / name
    raise UserError(
        f"{text}: no graded responses there; give evaluate, a responses.jsonl or a folder with one, a recipe's "
        "evaluate or sample step (NAME/STEP), a run under runs/, rl if it kept rollouts (rl.keep_rollouts), or rows "
        "that `mathrl grade` wrote"
    )


def read_responses(file: Path, model: str | None) -> list[dict[str, Any]]:
    """The rows of one model, or all, with their accepted answers as `truths`.

    Raises:
        UserError: a row has no accepted answers and its problem is in no curated split, or no row is of the model.
    """
    read_rows = kept_responses if file.suffix == ".parquet" else read_jsonl
    rows = [row for row in read_rows(file) if model is None or row.get("model") == model]
    if not rows:
        raise UserError(f"{file}: no response" + (f" of the model {model!r}" if model else "") + " in it")
    curated: dict[str, Any] = {}
    if not any(name in rows[0] for name in TRUTHS):
        files = sorted(Path("data/curated").glob("*.jsonl"))
        curated = {problem.id: problem for path in files for problem in read_problems(path)}
    read = []
    for row in rows:
        truths = next((row[name] for name in TRUTHS if name in row), None)
        if truths is None and (problem := curated.get(str(row.get("problem_id")))) is not None:
            truths, row = problem.answers, {"question": problem.question, "source": problem.source, **row}
        if truths is None:
            raise UserError(f"{file}: a row has no {' or '.join(TRUTHS)}, and its problem is not in data/curated")
        several = isinstance(truths, Sequence) and not isinstance(truths, str)
        read.append({**row, "truths": [str(truth) for truth in truths] if several else [str(truths)]})
    return read


def kept_responses(file: Path) -> Iterator[dict[str, Any]]:
    """Kept rollouts as graded responses, which have a source for strata and no benchmark."""
    for row in read_kept([file]).to_pylist():
        yield {**row, "response": row["text"], "problem_id": row["problem"]}


def open_audit(
    file: Path, model: str | None, size: int, seed: int, disagrees: Callable[[Mapping[str, Any]], bool] | None = None
) -> Audit:
    """The audit of these responses: the one that was begun, with its labels, or a new one.

    Raises:
        UserError: as `read_responses` and `draw_sample`.
    """
    content = digest_path(file)
    folder = AUDITS / "-".join([file.parent.name, *([model] if model else []), str(seed), content[:8]])
    if not (folder / "sample.json").is_file():
        sample, sizes = draw_sample(read_responses(file, model), size, seed, disagrees)
        # A recipe's step is its folder, of which report/ is a part.
        places = [file.parent.parent if file.parent.name == "report" else file.parent] if file.name in NAMES else []
        outputs = [digest_path(place) for place in places]
        items = [asdict(item) for item in sample]
        write_json(folder / "sample.json", {"source": str(file), "outputs": outputs, "sizes": sizes, "sample": items})
    begun = read_json(folder / "sample.json")
    labels = folder / "labels.jsonl"
    read: Iterable[dict[str, Any]] = read_jsonl(labels) if labels.is_file() else ()
    return Audit(
        folder,
        begun["source"],
        begun["outputs"],
        begun["sizes"],
        [Sampled(**item) for item in begun["sample"]],
        {row["key"]: row["label"] for row in read},
    )


def add_cases(file: Path, cases: Iterable[dict[str, Any]]) -> int:
    """Append the cases that the file does not have yet; their number."""
    present = [row for _, row in read_numbered_jsonl(file)] if file.is_file() else []
    new = [case for case in cases if case not in present]
    if new:
        write_jsonl(file, [*present, *new])
    return len(new)
