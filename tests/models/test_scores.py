"""Scores a token: packed against plain, where they are read, folders and refusals."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from mathrl.core.errors import UserError
from mathrl.models.base import character_tokenizer
from mathrl.models.export import export_model
from mathrl.models.load import load_model, make_base
from mathrl.models.packing import Group
from mathrl.models.prepared import Prepared, compute_as
from mathrl.models.scores import load_scorer, make_scorer, prepare_scorer, token_scores
from mathrl.models.small_copy import small_config
from mathrl.models.transformers_import import AutoConfig, AutoModelForCausalLM
from mathrl.params.run import FreshModel, Model

BASE = FreshModel(hidden_size=32, intermediate_size=48, layers=2, heads=2)
GROUPS = [Group((7, 10, 5), ((5, 9, 11, 2), (3, 2))), Group((8, 4, 6, 9), ((12, 13, 14),))]
TOLERANCE = 2e-4  # float32 sums in another order


def scorer_of(network: Callable[..., Any], **options: Any) -> Any:
    scorer = make_scorer(network(**options))
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        scorer.score.weight.copy_(torch.randn(scorer.score.weight.shape, generator=generator))
    return scorer


@pytest.mark.parametrize("family", ["gpt2", "mamba"])
def test_an_architecture_without_a_plain_head_per_token_is_refused_by_name(family: str) -> None:
    policy = AutoModelForCausalLM.from_config(small_config(AutoConfig.for_model(family)))
    with pytest.raises(UserError, match=f"architecture '{family}' cannot be made: .* plain linear head"):
        make_scorer(policy)


def plainly(scorer: Any, groups: list[Group]) -> torch.Tensor:
    """One response at a time: V before its n-th token is read at the token before it."""
    out = []
    for group in groups:
        for response in group.responses:
            scores = scorer(input_ids=torch.tensor([[*group.prompt, *response]])).logits[0, :, 0]
            start = len(group.prompt) - 1
            out.append(scores[start : start + len(response)])
    return torch.cat(out)


@pytest.mark.parametrize("architecture", ["qwen2", "llama"])
def test_scores_and_their_gradients_equal_the_plain_ones(network: Callable[..., Any], architecture: str) -> None:
    scorer = scorer_of(network, architecture=architecture)
    expected = plainly(scorer, GROUPS)
    weights = torch.arange(1.0, len(expected) + 1)
    (expected * weights).sum().backward()
    gradients = [weight.grad.clone() for weight in scorer.parameters()]
    scorer.zero_grad()
    found = token_scores(scorer, GROUPS)
    assert prepare_scorer(scorer).packed, "the packed way was tried"
    (found * weights).sum().backward()
    assert found.shape == (9,) and torch.allclose(found, expected, atol=TOLERANCE)
    assert not torch.allclose(found, expected.roll(1), atol=0.1)
    for weight, gradient in zip(scorer.parameters(), gradients, strict=True):
        assert torch.allclose(weight.grad, gradient, atol=1e-3, rtol=1e-3)


def test_the_padded_way_gives_the_same(network: Callable[..., Any]) -> None:
    scorer = scorer_of(network)
    packed = token_scores(scorer, GROUPS)
    compute_as(scorer, Prepared(packed=False))
    assert torch.allclose(token_scores(scorer, GROUPS), packed, atol=TOLERANCE)


def test_a_score_after_the_last_token_is_that_of_a_token_appended(network: Callable[..., Any]) -> None:
    scorer = scorer_of(network)
    appended = [Group(group.prompt, [[*each, 0] for each in group.responses]) for group in GROUPS]
    ends = torch.tensor([4, 3, 3]).cumsum(0) + torch.tensor([0, 0, 1])
    last = scorer(input_ids=torch.tensor([[7, 10, 5, 5, 9, 11, 2]])).logits[0, -1, 0]
    assert token_scores(scorer, appended)[ends[0]].item() == pytest.approx(last.item(), abs=TOLERANCE)


def test_a_new_scorer_has_the_policys_trunk_and_scores_zero(network: Callable[..., Any]) -> None:
    policy = network()
    scorer = make_scorer(policy)
    assert token_scores(scorer, GROUPS).tolist() == [0.0] * 9
    for name, weight in policy.base_model.state_dict().items():
        assert torch.equal(scorer.base_model.state_dict()[name], weight)
        assert scorer.base_model.state_dict()[name].data_ptr() != weight.data_ptr()
    token_scores(scorer, GROUPS).sum().backward()
    assert scorer.score.weight.grad.abs().sum() > 0


@pytest.mark.parametrize("precision,tolerance", [("float32", 1e-5), ("bfloat16", 0.05)])
def test_a_scorers_folder_is_plain_and_comes_back(tmp_path: Path, precision: str, tolerance: float) -> None:
    params = Model(base=BASE, precision=precision)  # type: ignore[arg-type]
    make_base(params, tmp_path / "policy", seed=0)
    policy = load_model(tmp_path / "policy", params, "cpu")
    scorer = make_scorer(policy)
    with torch.no_grad():
        scorer.score.weight.fill_(0.5)
    export_model(scorer, character_tokenizer(BASE), tmp_path / "scorer", "# A scorer")
    again = load_scorer(tmp_path / "scorer", params, "cpu")
    assert torch.allclose(token_scores(again, GROUPS), token_scores(scorer, GROUPS), atol=1e-6)

    from transformers import AutoModelForTokenClassification

    plain = AutoModelForTokenClassification.from_pretrained(tmp_path / "scorer").eval()
    assert torch.allclose(plainly(plain, GROUPS), token_scores(again, GROUPS), atol=tolerance)
    with pytest.raises(UserError, match=r"Qwen2ForCausalLM.*token classification with one label"):
        load_scorer(tmp_path / "policy", params, "cpu")
