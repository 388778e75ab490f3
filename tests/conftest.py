"""What tests of several rooms share."""

import atexit
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
from filelock import FileLock

ROOT = Path(__file__).parents[1]
# Where the caller's shell has this set, each of some hundred processes would compile torch, MLflow and mathrl again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
with suppress(ImportError):  # environments with a few packages alone run some of the tests
    from hypothesis import HealthCheck, settings

    # The same examples in each run (pytest --hypothesis-profile=search draws others), with no limit on their time.
    settings.register_profile("mathrl", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
    settings.register_profile("search", settings.get_profile("mathrl"), derandomize=False)
    settings.load_profile("mathrl")
# They take a minute or more each: first, so that no worker is left alone with one at the end.
LONG = (
    "test_ui.py", "test_vllm_servers.py", "test_run.py", "test_pipeline.py", "test_stopping.py", "test_vllm.py",
    "test_deepspeed.py", "test_reproduce.py", "test_trl_engine.py", "test_kills.py", "test_small.py", "test_servers.py",
    "test_curate_bytes.py", "test_parallel.py", "test_presets.py", "test_sharding.py",
    "test_fsdp.py", "test_samplers.py", "test_resume.py", "test_recipes.py", "test_resharding.py", "test_worktrees.py",
    "test_ranks.py", "test_extend.py", "test_families.py", "test_compare.py", "test_gpu_benchmarks.py",
    "test_promote.py", "test_context_parallel.py", "test_json.py", "test_names.py", "test_wandb_online.py",
)  # fmt: skip
TOGETHER = ("tests/api/", "tests/imports/")


@pytest.hookimpl(optionalhook=True)  # for pytest without xdist
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """A worker runs all tests of a file, and of a room whose files share a project or a run that takes long to make."""
    from xdist.scheduler import LoadFileScheduling

    class ByFileOrRoom(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = str(super()._split_scope(nodeid))
            return next((room for room in TOGETHER if file.startswith(room)), file)

    return ByFileOrRoom(config, log) if config.getvalue("dist") == "loadfile" else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: LONG.index(item.path.name) if item.path.name in LONG else len(LONG))


@cache
def _scratch(process: int) -> str:
    folder = mkdtemp(prefix="mathrl-tests-")
    atexit.register(lambda: os.getpid() == process and shutil.rmtree(folder, ignore_errors=True))  # not by a fork of it
    return folder


def scratch() -> Path:
    """A new folder for what a helper of the tests writes, removed when this process ends."""
    return Path(mkdtemp(dir=_scratch(os.getpid())))


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """The folder `name`, filled by the first of the session's workers that asks for it."""
    root = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent
    folder, unfinished = root / name, root / f"{name}.unfinished"
    with FileLock(root / f"{name}.lock"):
        if not folder.exists():
            unfinished.mkdir(exist_ok=True)
            make(unfinished)
            unfinished.rename(folder)
    return folder


def wait_for(condition: Callable[[], Any], what: str = "it", seconds: float = 600.0) -> Any:
    """What the condition gives as soon as that is true."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"{what} did not come in {seconds} s"
        time.sleep(0.05)
    return found


def hold_port(host: str = "127.0.0.1") -> socket.socket:
    """A free port, which no process gets by chance while the socket is open.

    A server may listen at it: those of Python have SO_REUSEADDR as well, and this socket never listens.
    """
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind((host, 0))
    return held


@pytest.fixture
def held_port() -> Iterator[socket.socket]:
    with hold_port() as held:
        yield held


@pytest.fixture(autouse=True, scope="session")
def ctrl_c_reaches_what_tests_start() -> None:
    """A shell starts `command &` with SIGINT ignored, which every process below it would inherit."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def environment_of_its_own() -> Iterator[None]:
    """A stage that runs in this process says in its environment which record is its own."""
    before = dict(os.environ)
    yield
    if os.environ != before:
        os.environ.clear()
        os.environ.update(before)


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An MLflow file with its tables and no experiment, to be copied: making one takes seconds."""

    def make(folder: Path) -> None:
        import mlflow

        mlflow.MlflowClient(f"sqlite:///{folder / 'mlflow.db'}")

    return made_once(tmp_path_factory, "store", make) / "mlflow.db"


@pytest.fixture(scope="session")
def empty_prefect(tmp_path_factory: pytest.TempPathFactory, warm_python: Path) -> Path:
    """A Prefect home with a database that has its tables, to be copied: making one takes seconds."""
    code = (
        "import asyncio; from prefect.server.database import provide_database_interface as database; "
        "asyncio.run(database().create_db())"
    )

    def make(folder: Path) -> None:
        environment = os.environ | {"PREFECT_HOME": str(folder)}
        subprocess.run([warm_python / "python", "-c", code], env=environment, check=True)

    return made_once(tmp_path_factory, "prefect", make)


@pytest.fixture(scope="session")
def code_digests(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a home keeps of this checkout's code, to be copied into another: making it takes a second."""

    def make(folder: Path) -> None:
        from mathrl.core.code_values import code_values

        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("MATHRL_HOME", str(folder))
            code_values(folder)

    return made_once(tmp_path_factory, "digests", make) / "code-digests.json"


@pytest.fixture(scope="session")
def small() -> Any:
    """The module tests/trainers/small.py: a tiny policy, a reward, and runs with them."""
    from tests.trainers import small  # imports torch

    return small


@pytest.fixture
def network() -> Callable[..., Any]:
    """Small random models, sharpened so that a wrong mask changes log-probs by more than a tolerance."""
    import torch

    from mathrl.models.base import character_tokenizer, fresh_network
    from mathrl.params.run import FreshModel

    # Tiny products gain nothing from threads, and lose much where cores are busy.
    torch.set_num_threads(1)

    def make(**options: Any) -> Any:
        sizes = {"hidden_size": 32, "intermediate_size": 48, "layers": 2, "heads": 4, "kv_heads": 2}
        base = FreshModel(**{**sizes, **options})
        made = fresh_network(base, character_tokenizer(base), seed=1).eval()
        for weight in made.parameters():
            if weight.dim() > 1:
                weight.data.mul_(6)
        return made

    return make


@pytest.fixture(scope="session")
def warm_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a `python` that forks programs after their imports, for all workers; see warm_python.py."""
    variables = {"OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu", "DO_NOT_TRACK": "1", "PYTHONPATH": str(ROOT)}
    variables |= {"MLFLOW_DISABLE_TELEMETRY": "true", "PREFECT_SERVER_ANALYTICS_ENABLED": "false"}
    variables |= {"WANDB_SILENT": "true", "WANDB_ERROR_REPORTING": "false"}
    is_worker = "PYTEST_XDIST_WORKER" in os.environ
    session = str(os.getppid() if is_worker else os.getpid())
    base = tmp_path_factory.getbasetemp()
    root = base.parent if is_worker else base
    folder = root / "warm"
    with FileLock(root / "warm.lock"):
        if not (folder / "python").exists():
            folder.mkdir()
            words = [sys.executable, "-m", "tests.warm_python", str(folder), session]
            with (folder / "log").open("wb") as log:
                server = subprocess.Popen(
                    words, cwd=ROOT, env=os.environ | variables, stdout=log, stderr=log, start_new_session=True
                )
            deadline = time.monotonic() + 800
            while not (folder / "python").exists():
                assert server.poll() is None and time.monotonic() < deadline, (folder / "log").read_text()
                time.sleep(0.05)
    return folder


@pytest.fixture(scope="session")
def run_program(warm_python: Path) -> Callable[..., str]:
    """The output of `python -m MODULE ARGUMENTS`, which trains, with one thread; a failure shows the end of its errors.

    MODULE is one of tests/, given by its file.
    """

    def run(program: Path, *arguments: str | Path) -> str:
        module = ".".join(program.relative_to(ROOT).with_suffix("").parts)
        done = subprocess.run(
            [warm_python / "python", "-m", module, *map(str, arguments)],
            cwd=ROOT,
            env=os.environ | {"OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu", "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
            timeout=850,
        )
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
        return done.stdout

    return run


@pytest.fixture(scope="session")
def run_ranks(warm_python: Path) -> Callable[..., None]:
    """Call the `main(folder)` of a program in several gloo processes on the CPU: run_ranks(program, {folder: ranks}).

    All worlds of one call are forked, one after the other, from a process that has made the program's imports.
    """

    def run(program: Path, worlds: Mapping[Path, int]) -> None:
        module = ".".join(program.relative_to(ROOT).with_suffix("").parts)
        words = [str(word) for folder, ranks in worlds.items() for word in (folder, ranks)]
        for folder in worlds:
            folder.mkdir(parents=True, exist_ok=True)
        done = subprocess.run(
            [warm_python / "python", "-m", "tests.forked_ranks", module, *words],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"},
            check=False,
        )
        logs = [log for folder in worlds for log in sorted(folder.glob("rank-*.log"))]
        assert done.returncode == 0, "\n".join(log.read_text()[-4000:] for log in logs)

    return run
