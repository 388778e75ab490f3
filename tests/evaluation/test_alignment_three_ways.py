"""Sampler, trainer and a plain Hugging Face forward: one model, and told apart where it is not."""

from pathlib import Path
from typing import Any

import pytest
import torch

import mathrl.cli.models as command
from mathrl.cli.main import main
from mathrl.core.files import write_jsonl
from mathrl.models.base import character_tokenizer, fresh_network
from mathrl.models.export import export_model
from mathrl.models.packing import Group
from mathrl.params.run import FreshModel
from mathrl.reports import alignment

ROOT = Path(__file__).parents[2]
BASE = FreshModel(hidden_size=32, intermediate_size=48, layers=2, heads=2, kv_heads=1, max_positions=256)


@pytest.fixture()
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    tokenizer = character_tokenizer(BASE)
    export_model(fresh_network(BASE, tokenizer, seed=3), tokenizer, tmp_path / "model", "")
    rows = [
        {"id": f"p{n}", "question": f"{n}+{n}=", "answers": [str(2 * n)], "source": "s", "split": "dev"}
        for n in range(4)
    ]
    write_jsonl(tmp_path / "dev.jsonl", rows)
    monkeypatch.setattr(command, "main_checkout", lambda: ROOT)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "model"


def align(precision: str) -> bool:
    given = [f"model.precision={precision}", "rl.max_tokens=24", "rl.temperature=0.6", "run.device=cpu"]
    try:
        command.alignment("model", Path("dev.jsonl"), 4, None, given)
    except SystemExit as ended:
        assert ended.code == 1
        return False
    return True


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_model_is_one_three_ways(folder: Path, precision: str, capsys: Any) -> None:
    assert align(precision)
    said = capsys.readouterr().out
    assert "sampler and trainer" in said and "too far" not in said
    assert f"sampled by torch ({precision})" in said and "trains packed and the torch engine samples" in said


@pytest.mark.parametrize("wrong", ["trainer", "plain"])
def test_another_model_is_told(folder: Path, wrong: str, capsys: Any, monkeypatch: Any) -> None:
    name = {"trainer": "load_model", "plain": "load_plain"}[wrong]
    real = getattr(alignment, name)

    def altered(*given: Any) -> Any:
        network = real(*given)
        with torch.no_grad():
            network.get_decoder().layers[1].mlp.down_proj.weight.mul_(1.5)
        return network

    monkeypatch.setattr(alignment, name, altered)
    assert not align("float32")
    rows = capsys.readouterr().out.splitlines()[3:]
    # The two that are the same model still agree, so the table says which is the other.
    assert ["too far" in row for row in rows] == {"trainer": [True, True, False], "plain": [False, True, True]}[wrong]


def test_the_plain_forward_by_hand() -> None:
    network = fresh_network(BASE, character_tokenizer(BASE), seed=3).eval()
    found = alignment.plain_logprobs(network, [Group((5, 6), ((7, 8), (9,)))], temperature=0.5)
    with torch.no_grad():
        first = network(torch.tensor([[5, 6]])).logits[0, -1] / 0.5
        second = network(torch.tensor([[5, 6, 7]])).logits[0, -1] / 0.5
    expected = [first.log_softmax(-1)[7], second.log_softmax(-1)[8], first.log_softmax(-1)[9]]
    assert found.tolist() == pytest.approx([float(each) for each in expected], abs=1e-5)


def test_its_limits_are_judged() -> None:
    good = alignment.Gap("a", "b", 1e-5, 1e-6, 1.000001, 1e-4, 1.05)
    assert good.fine
    assert not alignment.Gap("a", "b", 1.0, 0.2, 1.2, 0.5, 1.05).fine
    assert not alignment.Gap("a", "b", float("nan"), float("nan"), float("nan"), 1e-4, 1.05).fine


def test_without_problems_it_says_what_to_do(folder: Path, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.setattr("sys.argv", ["mathrl", "models", "alignment", "model", "--problems", "none.jsonl"])
    with pytest.raises(SystemExit):
        main()
    assert "give --problems FILE" in capsys.readouterr().err
