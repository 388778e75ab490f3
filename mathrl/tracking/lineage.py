"""From a registered model back to the sources that made it, and from a dataset forward to every model.

Only MLflow is read: the tags that `upload` wrote. A run read what its tags `input.<path>` say; its maker
has the same digest under `output.<path>`. Example, one step of the way back:

    Step(run="4f2c…", stage="rl", commit="a4cec49…", dirty=False, params={"rl.lr": "0.0005", …},
         inputs={"models/sft": "9be1…"}, outputs={"models/rl": "77aa…"}, depth=1)
"""

import json
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mathrl.core.errors import UserError
from mathrl.tracking.client import experiments
from mathrl.tracking.names import escape, tags_under, unescape

PAGE = 1000
LONGEST = 6000  # MLflow's limit of a parameter; `upload` cuts there
REMEDY = (
    "`mathrl sync` uploads what was kept back, `mlflow runs restore --run-id RUN` brings back a deleted run, "
    "`dvc repro --force --single-item STAGE` makes it again"
)
GIVEN = "data/inputs/"  # files from outside the checkout: sources, which no stage made


@dataclass(frozen=True)
class Step:
    """One run of a stage; `depth` is its distance from where the walk began; `sources` are digests of
    files that no stage made (curate's); `workspace` is the folder in which it worked."""

    run: str
    stage: str
    commit: str
    dirty: bool
    params: Mapping[str, str]
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    sources: Mapping[str, str]
    workspace: str = ""
    depth: int = 0

    def section(self, name: str) -> dict[str, Any]:
        """The section of the parameters that it ran with, back from MLflow's flat texts.

        A text that is JSON is that value: {"prompt.few_shot": "2", "prompt.system": "null"} →
        {"few_shot": 2, "system": None}.

        Raises:
            UserError: the run has no such section, or one that MLflow cut off.
        """
        values: dict[str, Any] = {}
        for key, text in self.params.items():
            if not key.startswith(f"{name}."):
                continue
            _, *above, last = key.split(".")
            if len(text) >= LONGEST:
                raise UserError(f"run {self.run} ({self.stage}): {key} is longer than MLflow keeps")
            here = values
            for each in above:
                here = here.setdefault(each, {})
            try:
                here[last] = json.loads(text)
            except json.JSONDecodeError:
                here[last] = text
        if not values:
            raise UserError(f"run {self.run} ({self.stage}) has no parameters {name}.* in MLflow")
        return values


@dataclass(frozen=True)
class Back:
    """The way back of one version: its steps, those nearest to the model first.

    `edges` are (maker's run, path, reader's run); `unexplained` are (reader's run, path, digest) that no run
    of the store made: a lineage with none is complete.
    """

    name: str
    version: str
    digest: str
    tags: Mapping[str, str]
    steps: Sequence[Step]
    edges: Sequence[tuple[str, str, str]]
    unexplained: Sequence[tuple[str, str, str]]

    def maker(self) -> Step | None:
        """The run that made the model's bytes."""
        return next((step for step in self.steps if self.digest in step.outputs.values()), None)

    def gaps(self) -> list[str]:
        """What no run made, as "models/rl (77aa…)"; nothing where the lineage is complete."""
        missing = [f"{path} ({digest[:12]})" for _, path, digest in self.unexplained]
        if self.maker() is None and not missing:
            missing = [f"the model's bytes ({self.digest[:12] or 'no mathrl.digest'})"]
        return list(dict.fromkeys(missing))


@dataclass(frozen=True)
class Reached:
    """A version that a dataset led to: `made` when its bytes come from it, else only measured with it."""

    name: str
    version: str
    digest: str
    made: bool


def find_registered(client: Any, text: str) -> Any:
    """The version that NAME, NAME:VERSION or NAME@ALIAS means; NAME alone is the newest.

    Raises:
        UserError: no such model, version or alias.
    """
    name, _, alias = text.partition("@")
    name, _, number = name.partition(":")
    versions = sorted(client.search_model_versions(f"name = '{name}'"), key=lambda v: int(v.version))
    if not versions:
        known = ", ".join(sorted(model.name for model in client.search_registered_models())) or "none"
        raise UserError(f"{name}: no such registered model; there are: {known}")
    if alias:
        aliases = client.get_registered_model(name).aliases
        if alias not in aliases:
            known = ", ".join(sorted(aliases)) or "none"
            raise UserError(f"{name} has no alias {alias!r}; there are: {known}")
        number = str(aliases[alias])
    wanted = number or str(versions[-1].version)
    for version in versions:
        if str(version.version) == wanted:
            return version
    known = ", ".join(str(version.version) for version in versions)
    raise UserError(f"{name} has no version {wanted!r}; there are: {known}")


def find_run(client: Any, text: str) -> Any | None:
    """The run of this id, or the newest of this name."""
    from mlflow.exceptions import MlflowException

    if len(text) == 32 and text.isalnum():
        try:
            return client.get_run(text)
        except MlflowException:
            return None
    quoted = text.replace("'", "")
    found = client.search_runs(
        experiments(client), f"attributes.run_name = '{quoted}'", order_by=["start_time DESC"], max_results=1
    )
    return found[0] if found else None


def way_back(client: Any, text: str) -> Back:
    """Walk from a registered version to runs that read nothing.

    Raises:
        UserError: as `find_registered`, or the run that registered it is not there.
    """
    version = find_registered(client, text)
    first = _kept(client, version.run_id) if version.run_id else None
    if first is None:
        raise UserError(
            f"{version.name} version {version.version}: the run that registered it is not in MLflow "
            f"({version.run_id or 'it has none: only the stage register makes versions with a lineage'}); "
            "a deleted run comes back with `mlflow runs restore --run-id RUN`"
        )
    steps: dict[str, Step] = {}
    edges: list[tuple[str, str, str]] = []
    unexplained: list[tuple[str, str, str]] = []
    ahead = deque([(first, 0)])
    while ahead:
        run, depth = ahead.popleft()
        if run.info.run_id in steps:
            continue
        step = replace(_step(run), depth=depth)
        steps[step.run] = step
        for path, digest in step.inputs.items():
            maker = _maker(client, run, path, digest)
            if maker is None:
                unexplained.append((step.run, path, digest))
                continue
            edges.append((maker.info.run_id, path, step.run))
            ahead.append((maker, depth + 1))
    tags = dict(version.tags)
    return Back(
        version.name,
        str(version.version),
        tags.get("mathrl.digest", ""),
        tags,
        list(steps.values()),
        edges,
        unexplained,
    )


def way_forward(client: Any, digest: str) -> tuple[list[Step], list[Reached]]:
    """The runs that read the bytes of `digest`, directly or by what others made of them, and the registered
    versions that they led to.

    A folder's digest stands for the files that its maker wrote into it.

    Raises:
        UserError: no run read or made bytes of this digest.
    """
    runs = [_step(run) for run in _every_run(client)]
    begun = {
        (path, value)
        for run in runs
        for path, value in [*run.inputs.items(), *run.sources.items(), *run.outputs.items()]
        if value == digest
    }
    if not begun:
        raise UserError(f"{digest}: no run in MLflow read or made it; give a file's path or its whole digest")
    for run in runs:
        inside = [path for path, value in run.outputs.items() if value == digest]
        begun |= {
            (path, value)
            for path, value in run.outputs.items()
            if any(path.startswith(f"{folder}/") for folder in inside)
        }
    steps: dict[str, Step] = {}
    known, new, depth = set(begun), set(begun), 0
    while new:
        depth += 1
        readers = [run for run in runs if run.run not in steps and new & {*run.inputs.items(), *run.sources.items()}]
        steps |= {run.run: replace(run, depth=depth) for run in readers}
        new = {made for run in readers for made in run.outputs.items()} - known
        known |= new
    digests = {value for _, value in known}
    reached = [
        Reached(
            version.name,
            str(version.version),
            version.tags.get("mathrl.digest", ""),
            version.tags.get("mathrl.digest", "") in digests,
        )
        for version in client.search_model_versions()
        if version.run_id in steps or version.tags.get("mathrl.digest", "") in digests
    ]
    return list(steps.values()), sorted(reached, key=lambda each: (each.name, int(each.version)))


def _kept(client: Any, run_id: str) -> Any | None:
    """The run, unless it was deleted: what is in the bin vouches for nothing."""
    from mlflow.exceptions import MlflowException

    try:
        run = client.get_run(run_id)
    except MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise
        return None
    return run if run.info.lifecycle_stage == "active" else None


def _maker(client: Any, reader: Any, path: str, digest: str) -> Any | None:
    """The run that made what `reader` read: the one it was linked to, else any with the digest."""
    link = reader.data.tags.get(escape(f"made_by.{path}"))
    linked = _kept(client, link) if link else None
    if linked is not None and linked.data.tags.get(escape(f"output.{path}")) == digest:
        return linked
    found = client.search_runs(experiments(client), f"tags.`{escape(f'output.{path}')}` = '{digest}'", max_results=1)
    return found[0] if found else None


def _every_run(client: Any) -> Iterable[Any]:
    token, everywhere = None, experiments(client)
    while True:
        page = client.search_runs(everywhere, max_results=PAGE, page_token=token)
        yield from page
        token = page.token
        if not token:
            return


def _step(run: Any) -> Step:
    tags = run.data.tags

    read, outputs = tags_under(tags, "input."), tags_under(tags, "output.")
    inputs = {path: digest for path, digest in read.items() if not path.startswith(GIVEN)}
    made = {*inputs.values(), *outputs.values()}  # a stage may name its splits as datasets: those are no sources
    named = {each.dataset.name: each.dataset.digest for each in run.inputs.dataset_inputs}
    return Step(
        run.info.run_id,
        tags.get("dvc.stage", ""),
        tags.get("mlflow.source.git.commit", ""),
        tags.get("git.dirty") == "true",
        {unescape(key): text for key, text in run.data.params.items()},
        inputs,
        outputs,
        {name: digest for name, digest in (named | read).items() if digest not in made and name not in inputs},
        tags.get("mathrl.workspace", ""),
    )
