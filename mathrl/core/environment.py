"""Every environment variable of mathrl and its ranks in one table; this process's rank, and how it waits and imports.

    Variable.HOME.value_or(".mathrl"); os.environ[Variable.RECORD] = "…"; {Variable.STATE: "…"}

A member is its name as a string, so that it stands wherever a variable's name does.

The commands that install what is missing or start the servers: make's in a checkout of mathrl, else pip's. Whether the
Hugging Face hub answers: its client would try for half a minute, with a line per attempt.
"""

import gc
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Self


class Variable(StrEnum):
    """A variable's name, with what it means and who reads it."""

    meaning: str
    reader: str

    def __new__(cls, name: str, meaning: str, reader: str) -> Self:
        member = str.__new__(cls, name)
        member._value_ = name
        member.meaning, member.reader = meaning, reader
        return member

    # Set by a person.
    HOME = ("MATHRL_HOME", "folder of records, state, studies and local MLflow store; default .mathrl", "core.paths")
    STATE = ("MATHRL_STATE", "folder of checkpoints to resume from; default $MATHRL_HOME/state", "core.paths")
    DATA = ("MATHRL_DATA", "folder with the files of named problem sets; else the Hugging Face hub", "data.sources")
    SERVE_KEY = ("MATHRL_SERVE_KEY", "key that `mathrl serve` and its clients share", "servers.protocol")
    SANDBOX_KEY = ("MATHRL_SANDBOX_KEY", "bearer key of the server of tools.url", "tools.open_tool")
    SERVERS = (
        "MATHRL_SERVERS",
        "addresses of the vLLM servers that a cluster's job has started, with commas; they replace "
        "rollout.servers.urls",
        "servers.server_pool",
    )
    JUDGE_KEY = ("MATHRL_JUDGE_KEY", "bearer key of the endpoint of a judge model", "rewards.model_judge")
    ENDPOINT_KEY = ("MATHRL_ENDPOINT_KEY", "bearer key of a model's endpoint that is asked", "rollout.endpoint")
    SWEEP_STORAGE = ("MATHRL_SWEEP_STORAGE", "PostgreSQL URL for sweep.storage=environment", "sweeps.study")
    VERL_PYTHON = (
        "MATHRL_VERL_PYTHON",
        "Python of the environment that has verl and mathrl, for rl.engine verl; default this one",
        "engines.verl_process",
    )
    ROLLOUTS = (
        "MATHRL_ROLLOUTS_URI",
        "address of the page over kept rollouts, for links; default http://127.0.0.1:5001",
        "core.paths",
    )
    TRACKING = (
        "MATHRL_TRACKING",
        "trackers beside MLflow, `wandb` and `tensorboard` with commas, `mlflow` for none; else the project's setting",
        "core.mirroring",
    )
    CASES = ("MATHRL_CASES", "folder of labelled grading cases; default shared/cases", "tests")
    # Set by whatever starts the processes of a stage: mathrl or torchrun.
    RANK = ("RANK", "number of this process among those of its stage, from 0", "core.environment")
    WORLD_SIZE = ("WORLD_SIZE", "number of processes of the stage", "core.environment, rollout.launch")
    LOCAL_RANK = ("LOCAL_RANK", "number of this process on its machine: its GPU", "models.device")
    # Handed down by mathrl to the processes that it starts.
    MIRROR = ("MATHRL_MIRROR", "id of the process that mirrors records to MLflow; `none` for none", "core.mirroring")
    PROGRESS = ("MATHRL_PROGRESS", "file of a stage's progress", "core.metrics")
    RECORD = ("MATHRL_RECORD", "folder of the running stage's record", "core.metrics, stages.stage_run")
    FLOW_RUN = ("MATHRL_FLOW_RUN", "id of the Prefect flow run that started the stage", "stages.stage_run")
    TRIAL = ("MATHRL_TRIAL", "record of the trial that the stage belongs to", "stages.stage_run")
    CONSOLE = ("MATHRL_CONSOLE", "1: a flow's output goes to the terminal as it comes", "mathrl.tasks.live_progress")
    OWN_SERVER = ("MATHRL_OWN_SERVER", "1: this command has a Prefect server of its own", "tasks")
    WORKSPACE = ("MATHRL_WORKSPACE", "project in which the worker of `mathrl ui` runs flows", "prefect.yaml")

    def get(self) -> str:
        """The variable's value, empty if it is not set."""
        return os.environ.get(self, "")


def rank() -> int:
    """The number of this process among those of its stage, from 0."""
    return int(Variable.RANK.get() or 0)


def world_size() -> int:
    """How many processes the stage has."""
    return int(Variable.WORLD_SIZE.get() or 1)


def named_servers(otherwise: Sequence[str], environment: Mapping[str, str] = os.environ) -> list[str]:
    """The vLLM servers that $MATHRL_SERVERS names; `otherwise` where it names none.

    >>> named_servers((), {"MATHRL_SERVERS": "http://a:8000/, http://b:8000,"})
    ['http://a:8000', 'http://b:8000']
    """
    urls = (url.strip().rstrip("/") for url in environment.get(Variable.SERVERS, "").split(","))
    return [url for url in urls if url] or [url.rstrip("/") for url in otherwise]


def wait_without_spinning() -> None:
    """Let the threads of torch sleep where they wait for one another; called before torch is imported.

    By default they keep their cores busy meanwhile, and beside other work the thread that is waited for gets no core:
    a small model then samples at a tenth of the speed. The figures are the same to the bit.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


@contextmanager
def without_collections() -> Iterator[None]:
    """Pause the garbage collector for imports, of which it takes a fifth of the processor time and finds little.

    If a module was imported, the collector afterwards passes over all that exists: modules live as long as the process.
    """
    collects, modules = gc.isenabled(), len(sys.modules)
    gc.disable()
    try:
        yield
    finally:
        if len(sys.modules) > modules:
            gc.freeze()
        if collects:
            gc.enable()


PACKAGE = Path(__file__).parents[1]
IN_CHECKOUT = (PACKAGE.parent / "pyproject.toml").is_file()
MADE = {"platform": "make install", "vllm": "make engines", "deepspeed": "make engines"}


def ui_command() -> str:
    """The command that starts the servers: in the checkout of the library make's, which needs no environment."""
    return "make ui" if IN_CHECKOUT and Path().resolve() == PACKAGE.parent else "mathrl ui"


def install_command(extra: str = "platform", *, gpu: bool = False) -> str:
    """The command that installs an extra of mathrl at its tested versions; with `gpu` in the builds for NVIDIA's."""
    if IN_CHECKOUT and extra in MADE:
        return f"{MADE[extra]}{' GPU=1' if gpu else ''}"
    # A project has a copy of the versions for the machine on which it was made.
    versions = PACKAGE / "template" / "constraints-gpu.txt" if gpu else "constraints.txt"
    return f"pip install -c {versions} 'mathrl[{extra}]'"


PROBE_SECONDS = 10.0
NO_HUB = "it does not answer ($HF_ENDPOINT), or HF_HUB_OFFLINE is set"


@cache
def ask_hub_once() -> bool:
    """Whether the hub answers one request; if it does not, its client looks only in its cache from then on.

    Processes that this one starts inherit the answer.
    """
    from huggingface_hub import constants  # seconds to import, and only what comes from the hub needs it

    if constants.HF_HUB_OFFLINE:
        return False
    import httpx

    try:
        httpx.head(constants.ENDPOINT, timeout=PROBE_SECONDS)
    except httpx.TransportError as error:
        if "CERTIFICATE" not in str(error):  # the hub's client may know other certificates
            _look_only_in_the_cache()
            return False
    return True


def _look_only_in_the_cache() -> None:
    os.environ["HF_HUB_OFFLINE"] = "1"  # read at the import of the hub's packages
    for name in ("huggingface_hub.constants", "datasets.config"):
        if module := sys.modules.get(name):
            module.HF_HUB_OFFLINE = True  # type: ignore[attr-defined]
