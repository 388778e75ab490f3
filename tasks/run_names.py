"""What a flow run is called and tagged in Prefect, and the event that says that a model was made."""

import os
import re
from collections.abc import Sequence
from pathlib import Path

from httpx import HTTPError
from prefect import get_client, get_run_logger
from prefect.events import emit_event
from prefect.exceptions import PrefectException
from prefect.runtime import flow_run

from mathrl.core.environment import Variable
from tasks.workspace import Workspace

GENERATED = re.compile(r"[a-z]+\d*-[a-z]+(-[a-z])?")  # by Prefect: spotted-hare, kappa2-ledos-x
MODEL_MADE = "mathrl.model.made"


def name_run(kind: str, what: str, workspace: Workspace, seeds: Sequence[int]) -> list[str]:
    """Name the flow run after what is run, unless a person named it, and tag it; returns the tags.

    `kind` is stage, recipe or sweep, `what` the name of one.

    A server that does not answer costs the name, never the run.
    """
    tags = run_tags(kind, what, workspace, seeds)
    given = str(flow_run.name or "")
    title = what if kind == "stage" else f"{kind} {what}"
    name = run_name(title, workspace, seeds) if GENERATED.fullmatch(given) else given
    try:
        with get_client(sync_client=True) as client:
            client.update_flow_run(flow_run.id, name=name, tags=sorted({*flow_run.tags, *tags}))
    except (HTTPError, PrefectException) as error:
        get_run_logger().warning("the run keeps the name %s: %s", given, error)
    return tags


def run_name(what: str, workspace: Workspace, seeds: Sequence[int]) -> str:
    """Readable in a list.

    >>> run_name("rl", Workspace(Path(), None, "gsm8k", ("rl.lr=2e-4",)), [1])
    'rl gsm8k lr=2e-4 seed 1'
    """
    settings = [each for each in workspace.overrides if not each.startswith("run.seed=")]
    words = [what, workspace.preset or "", *(each.split(".", 1)[-1][:28] for each in settings[:3])]
    words += [f"and {len(settings) - 3} more"] if len(settings) > 3 else []
    words += [f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"] if seeds else []
    return " ".join(filter(None, words))


def run_tags(kind: str, what: str, workspace: Workspace, seeds: Sequence[int]) -> list[str]:
    """What runs are found by.

    >>> run_tags("stage", "rl", Workspace(Path(), None, "gsm8k"), [1])
    ['stage:rl', 'preset:gsm8k', 'seed:1']
    """
    preset = [f"preset:{workspace.preset}"] if workspace.preset else []
    return [f"{kind}:{what}", *preset, *(f"seed:{seed}" for seed in seeds)]


def say_model_made(step: str, model: Path, workspace: Workspace) -> None:
    """Prefect's event `mathrl.model.made`, for automations; nothing without a server, or where no model is.

    The payload has the model's folder and what the run was started with, so that an automation can start
    another flow with the same.
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
            "preset": workspace.preset,
            "overrides": list(workspace.overrides),
        },
    )
