"""The parts of engine trl that run without TRL: prompts, batches, sealed checkpoints, the sharing out of responses."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, processors

from mathrl.compose import load_params
from mathrl.core.errors import UserError
from mathrl.core.hashing import derive_seed
from mathrl.core.types import Completion, Control, Graded, Problem
from mathrl.engines.prompt_texts import PromptTexts
from mathrl.engines.trl_arguments import grpo_arguments
from mathrl.engines.trl_batches import BatchPlan, Collator, plan_batches
from mathrl.engines.trl_checkpoints import latest_checkpoint, seal
from mathrl.learners.distributed import Ranks
from mathrl.models.packing import Group
from mathrl.models.transformers_import import PreTrainedTokenizerFast
from mathrl.params.run import Prompt
from mathrl.rollout.sampler import Sampler
from mathrl.trainers.rollouts import rollout_groups, rollout_metrics
from mathrl.trainers.sft import sft_objective
from mathrl.trainers.supervised import Stream
from tests.rollout.no_engine import NO_ENGINE

PARAMS = Path(__file__).parents[2] / "params"
RANKS = Ranks(torch.device("cpu"))


def sampler(prefix: str = "", *, start: bool = False) -> Sampler:
    """Over a tokenizer of the characters a, b and = that merges a and b, and begins texts with <s> if `start`."""
    vocabulary = {token: number for number, token in enumerate(("<s>", "</s>", "a", "b", "=", "ab"))}
    made = Tokenizer(models.BPE(vocabulary, [("a", "b")]))
    made.add_special_tokens(["<s>", "</s>"])
    if start:
        made.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 0)])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<s>", eos_token="</s>")
    return Sampler(NO_ENGINE, tokenizer, Prompt(response_prefix=prefix))


def problem(question: str) -> Problem:
    return Problem(id="p", question=question, answers=("a",), source="s", split="rl")


@pytest.mark.parametrize("start", [False, True])
def test_the_text_that_trl_gets_has_mathrls_tokens(start: bool) -> None:
    own, asked = sampler("b", start=start), problem("ab=")
    tokens = own.prompt_tokens(asked)
    assert tokens == [0, 5, 4, 3][not start :]
    text = PromptTexts(own, "TRL", adds_start=True).text(asked, tokens)
    assert text == "ab=b" and own.tokenizer(text=[text])["input_ids"] == [tokens]


def test_a_start_token_that_the_prompt_spells_is_not_doubled() -> None:
    own = sampler(start=True)
    templated = problem("<s>ab").with_(control=Control(templated=True))
    tokens = own.prompt_tokens(templated)
    assert tokens == [0, 5]
    assert PromptTexts(own, "TRL", adds_start=True).text(templated, tokens) == "ab"


def test_a_prompt_that_trl_would_read_otherwise_is_refused() -> None:
    own, asked = sampler("b"), problem("=a")
    tokens = own.prompt_tokens(asked)
    assert tokens == [4, 2, 3], "mathrl keeps the prefix a token of its own; as one text a and b merge"
    with pytest.raises(
        UserError, match=r"problem p: TRL reads its prompt as other tokens .* first difference at token 1"
    ):
        PromptTexts(own, "TRL", adds_start=True).text(asked, tokens)


def write(folder: Path, step: int) -> Path:
    checkpoint = folder / f"checkpoint-{step}"
    checkpoint.mkdir()
    (checkpoint / "model.safetensors").write_bytes(b"weights" * step)
    return checkpoint


def test_the_newest_whole_checkpoint_is_resumed(tmp_path: Path) -> None:
    assert latest_checkpoint(tmp_path, RANKS) is None
    for step in (8, 9, 10):
        seal(write(tmp_path, step), {"sampled_tokens": step}, RANKS)
    newest = latest_checkpoint(tmp_path, RANKS)
    assert newest is not None and (newest.step, newest.values) == (10, {"sampled_tokens": 10}), "by number, not by name"
    (newest.folder / "model.safetensors").write_bytes(b"weights" * 9 + b"weighty")
    unsealed = write(tmp_path, 11)
    with pytest.warns(UserWarning) as warned:
        before = latest_checkpoint(tmp_path, RANKS)
    assert before is not None and before.step == 9
    assert not unsealed.exists() and not newest.folder.exists()
    messages = [str(each.message) for each in warned]
    assert "not written to its end" in messages[0] and "model.safetensors changed" in messages[1]


def test_responses_that_cannot_be_shared_out_evenly_are_refused() -> None:
    trl = ("rl.engine=trl", "rl.ema=null", "rl.optimizer.type=adamw", "rl.advantage.eps=1e-4")
    params = load_params(PARAMS, overrides=[*trl, "rl.prompts_per_step=3", "rl.group_size=5"])
    with pytest.raises(UserError, match="= 15 must be a multiple of minibatches x ranks = 1 x 2"):
        grpo_arguments(params, world=2, on_cpu=True, longest=128)
    assert grpo_arguments(params, world=3, on_cpu=True, longest=128)["per_device_train_batch_size"] == 5


def test_masks_the_unbiased_kl_and_the_entropy_controller_are_trls_own() -> None:
    trl = ("rl.engine=trl", "rl.ema=null", "rl.optimizer.type=adamw", "rl.advantage.eps=1e-4")

    def arguments(*overrides: str) -> dict[str, Any]:
        return grpo_arguments(load_params(PARAMS, overrides=[*trl, *overrides]), world=1, on_cpu=True, longest=128)

    plain = {"use_bias_correction_kl": False, "use_adaptive_entropy": False, "top_entropy_quantile": 1.0}
    plain |= {"off_policy_mask_threshold": None}
    made = arguments("rl.kl.coef=0.1")
    assert {name: made[name] for name in plain} == plain, "TRL's default of the first is true"
    assert arguments("rl.kl={coef: 0.1, estimator: unbiased}")["use_bias_correction_kl"]
    control = "entropy_controller: {target: 0.4, delta: 0.01, low: 0.001, high: 0.5}"
    made = arguments(f"rl.loss={{off_policy_limit: 0.5, top_entropy: 0.2, entropy_coef: 0.002, {control}}}")
    expected = {"off_policy_mask_threshold": 0.5, "top_entropy_quantile": 0.2, "use_adaptive_entropy": True}
    expected |= {"entropy_target": 0.4, "entropy_coef_delta": 0.01, "entropy_coef_min": 0.001, "entropy_coef_max": 0.5}
    assert {name: made[name] for name in expected} == expected and made["entropy_coef"] == 0.002


def demonstrations(*lengths: int) -> list[Group]:
    """Prompts of two tokens, and responses of so many."""
    return [Group((1, 2), (tuple(range(3, 3 + length)),)) for length in lengths]


def planned(groups: list[Group], world: int, budget: int, steps: int = 6) -> BatchPlan:
    sft = load_params(PARAMS, overrides=["sft.tokens_per_step=40"]).sft
    objective = sft_objective(groups, [], lambda items: (torch.zeros(()), {}), sft)
    return plan_batches(objective, steps, 7, world, budget)


@pytest.mark.parametrize(("world", "budget"), [(1, 1000), (1, 24), (2, 24), (3, 1000), (8, 16)])
def test_every_step_has_the_demonstrations_of_mathrls_own_loop(world: int, budget: int) -> None:
    """The stream is walked here again, with nothing but the rule: as many as fit into 40 tokens."""
    groups = demonstrations(*(3 + number % 11 for number in range(23)), 30)
    plan = planned(groups, world, budget)
    size = plan.accumulation * world
    steps = [plan.micro_batches[first : first + size] for first in range(0, 6 * size, size)]
    assert len(plan.micro_batches) == 6 * size
    stream, seen = Stream(len(groups), derive_seed(7, "sft order")), 0
    for step, parts in enumerate(steps):
        taken, room = [], 40
        while (cost := groups[number := stream.take()].packed_tokens) <= room:
            taken.append(number)
            room -= cost
        stream.cursor -= 1
        seen += 40 - room
        assert sorted(number for part in parts for number in part) == sorted(taken)
        assert plan.tokens_seen[step] == seen
        longest = [max((2 + len(groups[n].responses[0]) for n in part), default=0) for part in parts]
        assert all(len(part) <= 1 or len(part) * most <= budget for part, most in zip(parts, longest, strict=True))
    assert sum(map(bool, plan.micro_batches)) > 6 or budget == 1000, "the budget divides steps"


def test_a_micro_batch_without_a_demonstration_has_tokens_and_no_labels() -> None:
    groups = [*demonstrations(5, 1), Group((1,), ((5, 6, 7, 2),), (np.array([True, False, False, True]),))]
    collate = Collator(groups, lambda examples: examples)
    assert collate([{"demonstrations": [2, 1]}]) == [
        {"input_ids": [1, 5, 6, 7, 2], "labels": [-100, 5, -100, -100, 2]},  # the output of a tool is not learned
        {"input_ids": [1, 2, 3], "labels": [-100, -100, 3]},
    ]
    assert collate([{"demonstrations": []}]) == [{"input_ids": [1, 2, 3], "labels": [-100, -100, -100]}]


def test_lengths_need_no_log_probs() -> None:
    """TRL keeps none; under it every response had the length 0 before."""
    graded = [
        Graded("p", Completion(tokens, [], "", "stop"), False, 0.0, {}, None, "") for tokens in ([5, 2], [5, 6, 2])
    ]
    (group,) = rollout_groups([0], [(1, 2)], [graded])
    assert group.lengths == [2, 3] and group.sampled_tokens == 5
    assert rollout_metrics([group], [group])["response_length"] == 2.5
