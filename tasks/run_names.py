"""Names and tags of flow runs in Prefect, and the event of a new model.

A name that a person gave stays. Prefect's server makes one of two words of the package coolname, such as spotted-hare;
the form in the browser one of a Greek letter, a place and perhaps a word, such as kappa2-ledos-void, whose places are
listed in the page's script.
"""

import os
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import prefect
from coolname.data import config
from httpx import HTTPError
from prefect import get_client, get_run_logger
from prefect.events import emit_event
from prefect.exceptions import PrefectException
from prefect.runtime import flow_run

from mathrl.compose.changes import changed_since_commit
from mathrl.compose.load import NO_PRESET
from mathrl.core.environment import Variable
from mathrl.core.paths import is_group
from mathrl.core.records import run_name as changed_run_name
from mathrl.params.schema import READS, STAGES
from mathrl.tasks.workspace import Workspace, commit_of

MODEL_MADE = "mathrl.model.made"


def name_run(kind: str, target: str, workspace: Workspace, seeds: Sequence[int]) -> list[str]:
    """Name the flow run after what it runs, unless a person named it, and tag it; returns the tags.

    `kind` is stage, recipe or sweep, `target` the name of one. If the server does not answer, the run goes on
    under its old name.
    """
    tags = run_tags(kind, target, workspace, seeds)
    name = str(flow_run.name or "")
    if was_generated(name):
        name = stage_run_name(target, workspace) if kind == "stage" else run_name(f"{kind} {target}", workspace, seeds)
    try:
        with get_client(sync_client=True) as client:
            client.update_flow_run(flow_run.id, name=name, tags=sorted({*flow_run.tags, *tags}))
    except (HTTPError, PrefectException) as error:
        get_run_logger().warning("the run keeps the name %s: %s", flow_run.name, error)
    return tags


def stage_run_name(target: str, workspace: Workspace) -> str:
    """The name that MLflow's run of the stage has too; for the pipeline, the run that holds its stages."""
    sections = workspace.params.model_dump(mode="json", by_alias=True)
    pipeline = {section: sections[section] for stage in STAGES for section in READS[stage]}
    changed = changed_since_commit(pipeline, workspace.preset or "", workspace.folder, workspace.groups)
    return changed_run_name(target, workspace.composition, changed, commit_of(workspace.folder))


def run_name(title: str, workspace: Workspace, seeds: Sequence[int]) -> str:
    """The name of a recipe's or a sweep's run.

    >>> run_name("recipe study", Workspace(Path(), None, "gsm8k", ("rl.optimizer.lr=2e-4",)), [0, 1])
    'recipe study gsm8k lr=2e-4 seeds 0, 1'
    """
    settings = [o for o in workspace.overrides if not (o.startswith("run.seed=") or is_group(o))]
    words = [title, workspace.composition, *(setting.split(".", 1)[-1][:28] for setting in settings[:3])]
    words += [f"and {len(settings) - 3} more"] if len(settings) > 3 else []
    words += [f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"] if seeds else []
    return " ".join(filter(None, words))


def run_tags(kind: str, target: str, workspace: Workspace, seeds: Sequence[int]) -> list[str]:
    """The tags by which runs are found.

    >>> run_tags("stage", "rl", Workspace(Path(), None, "gsm8k"), [1])
    ['stage:rl', 'preset:gsm8k', 'seed:1']
    """
    preset = [f"preset:{workspace.preset}"] if workspace.preset else []
    chosen = [group.replace("=", ":", 1) for group in workspace.groups]
    return [f"{kind}:{target}", *preset, *chosen, *(f"seed:{seed}" for seed in seeds)]


def announce_model(step: str, model: Path, workspace: Workspace) -> None:
    """Emit Prefect's event `mathrl.model.made`, for automations, if there is a server and `model` is a folder.

    The payload has the model's folder and the settings of the run, so that an automation can start another flow
    with the same settings.
    """
    served = os.environ.get("PREFECT_API_URL") and not Variable.OWN_SERVER.get()
    if not served or not model.is_dir():
        return
    emit_event(
        MODEL_MADE,
        resource={
            "prefect.resource.id": f"mathrl.model.{workspace.folder.name}.{step}",
            "prefect.resource.name": step,
            "mathrl.folder": str(model),
        },
        payload={
            "stage": step,
            "model": str(model),
            "preset": workspace.preset or NO_PRESET,
            "overrides": list(workspace.overrides),
        },
    )


GREEK = (
    "alpha|beta|gamma|delta|epsilon|zeta|eta|theta|iota|kappa|lambda|mu|nu|xi|omicron|pi|rho|sigma|tau|upsilon|phi|"
    "chi|psi|omega"
)
PLACES = re.compile(r"`(andromedae\.[a-z.-]+)`")


def was_generated(name: str) -> bool:
    """
    >>> was_generated("spotted-hare"), was_generated("lower-lr"), was_generated("baseline-rerun")
    (True, False, False)
    """
    first, _, rest = name.partition("-")
    if first in _words("adj_any") and rest in _words("subj"):
        return True
    star = re.fullmatch(rf"(?:{GREEK})\d*-(.+)", name)
    return star is not None and bool(_places() & {star[1], star[1].rpartition("-")[0]})


@cache
def _words(kind: str) -> frozenset[str]:
    """The words of one of coolname's lists, which may consist of others."""
    rule: Any = config[kind]
    return frozenset(rule.get("words", ())).union(*map(_words, rule.get("lists", ())))


@cache
def _places() -> frozenset[str]:
    """What Prefect's form names runs after; empty if its pages are not installed."""
    scripts = (file.read_text(encoding="utf-8") for file in Path(prefect.__ui_static_path__).glob("assets/index-*.js"))
    lists = (match[1].split(".") for text in scripts if (match := PLACES.search(text)))
    return frozenset(place for places in lists for place in places if place)
