"""`mathrl launch`: the job file that runs a stage on several machines, for Slurm or for Kubernetes (JobSet).

Stages that train run by torchrun on all nodes, the others on the first one; vLLM servers may sample on further nodes.
With rl.engine verl the job starts Ray on all nodes, and the stage rl once, on the first one.
"""

import os
import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from jinja2 import Environment, StrictUndefined

from mathrl.cli.options import AllowDirty, Choices, Overrides, Presets, as_words, join_presets, with_choices
from mathrl.cli.output import AsJson, print_result
from mathrl.compose import load_params
from mathrl.core.environment import Variable
from mathrl.core.errors import UserError
from mathrl.core.files import write_text
from mathrl.core.hashing import digest
from mathrl.core.paths import home, main_checkout, state_root
from mathrl.params import Params
from mathrl.params.schema import STAGES, TARGETS, hands_over, stages_until, trains
from mathrl.params.training import Verl

SAMPLED = "sft"  # the stage whose model the servers load; what samples comes after it
TIME = re.compile(r"(\d+-)?\d{1,3}(:\d\d){1,2}|\d+|\d+-\d{1,2}")


@dataclass(frozen=True)
class Machines:
    """The nodes of a job, and what its scheduler has to know of them."""

    nodes: int | None = None
    ranks_per_node: int = 8
    sampler_nodes: int = 0
    time: str = "24:00:00"
    image: str | None = None
    claim: str = "mathrl"


@dataclass(frozen=True)
class LaunchStep:
    """A part of the job: `stage` with its ranks on all nodes, or on one node with all that comes before it.

    With `ray` it is on one node, and Ray on all.
    """

    stage: str
    ranks: bool
    ray: bool = False


def launch(
    stage: Annotated[str, typer.Argument(help=f"One of {', '.join(stages_until('pipeline')[1:])}, pipeline.")],
    choices: Choices = None,
    nodes: Annotated[
        int | None, typer.Option(min=1, help="Nodes that train; default: run.processes fill them.")
    ] = None,
    ranks_per_node: Annotated[int, typer.Option(min=1, help="Ranks per node, with one GPU each.")] = 8,
    sampler_nodes: Annotated[int, typer.Option(min=0, help="Further nodes with vLLM servers that sample.")] = 0,
    time: Annotated[str, typer.Option(help="Slurm: time limit of a job, as in sbatch; it resumes after that.")] = (
        "24:00:00"
    ),
    image: Annotated[
        str | None, typer.Option(help="Kubernetes: image with mathrl's packages (docs/how_to/team.md).")
    ] = (None),
    claim: Annotated[str, typer.Option(help="Kubernetes: claim of the volume with the project.")] = "mathrl",
    slurm: Annotated[bool, typer.Option("--slurm", help="Write a batch script for sbatch.")] = False,
    kubernetes: Annotated[bool, typer.Option("--kubernetes", help="Write a JobSet for kubectl.")] = False,
    output: Annotated[Path | None, typer.Option(help="File to write; default: below .mathrl/launch.")] = None,
    presets: Presets = None,
    overrides: Overrides = None,
    allow_dirty: AllowDirty = False,
    as_json: AsJson = False,
) -> None:
    """Write a job file that runs a stage on several machines, with everything before it that is out of date.

    The parameters are validated now. With --preset and --set the job works in a worktree under runs/, as with
    `mathrl run`. The machines share the project and its environment on one file system.
    """
    machines = Machines(nodes, ranks_per_node, sampler_nodes, time, image, claim)
    if slurm == kubernetes:
        raise UserError("give either --slurm or --kubernetes")
    if not TIME.fullmatch(machines.time):
        raise UserError(f"--time {machines.time}: write hours as 24:00:00 or days as 2-00:00:00")
    if kubernetes and not machines.image:
        raise UserError(
            "--kubernetes needs --image, such as registry.example.org/mathrl:1; "
            "docs/how_to/team.md says how to build one"
        )
    overrides = with_choices(choices, overrides)
    output = output and output.absolute()
    os.chdir(main_checkout())
    preset = join_presets(presets)
    settings = [*(overrides or ()), *_server_settings(machines, preset, overrides or ())]
    settings += _verl_settings(machines, load_params(preset=preset, overrides=settings))
    steps = plan_steps(stage, load_params(preset=preset, overrides=settings), servers=machines.sampler_nodes > 0)
    from mathrl.tasks import repro, workspace  # Prefect and DVC: after the checks, and --help answers without them

    prepared = workspace.prepare(stage, preset, settings, allow_dirty=allow_dirty)
    values = job_values(stage, steps, machines, prepared.params)
    if machines.sampler_nodes and prepared.params.rollout.servers.folder:
        Path(prepared.params.rollout.servers.folder).mkdir(parents=True, exist_ok=True)
    workspace.link_inputs(prepared.folder, stages_until(stage), prepared.params, repro.environment())
    name = f"mathrl-{stage}-{digest([prepared.folder.name, values['nodes'], machines.sampler_nodes])[:6]}"
    file = output or home() / "launch" / f"{name}{'.sbatch' if slurm else '.yaml'}"
    values |= {
        "slurm": slurm,
        "command": shlex.join(["mathrl", *sys.argv[1:]]),
        "settings": as_words(preset, settings).strip(),
        "name": name,
        "file": str(file),
        "folder": str(prepared.folder),
        "bin": str(Path(sys.executable).parent),
        "log": str(file.parent / f"{name}-%j.log"),
        "mount": str(main_checkout().parent),
        "mlflow": os.environ.get("MLFLOW_TRACKING_URI"),
        "verl_python": Variable.VERL_PYTHON.get() or sys.executable,
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    write_text(file, job_file(machines, values))
    command = shlex.join(["sbatch", str(file)] if slurm else ["kubectl", "create", "--filename", str(file)])
    document = {"file": str(file), "folder": str(prepared.folder), "command": command}
    print_result(as_json, document, str(file), f"it runs in {prepared.folder}; submit it with:", command)


def plan_steps(stage: str, params: Params, *, servers: bool) -> list[LaunchStep]:
    """The job's steps in their order.

    Raises:
        UserError: no stage of this name, or none of its stages trains; with `servers`, or none samples.
    """
    if stage not in TARGETS or not any(trains(name, params) for name in stages_until(stage)):
        which = [name for name in STAGES if any(trains(needed, params) for needed in stages_until(name))]
        raise UserError(
            f"mathrl launch is for what trains: {', '.join(which)} or pipeline, not {stage!r}; see mathrl run"
        )
    if servers and STAGES.index(SAMPLED) >= len(stages_until(stage)) - 1:
        raise UserError(f"--sampler-nodes: nothing samples up to the stage {stage}; leave it out")
    steps: list[LaunchStep] = []
    for name in stages_until(stage):
        ray = hands_over(name, params)
        ranks = trains(name, params) and not ray
        alone = not steps or steps[-1].ranks or steps[-1].ray or (servers and steps[-1].stage == SAMPLED)
        if not (alone or ranks or ray):
            steps.pop()  # `dvc repro` of the later stage brings the earlier one up to date
        steps.append(LaunchStep(name, ranks, ray))
    return steps


def _server_settings(machines: Machines, preset: str | None, overrides: Sequence[str]) -> list[str]:
    """The overrides by which a run samples from the job's servers, unless a person set them.

    Their addresses are known to the job alone, and given to the run by an environment variable: parameters with them
    would differ from job to job, and a stage would not resume.
    """
    if not machines.sampler_nodes:
        return []
    names = ", ".join(f"http://sampler-{number}:8001" for number in range(machines.sampler_nodes))
    settings = ["rollout.engine=vllm_server", f"rollout.servers.urls=[{names}]"]
    if load_params(preset=preset, overrides=[*overrides, *settings]).rollout.servers.folder is None:
        settings.append(f"rollout.servers.folder={state_root() / 'weights'}")
    return settings


def _verl_settings(machines: Machines, params: Params) -> list[str]:
    """The overrides by which verl trains on the job's nodes and joins their Ray."""
    if not isinstance(params.rl.engine, Verl):
        return []
    nodes = machines.nodes or params.rl.engine.nodes
    return [f"run.processes={machines.ranks_per_node}", f"rl.engine.nodes={nodes}", "rl.engine.ray_address=auto"]


def job_values(stage: str, steps: Sequence[LaunchStep], machines: Machines, params: Params) -> dict[str, Any]:
    """What the templates are told, as far as both schedulers need it.

    Raises:
        UserError: the ranks do not fill the nodes, vLLM's tensor-parallel groups, or groups that share micro-batches.
    """
    per_node, processes = machines.ranks_per_node, params.run.processes
    if isinstance(params.rl.engine, Verl):
        processes *= params.rl.engine.nodes
    if machines.nodes is None and processes % per_node:
        raise UserError(
            f"run.processes={processes} does not fill nodes of {per_node} ranks: give --nodes, or another "
            "--ranks-per-node"
        )
    nodes = machines.nodes or processes // per_node
    tensor_parallel, gpus = params.rollout.vllm.tensor_parallel, params.run.device != "cpu"
    if per_node % tensor_parallel:
        raise UserError(
            f"--ranks-per-node {per_node} is no multiple of rollout.vllm.tensor_parallel={tensor_parallel}: the ranks "
            "of an engine share a node"
        )
    params.training.check_ranks(nodes * per_node)
    if nodes * per_node != processes:
        print(
            f"{nodes * per_node} ranks train; the other stages start run.processes={processes} on the first node",
            file=sys.stderr,
        )
    return {
        "target": stage,
        "steps": steps,
        "trained": ", ".join(step.stage for step in steps if step.ranks),
        "ray": any(step.ray for step in steps),
        "nodes": nodes,
        "ranks_per_node": per_node,
        "gpus": per_node if gpus else 0,
        "tensor_parallel": tensor_parallel,
        "sampler_nodes": machines.sampler_nodes,
        "servers": machines.sampler_nodes * (per_node // tensor_parallel if gpus else 1),
        "time": machines.time,
    }


def job_file(machines: Machines, values: dict[str, Any]) -> str:
    """The batch script, or the JobSet, of `job_values` and what the command knows of this machine."""
    if values["slurm"]:
        return render("launch.sbatch.j2", **values)
    hosts = [
        f"http://{values['name']}-samplers-0-{number}.{values['name']}:8001" for number in range(values["servers"])
    ]
    jobs = replicated_jobs(values)
    asked = {"jobs": jobs, "urls": ",".join(hosts), "image": machines.image, "claim": machines.claim}
    return render("launch.jobset.yaml.j2", done=".dvc/tmp/up-to-date", **asked, **values)


def replicated_jobs(values: dict[str, Any]) -> list[dict[str, Any]]:
    """The jobs of the JobSet, each after the one before it.

    An orchestrator's job runs `stage` with DVC after it has committed what the ranks before it made (`commits`), and
    notes whether the stage of the ranks that follow (`before`) is up to date.
    """
    jobs: list[dict[str, Any]] = []

    def add(name: str, role: str, pods: int, gpus: int, **job: Any) -> None:
        after = jobs[-1]["name"] if jobs else None
        fields = {"name": name, "role": role, "pods": pods, "gpus": gpus, "after": after}
        jobs.append({"stage": None, "commits": None, "before": None} | fields | job)

    trained: str | None = None
    steps: list[LaunchStep] = values["steps"]
    for step, following in zip(steps, [*steps[1:], None], strict=True):
        if step.ranks:
            add(step.stage, "trainer", values["nodes"], values["gpus"], stage=step.stage)
            trained = step.stage
        elif step.ray:
            pods = values["nodes"]
            add(step.stage, "verl", pods, values["gpus"], stage=step.stage, commits=trained)
            trained = None
        else:
            before = following.stage if following and following.ranks else None
            add(step.stage, "orchestrator", 1, values["gpus"], stage=step.stage, commits=trained, before=before)
            trained = None
        if values["servers"] and step.stage == SAMPLED:
            add("samplers", "sampler", values["servers"], values["tensor_parallel"] if values["gpus"] else 0)
    if trained:
        add("end", "orchestrator", 1, 0, commits=trained)
    return jobs


def render(template: str, **values: Any) -> str:
    """A job file from the template of this name beside this file."""
    shell = Environment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)
    shell.filters["quote"] = shlex.quote
    return shell.from_string(Path(__file__).with_name(template).read_text("utf-8")).render(**values)
