"""The critic: where it starts, what moves it, when it learns alone."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from mathrl.algorithms.returns import clipped_value_loss
from mathrl.compose import load_params
from mathrl.core.errors import UserError
from mathrl.learners.distributed import Ranks
from mathrl.models.export import export_model
from mathrl.models.prepared import compute_as
from mathrl.models.scores import make_scorer, prepare_scorer, token_scores
from mathrl.params.advantage import Critic, Gae
from mathrl.params.optimizer import Lora
from mathrl.params.train import Rl
from mathrl.trainers.critic import CriticFigures, critic_gradient, make_critic
from tests.trainers.small import fast, scored_batch

CPU = Ranks(torch.device("cpu"))


def ppo(critic: Critic, lr: float = 2e-3, **more: Any) -> Rl:
    common: dict[str, Any] = {
        "steps": 6,
        "prompts_per_step": 16,
        "group_size": 1,
        "max_tokens": 8,
        "optimizer": fast(lr),
        "dev": {"every": 0},
        "ema": None,
        "advantage": Gae(critic=critic, whiten=True),
    }
    return Rl(**{**common, **more})


@pytest.mark.parametrize("masked", [False, True], ids=["", "masked"])
@pytest.mark.parametrize("clip", [None, 0.05])
def test_the_gradient_is_that_of_the_mean_value_loss_however_it_is_cut(
    small: Any, clip: float | None, masked: bool
) -> None:
    """The mean is over the tokens that count: responses that are masked are in no denominator."""
    model, sampler = small.policy()
    groups = [replace(group, truncated=(masked, False, masked, False)) for group in small.rollouts(model, sampler)]
    scorer = make_scorer(model)
    with torch.no_grad():
        scorer.score.weight.fill_(0.2)
    found = []
    for budget in (8192, 16):
        params = ppo(Critic(clip=clip), group_size=4, tokens_per_microbatch=budget, truncated="mask")
        critic = make_critic(params.critic or Critic(), model, scorer, 10, 0, CPU)
        batch, _ = scored_batch(groups, params, CPU, model, critic=critic.model)
        assert batch.values_N is not None and batch.returns_N is not None
        old = batch.values_N + 0.1 * torch.sin(torch.arange(len(batch.values_N)))
        figures = critic_gradient(critic, params, replace(batch, values_N=old))
        found.append((critic.flat.gradients.clone(), figures))
    scorer.zero_grad()
    values = token_scores(scorer, [group.group for group in groups])
    loss_N, clipped_N = clipped_value_loss(values, old, batch.returns_N, clip)
    assert batch.kept_N.all() != masked
    loss_N, clipped_N = loss_N[batch.kept_N], clipped_N[batch.kept_N]
    loss_N.mean().backward()
    expected = torch.cat([weight.grad.flatten() for weight in scorer.parameters()])
    assert expected.norm() > 1e-3
    for gradient, figures in found:
        assert torch.allclose(gradient, expected, atol=1e-6)
        assert figures.loss == pytest.approx(loss_N.mean().item(), rel=1e-5)
        assert figures.clipped == pytest.approx(clipped_N.float().mean().item(), abs=1e-6)
    assert (found[0][1].clipped > 0) == (clip is not None)


@pytest.mark.parametrize(("kernel", "passes"), [("varlen", 1), ("cpu", 2)])
def test_a_micro_batch_holds_as_many_tokens_as_the_kernel_computes(
    small: Any, kernel: str, passes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, groups = small.responses_to_a_long_prompt(monkeypatch, 2)
    params = ppo(Critic(), group_size=2, tokens_per_microbatch=90)
    critic: Any = make_critic(params.critic or Critic(), model, None, 10, 0, CPU)
    batch, _ = scored_batch(groups, params, CPU, model, critic=critic.model)
    compute_as(critic.model, replace(prepare_scorer(critic.model), kernel=kernel))
    counted, backward = [], critic.backward
    critic.backward = lambda loss: counted.append(1) or backward(loss)
    critic_gradient(critic, params, batch)
    assert len(counted) == passes


def test_a_given_scorer_is_the_critic(small: Any) -> None:
    scorer = make_scorer(small.policy(seed=9)[0])
    with torch.no_grad():
        scorer.score.weight.fill_(0.5)
    start = scorer.score.weight.detach().clone()
    params = ppo(Critic(), steps=1)
    _, (row,), _ = small.run(params, critic=scorer)
    assert row["critic/value_mean"] != 0 and not torch.equal(scorer.score.weight, start)


def test_figures_of_a_step_are_means_over_its_updates(small: Any) -> None:
    model, sampler = small.policy()
    groups, step = small.rollouts(model, sampler), CriticFigures()
    step.add(CriticFigures(loss=1.0, clipped=0.5), norm=2.0)
    step.add(CriticFigures(loss=2.0, clipped=0.25), norm=4.0)
    params = ppo(Critic(), group_size=4, truncated="mask")
    cut = [replace(group, truncated=(True, False, False, False)) for group in groups]
    scorer = make_scorer(model)
    with torch.no_grad():
        scorer.score.weight.fill_(0.2)
    batch, _ = scored_batch(cut, params, CPU, model, critic=scorer)
    told = step.metrics(batch)
    assert (told["critic_loss"], told["critic/clip_fraction"], told["critic/grad_norm"]) == (1.5, 0.375, 3.0)
    assert batch.returns_N is not None
    assert told["critic/return_mean"] == pytest.approx(batch.returns_N[batch.kept_N].mean().item())
    assert told["critic/return_mean"] != pytest.approx(batch.returns_N.mean().item())
    assert batch.values_N is not None
    values_N, returns_N = batch.values_N[batch.kept_N], batch.returns_N[batch.kept_N]
    unexplained = ((returns_N - values_N).var() / returns_N.var()).item()
    assert told["critic/explained_variance"] == pytest.approx(1 - unexplained, abs=1e-5)
    assert told["critic/value_mean"] == pytest.approx(values_N.mean().item())
    plain, _ = scored_batch(groups, Rl(), CPU, model)
    assert step.metrics(plain) == {}


def test_responses_that_are_masked_do_not_teach_the_critic(small: Any) -> None:
    model, sampler = small.policy()
    groups = [replace(group, truncated=(True,) * 4) for group in small.rollouts(model, sampler)]
    params = ppo(Critic(), group_size=4, truncated="mask")
    critic = make_critic(params.critic or Critic(), model, None, 10, 0, CPU)
    batch, _ = scored_batch(groups, params, CPU, model, critic=critic.model)
    critic_gradient(critic, params, batch)
    assert critic.flat.gradients.norm() == 0


def test_while_it_warms_up_the_policys_schedule_waits(small: Any) -> None:
    """The policy's updates have the rates of a run without the steps in which the critic learns alone."""
    linear = fast(2e-3).model_copy(update={"schedule": "linear"})
    _, rows, _ = small.run(ppo(Critic(warmup_steps=2), steps=5, minibatches=2, optimizer=linear))
    _, plain, _ = small.run(ppo(Critic(), steps=3, minibatches=2, optimizer=linear))
    assert ["actor_loss" in row for row in rows] == [False] * 2 + [True] * 3 and all("critic_loss" in r for r in rows)
    factors = [row["lr_factor"] for row in rows]
    assert factors == [0, 0, *(row["lr_factor"] for row in plain)] and factors[-1] == pytest.approx(1 / 6)


def test_it_starts_from_the_policy_a_scorers_folder_or_a_causal_lms(small: Any, tmp_path: Path) -> None:
    model, sampler = small.policy()
    other = small.policy(seed=8)[0]
    scorer = make_scorer(other)
    with torch.no_grad():
        scorer.score.weight.fill_(0.5)
    export_model(scorer, small.TOKENIZER, tmp_path / "scorer", "# A scorer")
    export_model(other, small.TOKENIZER, tmp_path / "policy", "# A policy")
    packed = [group.group for group in small.rollouts(model, sampler)]

    def critic(path: Path | None = None, given: Any = None) -> Any:
        return make_critic(Critic(path=str(path) if path else None), model, given, 10, 0, CPU).model

    assert torch.allclose(token_scores(critic(tmp_path / "scorer"), packed), token_scores(scorer, packed))
    assert critic(given=scorer) is scorer
    for made, source in ((critic(), model), (critic(tmp_path / "policy"), other)):
        assert token_scores(made, packed).abs().max() == 0
        for name, weight in source.base_model.state_dict().items():
            assert torch.equal(made.base_model.state_dict()[name], weight)
    with pytest.raises(
        UserError, match=r"rl.advantage.critic.path: '/.*' cannot initialise a critic .*no such model folder"
    ):
        critic(tmp_path / "nothing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"rl.advantage.critic.path: .*has no config.json"):
        critic(tmp_path / "empty")
    wide = small.FreshModel(**{**small.BASE.model_dump(), "alphabet": "ascii"})
    tokenizer = small.character_tokenizer(wide)
    export_model(small.fresh_network(wide, tokenizer, seed=0), tokenizer, tmp_path / "wide", "# Other tokens")
    with pytest.raises(UserError, match=r"rl.advantage.critic.path: .*/wide reads \d+ tokens, the policy \d+"):
        critic(tmp_path / "wide")
    small.run(ppo(Critic(path=str(tmp_path / "scorer")), steps=1))


def test_naming_one_setting_keeps_its_other_defaults() -> None:
    overrides = ["rl.advantage=gae", "rl.advantage.critic.optimizer.beta2=0.9"]
    critic = load_params(Path(__file__).parents[2] / "params", overrides=overrides).rl.critic
    assert critic is not None and critic.optimizer.beta2 == 0.9
    assert (critic.optimizer.type, critic.optimizer.warmup_steps, critic.clip) == ("adamw", 0, 0.5)


def test_it_can_be_trained_by_adapters(small: Any) -> None:
    model, _ = small.policy()
    critic = make_critic(Critic(lora=Lora(r=2)), model, None, 10, 0, CPU)
    names = set(critic.flat.named)
    assert {name for name in names if ".lora_" not in name} == {"score.weight", "score.bias"}
    # A policy with adapters gives it its trunk, and the KL its reference without a copy.
    both = ppo(Critic(lora=Lora(r=2)), lora=Lora(r=2), kl={"type": "reward", "coef": 0.1}, steps=2)
    _, rows, _ = small.run(both)
    assert rows[0]["kl"] == pytest.approx(0, abs=1e-6) != rows[-1]["kl"]


def test_a_hub_id_that_is_no_model_is_a_sentence_too(small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match=r"rl.advantage.critic.path: 'models/critc' cannot initialise a critic"):
        make_critic(Critic(path="models/critc"), small.policy()[0], None, 10, 0, CPU)


def test_adapters_of_a_critic_learn_without_dropout(small: Any) -> None:
    def rows(dropout: float) -> Any:
        critic = Critic(optimizer=fast(1e-2), lora=Lora(r=2, dropout=dropout))
        return small.run(ppo(critic, steps=3))[1]

    assert rows(0.5) == rows(0.0)


def test_policy_and_critic_share_a_buffer_of_gradients(small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    shared: list[Any] = []
    monkeypatch.setattr("mathrl.trainers.open_rl.share_gradients", shared.extend)
    small.run(ppo(Critic(), steps=1))
    assert [learner.name for learner in shared] == ["rl", "rl.advantage.critic"]
