"""What tests of several rooms share."""

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

# They take a minute or more each: first, so that no worker is left alone with one at the end.
LONG = (
    "test_ui.py", "test_vllm.py", "test_pipeline.py", "test_run.py", "test_deepspeed.py", "test_kills.py",
    "test_stopping.py", "test_sharding.py", "test_vllm_servers.py", "test_reproduce.py", "test_recipes.py",
    "test_trl_engine.py", "test_resharding.py", "test_tracking.py", "test_small.py", "test_presets.py",
    "test_servers.py", "test_resume.py", "test_ranks.py", "test_parallel.py", "test_families.py", "test_compare.py",
    "test_curate_bytes.py", "test_promote.py", "test_fsdp.py", "test_context_parallel.py",
)  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: LONG.index(item.path.name) if item.path.name in LONG else len(LONG))


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


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An MLflow file with its tables and no experiment, to be copied: making one takes seconds."""

    def make(folder: Path) -> None:
        import mlflow

        mlflow.MlflowClient(f"sqlite:///{folder / 'mlflow.db'}")

    return made_once(tmp_path_factory, "store", make) / "mlflow.db"


@pytest.fixture(scope="session")
def empty_prefect(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Prefect home with a database that has its tables, to be copied: making one takes seconds."""
    code = (
        "import asyncio; from prefect.server.database import provide_database_interface as database; "
        "asyncio.run(database().create_db())"
    )

    def make(folder: Path) -> None:
        subprocess.run([sys.executable, "-c", code], env=os.environ | {"PREFECT_HOME": str(folder)}, check=True)

    return made_once(tmp_path_factory, "prefect", make)


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
def run_ranks() -> Callable[..., None]:
    """Call the `main(folder)` of a program in several gloo processes on the CPU: run_ranks(program, {folder: ranks}).

    All worlds of one call are forked, one after the other, from a process that has made the program's imports.
    """

    def run(program: Path, worlds: Mapping[Path, int]) -> None:
        root = Path(__file__).parents[1]
        module = ".".join(program.relative_to(root).with_suffix("").parts)
        words = [str(word) for folder, ranks in worlds.items() for word in (folder, ranks)]
        for folder in worlds:
            folder.mkdir(parents=True, exist_ok=True)
        done = subprocess.run(
            [sys.executable, "-m", "tests.forked_ranks", module, *words],
            env=os.environ | {"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"},
            check=False,
        )
        logs = [log for folder in worlds for log in sorted(folder.glob("rank-*.log"))]
        assert done.returncode == 0, "\n".join(log.read_text()[-4000:] for log in logs)

    return run
