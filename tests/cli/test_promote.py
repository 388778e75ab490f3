"""The gate with a real registry, real models evaluated on the spot, and their kept responses."""

import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mathrl.cli.promote import promote, rollback
from mathrl.core.errors import UserError
from mathrl.core.files import write_text
from mathrl.core.hashing import digest_path
from mathrl.core.nouns import Problem
from mathrl.core.places import main_checkout
from mathrl.core.problems import write_problems
from mathrl.evaluation.paired import Comparison
from mathrl.models.base import make_base
from mathrl.params.health import Health
from mathrl.params.run import FreshModel, Model
from mathrl.params.train import Rl
from mathrl.stages.promote import TRAINED, Evidence, judge
from mathrl.tracking.client import connect
from mathrl.tracking.registry import champions, register_version
from mathrl.tracking.upload import Upload
from mathrl.trainers.health import examine

ROOT = Path(__file__).parents[2]
BETTER = Comparison("a", "b", 50, 0.2, 0.1, 0.3, 0.001, 0.05, shown=True)
FINE = Evidence(BETTER, 0, 1.05, "unknown")
SMALL = ["evaluate.samples=2", "evaluate.ks=[1]", "evaluate.max_tokens=4"]


@pytest.mark.parametrize(
    ("evidence", "why"),
    [
        (replace(FINE, test=replace(BETTER, shown=False)), "no difference shown"),
        (replace(FINE, test=replace(BETTER, difference=-0.2)), "a is better than b"),
        (replace(FINE, hits=1), "1 training problems share text"),
        (replace(FINE, hits=None), "could not be checked"),
        (replace(FINE, alignment=1.0501), "1.050 is above 1.05"),
        (replace(FINE, alignment=float("nan")), "above 1.05"),
        (replace(FINE, health="red"), "health is red"),
    ],
)
def test_each_part_of_the_evidence_can_refuse_alone(evidence: Evidence, why: str) -> None:
    against, _ = judge(evidence)
    assert len(against) == 1 and why in against[0]


def test_what_is_fine_or_unknown_is_said() -> None:
    assert judge(FINE)[0] == [] and "health unknown" in judge(FINE)[1]
    assert "no champion yet" in judge(replace(FINE, test=None))[1][0]
    assert "no roll-outs" in judge(replace(FINE, alignment=None))[1][2]


@pytest.fixture
def add(tmp_path: Path, empty_store: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Register a version of `m` whose training had these figures, in a checkout with its curated files."""
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    shutil.copytree(ROOT / "params", tmp_path / "params")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MATHRL_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    main_checkout.cache_clear()
    (tmp_path / "home").mkdir()
    shutil.copy(empty_store, tmp_path / "home" / "mlflow.db")
    client = connect()
    upload = Upload(client)
    Path("none").mkdir()

    def record(
        stage: str, inputs: dict[str, str], outputs: dict[str, str], name: str, **figures: float
    ) -> str:
        facts = {"stage": stage, "started": 1.0, "params": {}, "key": name, "pipeline": "p", "git": {},
                 "pipeline_params": {}, "inputs": inputs, "outputs": outputs}  # fmt: skip
        run, parent = upload.start(facts, name)
        rows = [{"step": n, "at": 1.0, "reward/accuracy": 0.5, **figures} for n in range(1, 7)]
        if figures:
            upload.metrics(run, rows, None)
            upload.health(run, examine(rows, Health(), Rl()).report())
        upload.finish(run, parent, facts, "finished", Path("none"))
        return run

    def version(seed: int, trained_on: str = "9-8=", loss: float = 0.1, alignment: float = 1.01) -> Any:
        asked = {"sft": "9-8=", "rl": trained_on, "test": "7+{}="}
        for split in asked:
            problems = [Problem(f"{split}/{n}", asked[split].format(n), (str(7 + n),), "chain", split=split)
                        for n in range(12 if split == "test" else 1)]  # fmt: skip
            write_problems(Path(f"data/curated/{split}.jsonl"), problems)
        data = {path: digest_path(Path(path)) for path in TRAINED}
        record("curate", {}, data, f"c{seed}")
        folder = Path(f"models/{seed}")
        make_base(Model(base=FreshModel()), folder, seed)
        made = digest_path(folder)
        figures = {"actor_loss": loss, "rollout/logprob_alignment": alignment}
        record("rl", data, {"models/rl": made}, f"rl{seed}", **figures)
        run = record("register", {"models/rl": made}, {}, f"r{seed}")
        register_version(client, "m", run, folder, {"mathrl.digest": made})
        return client

    yield version
    main_checkout.cache_clear()


@pytest.fixture
def registry(add: Any) -> Any:
    add(1)
    return add(2)


@pytest.mark.parametrize(
    ("illness", "why", "tag", "value"),
    [
        (
            {"trained_on": "7+3="},
            "1 training problems share text with the benchmark",
            "contamination_hits",
            "1",
        ),
        ({"alignment": 1.2}, "log-prob alignment 1.200 is above 1.05", "alignment", "1.2"),
        ({"loss": 99.0}, "its run's health is red", "health", "red"),
    ],
)
def test_a_run_with_one_illness_is_refused_for_it_alone(
    add: Any, capsys: pytest.CaptureFixture[str], illness: dict[str, Any], why: str, tag: str, value: str
) -> None:
    """Of a first version, which needs no comparison; the same run without the illness is taken."""
    client = add(1, **illness)
    with pytest.raises(SystemExit) as ended:
        promote("m:1", None, None, SMALL)
    assert ended.value.code == 1
    said = capsys.readouterr().out
    reasons = said.split("refused on test: ")[1].split("; ")
    assert any(why in each for each in reasons), said
    if illness != {"alignment": 1.2}:  # which is an illness, too
        assert len(reasons) == 1, said
    version = client.get_model_version("m", "1")
    assert (version.tags["gate.decision"], version.tags[f"gate.{tag}"]) == ("refused", value)
    assert why in version.description and champions(client, "m") == []
    with pytest.raises(UserError, match="m has no earlier champion to go back to"):
        rollback("m")
    add(2)
    promote("m:2", None, None, SMALL)
    assert champions(client, "m") == ["2"]


def test_first_champion_refusal_promotion_and_rollback(
    registry: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    promote("m:1", None, None, SMALL)
    assert "no champion yet" in capsys.readouterr().out
    registry.set_registered_model_alias("m", "candidate", "2")
    with pytest.raises(SystemExit) as ended:
        promote("m", None, None, SMALL)
    assert ended.value.code == 1 and "no difference shown" in capsys.readouterr().out
    refused = registry.get_model_version("m", "2")
    assert refused.tags["gate.decision"] == "refused" and refused.tags["gate.problems"] == "12"
    assert "refused on test" in refused.description and champions(registry, "m") == ["1"]

    (kept,) = Path("reports/evaluations").glob("m-2-*/responses.jsonl")
    rows = [json.loads(line) | {"correct": True} for line in kept.read_text().splitlines()]
    write_text(kept, "".join(json.dumps(row) + "\n" for row in rows))  # as if it had learnt
    promote("m", None, None, SMALL)
    assert "version 2 is better than version 1" in capsys.readouterr().out
    tags = registry.get_model_version("m", "2").tags
    assert (tags["gate.decision"], tags["gate.champion"], tags["gate.alignment"]) == ("promoted", "1", "1.01")
    assert str(registry.get_model_version_by_alias("m", "champion").version) == "2"
    with pytest.raises(UserError, match="champion already"):
        promote("m:2", None, None, SMALL)

    rollback("m")
    assert str(registry.get_model_version_by_alias("m", "champion").version) == "1"
    with pytest.raises(UserError, match="no earlier champion"):
        rollback("m")

    write_text(Path("data/curated/rl.jsonl"), "")
    with pytest.raises(SystemExit):
        promote("m", None, None, SMALL)
    assert "could not be checked" in capsys.readouterr().out
