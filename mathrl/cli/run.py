"""`mathrl run`: the same flow that the Prefect UI starts, in this terminal."""

import importlib
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mathrl.cli.own_server import own_server
from mathrl.core.environment import Variable
from mathrl.core.errors import UserError
from mathrl.core.paths import home, main_checkout, shown, tracking_uri
from mathrl.params import Params, load_params
from mathrl.params.schema import STAGES

FLOWS = ("pipeline", "curate", "sft", "rl", "evaluate", "pages")
QUIET = {
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "DO_NOT_TRACK": "1",
    "PREFECT_CLOUD_ENABLE_ORCHESTRATION_TELEMETRY": "false",
    # A failed stage says so itself; the flow would repeat it as a traceback.
    "PREFECT_LOGGING_LEVEL": "CRITICAL",
}


def start(stage: str, preset: str | None, overrides: Sequence[str], *, controls: bool, allow_dirty: bool) -> None:
    """Run the flow and print what came out.

    Raises:
        UserError: wrong parameters, a stage that failed; the message says which and why.
    """
    if stage not in (*STAGES, "pipeline", "pages"):
        raise UserError(f"no stage {stage!r}; stages: {', '.join(STAGES)}, pipeline, or pages")
    if controls and stage != "pipeline":
        raise UserError("--controls goes with the pipeline: mathrl run pipeline --controls")
    os.chdir(main_checkout())
    load_params(preset=preset, overrides=overrides)  # before any server is started
    began = time.time()
    given: dict[str, Any] = {"preset": preset, "overrides": list(overrides), "allow_dirty": allow_dirty}
    given |= {"controls": True} if controls else {}
    if stage in FLOWS:
        folder = Path(call_flow(stage, **given))
    else:
        folder = Path(call_flow("stage", "stage_flow", stage=stage, **given))
    if stage == "pipeline":
        _print_results(folder, controls, time.time() - began)


def call_flow(module: str, name: str | None = None, **given: Any) -> str:
    """Call a flow in this terminal, with the servers of `mathrl ui` where they answer; what it returns."""
    os.environ |= {key: value for key, value in QUIET.items() if key not in os.environ}
    os.environ[Variable.CONSOLE] = "1"
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the flow ends what it started
    _use_running_servers()
    home().mkdir(parents=True, exist_ok=True)  # Prefect makes its folder in it, but not its parents
    os.environ.setdefault("PREFECT_HOME", str(home() / "prefect"))
    with own_server() as ready:
        flow = getattr(importlib.import_module(f"flows.{module}"), name or module)
        ready()
        from httpx import HTTPError  # Prefect's, which is loaded by now
        from prefect.concurrency.asyncio import ConcurrencySlotAcquisitionError

        try:
            return str(flow(**given))
        except (HTTPError, ConcurrencySlotAcquisitionError) as error:
            raise UserError(
                f"Prefect's server stopped answering ({error}): the stages went on to their end and what "
                "they made is kept; start the server (`mathrl ui`), or none, and run the same command again "
                "for the report"
            ) from None


def dry(stage: str, preset: str | None, overrides: Sequence[str]) -> None:
    """Resolve parameters, sources and the model's name; print what would run."""
    from mathrl.params.load import dump_yaml
    from mathrl.stages.curate import resolve

    os.chdir(main_checkout())
    params = load_params(preset=preset, overrides=overrides)
    if stage == "pages":
        from mathrl.stages.pages import resolve as resolve_pages

        print(dump_yaml(params.pages.model_dump(mode="json")))
        for name, files in resolve_pages(params).items():
            print(f"{name}: {', '.join(map(str, files))}")
        return
    last = STAGES[-1] if stage == "pipeline" else stage
    if last not in STAGES:
        raise UserError(f"no stage {stage!r}; stages: {', '.join(STAGES)}, pipeline, or pages")
    print(dump_yaml(params.model_dump(mode="json", by_alias=True)))
    print("would run: " + " -> ".join(STAGES[: STAGES.index(last) + 1]))
    for line in resolve(params):
        print(f"source: {line}")
    print(f"model: {_model(params)}")


def _model(params: Params) -> str:
    base = params.model.base
    if base.type == "fresh":
        return f"fresh {base.architecture}, {base.layers} layers of {base.hidden_size}"
    folder = Path(base.path)
    where = "local folder" if folder.exists() else "from the hub when it runs"
    return f"{base.path}@{base.revision} ({where})"


def _use_running_servers() -> None:
    """The servers of `mathrl ui`, when they answer; else a Prefect of our own and the local MLflow file."""
    from mathrl.cli.ui import answering

    for variable, url in answering().items():
        os.environ.setdefault(variable, url)


def _print_results(folder: Path, controls: bool, seconds: float) -> None:
    from rich.console import Console
    from rich.table import Table

    summary = json.loads((folder / "reports" / "summary.json").read_text())
    models = {name: summary["models"][name] for name in ("base", "sft", "rl")}
    if controls:
        models |= json.loads((folder / "reports" / "controls" / "summary.json").read_text())["models"]
    some = next(iter(models.values()))
    k = max(int(name[8:]) for name in some if name.startswith("pass_at_") and name[8:].isdigit())
    table = Table(title=f"{summary['benchmark']}: {some['problems']} problems, {some['samples']} samples each")
    for column in ("model", "pass@1", "95 % interval", f"pass@{k}", f"maj@{k}", "mean length"):
        table.add_column(column, justify="left" if column == "model" else "right")
    for name, each in models.items():
        table.add_row(
            name,
            f"{each['pass_at_1']:.3f}",
            f"{each['pass_at_1_low']:.3f} to {each['pass_at_1_high']:.3f}",
            f"{each[f'pass_at_{k}']:.3f}",
            f"{each.get(f'maj_at_{k}', each['pass_at_1']):.3f}",
            f"{each['response_length']:.1f}",
        )
    registered = json.loads((folder / "reports" / "registered.json").read_text())
    console = Console(width=max(100, Console().width) if not sys.stdout.isatty() else None)
    console.print(table)
    where = os.path.relpath(folder / "reports", Path.cwd())
    for line in (
        summary["verdict"],
        f"registered: {registered['name']} version {registered['version']} (alias {registered['alias']})",
        f"pictures: {where}/rl/curve.png, {where}/evaluate/*.png; all figures: {where}/summary.json",
        f"tracking: {shown(tracking_uri())}",
        "look at it: make ui   (Prefect on http://127.0.0.1:4200, MLflow on http://127.0.0.1:5000)",
        f"took {seconds:.0f} s",
    ):
        console.print(line, soft_wrap=True, highlight=False)
