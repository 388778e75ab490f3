"""The loss over a teacher's most probable tokens in the RL loop: its gradient, its figures, what it refuses."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers.normalizers import Replace
from tokenizers.processors import TemplateProcessing

from mathrl.algorithms.divergences import teacher_divergence
from mathrl.core.errors import UserError
from mathrl.learners.distributed import Ranks
from mathrl.learners.torch_learner import TorchLearner
from mathrl.models.base import character_tokenizer, fresh_network
from mathrl.params.optimizer import Muon
from mathrl.params.train import Rl
from mathrl.trainers.open_rl import check_teacher
from mathrl.trainers.policy_update import UpdateFigures, trained_groups, update_gradient
from tests.models.test_top_tokens import plain_logprobs
from tests.trainers.golden_traces import SHOWN
from tests.trainers.small import BASE, TOKENIZER, changed, policy, rollouts, run, scored_batch, short_rl

CPU = Ranks(torch.device("cpu"))
MODEL, SAMPLER = policy()
GROUPS = rollouts(MODEL, SAMPLER)
TEACHER = policy(seed=8)[0]


def teacher_rl(kind: str = "forward_kl", **loss: Any) -> Rl:
    return Rl(advantage="distillation", loss={"type": kind, "top_k": 4, **loss}, temperature=0.8)  # type: ignore[arg-type]


def gradient(
    params: Rl, teacher: Any = TEACHER, groups: Any = GROUPS
) -> tuple[torch.Tensor, UpdateFigures, dict[str, float]]:
    """The gradient of one update, its figures, and those of the batch."""
    learner = TorchLearner(MODEL, Muon(lr=1e-3), 10)
    batch, figures = scored_batch(groups, params, CPU, MODEL, teacher=teacher)
    sums = update_gradient(learner, params, batch, 0.0)
    return learner.flat.gradients.clone(), sums, figures


@pytest.mark.parametrize(
    ("kind", "rest", "most"),
    [("forward_kl", "bin", 4), ("reverse_kl", "renormalise", 4), ("jsd", "bin", 4), ("jsd", "renormalise", 1000)],
)
def test_the_gradient_is_that_of_plain_forward_passes(kind: str, rest: str, most: int) -> None:
    """Of more tokens than the vocabulary has, all count: the divergence is the whole one."""
    found, figures, batch = gradient(teacher_rl(kind, rest=rest, top_k=most))
    groups = [group.group for group in GROUPS]
    with torch.no_grad():
        teacher_NK, ids_NK = plain_logprobs(TEACHER, groups, 0.8).topk(min(most, len(TOKENIZER)))
    learner = TorchLearner(MODEL, Muon(lr=1e-3), 10)
    policy_NK = plain_logprobs(MODEL, groups, 0.8).gather(1, ids_NK)
    loss = teacher_divergence(kind, policy_NK, teacher_NK, rest).mean()  # type: ignore[arg-type]
    loss.backward()
    assert torch.allclose(found, learner.flat.gradients, atol=1e-6) and found.norm() > 1e-3
    assert figures.loss == pytest.approx(float(loss.detach()), abs=1e-5)
    assert batch["distillation/teacher_mass"] == pytest.approx(float(teacher_NK.exp().sum(1).mean()), abs=1e-5)
    mass = float(policy_NK.detach().exp().sum(1).mean())
    assert figures.student_mass / figures.tokens == pytest.approx(mass, abs=1e-5)
    assert (mass < 0.9) == (most == 4)


def test_no_split_into_micro_batches_changes_it() -> None:
    params = changed(teacher_rl(), truncated="mask", loss={"aggregation": "sequence_mean"})
    whole, sums, figures = gradient(params)
    parts, of_parts, same = gradient(changed(params, tokens_per_microbatch=16))
    assert torch.allclose(parts, whole, atol=1e-6) and same == pytest.approx(figures, abs=1e-5)
    assert of_parts.loss == pytest.approx(sums.loss, abs=1e-5) and of_parts.tokens == sums.tokens
    plain = gradient(teacher_rl())[0]
    assert not torch.allclose(plain, whole, atol=1e-5)


def test_a_policy_that_is_its_teacher_has_no_gradient() -> None:
    moved, figures, batch = gradient(teacher_rl("jsd"), teacher=MODEL)
    assert moved.abs().max() < 1e-7 and abs(figures.loss) < 1e-6
    assert figures.student_mass / figures.tokens == pytest.approx(batch["distillation/teacher_mass"], abs=1e-6)


def test_it_reads_neither_rewards_nor_ratios() -> None:
    """All groups have a gradient, and weights against the sampler, which are of the sampled token, are not applied."""
    expected, _, _ = gradient(teacher_rl())
    other = [replace(group, rewards=(0.5,) * len(group.rewards)) for group in GROUPS]
    assert torch.equal(gradient(teacher_rl(), groups=other)[0], expected)
    far = [replace(group, logprobs=tuple(tuple(v - 0.4 for v in row) for row in group.logprobs)) for group in GROUPS]
    weighed = changed(teacher_rl(), importance={"when": "always", "high": 9.0})
    assert torch.allclose(gradient(weighed, groups=far)[0], expected, atol=1e-6)
    batch, _ = scored_batch(other, teacher_rl(), CPU, MODEL, teacher=TEACHER)
    batch = replace(batch, advantages_N=torch.zeros_like(batch.advantages_N))
    assert trained_groups(batch, teacher_rl()) == list(range(len(GROUPS)))


def test_a_teacher_with_a_larger_vocabulary_names_tokens_of_the_student() -> None:
    """The others are in the bin: the teacher's own softmax is over all of them."""
    larger = BASE.model_copy(update={"alphabet": "ascii"})
    tokenizer = character_tokenizer(larger)
    assert len(tokenizer) > len(TOKENIZER)
    teacher = fresh_network(larger, tokenizer, seed=8).eval()
    moved, _, batch = gradient(teacher_rl(top_k=1000), teacher=teacher)
    assert batch["distillation/teacher_mass"] < 0.8 and moved.isfinite().all() and moved.norm() > 1e-3


def test_a_teacher_with_another_tokenizer_is_refused(tmp_path: Path) -> None:
    check_teacher("models/teacher", TOKENIZER, "models/sft", character_tokenizer(BASE))
    further = character_tokenizer(BASE)
    further.add_tokens(["<further>"])
    check_teacher("models/teacher", further, "models/sft", TOKENIZER)
    with pytest.raises(UserError, match=f"'<further>' is {len(TOKENIZER)} to the student and none to the teacher"):
        check_teacher("models/teacher", TOKENIZER, "models/sft", further)
    other = character_tokenizer(BASE.model_copy(update={"alphabet": "ascii"}))
    said = r"models/teacher has another tokenizer than models/sft \(token '0' is 3 to the student and 4 to the teacher"
    with pytest.raises(UserError, match=said):
        check_teacher("models/teacher", other, "models/sft", TOKENIZER)
    cuts = character_tokenizer(BASE)
    cuts.backend_tokenizer.normalizer = Replace(" ", "")
    with pytest.raises(UserError, match="it cuts texts into other tokens"):
        check_teacher("models/teacher", cuts, "models/sft", TOKENIZER)
    begins = character_tokenizer(BASE)  # a text with a token that prompts may leave out
    end = (str(begins.eos_token), begins.eos_token_id)
    begins.backend_tokenizer.post_processor = TemplateProcessing(single=f"{end[0]} $A", special_tokens=[end])
    assert begins.encode("1")[0] == end[1] != TOKENIZER.encode("1")[0]
    check_teacher("models/teacher", begins, "models/sft", TOKENIZER)
    check_teacher("models/teacher", TOKENIZER, "models/sft", begins)


def test_worked_solutions_may_be_further_responses(tmp_path: Path) -> None:
    """The divergence is then over their tokens too; the figures of samples are those of a run without them."""
    params = short_rl(advantage="distillation", loss={"type": "forward_kl", "top_k": 8}, steps=1, dev={"every": 0})
    alone = run(params, problems=SHOWN, teacher=TEACHER)[1][0]
    both = run(changed(params, imitation="solutions"), problems=SHOWN, teacher=TEACHER)[1][0]
    for name in ("distillation/reverse_kl", "distillation/teacher_mass", "response_length"):
        assert both[name] == pytest.approx(alone[name], abs=1e-6), name
    assert both["trained_tokens"] > alone["trained_tokens"] and both["actor_loss"] != pytest.approx(alone["actor_loss"])
    groups, params = rollouts(MODEL, SAMPLER), teacher_rl()
    expert = replace(groups[-1].some(0, 1), expert=True)
    own, _, figures = gradient(params, groups=groups)
    found, _, told = gradient(changed(params, imitation="solutions"), groups=[*groups, expert])
    assert told == pytest.approx(figures, abs=1e-6) and (found - own).norm() > 1e-3 * own.norm()
    repeated, _, _ = gradient(params, groups=[*groups, replace(expert, expert=False)])
    assert torch.allclose(found, repeated, atol=1e-7)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"advantage": "grpo"}, "needs a teacher, and advantage grpo has none: set advantage distillation"),
        ({"advantage": {"type": "distillation", "whiten": True}}, "reads no advantage: leave advantage.whiten out"),
        ({"loss": {"off_policy_limit": 0.5}}, "leave loss.off_policy_limit out"),
        ({"loss": {"beta": 0.5}}, r"loss\.forward_kl\.beta\n +Extra inputs"),
        ({"loss": "reinforce", "imitation": "solutions"}, "needs a divergence from a teacher, such as loss forward_kl"),
        ({"imitation": "luffy"}, "needs advantage grpo, dr_grpo or rloo"),
        ({"loss": {"top_k": 0}}, "greater than or equal to 1"),
    ],
)
def test_what_has_no_effect_is_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        changed(teacher_rl(), **settings)
