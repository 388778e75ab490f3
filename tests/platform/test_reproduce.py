"""`mathrl models reproduce`: a fresh clone, every stage again, the first difference; resumed; from a DVC remote."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mathrl.cli.models import reproduce
from mathrl.core.errors import UserError
from mathrl.params.schema import STAGES
from mathrl.registry.reproduction import Certificate, StageCheck, plan_reproduction
from mathrl.tasks.reproduction import FreshClone
from mathrl.tracking.lineage import Back, Step

Checkout = Any
pytestmark = pytest.mark.timeout(1800)
# Builds the wheel of a package of one line, with nothing but Python.
WHEEL = """
import zipfile


def build_wheel(folder, config_settings=None, metadata_directory=None):
    name = "needed-1.0-py3-none-any.whl"
    files = {
        "needed.py": "x = 1",
        "needed-1.0.dist-info/METADATA": "Metadata-Version: 2.1\\nName: needed\\nVersion: 1.0\\n",
        "needed-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n",
    }
    files["needed-1.0.dist-info/RECORD"] = "".join(f"{file},,\\n" for file in files)
    with zipfile.ZipFile(f"{folder}/{name}", "w") as wheel:
        for file, text in files.items():
            wheel.writestr(file, text)
    return name
"""
AGAIN = [stage for stage in STAGES if stage != "register"]


@pytest.fixture(scope="module")
def registered(
    new_checkout: Checkout, empty_store: Path, warm_python: Path, tmp_path_factory: pytest.TempPathFactory
) -> Checkout:
    """A pipeline that was run with a parameter of its own in params/, its outputs pushed to a remote."""
    checkout = new_checkout
    checkout.use_python(warm_python)
    checkout.home.mkdir(exist_ok=True)
    shutil.copy(empty_store, checkout.home / "mlflow.db")
    checkout.set_param("rl.optimizer.lr", 0.02)
    checkout.commit_params("another learning rate")
    checkout.repro("register", MATHRL_MIRROR="none")
    checkout.mathrl("runs", "sync")
    checkout.run("dvc", "remote", "add", "--local", "-d", "far", str(tmp_path_factory.mktemp("remote")))
    checkout.run("dvc", "push", "-q")
    return checkout


def certificate(folder: Path) -> dict[str, Any]:
    row: dict[str, Any] = json.loads((folder / "certificate.json").read_text())
    return row


def test_a_version_is_reproduced_and_says_so(registered: Checkout) -> None:
    done = registered.mathrl("models", "reproduce", "mathrl-chain@candidate")
    folder = registered.home / "reproduced" / "mathrl-chain-1"
    row = certificate(folder)
    assert row["same"] and row["first_difference"] is None and [stage["stage"] for stage in row["stages"]] == AGAIN
    assert all(stage["found"] == stage["expected"] and stage["outcome"] == "same" for stage in row["stages"])
    assert "was reproduced to the bit: curate, sft, difficulty, mix, rl, evaluate were run again" in done.stdout
    assert row["commit"] == registered.git("rev-parse", "HEAD") and row["environment"]["python"]
    clone = folder / "checkout"
    assert not (clone / ".git" / "objects" / "info" / "alternates").exists(), "the clone stands alone"
    assert (clone / "models" / "rl").is_dir() and not (clone / "reports" / "registered.json").exists()
    page = (folder / "certificate.html").read_text()
    assert row["verdict"] in page and row["stages"][4]["expected"]["models/rl"] in page
    import mlflow

    client = mlflow.MlflowClient(f"sqlite:///{registered.home / 'mlflow.db'}")
    version = client.get_model_version("mathrl-chain", "1")
    assert version.tags["reproduced"].startswith("mathrl-chain version 1 was reproduced to the bit")
    assert {item.path for item in client.list_artifacts(version.run_id, "reproduction")} == {
        "reproduction/certificate.json", "reproduction/certificate.html"
    }  # fmt: skip
    assert "# mathrl-chain version 1" in version.description and "`rl.optimizer.lr: 0.02`" in version.description


def test_it_fetches_goes_on_after_a_failure_and_names_the_first_difference(
    registered: Checkout, tmp_path: Path
) -> None:
    words = ("models", "reproduce", "mathrl-chain:1", "--folder", str(tmp_path / "here"), "--from", "mix")
    failed = registered.mathrl(*words, ok=False, STANDIN_FAIL="rl")
    assert failed.returncode == 2 and "rl failed" in failed.stderr
    before = certificate(tmp_path / "here")["stages"]
    assert [stage["outcome"] for stage in before] == ["same", "same", "same", "same", "not run", "not run"]
    assert [stage["fetched"] for stage in before] == [True] * 3 + [False] * 3

    rl = tmp_path / "here" / "checkout" / "mathrl" / "stages" / "rl.py"
    rl.write_text(rl.read_text().replace("digest([STAGE", "digest([7, STAGE"))
    differs = registered.mathrl(*words, ok=False)
    row = certificate(tmp_path / "here")
    assert differs.returncode == 1 and row["first_difference"] == "rl" and not row["same"]
    assert "rl is the first stage that differs, in models/rl" in differs.stdout
    assert "; its code is not the same: mathrl " in differs.stdout
    assert [stage["same_code"] for stage in row["stages"]] == [*[True] * 4, False, True]
    assert differs.stderr.count("its code is not the same") == 1, "said of rl before it is run"
    assert [stage["outcome"] for stage in row["stages"]] == [*["same"] * 4, "differs", "not run"]
    assert row["stages"][:4] == before[:4], "what was done was not done again"


def test_a_stage_that_is_not_behind_the_model_is_refused(registered: Checkout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(registered.folder)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{registered.home / 'mlflow.db'}")
    with pytest.raises(UserError, match="--from dpo: the stages of this lineage are curate, sft, difficulty, mix, rl"):
        reproduce("mathrl-chain", first="dpo")


def step(stage: str, **changes: Any) -> Step:
    values: dict[str, Any] = {
        "run": f"run-{stage}", "stage": stage, "commit": "c0ffee", "dirty": False, "params": {"run.seed": "1"},
        "inputs": {}, "outputs": {f"models/{stage}": "77aa"}, "sources": {},
    }  # fmt: skip
    return Step(**values | changes)


def back(*steps: Step, **changes: Any) -> Back:
    values: dict[str, Any] = {"name": "m", "version": "3", "digest": "77aa", "tags": {"git.commit": "c0ffee"},
                              "steps": steps, "edges": [], "unexplained": []}  # fmt: skip
    return Back(**values | changes)


def test_a_plan_is_in_the_order_of_the_pipeline_and_refuses_what_it_cannot_run() -> None:
    plan = plan_reproduction(back(step("register"), step("rl", dirty=True), step("sft", commit="0ld")))
    assert [check.stage for check in plan.stages] == ["sft", "rl"] and plan.sections == {"run": {"seed": 1}}
    assert plan.notes == ["rl ran with uncommitted changes", "sft ran at commit 0ld"]
    for wrong, message in (
        (
            back(step("rl"), unexplained=[("run-rl", "models/sft", "9be1")]),
            "not complete, no run in MLflow made models/s",
        ),
        (back(step("rl"), step("study/dpo-s0")), "only models of the pipeline are reproduced"),
        (back(step("rl"), step("sft"), step("sft", run="other")), "several runs of sft"),
        (back(step("rl"), step("sft", params={"run.seed": "2"})), "different parameters of section run"),
    ):
        with pytest.raises(UserError, match=message):
            plan_reproduction(wrong)


def test_verdicts() -> None:
    def verdict(*founds: dict[str, str], **changes: Any) -> Certificate:
        names = ("sft", "rl")
        checks = [
            StageCheck(name, "r", "c", {"a": "1", "b": "2"}, found=found, **changes)
            for name, found in zip(names, founds, strict=True)
        ]
        return Certificate("m", "3", "77aa", "c0ffee", {}, checks)

    same, other, lacking = {"a": "1", "b": "2"}, {"a": "1", "b": "3"}, {"b": "2"}
    assert verdict(same, same).same and verdict(same, same).verdict.endswith("no output differs")
    assert not verdict(same, {}).complete and "not finished" in verdict(same, {}).verdict
    assert verdict(same, other).verdict.endswith("rl is the first stage that differs, in b")
    assert verdict(lacking, other).verdict.endswith("sft is the first stage that differs, in a")
    fetched = verdict(same, same, fetched=True)
    fetched.stages[1] = verdict(same, same).stages[1]
    assert "rl were run again and no output differs; the outputs of sft came from the DVC remote" in fetched.verdict
    code = {"mathrl": "0.1.0", "value": "1"}
    for again, said in (
        (code | {"mathrl": "0.2.0", "own": ""}, "in b"),
        (code | {"value": "2"}, "in b; its code is not the same: mathrl 0.1.0, code 1 then, mathrl 0.1.0, code 2 now"),
        (
            code | {"own": "77"},
            "in b; its code is not the same: mathrl 0.1.0, code 1 then, mathrl 0.1.0, code 1, own code 77 now",
        ),
        ({}, "in b"),
    ):
        assert verdict(same, other, code=code, code_again=again).verdict.endswith(said)
    assert verdict(lacking, {}).complete and not verdict(lacking, {}).same


def test_a_projects_clone_gets_what_its_pyproject_needs(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A project has no Makefile: its packages are those of pyproject.toml, into an environment in the clone."""
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", bare], check=True)
    clone = tmp_path / "clone"
    clone.mkdir()
    (clone / "constraints.txt").write_text("")
    (clone / "pyproject.toml").write_text('[project]\nname = "own"\nversion = "0.1.0"\ndependencies = ["./needed"]\n')
    (clone / "needed").mkdir()
    (clone / "needed" / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "build"\nbackend-path = ["."]\n'
    )
    (clone / "needed" / "build.py").write_text(WHEEL)
    with pytest.raises(UserError, match="No module named 'mathrl'"):
        FreshClone(clone, "", clone, str(bare / "bin" / "python")).install()
    installed = clone / ".venv" / "bin" / "python"
    assert subprocess.run([installed, "-c", "import needed"], check=False).returncode == 0
    assert "lacks packages" in capfd.readouterr().out
