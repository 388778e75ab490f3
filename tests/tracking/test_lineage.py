"""Lineage on a real sqlite store, written by the uploader from the records of tiny stages."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from mathrl.cli.models import lineage, lineage_text
from mathrl.core.errors import UserError
from mathrl.core.files import write_text
from mathrl.core.hashing import digest_path
from mathrl.core.records import Dataset, RunRecord
from mathrl.registry.versions import register_version
from mathrl.tracking.client import connect
from mathrl.tracking.lineage import way_back, way_forward
from mathrl.tracking.upload import Upload

CHAIN = {  # stage: (what it reads, what it makes)
    "curate": ((), ("data/curated/rl.jsonl", "data/curated/sft.jsonl", "data/curated/test.jsonl")),
    "sft": (("data/curated/sft.jsonl",), ("models/sft/w",)),
    "difficulty": (("models/sft", "data/curated/rl.jsonl"), ("data/difficulty/rates.jsonl",)),
    "mix": (("data/difficulty", "data/curated/rl.jsonl"), ("data/mixture/train.jsonl",)),
    "rl": (("models/sft", "data/mixture"), ("models/rl/w",)),
    "evaluate": (("models/sft", "models/rl", "data/curated/test.jsonl"), ("reports/summary.json",)),
    "register": (("models/rl", "reports/summary.json"), ()),
}
SOURCES: dict[str, Dataset] = {"gsm8k/train.jsonl": {"path": "x", "digest": "5ec0"}}


class Store:
    """Records of the chain in one store, uploaded in turn; a version for each call of `pipeline`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.client = connect()
        self.runs: dict[str, str] = {}

    def digest(self, path: str) -> str:
        return digest_path(self.root / path)

    def pipeline(self, lr: float, stages: tuple[str, ...] = tuple(CHAIN)) -> None:
        for stage in stages:
            reads, makes = CHAIN[stage]
            for path in makes:
                write_text(self.root / path, f"{path} of {lr if stage in stages[-3:] else 0}\n")
            outputs = {str(each) for path in makes for each in (Path(path), Path(path).parent)}
            record = RunRecord(
                self.root / "records" / f"{stage}-{lr}",
                stage=stage,
                started=1.0,
                ended=2.0,
                params={stage: {"lr": lr}},
                key=stage,
                pipeline=f"p{lr}",
                pipeline_params={"rl": {"lr": lr}},
                git={"commit": "c0ffee" * 6},
                code={"mathrl": "0.1.0", "value": f"{lr}", "own": ""} if stage == "rl" else {},
                inputs={path: self.digest(path) for path in reads},
                outputs={path: self.digest(path) for path in outputs - {"reports"}},
                datasets=SOURCES if stage == "curate" else {},
            )
            upload = Upload(self.client)
            run, parent = upload.start(record)
            upload.finish(run, parent, record, "finished")
            self.runs[f"{stage} {lr}"] = run
        tags = {"mathrl.digest": self.digest("models/rl")}
        folder = self.root / "models" / "rl"
        register_version(self.client, "chain", self.runs[f"register {lr}"], folder, tags)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, empty_store: Path) -> Any:
    root = tmp_path_factory.mktemp("lineage")
    (root / "home").mkdir()
    shutil.copy(empty_store, root / "home" / "mlflow.db")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MATHRL_HOME", str(root / "home"))
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        made = Store(root)
        made.pipeline(0.1)
        made.pipeline(0.2, ("rl", "evaluate", "register"))  # DVC skipped what had not changed
        yield made


def test_every_registered_version_goes_back_to_the_sources(store: Store) -> None:
    versions = store.client.search_model_versions()
    assert len(versions) == 2
    for version in versions:
        back = way_back(store.client, f"{version.name}:{version.version}")
        assert back.unexplained == [], "every input has a run that made it"
        assert {step.stage for step in back.steps} == set(CHAIN), "and each stage is there once"
        assert len(back.steps) == len(CHAIN)
        (rl,) = (step for step in back.steps if step.stage == "rl")
        assert rl.outputs["models/rl"] == back.digest == version.tags["mathrl.digest"]
        assert rl.params == {"rl.lr": {"1": "0.1", "2": "0.2"}[str(version.version)]}
        (curate,) = (step for step in back.steps if step.stage == "curate")
        assert curate.sources == {"gsm8k/train.jsonl": "5ec0"} and not curate.inputs
        assert all(step.commit == "c0ffee" * 6 for step in back.steps)
        edges = {(maker, reader) for maker, _, reader in back.edges}
        assert (curate.run, store.runs["sft 0.1"]) in edges and (rl.run, curate.run) not in edges


def test_no_link_stands_among_the_tags_that_mlflow_shows(store: Store) -> None:
    """Its pages leave out the names that begin with mlflow. (isUserFacingTag of its page)."""
    for run in store.runs.values():
        shown = [name for name in store.client.get_run(run).data.tags if not name.startswith("mlflow.")]
        assert not [name for name in shown if name.startswith(("input", "output", "made_by"))] and len(shown) < 12


def test_lineage_of_a_store_of_an_earlier_version_is_complete(store: Store) -> None:
    """There the links have no prefix; new runs are linked to those that made what they read, old or new."""
    hidden, renamed = "mlflow.mathrl.", list[tuple[str, str, str]]()
    old = [store.runs[name] for name in ("curate 0.1", "sft 0.1", "difficulty 0.1", "mix 0.1", "rl 0.1")]
    for run in old:
        for name, text in store.client.get_run(run).data.tags.items():
            if name.startswith(hidden):
                store.client.delete_tag(run, name)
                store.client.set_tag(run, name.removeprefix(hidden), text)
                renamed.append((run, name, text))
    assert len(renamed) > 20
    for version in store.client.search_model_versions():
        back = way_back(store.client, f"{version.name}:{version.version}")
        assert back.unexplained == [] and {step.stage for step in back.steps} == set(CHAIN)
        assert {store.runs["mix 0.1"], store.runs["sft 0.1"]} < {step.run for step in back.steps}
    parent = store.client.get_run(store.runs["rl 0.2"]).data.tags["mlflow.parentRunId"]
    store.client.delete_tag(parent, "stage.curate")
    store.client.delete_tag(parent, "stage.mix")
    Upload(store.client)._link_makers(parent, {"data/mixture": store.digest("data/mixture")}, store.runs["rl 0.2"])
    tags = store.client.get_run(parent).data.tags
    assert tags["stage.mix"] == store.runs["mix 0.1"] and tags["stage.curate"] == store.runs["curate 0.1"]
    for run, name, text in renamed:
        store.client.delete_tag(run, name.removeprefix(hidden))
        store.client.set_tag(run, name, text)


def test_an_input_that_nobody_made_is_said(store: Store) -> None:
    sft = store.runs["sft 0.1"]
    store.client.set_tag(sft, "mlflow.mathrl.input.data/other.jsonl", "dead")
    back = way_back(store.client, "chain")
    assert back.unexplained == [(sft, "data/other.jsonl", "dead")]
    assert "not complete" in lineage_text(back) and "data/other.jsonl (dead)" in lineage_text(back)
    store.client.delete_tag(sft, "mlflow.mathrl.input.data/other.jsonl")
    back = way_back(store.client, "chain")
    assert "complete: 7 runs" in lineage_text(back)
    assert {step.stage: dict(step.code) for step in back.steps if step.code} == {
        "rl": {"mathrl": "0.1.0", "value": "0.2"}
    }
    assert "\n  mathrl 0.1.0, code 0.2\n" in lineage_text(back) and "\n  code unknown\n" in lineage_text(back)


def test_forward_tells_what_a_model_was_made_from_and_what_it_was_measured_with(store: Store) -> None:
    def reached(digest: str) -> tuple[set[str], list[tuple[str, bool]]]:
        steps, models = way_forward(store.client, digest)
        return {step.stage for step in steps}, [(model.version, model.made) for model in models]

    both = [("1", True), ("2", True)]
    assert reached("5ec0") == (set(CHAIN), both)
    assert reached(store.digest("data/curated/sft.jsonl")) == (set(CHAIN) - {"curate"}, both)
    assert reached(store.digest("data/curated")) == (set(CHAIN) - {"curate"}, both), "a folder: its files"
    test = store.digest("data/curated/test.jsonl")
    assert reached(test) == ({"evaluate", "register"}, [("1", False), ("2", False)])
    assert reached(store.digest("models/rl")) == ({"evaluate", "register"}, [("2", True)])
    with pytest.raises(UserError, match="no run in MLflow read or made it"):
        reached("beef")


def test_the_command_goes_back_and_forward(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    store.client.set_registered_model_alias("chain", "candidate", "1")
    for first in ("chain@candidate", "chain:1", "chain/1", "models:/chain/1", "models:/chain@candidate"):
        lineage(first)
        assert "chain version 1" in capsys.readouterr().out
    lineage(None, str(store.root / "data" / "mixture"))
    said = capsys.readouterr().out
    assert said.index("read by\n  rl  run ") < said.index("read the outputs of these\n")
    assert "chain version 2: made from it" in said
    lineage(None, str(store.root / "data" / "curated" / "test.jsonl"))
    assert "chain version 1: measured with it, not made from it" in capsys.readouterr().out
    wrong = {
        None: "give a registered",
        "other": "registered: chain",
        "it's": "it's: no such registered model",
        "chain:9": "versions: 1, 2",
        "chain@x": "candidate",
    }
    for model, said in wrong.items():
        with pytest.raises(UserError, match=said):
            lineage(model)


def test_a_later_run_with_the_same_bytes_is_no_maker_of_an_earlier_model(store: Store) -> None:
    """As difficulty with another reward, whose pass rates are equal."""
    store.pipeline(0.3, ("difficulty", "rl", "evaluate", "register"))
    back = way_back(store.client, "chain:1")
    assert {step.run for step in back.steps if step.stage == "difficulty"} == {store.runs["difficulty 0.1"]}
