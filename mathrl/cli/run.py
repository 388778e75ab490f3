"""`mathrl run`: the same flow that the Prefect UI starts, in this terminal."""

import importlib
import importlib.util
import json
import os
import shlex
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from mathrl.cli.options import AllowDirty, Choices, Overrides, Presets, as_words, join_presets, with_choices
from mathrl.cli.output import AsJson, print_document, print_lines, print_table
from mathrl.cli.ui import running_servers
from mathrl.compose import load_params
from mathrl.compose.experiment import split_choices
from mathrl.compose.load import Layers, read_layers
from mathrl.core.code_values import OWN, changed_code, keep_results
from mathrl.core.environment import Variable, ui_command, without_collections
from mathrl.core.errors import EXIT_TERMINATED, UserError, without_logins
from mathrl.core.files import read_json
from mathrl.core.paths import GROUPS, home, is_hub_id, main_checkout, tracking_uri
from mathrl.core.results import EvaluationSummary, results_table
from mathrl.models.shapes import check_weights
from mathrl.params import Params
from mathrl.params.load import FOLDER, dump_yaml
from mathrl.params.messages import did_you_mean, near_path
from mathrl.params.paths import leaves
from mathrl.params.schema import TARGETS, sections_read, stages_until
from mathrl.planning.final_values import check_final_values, ignored_settings
from mathrl.tasks.prefect_server import own_server

LONGEST_KEY, LONGEST_VALUE = 72, 96  # characters of a line of the dry run
QUIET = {
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "DO_NOT_TRACK": "1",
    "PREFECT_CLOUD_ENABLE_ORCHESTRATION_TELEMETRY": "false",
    # A failed stage reports its error itself; the flow would repeat it as a traceback.
    "PREFECT_LOGGING_LEVEL": "CRITICAL",
}


def run(
    stage: Annotated[str, typer.Argument(help=f"One of {', '.join(TARGETS)}.")],
    choices: Choices = None,
    presets: Presets = None,
    overrides: Overrides = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Validate parameters, sources and model name, then exit without running.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="--dry-run: print every parameter.")] = False,
    allow_dirty: AllowDirty = False,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep the results of stages whose code has changed, such as by an upgrade.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Run a stage, or the whole pipeline, with everything before it that is out of date.

    As it stands in params/ it runs `dvc repro` in the project; with data=…, model=…, method=…, hardware=…, --preset or
    --set, in a worktree under runs/.
    """
    if stage not in TARGETS:
        raise UserError(f"no stage {stage!r}{did_you_mean(stage, TARGETS)}; stages: {', '.join(TARGETS)}")
    overrides = with_choices(choices, overrides)
    os.chdir(main_checkout())
    preset = join_presets(presets)
    params = load_params(preset=preset, overrides=overrides or ())  # before any server is started
    stages = stages_until(stage)
    doubtful = check_final_values(params, stages, overrides or ())
    chosen, settings = split_choices(overrides or ())
    layers = read_layers(FOLDER, preset, None, chosen)
    layers.derive(settings, stages)  # refuses what does not fit the hardware
    _report_code(stages, keep, dry_run)
    if dry_run:
        from mathrl.cli.fit import judge_lengths  # the formats of rows, for a dry run alone

        refused, cut = judge_lengths(params, stages, overrides or ())
        if refused:
            raise UserError("; ".join(refused))
        doubtful += cut
        done = [] if preset or overrides else _stages_up_to_date(stages)
        if as_json:
            print_document(_plan_document(stage, params, layers, settings, doubtful, done))
        else:
            _print_plan(stage, params, None if verbose else (layers, settings), [*layers.notes, *doubtful], done)
        return
    began = time.time()
    options: dict[str, Any] = {"preset": preset, "overrides": overrides or [], "allow_dirty": allow_dirty}
    up_to_date = _up_to_date_folder(stage, **options)
    folder = up_to_date or Path(call_flow(stage, **options))
    if as_json:
        print_document(_run_document(stage, folder, up_to_date is None, time.time() - began))
    elif stage == "pipeline":
        _print_results(folder, params, time.time() - began)
    else:
        print_made(stage, folder)
        if stage == "mix":
            _print_verdict(folder, params, preset, overrides or ())
        elif stage == "evaluate":
            _print_evaluation(folder, params)


def _report_code(stages: Sequence[str], keep: bool, dry_run: bool) -> None:
    """Say whose results the code has changed, such as that of a new release, before they are made again."""
    found = keep_results() if keep and not dry_run else changed_code()
    changed = [stage for stage in found if stage in (*stages, OWN)]
    if not changed:
        return
    names = ", ".join("the project's own" if stage == OWN else stage for stage in changed)
    then = (
        "their results are kept" if keep else "they run again, and what follows from them; --keep keeps their results"
    )
    print(f"code that has changed since the last run: {names}: {then}", file=sys.stderr)


def _stages_up_to_date(stages: Sequence[str]) -> list[str]:
    """The first of the stages, which a run in the project itself would skip."""
    if not Path("dvc.lock").exists():  # nothing has run yet: no need to ask
        return []
    from mathrl.tasks.repro import environment, stages_up_to_date

    return stages_up_to_date(Path(), stages, environment())


def _run_document(stage: str, folder: Path, ran: bool, seconds: float) -> dict[str, Any]:
    results, registered = folder / "reports" / "summary.json", folder / "reports" / "registered.json"
    whole = stage == "pipeline"
    return {
        "target": stage,
        "folder": str(folder.absolute()),
        "ran": ran,
        "seconds": seconds,
        "results": read_json(results) if whole else None,
        "registered": read_json(registered) if whole else None,
    }


def _plan_document(
    stage: str, params: Params, layers: Layers, settings: Sequence[str], doubtful: Sequence[str], done: Sequence[str]
) -> dict[str, Any]:
    from mathrl.stages import curate  # scipy, for this alone

    stages = stages_until(stage)
    rows = differences(params, layers.said_by(settings), sections_read(stages))
    return {
        "target": stage,
        "stages": stages,
        "up_to_date": done,
        "composition": layers.experiment_values(),
        "parameters": [{"key": key, "value": value, "source": source} for key, value, source in rows],
        "sources": curate.resolve(params),
        "model": _model(params),
        "warnings": [*ignored_settings(params), *layers.notes, *doubtful],
    }


def _up_to_date_folder(stage: str, preset: str | None, overrides: Sequence[str], allow_dirty: bool) -> Path | None:
    """The folder of the run if DVC has nothing to run in it: then neither a server nor a flow is needed.

    MLflow gets what it lacks of earlier runs, as at the end of a flow.
    """
    from mathrl.tasks.repro import environment, is_up_to_date
    from mathrl.tasks.workspace import hold_workspace, link_inputs, prepare
    from mathrl.tracking.mirror import Mirror  # as what follows, for this command alone

    _use_servers()
    workspace = prepare(stage, preset, overrides, allow_dirty=allow_dirty)
    folder, env, stages = workspace.folder, environment(), stages_until(stage)

    def show(text: str) -> None:
        print(text, end="", file=sys.stderr, flush=True)

    with hold_workspace(workspace, show):
        link_inputs(folder, stages, workspace.params, env)
        if not is_up_to_date(folder, stages[-1], env):
            return None
        Mirror().finish()
    for line in [*ignored_settings(workspace.params), *workspace.doubtful]:
        show(f"warning: {line}\n")
    where = "" if folder == main_checkout() else f" in {os.path.relpath(folder)}"
    print(f"nothing to do{where}: {', '.join(stages)} up to date")
    return folder


def print_made(stage: str, folder: Path) -> None:
    """What the stage has made in the folder of its run: splits, pass rates, a mixture, a model, or a version."""
    if stage in ("curate", "difficulty", "mix"):
        curated = read_json(folder / "data/curated/manifest.json")
        splits = ", ".join(f"{split} {row['problems']:,}" for split, row in curated["splits"].items())
        gone = ", ".join(f"{reason} {count:,}" for reason, count in curated["dropped"].items()) or "none"
        report = os.path.relpath(folder / "reports/curate/report.md")
        print(f"curated: {splits} problems; dropped: {gone}; rejected: {curated['rejected']:,} ({report})")
    if stage in ("difficulty", "mix"):
        measured = read_json(folder / "data/difficulty/summary.json")
        print(
            f"difficulty: {measured['problems']:,} problems measured, pass@1 {measured['pass_at_1']:.3f}, never solved "
            f"{measured['never_solved']:.1%}, always solved {measured['always_solved']:.1%}"
        )
    if stage == "mix":
        mixture = read_json(folder / "data/mixture/manifest.json")
        where = os.path.relpath(folder / "data/mixture")
        print(f"mixture: {mixture['rows']:,} rows of {mixture['problems']:,} problems in {where}")
    if stage == "register":
        made = read_json(folder / "reports/registered.json")
        print(f"registered: {made['name']} version {made['version']} (alias {made['alias']})")
    if (model := folder / "models" / stage).is_dir():
        print(f"model: {os.path.relpath(model)}")


def _print_verdict(folder: Path, params: Params, preset: str | None, overrides: Sequence[str]) -> None:
    """Whether RL can learn from the mixture, and what comes next.

    Args:
        preset, overrides: The options with which this ran.
    """
    from mathrl.cli.plan import NO_START, skill_lines  # what they import is loaded by now

    lines = skill_lines(params, folder, preset, overrides)
    print("\n".join(lines))
    base, settings = params.model.base, as_words(preset, overrides)
    if lines[0].startswith(NO_START):
        return
    if settings:
        print(f"next: mathrl run pipeline{settings}")
    elif base.type == "pretrained":
        command = f"mathrl evaluate --model {shlex.quote(base.path)} --benchmark test"
        print(f"next: {command}    (the model before any training)")


def call_flow(name: str, **options: Any) -> str:
    """Call a flow in this terminal, with the servers of `mathrl ui` if they answer; return its result."""
    os.environ |= {key: value for key, value in QUIET.items() if key not in os.environ}
    os.environ[Variable.CONSOLE] = "1"
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(EXIT_TERMINATED))  # so that the flow ends its child processes
    _use_servers()
    home().mkdir(parents=True, exist_ok=True)  # Prefect creates its folder, but not the parents
    os.environ.setdefault("PREFECT_HOME", str(home() / "prefect"))
    with own_server() as wait_for_server:
        flow = _flow(name)
        wait_for_server()
        from httpx import HTTPError  # Prefect's, which is loaded by now
        from prefect.concurrency.asyncio import ConcurrencySlotAcquisitionError

        try:
            return str(flow(**options))
        except (HTTPError, ConcurrencySlotAcquisitionError) as error:
            raise UserError(
                f"Prefect's server stopped answering ({error}): the stages finished and their outputs are kept; start "
                "the server (`mathrl ui`), or none, and run the same command again for the report"
            ) from None


def _use_servers() -> None:
    """Name the servers of `mathrl ui` that answer to all that this process starts."""
    for variable, url in running_servers().items():
        os.environ.setdefault(variable, url)


def _flow(name: str) -> Any:
    """The flow of flows/<name>.py, or a new one for a stage without such a file.

    It is imported only here, because Prefect reads its settings at the import.
    """
    with without_collections():
        if importlib.util.find_spec(f"mathrl.flows.{name}"):
            return getattr(importlib.import_module(f"mathrl.flows.{name}"), name)
        factory = importlib.import_module("mathrl.flows.factory")
    return factory.stage_flow(name, f"Bring {name} up to date.")


def _print_plan(
    stage: str,
    params: Params,
    said: tuple[Layers, Sequence[str]] | None,
    more_warnings: Sequence[str],
    done: Sequence[str],
) -> None:
    """The parameters, sources and model with which the stage would run.

    Args:
        said: The layers and the overrides that say what differs from the defaults; None: print all parameters.
        done: The stages that are up to date.
    """
    from mathrl.stages import curate  # scipy, for this alone

    _print_parameters(stage, params, said)
    left = " -> ".join(each for each in stages_until(stage) if each not in done) or "nothing"
    print(f"would run: {left}" + (f"; up to date: {', '.join(done)}" if done else ""))
    for line in curate.resolve(params):
        print(f"source: {line}")
    print(f"model: {_model(params)}")
    if "rl" in stages_until(stage) and params.rl.kept_size:
        print(f"rl.keep_rollouts: {params.rl.kept_size}")
    for line in [*ignored_settings(params), *more_warnings]:
        print(f"warning: {line}")


def _print_parameters(stage: str, params: Params, said: tuple[Layers, Sequence[str]] | None) -> None:
    if said is None:
        print(dump_yaml(params.model_dump(mode="json", by_alias=True)))
        return
    layers, settings = said
    composed = layers.experiment_values()
    words = [f"{kind}={composed[kind]}" for kind in GROUPS if kind in composed]
    words += [f"preset {name}" for name in composed.get("presets", ())]
    print(f"composition: {', '.join(words) or 'none'}")
    rows = list(differences(params, layers.said_by(settings), sections_read(stages_until(stage))))
    print(f"parameters that differ from the defaults (--verbose prints all):{'' if rows else ' none'}")
    width = min(LONGEST_KEY, max((len(f"{key}: {value}") for key, value, _ in rows), default=0))
    for key, value, source in rows:
        print(f"  {f'{key}: {value}':<{width}}  {source}")
    print()


def differences(params: Params, said: Mapping[str, str], sections: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """Each value that differs from its default, by dotted key, with who said so."""
    values, defaults = params.model_dump(mode="json", by_alias=True), section_defaults()
    for section in sections:
        usual = dict(leaves(defaults[section], f"{section}."))
        for key, value in leaves(values[section], f"{section}."):
            if key in usual and usual[key] == value:
                continue
            source = said.get(key) or next((said[other] for other in said if other.startswith(f"{key}.")), "")
            source = source or next((said[other] for other in said if key.startswith(f"{other}.")), "the schema")
            text = json.dumps(value, ensure_ascii=False)
            yield key, text if len(text) <= LONGEST_VALUE else f"{text[: LONGEST_VALUE - 1]}…", source


def section_defaults() -> dict[str, Any]:
    """The default values of every section; of curate and mix, which have none, all but the problems."""
    least = {"curate": {"sources": [_NO_SOURCE]}, "mix": {"components": [{"source": "*", "weight": 1.0}]}}
    defaults: dict[str, Any] = Params.model_validate(least).model_dump(mode="json", by_alias=True)
    del defaults["curate"]["sources"], defaults["mix"]["components"]
    return defaults


_NO_SOURCE = {"type": "file", "name": "none", "path": "none", "split": "rl"}


def _model(params: Params) -> str:
    base = params.model.base
    if base.type == "fresh":
        tokens = f"BPE of {base.tokenizer.vocabulary:,} tokens" if base.tokenizer else "characters"
        return f"fresh {base.architecture}, {base.layers} layers of {base.hidden_size}, {tokens}"
    folder = Path(base.path)
    if not folder.exists() and not is_hub_id(base.path):
        raise UserError(f"model.base.path: {base.path}: no such model folder{near_path(folder)}")
    if folder.exists():
        check_weights(folder)
    where = "local folder" if folder.exists() else "from the hub when it runs"
    return f"{base.path}@{base.revision} ({where})"


def _print_evaluation(folder: Path, params: Params) -> None:
    from mathrl.reading.registry import newer_than  # pandas' formats, which a run that does nothing would pay too

    summary = EvaluationSummary.read(folder / "reports" / "summary.json")
    base = params.model.base
    newer = newer_than(summary.benchmark, base.released if base.type == "pretrained" else None)
    title = f"{summary.benchmark}{f' ({newer})' if newer else ''}: {summary.models['rl'].samples} samples per problem"
    print_table(title, results_table(summary.models))
    print_lines((summary.verdict,))


def _print_results(folder: Path, params: Params, seconds: float) -> None:
    _print_evaluation(folder, params)
    print_made("register", folder)
    where = os.path.relpath(folder / "reports", Path.cwd())
    print_lines(
        (
            f"pictures: {where}/rl/curve.png, {where}/evaluate/*.png; all figures: {where}/summary.json",
            f"tracking: {without_logins(tracking_uri())}",
            f"to look at it: {ui_command()}   (Prefect on http://127.0.0.1:4200, MLflow on http://127.0.0.1:5000)",
            "one page about the run, with curves and examples: mathrl runs report",
            f"took {seconds:.0f} s",
        )
    )
