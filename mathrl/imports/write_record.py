"""A run of another trainer → a record like that of an own run, whole or not at all.

home()/records/imported-NAME/run.json, metrics.jsonl, rollouts/rollouts.parquet, and
    artifacts/config.json   the trainer's configuration under its own names
    responses.jsonl         the validation responses by step, for `mathrl compare imported-NAME:step-20 …`
"""

import copy
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mathrl.core.errors import UserError
from mathrl.core.files import walk_files, write_json, write_jsonl, written_aside
from mathrl.core.hashing import digest, digest_path
from mathrl.core.records import IMPORTED, METRICS, ROLLOUTS, RunRecord, read_record, records_folder
from mathrl.health.rules import ACCURACY, DEV
from mathrl.health.watch import blind_rules, examine, judging_rules
from mathrl.imports.foreign_run import ForeignRun
from mathrl.imports.rollout_shapes import STEP_IN_NAME
from mathrl.imports.second_opinion import Answers, Graded, Memo, Opinion, RolloutWriter, grade_rollouts, step_figures
from mathrl.imports.their_settings import derived_settings
from mathrl.params.load import apply_override, validate_section
from mathrl.params.other_trainers import VALUES, metric_names, our_metric, parameter_names
from mathrl.params.train import Rl
from mathrl.params.training import Health
from mathrl.rollout.rollout_files import WHOLE

RESPONSES = "responses.jsonl"
MOST_BYTES = 8 * 2**30  # of a start or a data file whose digest is taken, at about 1 GB/s
OURS = {row.ours for row in metric_names()} | {"loss", "skipped_updates"}

# Parameters and metrics of verl whose meaning depends on others of them.
LIMIT, LONGEST = "data.max_response_length", "response_length/max"
TRUNCATED = "rollout/truncated_share"


@dataclass
class Gathered:
    """What a run's files say: a row of metrics per step, the section rl, the second opinion, validation responses."""

    rows: list[dict[str, Any]]
    rl: dict[str, Any]
    unused: dict[str, Any]
    opinion: Opinion
    responses: list[dict[str, Any]]
    notes: list[str]


@dataclass
class Imported:
    """The record of an import, and what was gathered for it."""

    record: RunRecord
    gathered: Gathered


def import_folder(
    run: ForeignRun, name: str | None = None, answers: Answers | None = None, memo: Memo | None = None
) -> Imported:
    """Write the record of a run; one of the same folder is replaced.

    Raises:
        UserError: the name is that of another run, or a file is damaged.
    """
    name = name or (run.folder.stem if run.folder.is_file() else run.folder.name)  # a folder's name has no suffix
    if Path(name).name != name:
        raise UserError(f"--name {name}: a record's name is one folder's; write it without /")
    target = records_folder() / f"{IMPORTED}{name}"
    earlier = read_record(target)
    if earlier is not None and earlier.imported_from != str(run.folder):
        raise UserError(f"{target.name}: imported from {earlier.imported_from}; choose another --name")
    with written_aside(target) as aside:
        (aside / "artifacts").mkdir(parents=True)
        writer = RolloutWriter(aside / ROLLOUTS / WHOLE, run.system or "imported") if run.rollouts else None
        try:
            gathered = gather(run, answers, writer, memo)
        finally:
            if writer:
                writer.close()
        ended = _times(run)[1]
        write_jsonl(aside / METRICS, ({"at": row.get("_timestamp", ended), **row} for row in gathered.rows))
        write_json(aside / "artifacts" / "config.json", run.config)
        if gathered.responses:
            write_jsonl(aside / RESPONSES, gathered.responses)
        record = _record(aside, run, target.name, gathered)
        record.update()
    record.folder = target
    return Imported(record, gathered)


def _record(folder: Path, run: ForeignRun, name: str, gathered: Gathered) -> RunRecord:
    started, ended = _times(run)
    key = digest([str(run.folder), run.system])
    return RunRecord(
        folder,
        stage="rl",
        name=name,
        key=key,
        pipeline=key,  # one of its own in MLflow
        status="finished",
        started=started,
        ended=ended,
        workspace=str(run.folder),
        params={"rl": gathered.rl},
        inputs=_input_digests(run),
        summary=_best(gathered.rows),
        health=_health(gathered),
        resolved={
            "imported from": str(run.folder),
            "imported at": time.time(),
            "trainer": run.system,
            "metrics from": run.sources,
            "made from": run.made_from,
            "parameters of theirs alone": gathered.unused,
            "checkpoints": {str(step): place for step, place in sorted(run.checkpoints.items())},
        },
        outcome="; ".join(run.found_lines()),
    )


def _health(gathered: Gathered) -> dict[str, Any] | None:
    """The report of `mathrl runs health` by the default thresholds; None where no rule had a metric."""
    rl, blind = validate_section(Rl, gathered.rl, "rl"), blind_rules(gathered.rows)
    if not judging_rules(gathered.rows, Health(), rl, blind)[0]:
        return None
    return examine(gathered.rows, Health(), rl, blind).report()


def _best(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    accuracies = [row[DEV] for row in rows if DEV in row]
    return {"dev/best": max(accuracies)} if accuracies else {}


def _input_digests(run: ForeignRun) -> dict[str, str]:
    """The start and the data that the configuration names, as far as they are on this machine and not too large.

    Example: {"/home/me/models/sft": "9be1…", "/home/me/data/train.parquet": "77aa…"}
    """
    there = [Path(name) for names in run.made_from.values() for name in names if Path(name).is_absolute()]
    return {str(path): digest_path(path) for path in there if path.exists() and _bytes(path) <= MOST_BYTES}


def _bytes(path: Path) -> int:
    files = [path] if path.is_file() else [file for file in walk_files(path) if file.is_file()]
    return sum(file.stat().st_size for file in files)


def gather(
    run: ForeignRun, answers: Answers | None = None, writer: RolloutWriter | None = None, memo: Memo | None = None
) -> Gathered:
    """Read all of a run; rollouts go to the writer as they are graded, so that they are never all in memory.

    Raises:
        UserError: a file is damaged.
    """
    opinion = Opinion()
    figures: dict[int, dict[str, float]] = {}
    groups: list[tuple[int, int]] = []
    files, weights = in_order(run.rollouts), run.reward_weights
    for rows in grade_rollouts(files, answers, memo=memo, weights=weights) if files else ():
        if writer:
            writer.write(rows)
        opinion.add(rows)
        figures.setdefault(rows[0].theirs.step, {}).update(step_figures(rows))
        groups.append((len({row.theirs.question for row in rows}), len(rows)))
    validated, responses = _validation(run, answers, memo)
    theirs = {step: ours_beside_theirs(metrics, run.system) for step, metrics in run.steps.items()}
    notes = drop_dev_rewards(theirs.values())
    metrics = metric_rows(theirs, figures, validated)
    if run.system == "verl":
        correct_truncation(metrics, run.config)
    notes += accuracy_stand_in(metrics)
    rl, unused = parameters(run, groups, metrics)
    return Gathered(metrics, rl, unused, opinion, responses, notes)


def drop_dev_rewards(rows: Collection[dict[str, float]]) -> list[str]:
    """A validation reward that is not between 0 and 1 is no accuracy; a line says that it keeps their name alone."""
    if all(0 <= row.get(DEV, 0) <= 1 for row in rows):
        return []
    for row in rows:
        row.pop(DEV, None)
    return ["dev accuracy: the validation rewards are not between 0 and 1, and stand under the trainer's names alone"]


def accuracy_stand_in(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Where no verdict is known, a reward between 0 and 1 stands for accuracy; a line says which."""
    if any(ACCURACY in row for row in rows):
        return []
    rewards = [row["reward/overall"] for row in rows if "reward/overall" in row]
    if not rewards or not all(0 <= reward <= 1 for reward in rewards):
        return ["accuracy: no verdict is known, so that the rules that compare with it do not judge"]
    for row in rows:
        if "reward/overall" in row:
            row[ACCURACY] = row["reward/overall"]
    return ["accuracy: no verdict is known; the mean reward, between 0 and 1, stands for it"]


def metric_rows(
    theirs: Mapping[int, Mapping[str, float]],
    from_rollouts: Mapping[int, Mapping[str, float]],
    validated: Mapping[int, Mapping[str, float]],
) -> list[dict[str, Any]]:
    """A row per step: `theirs` of `ours_beside_theirs`, then what the rollouts say.

    Accuracy is our verifier's where it could grade the rollouts.
    """
    rows = []
    for step in sorted({*theirs, *from_rollouts, *validated}):
        row: dict[str, Any] = {"step": step, **theirs.get(step, {})}
        graded = from_rollouts.get(step, {})
        row = {**graded, **row} | {name: graded[name] for name in ("reward/accuracy",) if name in graded}
        row |= {key: value for key, value in validated.get(step, {}).items() if key not in row}
        rows.append(row)
    return rows


def ours_beside_theirs(theirs: Mapping[str, float], system: str) -> dict[str, float]:
    """The metrics of a step under their names and ours; a name that means something else here gets the trainer's.

    >>> ours_beside_theirs({"actor/entropy": 0.5, "actor/ppo_kl": 0.1, "kl": 2.0}, "verl")
    {'actor/entropy': 0.5, 'entropy': 0.5, 'actor/ppo_kl': 0.1, 'verl/kl': 2.0}
    """
    row: dict[str, float] = {}
    sums: dict[str, list[float]] = {}
    for name, value in theirs.items():
        ours, formula = our_metric(system, name)
        if ours != name:
            row[f"{system}/{name}" if system and is_ours(name) else name] = value
        if ours:
            converted = VALUES[formula](value)
            sums.setdefault(ours, []).append(converted)
            row[ours] = sum(sums[ours]) / len(sums[ours])
    return row


def is_ours(name: str) -> bool:
    """Whether mathrl has a metric of this name."""
    return name in OURS or name.startswith(("reward/", "rollout/part_"))


def parameters(
    run: ForeignRun, groups: Sequence[tuple[int, int]], rows: Sequence[Mapping[str, Any]]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The section rl that follows from their configuration and rollouts, and what of it has no counterpart."""
    table = {row.name: row for row in parameter_names() if row.trainer == run.system and row.ours and not row.note}
    values: dict[str, Any] = {"rl": {}}
    unused, read = dict[str, Any](), set[str]()
    for path, value, names in derived_settings(run.system, run.config):
        read |= {*names}
        if path and not _takes(values, path, value):
            unused |= {name: run.config[name] for name in names if name in run.config}
    for name, value in run.config.items():
        if name in read:
            continue
        known = table.get(name)
        if known is None or not known.ours.startswith("rl.") or value is None or not _takes(values, known.ours, value):
            unused[name] = value
    if groups:
        prompts, responses = (sum(column) for column in zip(*groups, strict=True))
        size = values["rl"].get("group_size") or max(1, round(responses / max(1, prompts)))
        _takes(values, "rl.group_size", size)  # one response per prompt is no group for the default estimator
        if "prompts_per_step" not in values["rl"]:
            _takes(values, "rl.prompts_per_step", max(1, round(responses / len(groups) / size)))
    last = int(rows[-1]["step"]) if rows else 1
    wanted = run.config.get("max_steps", run.config.get("trainer.total_training_steps"))
    values["rl"]["steps"] = int(wanted) if isinstance(wanted, int) and wanted >= last else max(1, last)
    rl = validate_section(Rl, values["rl"], str(run.folder))
    return rl.model_dump(mode="json", by_alias=True), unused


def _takes(values: dict[str, Any], path: str, value: Any) -> bool:
    """Set the value at the path if the section accepts it."""
    trial = copy.deepcopy(values)
    with suppress(UserError, ValueError, KeyError, TypeError):
        apply_override(trial, f"{path}={value}")
        validate_section(Rl, trial["rl"], path)
        values["rl"] = trial["rl"]
        return True
    return False


def _validation(
    run: ForeignRun, answers: Answers | None, memo: Memo | None
) -> tuple[dict[int, dict[str, float]], list[dict[str, Any]]]:
    """Dev accuracy by step, by our verifier where it can, and the validation responses as rows of responses.jsonl."""
    figures: dict[int, dict[str, float]] = {}
    responses: list[dict[str, Any]] = []
    for rows in grade_rollouts(in_order(run.validation), answers, memo=memo) if run.validation else ():
        step = rows[0].theirs.step
        right = [row.passed if row.ours is None else row.ours.correct for row in rows]
        questions = {row.theirs.question for row in rows}
        figures[step] = {DEV: sum(right) / len(rows), "dev/problems": float(len(questions))}
        responses += _responses(rows, right, step)
    return figures, responses


def _responses(rows: Sequence[Graded], right: Sequence[bool], step: int) -> list[dict[str, Any]]:
    numbers: dict[str, int] = {}
    made = []
    for row, correct in zip(rows, right, strict=True):
        problem = digest(row.theirs.question)[:12]
        numbers[problem] = numbers.get(problem, -1) + 1
        made.append(
            {
                "model": f"step-{step}",
                "benchmark": "validation",
                "problem_id": problem,
                "sample": numbers[problem],
                "question": row.theirs.question,
                "answers": row.theirs.answers,
                "response": row.theirs.text,
                "correct": correct,
                "extracted": None if row.ours is None else row.ours.extracted,
                "rule": "" if row.ours is None else row.ours.rule,
                "length": len(row.theirs.text),
                "truncated": row.theirs.truncated,
            }
        )
    return made


def in_order(files: Sequence[Path]) -> list[Path]:
    """The files by the steps in their names: 2.jsonl before 10.jsonl."""

    def key(file: Path) -> tuple[int, str]:
        found = STEP_IN_NAME.search(file.stem) or next(
            (match for parent in file.parents if (match := STEP_IN_NAME.fullmatch(parent.name))), None
        )
        return (int(found[1]) if found else 0), str(file)

    return sorted(files, key=key)


def _times(run: ForeignRun) -> tuple[float, float]:
    """When the run's files were first and last written, in Unix seconds."""
    if run.started:
        return run.started, run.started
    files = [run.top / name for name in run.sources] + run.rollouts
    times = [file.stat().st_mtime for file in files]
    return min(times), max(times)


def correct_truncation(rows: Sequence[dict[str, Any]], config: Mapping[str, Any]) -> None:
    """verl 0.9.1 counts the responses that are as long as the longest of the step, which may have ended by themselves.

    They are cut off where the longest has `data.max_response_length` tokens; where that is not known, as many as the
    longest response of the run.

    >>> rows = [{TRUNCATED: 0.4, LONGEST: 3.0}, {TRUNCATED: 0.1, LONGEST: 4.0}]
    >>> correct_truncation(rows, {"data.max_response_length": 4})
    >>> [row[TRUNCATED] for row in rows]
    [0.0, 0.1]
    """
    limit = config.get(LIMIT)
    if not isinstance(limit, int):
        limit = max((row[LONGEST] for row in rows if LONGEST in row), default=0)
    for row in rows:
        if TRUNCATED in row and row.get(LONGEST, limit) < limit:
            row[TRUNCATED] = 0.0
