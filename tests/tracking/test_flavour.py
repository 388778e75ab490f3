"""A registered version as MLflow's own: loaded by its flavour, asked with the prompt that it was trained with."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from mathrl.core.hashing import digest_path
from mathrl.models.load import make_base
from mathrl.params.run import FreshModel, Model, Prompt
from mathrl.registry.versions import Usage, prompt_template, register_version, weights_of
from mathrl.tracking.client import connect, experiment

TINY = FreshModel(hidden_size=32, intermediate_size=48, layers=1, heads=2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("models") / "tiny"
    make_base(Model(base=TINY), made, seed=0)
    return made


@pytest.fixture
def client(tmp_path: Path, empty_store: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("MATHRL_HOME", str(tmp_path))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    shutil.copy(empty_store, tmp_path / "mlflow.db")
    return connect()


def test_mlflow_loads_a_version_and_answers_as_the_folder_does(client: Any, folder: Path) -> None:
    import mlflow
    from transformers import pipeline

    run = client.create_run(experiment(client)).info.run_id
    usage = Usage(Prompt(instruction="Answer {in} digits"), max_tokens=5)
    tags = {"mathrl.digest": digest_path(folder)}
    version = register_version(client, "chain", run, folder, tags, usage)
    client.set_registered_model_alias("chain", "champion", version)

    asked = "3+4=\nAnswer {in} digits"
    (expected,) = pipeline("text-generation", str(folder))(
        asked, max_new_tokens=5, do_sample=False, return_full_text=False
    )
    loaded = mlflow.transformers.load_model("models:/chain@champion")
    (answer,) = loaded(asked, max_new_tokens=5, do_sample=False, return_full_text=False)
    assert answer == expected
    served = mlflow.pyfunc.load_model("models:/chain@champion")
    assert served.predict(["3+4="]) == [expected["generated_text"]], "the prompt is around the question"
    assert len(served.predict(["3+4="], params={"max_new_tokens": 1})[0]) < len(expected["generated_text"])
    assert served.metadata.signature is not None
    downloaded = Path(mlflow.artifacts.download_artifacts("models:/chain@champion"))
    assert digest_path(weights_of(downloaded)) == tags["mathrl.digest"], "the same bytes as DVC's"


def test_a_version_without_a_model_is_uploaded_as_it_is(client: Any, tmp_path: Path) -> None:
    import mlflow

    files = tmp_path / "rl"
    files.mkdir()
    (files / "summary.json").write_text("{}")
    run = client.create_run(experiment(client)).info.run_id
    register_version(client, "chain", run, files, {"mathrl.digest": "77"}, Usage(Prompt(), max_tokens=5))
    downloaded = Path(mlflow.artifacts.download_artifacts("models:/chain/1"))
    assert digest_path(weights_of(downloaded)) == digest_path(files)


@pytest.mark.parametrize(
    ("prompt", "template"),
    [
        (Prompt(), "{prompt}"),
        (Prompt(instruction="Write {x}."), "{prompt}\nWrite {{x}}."),
        (Prompt(response_prefix="<think>"), "{prompt}<think>"),
        (Prompt(template="chat"), "{prompt}"),  # the tokenizer has no chat template: rows bring their prompts
    ],
)
def test_the_prompt_becomes_a_format_string(folder: Path, prompt: Prompt, template: str) -> None:
    assert prompt_template(folder, Usage(prompt, max_tokens=5)) == template
