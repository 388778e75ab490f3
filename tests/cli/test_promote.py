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
from mathrl.params.run import FreshModel, Model
from mathrl.stages.promote import Evidence, judge
from mathrl.tracking.client import connect
from mathrl.tracking.registry import champions, register_version
from mathrl.tracking.upload import Upload

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
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Two versions of `m` in a checkout whose curated files are those of their lineage."""
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    shutil.copytree(ROOT / "params", tmp_path / "params")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MATHRL_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    main_checkout.cache_clear()
    asked = {"train": "9-8=", "test": "7+{}="}
    for split, source in (("sft", "train"), ("rl", "train"), ("test", "test")):
        problems = [Problem(f"{split}/{n}", asked[source].format(n), (str(7 + n),), "chain", split=split)
                    for n in range(12 if split == "test" else 1)]  # fmt: skip
        write_problems(Path(f"data/curated/{split}.jsonl"), problems)
    client, experiment = connect()
    upload = Upload(client, experiment)
    data = {path: digest_path(Path(path)) for path in ("data/curated/sft.jsonl", "data/curated/rl.jsonl")}

    def record(stage: str, inputs: dict[str, str], outputs: dict[str, str], name: str) -> str:
        facts = {"stage": stage, "started": 1.0, "params": {}, "key": name, "pipeline": "p", "git": {},
                 "pipeline_params": {}, "inputs": inputs, "outputs": outputs}  # fmt: skip
        run, parent = upload.start(facts, name)
        upload.metrics(
            run, [{"step": 1, "at": 1.0, "rollout/logprob_alignment": 1.01}] * (stage == "rl"), None
        )
        Path("none").mkdir(exist_ok=True)
        upload.finish(run, parent, facts, "finished", Path("none"))
        return run

    record("curate", {}, data, "c")
    for seed in (1, 2):
        folder = Path(f"models/{seed}")
        make_base(Model(base=FreshModel()), folder, seed)
        made = digest_path(folder)
        record("rl", data, {"models/rl": made}, f"rl{seed}")
        run = record("register", {"models/rl": made}, {}, f"r{seed}")
        register_version(client, "m", run, folder, {"mathrl.digest": made})
    yield client
    main_checkout.cache_clear()


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
