"""What must be run again to reproduce a registered version, from its lineage; and the certificate of it."""

import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from mathrl.core.code_values import code_text
from mathrl.core.errors import UserError
from mathrl.core.files import write_text
from mathrl.params.schema import READS, STAGES
from mathrl.reports.pictures import render
from mathrl.tracking.lineage import REMEDY, Back, Step

JSON, PAGE = "certificate.json", "certificate.html"
NOT_AGAIN = "register"  # makes a version and computes nothing


@dataclass(frozen=True)
class StageCheck:
    """A stage of the lineage with the digests of what it made, and of what it made when it was run again.

    Example:
        StageCheck("sft", "4f2c…", "a4cec49…", expected={"models/sft": "9be1…"}, found={"models/sft": "9be1…"})

    `code` is what decided the results, and `code_again` when it was run again (core.code_values); {} where unknown.
    `found` is empty before the stage was run again; `fetched` says that its outputs came from the DVC remote instead.
    """

    stage: str
    run: str
    commit: str
    expected: Mapping[str, str]
    sources: Mapping[str, str] = field(default_factory=dict)
    found: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    fetched: bool = False
    code: Mapping[str, str] = field(default_factory=dict)
    code_again: Mapping[str, str] = field(default_factory=dict)

    @property
    def same_code(self) -> bool | None:
        """Whether code of the same value was run again; None where that is not known."""
        then, now = ({k: v for k, v in code.items() if v and k != "mathrl"} for code in (self.code, self.code_again))
        return then == now if then and now else None

    def code_change(self) -> str:
        """What differs in the code, in words; "" where nothing does, or it is not known."""
        if self.same_code is not False:
            return ""
        return f"its code is not the same: {code_text(self.code)} then, {code_text(self.code_again)} now"

    @property
    def differing_outputs(self) -> list[str]:
        """The outputs whose bytes differ; an output that was not made differs."""
        return [path for path, digest in self.expected.items() if self.found and self.found.get(path) != digest]

    @property
    def outcome(self) -> str:
        """not run, same, or differs."""
        return "not run" if not self.found else "differs" if self.differing_outputs else "same"


@dataclass(frozen=True)
class Certificate:
    """Whether a version was reproduced: JSON with these fields and `verdict`, and a page.

    `environment` is that of the reproduction: Python, packages, processor, user.
    """

    name: str
    version: str
    digest: str
    commit: str
    sections: Mapping[str, Any]
    stages: list[StageCheck]
    environment: Mapping[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def first_difference(self) -> StageCheck | None:
        return next((check for check in self.stages if check.outcome == "differs"), None)

    @property
    def complete(self) -> bool:
        """Whether every stage was run again or fetched, up to the first that differs."""
        return self.first_difference is not None or all(check.outcome == "same" for check in self.stages)

    @property
    def same(self) -> bool:
        return self.complete and self.first_difference is None

    @property
    def verdict(self) -> str:
        """The certificate in a sentence."""
        first, model = self.first_difference, f"{self.name} version {self.version}"
        if first is not None:
            files = ", ".join(first.differing_outputs)
            changed = f"; {first.code_change()}" if first.code_change() else ""
            return f"{model} was not reproduced: {first.stage} is the first stage that differs, in {files}{changed}"
        if not self.complete:
            return f"{model}: the reproduction is not finished"
        again = [check.stage for check in self.stages if not check.fetched]
        fetched = [check.stage for check in self.stages if check.fetched]
        fetched_note = f"; the outputs of {', '.join(fetched)} came from the DVC remote" if fetched else ""
        return (
            f"{model} was reproduced to the bit: {', '.join(again)} were run again and no output differs{fetched_note}"
        )

    def to_row(self) -> dict[str, Any]:
        first = self.first_difference
        derived = [
            asdict(check)
            | {"outcome": check.outcome, "differing": check.differing_outputs, "same_code": check.same_code}
            for check in self.stages
        ]
        return asdict(self) | {
            "stages": derived,
            "verdict": self.verdict,
            "same": self.same,
            "first_difference": first.stage if first else None,
        }


def plan_reproduction(back: Back) -> Certificate:
    """The certificate before anything was run again.

    Raises:
        UserError: the lineage is not complete, is not one of the pipeline, or its stages had different parameters.
    """
    title = f"{back.name} version {back.version}"
    if gaps := back.gaps():
        raise UserError(f"{title}: its lineage is not complete, no run in MLflow made {', '.join(gaps)}: {REMEDY}")
    steps = {step.stage: step for step in back.steps}
    if unknown := [name for name in steps if name not in STAGES]:
        raise UserError(
            f"{title}: its lineage has {', '.join(sorted(unknown))}; only models of the pipeline are reproduced, a "
            "recipe's by `mathrl recipe NAME` in a fresh clone"
        )
    if len(steps) < len(back.steps):
        twice = sorted(name for name in steps if sum(step.stage == name for step in back.steps) > 1)
        raise UserError(f"{title}: its lineage has several runs of {', '.join(twice)}, and one pipeline has one each")
    stages = [steps[name] for name in STAGES if name in steps and name != NOT_AGAIN]
    commit = back.tags.get("git.commit") or stages[-1].commit
    notes = [f"{step.stage} ran with uncommitted changes" for step in stages if step.dirty]
    notes += [f"{step.stage} ran at commit {step.commit[:12]}" for step in stages if step.commit != commit]
    checks = [StageCheck(s.stage, s.run, s.commit, dict(s.outputs), dict(s.sources), code=dict(s.code)) for s in stages]
    return Certificate(back.name, back.version, back.digest, commit, _sections(stages, title), checks, {}, notes)


def _sections(stages: list[Step], title: str) -> dict[str, Any]:
    """The parameters that every stage of the lineage ran with."""
    sections: dict[str, Any] = {}
    for step in stages:
        for name in READS[step.stage]:
            if not any(key.startswith(f"{name}.") for key in step.params):
                continue
            section = step.section(name)
            if sections.setdefault(name, section) != section:
                raise UserError(f"{title}: its stages ran with different parameters of section {name}")
    return sections


def read_check(row: Mapping[str, Any]) -> StageCheck:
    """A stage of a certificate's JSON."""
    return StageCheck(**{name: row[name] for name in StageCheck.__dataclass_fields__})


def publish(client: Any, certificate: Certificate, folder: Path) -> None:
    """Write the page beside the JSON, and put both, and the verdict as a tag, with the version in MLflow."""
    row = certificate.to_row()
    write_text(folder / PAGE, render(PAGE, row=row))
    version = client.get_model_version(certificate.name, certificate.version)
    from mlflow.exceptions import MlflowException  # 1.4 s

    environment = certificate.environment
    platform = f"Python {environment['python']}, torch {environment['torch']}, {environment['system']}"
    try:
        client.set_model_version_tag(version.name, version.version, "reproduced", f"{certificate.verdict} ({platform})")
        for name in (JSON, PAGE):
            client.log_artifact(version.run_id, str(folder / name), "reproduction")
    except (MlflowException, OSError) as error:  # the files are another account's, or the server is read-only
        print(f"MLflow did not take the certificate: {error}", file=sys.stderr)
