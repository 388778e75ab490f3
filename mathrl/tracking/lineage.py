"""From a registered model back to the sources that made it, and from a dataset forward to every model.

Only MLflow is read: the tags that `upload` wrote. A run's inputs are its tags `….input.<path>`; the run that
made an input has the same digest under `….output.<path>` (`names.link`). Example, one step of the way back:

    Step(run="4f2c…", stage="rl", commit="a4cec49…", dirty=False, params={"rl.steps": "60", …},
         inputs={"models/sft": "9be1…"}, outputs={"models/rl": "77aa…"}, depth=1)
"""

import json
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from mathrl.core.errors import UserError
from mathrl.tracking.batches import CODE, LONGEST_PARAM, link_to, links, queries, tags_under, unescape
from mathrl.tracking.client import experiments, search_runs

REMEDY = (
    "`mathrl runs sync` uploads what is missing, `mlflow runs restore --run-id RUN` restores a deleted run, "
    "`dvc repro --force --single-item STAGE` makes it again"
)
GIVEN = "data/inputs/"  # links to files outside the checkout: sources, which no stage made


@dataclass(frozen=True)
class Step:
    """One run of a stage.

    `depth` is its distance from the start of the walk; `sources` are digests of files that no stage made
    (curate's inputs); `workspace` is the folder in which it ran, `code` what decided
    its results beside parameters and inputs (core.code_values); {} of runs from before it was recorded.
    """

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
    code: Mapping[str, str] = field(default_factory=dict)

    def section(self, name: str) -> dict[str, Any]:
        """The parameters of one section that it ran with, parsed from MLflow's flat texts.

        A text that is JSON is that value: {"prompt.few_shot": "2", "prompt.system": "null"} →
        {"few_shot": 2, "system": None}.

        Raises:
            UserError: the run has no such section, or MLflow cut a text off.
        """
        values: dict[str, Any] = {}
        for key, text in self.params.items():
            if not key.startswith(f"{name}."):
                continue
            _, *above, last = key.split(".")
            if len(text) >= LONGEST_PARAM:
                raise UserError(f"run {self.run} ({self.stage}): {key} is longer than MLflow keeps")
            parent = values
            for part in above:
                parent = parent.setdefault(part, {})
            try:
                parent[last] = json.loads(text)
            except json.JSONDecodeError:
                parent[last] = text
        if not values:
            raise UserError(f"run {self.run} ({self.stage}) has no parameters {name}.* in MLflow")
        return values


@dataclass(frozen=True)
class Back:
    """The lineage of one version: its steps, those nearest to the model first.

    `edges` are (maker's run, path, reader's run); `unexplained` are (reader's run, path, digest) that no run
    in the store made: a lineage without any is complete.
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
        """The inputs that no run made, as "models/rl (77aa…)"; empty if the lineage is complete."""
        missing = [f"{path} ({digest[:12]})" for _, path, digest in self.unexplained]
        if self.maker() is None and not missing:
            missing = [f"the model's bytes ({self.digest[:12] or 'no mathrl.digest'})"]
        return list(dict.fromkeys(missing))


@dataclass(frozen=True)
class Reached:
    """A version that a dataset led to: `made` if its bytes come from the dataset, else it was only evaluated on it."""

    name: str
    version: str
    digest: str
    made: bool


def find_registered(client: Any, text: str) -> Any:
    """The version that NAME, NAME:VERSION or NAME@ALIAS means, or MLflow's models:/NAME/VERSION; NAME is the newest.

    Raises:
        UserError: no such model, version or alias.
    """
    name, _, alias = text.removeprefix("models:/").partition("@")
    name, _, number = name.replace("/", ":").partition(":")  # no registered name has either
    # MLflow's filters cannot quote a quotation mark, which `register.name` does not allow either.
    named = client.search_model_versions(f"name = '{name}'") if "'" not in name else ()
    versions = sorted(named, key=lambda version: int(version.version))
    if not versions:
        names = ", ".join(sorted(model.name for model in client.search_registered_models())) or "none"
        raise UserError(f"{name}: no such registered model; registered: {names}")
    if alias:
        aliases = client.get_registered_model(name).aliases
        if alias not in aliases:
            names = ", ".join(sorted(aliases)) or "none"
            raise UserError(f"{name} has no alias {alias!r}; its aliases: {names}")
        number = str(aliases[alias])
    numbers = {str(version.version): version for version in versions}
    number = number or str(versions[-1].version)
    if number not in numbers:
        raise UserError(f"{name} has no version {number!r}; its versions: {', '.join(numbers)}")
    return numbers[number]


def find_run(client: Any, text: str) -> Any | None:
    """The run of this id, or the newest of this stage (of a recipe, recipe/step) or name."""
    from mlflow.exceptions import MlflowException

    if len(text) == 32 and text.isalnum():
        try:
            return client.get_run(text)
        except MlflowException:
            return None
    quoted = text.replace("'", "")
    for what in ("tags.`dvc.stage`", "attributes.run_name"):
        runs = client.search_runs(
            experiments(client), f"{what} = '{quoted}'", order_by=["start_time DESC"], max_results=1
        )
        if runs:
            return runs[0]
    return None


def way_back(client: Any, text: str) -> Back:
    """Walk from a registered version to runs that read nothing.

    Raises:
        UserError: as `find_registered`, or the run that registered it is not there.
    """
    version = find_registered(client, text)
    first = _active_run(client, version.run_id) if version.run_id else None
    if first is None:
        raise UserError(
            f"{version.name} version {version.version}: the run that registered it is not in MLflow "
            f"({version.run_id or 'it has none: only the stage register makes versions with a lineage'}); "
            "a deleted run comes back with `mlflow runs restore --run-id RUN`"
        )
    steps: dict[str, Step] = {}
    edges: list[tuple[str, str, str]] = []
    unexplained: list[tuple[str, str, str]] = []
    queue = deque([(first, 0)])
    while queue:
        run, depth = queue.popleft()
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
            queue.append((maker, depth + 1))
    tags = dict(version.tags)
    digest = tags.get("mathrl.digest", "")
    return Back(version.name, str(version.version), digest, tags, list(steps.values()), edges, unexplained)


def way_forward(client: Any, digest: str) -> tuple[list[Step], list[Reached]]:
    """The runs that read the bytes of `digest`, directly or by what others made of them, and the registered
    versions that they led to.

    A folder's digest stands for the files that its maker wrote into it.

    Raises:
        UserError: no run read or made bytes of this digest.
    """
    runs = [_step(run) for run in search_runs(client)]
    new: set[tuple[str, str]] = set()
    for run in runs:
        files = [*run.inputs.items(), *run.sources.items(), *run.outputs.items()]
        folders = tuple(f"{path}/" for path, value in run.outputs.items() if value == digest)
        new |= {(path, value) for path, value in files if value == digest}
        new |= {(path, value) for path, value in run.outputs.items() if path.startswith(folders)}
    if not new:
        raise UserError(f"{digest}: no run in MLflow read or made it; give a file's path or its whole digest")
    steps: dict[str, Step] = {}
    reached_files, depth = set(new), 0
    while new:
        depth += 1
        readers = [run for run in runs if run.run not in steps and new & {*run.inputs.items(), *run.sources.items()}]
        steps |= {run.run: replace(run, depth=depth) for run in readers}
        new = {made for run in readers for made in run.outputs.items()} - reached_files
        reached_files |= new
    digests = {value for _, value in reached_files}
    reached = []
    for version in client.search_model_versions():
        own = version.tags.get("mathrl.digest", "")
        if version.run_id in steps or own in digests:
            reached.append(Reached(version.name, str(version.version), own, own in digests))
    return list(steps.values()), sorted(reached, key=lambda version: (version.name, int(version.version)))


def _active_run(client: Any, run_id: str) -> Any | None:
    """The run, or None if it was deleted: a deleted run is no evidence."""
    from mlflow.exceptions import MlflowException

    try:
        run = client.get_run(run_id)
    except MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise
        return None
    return run if run.info.lifecycle_stage == "active" else None


def linked_maker(client: Any, tags: Mapping[str, str], path: str, digest: str) -> Any | None:
    """The run that a reader's tags name as the maker of `path`, if it is still there and made these bytes."""
    run_id = link_to(tags, "made_by", path)
    run = _active_run(client, run_id) if run_id else None
    return run if run is not None and link_to(run.data.tags, "output", path) == digest else None


def _maker(client: Any, reader: Any, path: str, digest: str) -> Any | None:
    """The run that made what `reader` read: the one it is linked to, else any with the digest."""
    if run := linked_maker(client, reader.data.tags, path, digest):
        return run
    for query in queries("output", path, digest):
        if runs := client.search_runs(experiments(client), query, max_results=1):
            return runs[0]
    return None


def _step(run: Any) -> Step:
    tags = run.data.tags
    read, outputs = links(tags, "input"), links(tags, "output")
    inputs = {path: digest for path, digest in read.items() if not path.startswith(GIVEN)}
    made = {*inputs.values(), *outputs.values()}  # a stage may name its own splits as datasets
    named = {entry.dataset.name: entry.dataset.digest for entry in run.inputs.dataset_inputs}
    return Step(
        run=run.info.run_id,
        stage=tags.get("dvc.stage", ""),
        commit=tags.get("mlflow.source.git.commit", ""),
        dirty=tags.get("git.dirty") == "true",
        params={unescape(key): text for key, text in run.data.params.items()},
        inputs=inputs,
        outputs=outputs,
        sources={name: digest for name, digest in (named | read).items() if digest not in made and name not in inputs},
        workspace=tags.get("mathrl.workspace", ""),
        code=tags_under(tags, CODE),
    )
