"""The gate with a real registry, real models evaluated on the spot, and their kept responses."""

import json
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mathrl.cli.models import promote, rollback
from mathrl.compose import load_params
from mathrl.core.errors import UserError
from mathrl.core.files import write_text
from mathrl.core.hashing import digest_path
from mathrl.core.records import RunRecord
from mathrl.core.types import Problem, write_problems
from mathrl.evaluation.paired import Comparison
from mathrl.health.watch import examine
from mathrl.models.base import make_base
from mathrl.params.run import FreshModel, Model
from mathrl.params.schema import READS
from mathrl.params.train import Rl
from mathrl.params.training import Health
from mathrl.registry import promote as gate_stage
from mathrl.registry.promote import Evidence, judge
from mathrl.registry.versions import champions, describe, register_version
from mathrl.tracking.client import connect
from mathrl.tracking.lineage import Step
from mathrl.tracking.upload import Upload, flatten

ROOT = Path(__file__).parents[2]
BETTER = Comparison("a", "b", 50, 0.2, 0.1, 0.3, 0.001, 0.05, shown=True)
FINE = Evidence(BETTER, 0, 1.05, "yellow")
SMALL = ["evaluate.samples=2", "evaluate.ks=[1]", "evaluate.max_tokens=4"]


def test_each_part_of_the_evidence_can_refuse_alone_and_what_is_fine_is_said() -> None:
    for evidence, why in (
        (replace(FINE, test=replace(BETTER, shown=False)), "no difference shown"),
        (replace(FINE, test=replace(BETTER, difference=-0.2)), "a is better than b"),
        (replace(FINE, hits=1), "1 training problems share text"),
        (replace(FINE, hits=None), "could not be checked"),
        (replace(FINE, alignment=1.0501), "1.050 is above 1.05"),
        (replace(FINE, alignment=float("nan")), "above 1.05"),
        (replace(FINE, health="red"), "health is red"),
        (replace(FINE, health="unknown"), "has no health in MLflow: `mathrl runs sync`"),
        (replace(FINE, missing=["models/rl (77)"], hits=None), "no run in MLflow made models/rl (77): `mathrl"),
    ):
        against, _ = judge(evidence)
        assert len(against) == 1 and why in against[0]
    assert judge(FINE)[0] == [] and "health yellow" in judge(FINE)[1]
    assert "no champion yet" in judge(replace(FINE, test=None))[1][0]
    assert "no rollouts" in judge(replace(FINE, alignment=None))[1][2]


class Registry:
    """Versions of the registered model `m`, each with the runs of a small pipeline in a real store.

    The checkout is the current folder, `root`.
    """

    def __init__(self, root: Path) -> None:
        self.root, self.client = root, connect()
        self.upload = Upload(self.client)
        self.runs: dict[str, str] = {}  # by stage and version

    def add(
        self,
        seed: int,
        trained_on: str = "9-8=",
        loss: float = 0.1,
        alignment: float = 1.01,
        where: str = ".",
        overrides: Sequence[str] = (),
        test: str = "7+{}=",
        without_sft: bool = False,
        **figures: Any,
    ) -> Any:
        """A version trained on this question, in the folder `where`, with parameters and figures of its rl
        run; a figure may be a function of the step."""
        params = load_params(overrides=overrides).model_dump(mode="json", by_alias=True)
        folder = self.root / where
        asked = {"sft": "9-8=", "rl": trained_on, "test": test}
        for split in asked:
            problems = [
                Problem(f"{split}/{n}", asked[split].format(n), (str(7 + n),), "chain", split=split)
                for n in range(12 if split == "test" else 1)
            ]
            write_problems(folder / f"data/curated/{split}.jsonl", problems)
        model = folder / "models" / str(seed)
        make_base(Model(base=FreshModel()), model, seed)
        made = digest_path(model)
        if without_sft:
            write_text(folder / "data/curated/sft.jsonl", "")
        data = {f"data/curated/{split}.jsonl": digest_path(folder / f"data/curated/{split}.jsonl") for split in asked}
        sft, rl, _ = (dict([each]) for each in data.items())
        models = {"models/sft": f"5f{seed}", "models/rl": made}
        summary = {"reports/summary.json": f"0{seed}"}
        figures |= {"actor_loss": loss, "rollout/logprob_alignment": alignment}
        chain: dict[str, tuple[dict[str, str], dict[str, str], dict[str, Any]]] = {
            "curate": ({}, data, {}),
            "sft": (sft, {"models/sft": f"5f{seed}"}, {"loss": 0.1}),
            "rl": ({"models/sft": f"5f{seed}"} | rl, {"models/rl": made}, figures),
            "evaluate": (models | data, summary, {}),
            "register": ({"models/rl": made} | summary, {}, {}),
        }
        for stage, (inputs, outputs, told) in chain.items():
            record = RunRecord(
                folder / "records" / f"{stage}{seed}",
                stage=stage,
                started=1.0,
                params={each: params[each] for each in READS[stage]},
                key="k",
                pipeline="p",
                workspace=str(folder),
                inputs=inputs,
                outputs=outputs,
            )
            self.runs[f"{stage} {seed}"] = self._upload(record, told)
        register_version(self.client, "m", self.runs[f"register {seed}"], model, {"mathrl.digest": made})
        return self.client

    def _upload(self, record: RunRecord, figures: dict[str, Any]) -> str:
        run, parent = self.upload.start(record)
        if figures:
            rows = [
                {
                    "step": n,
                    "at": 1.0,
                    "reward/accuracy": 0.5,
                    **{key: value(n) if callable(value) else value for key, value in figures.items()},
                }
                for n in range(1, 7)
            ]
            self.upload.metrics(run, rows, None)
            self.upload.health(run, examine(rows, Health(), Rl()).report())
        self.upload.finish(run, parent, record, "finished")
        return run


@pytest.fixture
def made(tmp_path: Path, empty_store: Path, code_digests: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    """An empty registry, in a checkout with its parameters."""
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    shutil.copytree(ROOT / "params", tmp_path / "params")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MATHRL_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setattr("mathrl.reports.evaluation.process_count", lambda *_, **__: 1)  # pytest's threads must not fork
    (tmp_path / "home").mkdir()
    shutil.copy(empty_store, tmp_path / "home" / "mlflow.db")
    shutil.copy(code_digests, tmp_path / "home")
    yield Registry(tmp_path)


@pytest.fixture
def add(made: Registry) -> Any:
    return made.add


def refused(model: str, *words: str, capsys: pytest.CaptureFixture[str]) -> str:
    """What a refusal says, with exit status 1."""
    with pytest.raises(SystemExit) as ended:
        promote(model, None, None, [*SMALL, *words])
    assert ended.value.code == 1
    return capsys.readouterr().out


@pytest.fixture
def registry(add: Any) -> Any:
    add(1)
    return add(2)


ILLNESSES: list[tuple[dict[str, Any], str, str, str]] = [
    ({"trained_on": "7+3="}, "1 training problems share text with the benchmark", "contamination_hits", "1"),
    ({"alignment": 1.2}, "log-prob alignment 1.200 is above 1.05", "alignment", "1.2"),
    ({"loss": 99.0}, "its health is red (rl: loss): `mathrl runs health RUN`", "health", "red (rl: loss)"),
]


def test_a_run_with_one_illness_is_refused_for_it_alone(add: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a first version, which needs no comparison; the same run without an illness is taken."""
    for number, (illness, why, tag, value) in enumerate(ILLNESSES, 1):
        client = add(number, **illness)
        describe(client, "m", str(number), card=f"# m version {number}\n\nOld card.\n")
        said = refused(f"m:{number}", capsys=capsys)
        assert said.startswith(f"m version {number} refused on test:\n")
        reasons = said.split("\n- ")[1:]
        assert any(why in each for each in reasons), said
        if tag != "alignment":  # which is an illness, too
            assert len(reasons) == 1, said
        version = client.get_model_version("m", str(number))
        assert (version.tags["gate.decision"], version.tags[f"gate.{tag}"]) == ("refused", value)
        assert why in version.description and champions(client, "m") == []
        old, new = (f"# m version {number}\n\n{age} card." for age in ("Old", "New"))
        assert version.description.endswith(f"\n\n{old}"), "the card stays below the decision"
        describe(client, "m", str(number), card=f"{new}\n")
        text = client.get_model_version("m", str(number)).description
        assert why in text and "New card." in text and "Old card." not in text
        with pytest.raises(UserError, match="m has no earlier champion to go back to"):
            rollback("m")
    add(4)
    promote("m:4", None, None, SMALL)
    assert champions(client, "m") == ["4"]


def test_first_champion_refusal_promotion_and_rollback(registry: Any, capsys: pytest.CaptureFixture[str]) -> None:
    promote("m:1", None, None, SMALL)
    assert "no champion yet" in capsys.readouterr().out
    registry.set_registered_model_alias("m", "candidate", "2")
    assert "no difference shown" in refused("m", capsys=capsys)
    version = registry.get_model_version("m", "2")
    assert version.tags["gate.decision"] == "refused" and version.tags["gate.problems"] == "12"
    assert "refused on test" in version.description and champions(registry, "m") == ["1"]

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
    assert "could not be checked" in refused("m", capsys=capsys)
    tags = registry.get_model_version("m", "2").tags
    assert "gate.difference" not in tags, "figures of the decision before do not stay"


def test_a_version_without_sft_is_checked_on_what_it_was_trained_on(
    add: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    client = add(1, without_sft=True)
    promote("m:1", None, None, SMALL)
    assert client.get_model_version("m", "1").tags["gate.contamination_hits"] == "0"
    add(2, trained_on="7+3=", without_sft=True)
    assert "1 training problems share text with the benchmark" in refused("m:2", capsys=capsys)


def test_without_the_run_that_made_the_model_nothing_vouches_for_it(
    made: Registry, capsys: pytest.CaptureFixture[str]
) -> None:
    """The way back through evaluate and sft still reaches the data; health is sft's, alignment nobody's."""
    client, rl = made.add(1), made.runs["rl 1"]
    digest = client.get_run(rl).data.tags["mlflow.mathrl.output.models/rl"]
    client.delete_run(rl)
    said = refused("m:1", capsys=capsys)
    assert f"no run in MLflow made models/rl ({digest[:12]}): `mathrl runs sync` uploads" in said
    assert "mlflow runs restore --run-id" in said and champions(client, "m") == []
    client.restore_run(rl)
    client.delete_tag(rl, "mlflow.mathrl.output.models/rl")  # it ended before its outputs were uploaded
    assert "no run in MLflow made models/rl" in refused("m:1", capsys=capsys)
    client.set_tag(rl, "mlflow.mathrl.output.models/rl", digest)
    client.delete_tag(rl, "health")
    assert "has no health in MLflow" in refused("m:1", capsys=capsys)
    client.set_tag(rl, "health", "green")
    promote("m:1", None, None, SMALL)
    assert champions(client, "m") == ["1"]


def test_a_version_of_a_worktree_is_judged_by_its_own_data(made: Registry, capsys: pytest.CaptureFixture[str]) -> None:
    made.add(1)
    promote("m:1", None, None, SMALL)
    made.add(2, trained_on="8-3=", where="runs/more")
    assert "no difference shown" in refused("m:2", capsys=capsys), "compared, so its data was checked"
    assert made.client.get_model_version("m", "2").tags["gate.contamination_hits"] == "0"
    made.add(3, trained_on="7+3=", test="2-1=", where="runs/easier")
    said = refused("m:3", capsys=capsys)
    assert "1 training problems share text" in said, "test is the champion's, however easy one's own is"
    Path("runs/easier").rename("runs/elsewhere")
    assert "1 training problems share text" in refused("m:3", capsys=capsys), "found by its bytes"
    shutil.rmtree("runs/elsewhere")
    said = refused("m:3", capsys=capsys)
    assert "neither here nor under runs/; `mathrl run curate` with the --preset and --set" in said
    shutil.rmtree("data")
    shutil.rmtree("runs/more")  # the same split lies there, too
    with pytest.raises(UserError, match=r"data/curated/test.jsonl of m version 1 .* name a benchmark"):
        promote("m:3", None, None, SMALL)


def test_each_version_is_asked_with_its_own_prompt_and_measured_alike(
    made: Registry, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made.add(1)
    promote("m:1", None, None, SMALL)
    made.add(
        2,
        overrides=[
            "prompt.template=r1_zero",
            "prompt.max_tokens=1000",
            "evaluate.samples=3",
            "evaluate.ks=[1]",
            "evaluate.max_tokens=4",
        ],
    )
    asked: dict[str, Any] = {}
    real = gate_stage.evaluate_once

    def noted(folder: Path, benchmark: str, params: Any, output: Path, **more: Any) -> Any:
        asked[output.name.split("-")[1]] = params
        return real(folder, benchmark, params, output, **more)

    monkeypatch.setattr(gate_stage, "evaluate_once", noted)
    with pytest.raises(SystemExit):
        promote("m:2", None, None, [])
    assert {n: params.prompt.template for n, params in asked.items()} == {"1": "plain", "2": "r1_zero"}
    assert {params.evaluate.samples for params in asked.values()} == {3}, "the candidate's"
    said = capsys.readouterr().out
    assert "own prompt: max_tokens `64`, now `1000`; template `plain`, now `r1_zero`" in said
    with pytest.raises(SystemExit):
        promote("m:2", None, None, ["prompt.template=boxed", "prompt.max_tokens=1000", "evaluate.samples=2"])
    assert {(p.prompt.template, p.evaluate.samples) for p in asked.values()} == {("boxed", 2)}
    made.client.delete_run(made.runs["rl 1"])
    with pytest.raises(UserError, match="version 1, the champion, was made by no run"):
        promote("m:2", None, None, [])


def test_of_a_run_one_step_ahead_the_probe_counts(add: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Older weights sampled its rollouts: the policy's own change is in their alignment, from step 2 on."""
    lag = {"alignment": lambda n: 1.0 if n == 1 else 1.4, "rollout/lag": lambda n: float(n > 1)}
    client = add(1, **lag, **{"rollout/canary_alignment": 1.2})
    assert "log-prob alignment 1.200 is above" in refused("m:1", capsys=capsys)
    add(2, **lag, **{"rollout/canary_alignment": 1.01})
    client.set_tag(client.get_model_version("m", "2").run_id, "health", "green")
    promote("m:2", None, None, SMALL)
    assert champions(client, "m") == ["2"]


@pytest.mark.parametrize("preset", [None, "gsm8k-ppo-24gb", "perplexity-math"])
def test_parameters_come_back_from_mlflow_as_they_were(preset: str | None) -> None:
    params = load_params(ROOT / "params", preset=preset)
    shown = params.model_dump(mode="json", by_alias=True)
    step = Step("run", "rl", "", False, flatten(shown), {}, {}, {})
    names = ("prompt", "model", "evaluate", "curate")
    back = load_params(ROOT / "params", instead={name: step.section(name) for name in names})
    assert all(getattr(back, name) == getattr(params, name) for name in names)
    older = {"prompt": {**step.section("prompt"), "thinking": True}}  # a parameter that no longer exists
    assert load_params(ROOT / "params", instead=older).prompt == params.prompt
    with pytest.raises(UserError, match=r"prompt\.thinking=true: thinking: unknown parameter"):
        load_params(ROOT / "params", instead=older, overrides=["prompt.thinking=true"])
    long = replace(step, params={"prompt.system": "x" * 6000})
    with pytest.raises(UserError, match=r"run \(rl\): prompt.system is longer than MLflow keeps"):
        long.section("prompt")
