"""Problems, runs, metrics, responses, rollouts and trials as pandas frames with stable columns.

Every frame has exactly the columns of its table below, in that order and with these dtypes, also where it has no row;
`metrics` and `trials` add a column per metric and per searched parameter after them.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import chdir, contextmanager
from pathlib import Path
from typing import Any

import pandas as pd

from mathrl.core.errors import UserError
from mathrl.core.files import read_numbered_jsonl
from mathrl.core.paths import main_checkout
from mathrl.core.types import read_problems

TEXT, TIME = "str", "datetime64[us, UTC]"
PROBLEMS = {
    "id": TEXT, "question": TEXT, "answers": "object", "source": TEXT, "split": TEXT, "level": "Int64",
    "subject": TEXT, "solution": TEXT, "pass_rate": "float64",
}  # fmt: skip
RUNS = {
    "name": TEXT, "run": TEXT, "started": TIME, "status": TEXT, "folder": TEXT, "health": TEXT, "dev": "float64",
    "sft": "float64", "rl": "float64", "rl_low": "float64", "rl_high": "float64", "sampled_tokens": "float64",
    "minutes": "float64",
}  # fmt: skip
METRICS = {"step": "int64", "at": TIME}
RESPONSES = {
    "model": TEXT, "benchmark": TEXT, "problem_id": TEXT, "sample": "int64", "question": TEXT, "answers": "object",
    "level": "Int64", "subject": TEXT, "response": TEXT, "extracted": TEXT, "correct": "bool", "rule": TEXT,
    "length": "int64", "truncated": "bool",
}  # fmt: skip
ROLLOUTS = {
    "step": "int64", "problem": TEXT, "response": "int64", "question": TEXT, "answers": "object", "source": TEXT,
    "level": "Int64", "text": TEXT, "correct": "bool", "extracted": TEXT, "rule": TEXT, "reward": "float64",
    "parts": "object", "length": "int64", "truncated": "bool", "odd": "object", "trained": "bool",
}  # fmt: skip
TRIALS = {"trial": "int64", "state": TEXT, "dev": "float64", "seconds": "float64", "error": TEXT}
# Their columns have no missing values.
COMPLETE = ("int64", "bool")


def problems(split: str | Path) -> pd.DataFrame:
    """The problems of a curated split, a row per problem; columns as in `PROBLEMS`.

    Args:
        split: `sft`, `rl`, `dev` or `test` of data/curated, `train` for the mixture of RL, or a file of such rows.

    Raises:
        UserError: no such file, or a row that is no problem.

    Examples:
        >>> mathrl.problems("test")[["question", "answers"]].head(1)
               question answers
        0  4*9+4*1*1-2=    [38]
    """
    path = Path(split).absolute()
    if not path.is_file():
        folder = main_checkout() / "data" / ("mixture" if split == "train" else "curated")
        path = folder / f"{split}.jsonl"
    return _frame((problem.to_row() for problem in read_problems(path)), PROBLEMS, path)


def runs() -> pd.DataFrame:
    """Every run that MLflow knows, the newest first, as `mathrl runs` lists them; columns as in `RUNS`.

    `dev` is the best accuracy on the dev problems, `sft` and `rl` are pass@1 of the models, `rl_low` and `rl_high` the
    bounds of its interval.

    Raises:
        UserError: MLflow does not answer.

    Examples:
        >>> mathrl.runs().sort_values("rl", ascending=False).head()
    """
    from mathrl.tracking.client import connect
    from mathrl.tracking.run_list import list_runs

    with in_project():
        rows = [row.to_row() for row in list_runs(connect())]
    return _frame(({**row, "started": pd.Timestamp(row["started"], unit="s", tz="UTC")} for row in rows), RUNS)


def metrics(run: str | Path) -> pd.DataFrame:
    """The metrics of a training run by step, also of one that still trains: `step`, `at`, and a column per metric.

    `at` is missing in the files that DVC keeps, which have no times.

    Args:
        run: What `mathrl runs health` accepts: a stage (`rl`), a recipe's step, a folder, or an MLflow run.

    Raises:
        UserError: no run of that name has metrics.

    Examples:
        >>> mathrl.metrics("rl").plot(x="step", y="reward/accuracy")
    """
    from mathrl.reports.find_run import find_training_run

    with in_project(run) as text:
        rows = find_training_run(text).rows
    names = [name for name in dict.fromkeys(name for row in rows for name in row) if name not in METRICS]
    times = ({**row, "at": pd.Timestamp(row["at"], unit="s", tz="UTC") if "at" in row else None} for row in rows)
    return _frame(times, METRICS | dict.fromkeys(names, "float64"))


def responses(run: str | Path) -> pd.DataFrame:
    """The graded responses of an evaluation, a row per response; columns as in `RESPONSES`.

    Args:
        run: `evaluate`, a recipe's evaluation, a run under runs/, or a folder or file of responses.

    Raises:
        UserError: there are no responses of an evaluation.

    Examples:
        >>> mathrl.responses("evaluate").groupby("model")["correct"].mean()
    """
    from mathrl.reports.audit import find_responses

    with in_project(run) as text:
        file = find_responses(text).absolute()
    if file.suffix == ".parquet":
        raise UserError(f"{file}: rollouts of training; mathrl.rollouts reads them")
    return _frame((row for _, row in read_numbered_jsonl(file)), RESPONSES, file)


def rollouts(run: str | Path) -> pd.DataFrame:
    """The rollouts that a run kept (`rl.keep_rollouts`), a row per response; columns as in `ROLLOUTS`.

    Args:
        run: What `mathrl runs rollouts` accepts: `rl`, a recipe's step, a record, a parquet file, or an MLflow run.

    Raises:
        UserError: the run kept no rollouts.

    Examples:
        >>> mathrl.rollouts("rl").query("not correct").sort_values("length")
    """
    import pyarrow.parquet as pq

    from mathrl.core.records import ROLLOUTS as FOLDER
    from mathrl.core.records import records_folder
    from mathrl.reports.find_run import find_rollouts
    from mathrl.rollout.rollout_files import rollout_files

    with in_project(run) as text:
        name, named = find_rollouts(text)
        files = rollout_files(named.get(name, records_folder() / name / FOLDER))
        rows = [row for file in files for row in pq.read_table(file, columns=list(ROLLOUTS)).to_pylist()]
    return _frame(({**row, "parts": dict(row["parts"] or ())} for row in rows), ROLLOUTS)


def trials(study: str | None = None) -> pd.DataFrame:
    """The trials of a sweep, the best first: the columns of `TRIALS`, and one per searched parameter.

    Args:
        study: Name of the study; default: `sweep.study` of the project.

    Raises:
        UserError: no such study.

    Examples:
        >>> mathrl.trials().plot.scatter(x="rl.optimizer.lr", y="dev", logx=True)
    """
    from mathrl.compose import load_params
    from mathrl.sweeps.report import best_first, row
    from mathrl.sweeps.study import read_study

    with in_project():
        section = load_params().sweep
        opened = read_study(study or section.study, section.storage)
        keys = list(opened.user_attrs["mathrl"]["present"])
        rows = best_first(row(trial, keys) for trial in opened.get_trials(deepcopy=False))
    values = pd.DataFrame({key: [entry[key] for entry in rows] for key in keys})
    return pd.concat([_frame(rows, TRIALS), values.infer_objects()], axis=1)


def import_run(
    folder: str | Path, *, trainer: str | None = None, name: str | None = None, answers: str | Path | None = None
) -> dict[str, pd.DataFrame]:
    """Import a run of another trainer as `mathrl import` does; its frames `metrics` and `rollouts`.

    Args:
        folder: Folder of the run, or one file of metrics or rollouts.
        trainer: As `--from`; None: found out.
        name: Name of the record, `imported-NAME`; None: the folder's.
        answers: File of problems with their answers, where the rollouts have none.

    Raises:
        UserError: there is no run in the folder, there are several, or a file is damaged.

    Examples:
        >>> frames = mathrl.import_run("outputs/grpo")
        >>> frames["metrics"].plot(x="step", y="reward/accuracy")
    """
    from mathrl.imports.foreign_run import read_run
    from mathrl.imports.second_opinion import read_answers
    from mathrl.imports.write_record import import_folder

    found = read_run(Path(folder).expanduser(), trainer)
    known = read_answers(Path(answers).expanduser()) if answers else None
    with in_project():
        record = import_folder(found, name, known).record.folder
    frames = {"metrics": metrics(record)}
    return frames | {"rollouts": rollouts(record)} if found.rollouts else frames


@contextmanager
def in_project(text: str | Path = "") -> Iterator[str]:
    """Work in the project's folder; yields the text, made absolute if it is a path in the caller's folder.

    A text that is no path there, such as the name of a stage, stays as it is.
    """
    named = str(Path(text).absolute()) if str(text) and Path(text).exists() else str(text)
    with chdir(main_checkout()):
        yield named


def _frame(rows: Iterable[Mapping[str, Any]], columns: Mapping[str, str], file: Path | None = None) -> pd.DataFrame:
    """The rows as a frame with these columns.

    Raises:
        UserError: a row has no value in a column without missing values.
    """
    values: dict[str, list[Any]] = {name: [] for name in columns}
    for number, row in enumerate(rows, start=1):
        for name, kind in columns.items():
            value = row.get(name)
            if value is None and kind in COMPLETE:
                raise UserError(f"{file or 'rows'}, line {number}: no field {name!r}, which every row needs")
            values[name].append(value)
    return pd.DataFrame({name: pd.Series(values[name], dtype=kind) for name, kind in columns.items()})
