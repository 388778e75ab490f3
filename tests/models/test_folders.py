"""Models as folders: made, loaded, exported, refused."""

from pathlib import Path

import pytest
import torch

from mathrl.core.errors import UserError
from mathrl.core.files import read_json, write_json
from mathrl.core.hashing import digest_path
from mathrl.learners.distributed import Ranks
from mathrl.models.base import REFERENCE
from mathrl.models.load import export_model, load_model, load_tokenizer, make_base
from mathrl.models.scores import load_scorer
from mathrl.params.advantage import Critic
from mathrl.params.run import FreshModel, Model, PretrainedModel
from mathrl.trainers.critic import make_critic

FRESH = FreshModel(hidden_size=32, intermediate_size=48, layers=2, heads=2)
MODEL = Model(base=FRESH, precision="float32")


def test_a_fresh_base_is_a_plain_folder_equal_for_equal_seeds(tmp_path: Path) -> None:
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        make_base(MODEL, tmp_path / name, seed)
    assert digest_path(tmp_path / "a") == digest_path(tmp_path / "b") != digest_path(tmp_path / "c")
    names = {file.name for file in (tmp_path / "a").iterdir()}
    assert {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "README.md"} <= names

    from transformers import AutoModelForCausalLM, AutoTokenizer

    plain, tokenizer = (kind.from_pretrained(tmp_path / "a") for kind in (AutoModelForCausalLM, AutoTokenizer))
    ids = tokenizer("7+5=", return_tensors="pt").input_ids
    ours = load_model(tmp_path / "a", MODEL, "cpu")
    # Float32 sums in another order.
    assert torch.allclose(plain(ids).logits, ours(ids).logits, atol=1e-5)
    assert plain.generation_config.eos_token_id == tokenizer.eos_token_id


def test_the_character_tokenizer_gives_back_every_text(tmp_path: Path) -> None:
    make_base(MODEL, tmp_path / "a", 0)
    tokenizer = load_tokenizer(tmp_path / "a")
    text = "<think>7+5=12; 12-3=9\n</think><answer>9</answer>  ~"
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert len(tokenizer.encode("<think></think><answer></answer>")) == 4
    assert tokenizer.decode([*ids, tokenizer.eos_token_id], skip_special_tokens=True) == text


@pytest.mark.parametrize("tied", [True, False])
def test_export_keeps_the_weights(tmp_path: Path, tied: bool) -> None:
    make_base(MODEL, tmp_path / "a", 0)
    if not tied:
        write_json(
            tmp_path / "a" / "config.json", read_json(tmp_path / "a" / "config.json") | {"tie_word_embeddings": False}
        )
    model, tokenizer = load_model(tmp_path / "a", MODEL, "cpu"), load_tokenizer(tmp_path / "a")
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(1.5)
    ids = torch.tensor([[5, 6, 7]])
    export_model(model, tokenizer, tmp_path / "b", "# A card")
    assert len({file.stat().st_mode for file in (tmp_path / "b").iterdir()}) == 1, "a colleague reads all of it"
    again = load_model(tmp_path / "b", MODEL, "cpu")
    assert torch.equal(again(ids).logits, model(ids).logits)
    shared = again.get_output_embeddings().weight is again.get_input_embeddings().weight
    assert shared == tied
    assert (tmp_path / "b" / "README.md").read_text() == "# A card\n"


def test_a_pretrained_base_is_a_reference_that_is_followed(tmp_path: Path) -> None:
    make_base(MODEL, tmp_path / "real", 0)
    pretrained = Model(base=PretrainedModel(path=str(tmp_path / "real")), precision="float32")
    make_base(pretrained, tmp_path / "base", 0)
    assert [file.name for file in (tmp_path / "base").iterdir()] == [REFERENCE]
    assert load_tokenizer(tmp_path / "base").eos_token == "<end>"
    assert load_model(tmp_path / "base", pretrained, "cpu").num_parameters() > 0
    before = digest_path(tmp_path / "base")
    make_base(MODEL, tmp_path / "other", 1)
    (tmp_path / "real" / "model.safetensors").write_bytes((tmp_path / "other" / "model.safetensors").read_bytes())
    make_base(pretrained, tmp_path / "base", 0)
    assert digest_path(tmp_path / "base") != before, "what was sampled from the old weights is not those of the new"


def test_what_is_no_model_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for folder in (tmp_path / "missing", tmp_path / "empty"):
        with pytest.raises(UserError, match=folder.name):
            load_model(folder, MODEL, "cpu")
        with pytest.raises(UserError, match=folder.name):
            load_tokenizer(folder)
    make_base(MODEL, tmp_path / "a", 0)
    (tmp_path / "a" / "model.safetensors").unlink()
    with pytest.raises(UserError, match="safetensors"):
        load_model(tmp_path / "a", MODEL, "cpu")


def test_a_tokenizer_without_an_end_token_is_refused(tmp_path: Path) -> None:
    make_base(MODEL, tmp_path / "a", 0)
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        file = tmp_path / "a" / name
        if file.exists():
            values = read_json(file)
            values.pop("eos_token", None)
            write_json(file, values)
    with pytest.raises(UserError, match="end token"):
        load_tokenizer(tmp_path / "a")


CODE = """
import os
from pathlib import Path
from transformers import Qwen2Config, Qwen2ForCausalLM
Path(os.environ["MARKER"]).touch()
class MarkedConfig(Qwen2Config):
    model_type = "marked"
class MarkedForCausalLM(Qwen2ForCausalLM):
    config_class = MarkedConfig
"""


def test_code_that_comes_with_a_model_runs_only_when_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, marker = tmp_path / "model", tmp_path / "it ran"
    make_base(MODEL, folder, 0)
    told = read_json(folder / "config.json") | {
        "model_type": "marked",
        "architectures": ["MarkedForCausalLM"],
        "auto_map": {"AutoConfig": "marked.MarkedConfig", "AutoModelForCausalLM": "marked.MarkedForCausalLM"},
    }
    write_json(folder / "config.json", told)
    (folder / "marked.py").write_text(CODE)
    monkeypatch.setenv("MARKER", str(marker))
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    asked, refused = (
        MODEL.model_copy(update={"base": PretrainedModel(path=str(folder), trust_remote_code=trust)})
        for trust in (True, False)
    )
    for model in (MODEL, refused):
        with pytest.raises(UserError, match=r"code that comes with it.* set model\.base\.trust_remote_code"):
            load_model(folder, model, "cpu")
    for model in (None, refused):
        with pytest.raises(UserError, match=r"no tokenizer .* set model\.base\.trust_remote_code"):
            load_tokenizer(folder, model)
    with pytest.raises(UserError, match=r"one score .* set model\.base\.trust_remote_code"):
        load_scorer(folder, refused, "cpu")
    assert not marker.exists()

    # Also through the reference that the base stage makes, and after a model was trained.
    make_base(asked, tmp_path / "base", 0)
    for name in ("base", "trained"):
        network, tokenizer = (load_model(tmp_path / name, asked, "cpu"), load_tokenizer(tmp_path / name, asked))
        assert marker.exists() and type(network).__name__ == "MarkedForCausalLM" and len(tokenizer.encode("7")) == 1
        if name == "base":
            export_model(network, tokenizer, tmp_path / "trained", "# Trained")
            ranks = Ranks(torch.device("cpu"))
            with pytest.raises(UserError, match=r"critic \(a critic .* 'marked' cannot be made"):  # it was read
                make_critic(Critic(path=str(tmp_path / name)), network, None, 10, 0, ranks)
