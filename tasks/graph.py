"""A graph of steps: a DVC file, what of it is brought up to date, and the one way in which `dvc repro` does that."""

from collections.abc import Callable, Collection, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from mathrl.params.load import parse_yaml
from mathrl.tasks.repro import Repro, end_with_block

PIPELINE = "dvc.yaml"
Show = Callable[[str], None]
Stages = Mapping[str, Mapping[str, Any]]


class Graph:
    """A DVC file in a folder: its stage `target` with all that it needs, or every stage.

    With `alone` the target is run by itself, though nothing has changed.

    Example: Graph(Path(), target="rl"), Graph(Path(), "pipelines/recipes/dpo/dvc.yaml").
    """

    def __init__(self, folder: Path, file: str = PIPELINE, target: str = "", *, alone: bool = False) -> None:
        self.folder, self.file, self.target, self.alone = folder, file, target, alone

    @property
    def name(self) -> str:
        """What `dvc repro` is asked for."""
        return self.file if not self.target else self.target if self.file == PIPELINE else f"{self.file}:{self.target}"

    @cached_property
    def stages(self) -> Stages:
        stages: Stages = parse_yaml((self.folder / self.file).read_text(encoding="utf-8"), self.file)["stages"]
        return stages

    @cached_property
    def steps(self) -> list[str]:
        """The steps of the file that are brought up to date, in its order."""
        needs, _ = needed_steps(self.stages)
        wanted, waiting = set[str](), [self.target] if self.target else list(needs)
        while waiting:
            if (step := waiting.pop()) not in wanted:
                wanted.add(step)
                waiting += needs[step]
        return [step for step in needs if step in wanted]

    @property
    def pipeline_part(self) -> str:
        """The last stage of dvc.yaml that the steps of another file need; "" if they need none."""
        if self.file == PIPELINE:
            return ""
        _, given = needed_steps(self.stages)
        return last_maker(Graph(self.folder).stages, given) or ""

    @property
    def main_step(self) -> str:
        """The step that a person waits for: the last of stage rl, or the last."""
        trained = [step for step in self.steps if "mathrl.stages.rl" in self.stages[step]["cmd"].split()]
        return [*self.steps, *trained][-1]

    def place(self, step: str, part: str) -> Path:
        """The folder of a step's `part`, report or model: reports/rl, or in the step's own folder."""
        for out in outputs_of({step: self.stages.get(step, {})}):
            if out.startswith("pipelines/"):
                return self.folder / out / part
        return self.folder / f"{part}s" / step


def follow_each(graph: Graph, env: Mapping[str, str], show: Show, follow: Callable[[str, Repro], Any]) -> None:
    """One `dvc repro` of the graph; `follow` is called with each step as DVC comes to it, and waits for its end."""
    with end_with_block(
        Repro(graph.folder, graph.name, dict(env), show, single=graph.alone, force=graph.alone)
    ) as repro:
        while (step := repro.next_stage()) is not None:
            follow(step, repro)
        repro.finish(graph.target or graph.file)


def needed_steps(stages: Stages) -> tuple[dict[str, list[str]], set[str]]:
    """The steps of a DVC file that each one needs, and the data and models that they need and none of them makes.

    >>> a = {"deps": ["data/curated/rl.jsonl"], "outs": ["p/a"]}
    >>> needed_steps({"a": a, "b": {"deps": ["p/a/model"], "outs": ["p/b"]}})
    ({'a': [], 'b': ['a']}, {'data/curated/rl.jsonl'})
    """
    makers = outputs_of(stages)
    needs = {
        step: list(dict.fromkeys(made for dep in stage.get("deps", []) if (made := _maker(dep, makers)) is not None))
        for step, stage in stages.items()
    }
    deps = {dep for stage in stages.values() for dep in stage.get("deps", []) if not dep.startswith("mathrl/")}
    return needs, {dep for dep in deps if _maker(dep, makers) is None}


def last_maker(stages: Stages, paths: Collection[str]) -> str | None:
    """The last of the stages, which need one another in their order, that makes one of the paths; None if none does.

    >>> last_maker({"a": {"outs": ["data/a"]}, "b": {"outs": ["b"]}, "c": {}}, ["data/a/x.jsonl", "b"])
    'b'
    """
    makers = outputs_of(stages)
    made = {_maker(path, makers) for path in paths}
    return next((stage for stage in reversed(list(stages)) if stage in made), None)


def outputs_of(stages: Stages) -> dict[str, str]:
    """The stage of each output of a DVC file."""
    return {
        (out if isinstance(out, str) else next(iter(out))): step
        for step, stage in stages.items()
        for kind in ("outs", "metrics", "plots")
        for out in stage.get(kind, [])
    }


def _maker(dep: str, makers: Mapping[str, str]) -> str | None:
    return next((step for out, step in makers.items() if dep == out or dep.startswith(f"{out}/")), None)
