"""A small project that has run the whole pipeline for real, for what reads runs: the API, --json and the notebooks."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.platform.conftest import Checkout, copy_databases, make_checkout

SMALL = (
    "run.processes=1", "run.device=cpu", "model.base.hidden_size=32", "model.base.intermediate_size=32",
    "model.base.layers=1", "model.base.heads=2", "model.precision=float32", "sft.steps=60", "sft.tokens_per_step=256",
    "curate.sources=[{type: generated, name: chain, generator: chain, counts: {sft: 64, rl: 32, dev: 16, test: 24}, "
    "options: {steps: [1, 2], notation: bare}}]", "curate.decontaminate=null", "curate.deduplicate.exact=false",
    "difficulty.max_problems=16", "mix.components=[{source: '*', weight: 1.0}]", "rl.steps=4", "rl.dev.every=2",
    "rl.prompts_per_step=4", "rl.group_size=8", "rl.min_pass_at_8=0", "rl.keep_rollouts.which=all", "rl.max_tokens=24",
    "evaluate.samples=4", "evaluate.max_tokens=24", "sweep.study=small",
    "sweep.space={rl.optimizer.lr: {kind: log, low: 0.001, high: 0.05}}", "sweep.set=[rl.dev.every=1]",
    "sweep.seeds=1", "sweep.workers=1", "sweep.pruner=none", "sweep.trials=2",
)  # fmt: skip


@pytest.fixture(scope="session")
def small_checkout(
    tmp_path_factory: pytest.TempPathFactory,
    empty_prefect: Path,
    empty_store: Path,
    code_digests: Path,
    warm_python: Path,
) -> Checkout:
    """The project; all files of this room run in one worker."""
    checkout = make_checkout(tmp_path_factory.mktemp("api") / "small-project", ())
    checkout.env |= {"OMP_NUM_THREADS": "1"}
    checkout.use_python(warm_python)
    copy_databases(checkout, empty_prefect, empty_store, code_digests)
    checkout.python(
        "from mathrl.compose import load_params, write_params; "
        f"write_params(load_params(), load_params(overrides={SMALL!r}))"
    )
    checkout.commit_params("a small project")
    checkout.repro()
    checkout.run(checkout.executable, "-m", "mathrl.sweeps.run")
    checkout.mathrl("runs", "sync")
    return checkout


@pytest.fixture
def no_champion(small_checkout: Checkout) -> None:
    """Nothing is promoted yet, also where another test of the project has done it."""
    small_checkout.python(
        "from mathrl.tracking.client import connect; "
        "connect().delete_registered_model_alias('mathrl-chain', 'champion')"
    )


@pytest.fixture
def small_project(small_checkout: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The project as the current folder of this process."""
    for name in [name for name in os.environ if name.startswith(("MATHRL_", "MLFLOW_", "PREFECT_"))]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(small_checkout.folder)
    monkeypatch.setenv("PATH", small_checkout.env["PATH"])
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(sys, "executable", small_checkout.executable)
    yield small_checkout.folder
