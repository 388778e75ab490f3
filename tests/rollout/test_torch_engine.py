"""The engine against the model's own forward pass, packed and plain."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from mathrl.models import decode
from mathrl.models.base import character_tokenizer
from mathrl.models.linear import use_half_products
from mathrl.models.logprobs import prepare_language_model, response_logprobs
from mathrl.models.packing import Group
from mathrl.models.prepared import compute_as
from mathrl.models.shapes import rounded_up
from mathrl.params.rollout import Rollout
from mathrl.params.run import FreshModel
from mathrl.rollout.engine import Sampling
from mathrl.rollout.torch_engine import StopStrings, TorchEngine, nucleus, sample_token

PROMPTS = [[20, 21, 22], [30], [40, 41, 42, 43, 44, 45], [50, 51]]
TOKENIZER = character_tokenizer(FreshModel(alphabet="arithmetic"))
PROMPTS = [[token % len(TOKENIZER) for token in prompt] for prompt in PROMPTS]


@pytest.fixture(params=[True, False], ids=["packed", "plain"])
def engine(request: pytest.FixtureRequest, network: Callable[..., Any]) -> TorchEngine:
    model = network(alphabet="arithmetic")
    assert prepare_language_model(model).packed
    compute_as(model, replace(prepare_language_model(model), packed=request.param))
    return TorchEngine(model, TOKENIZER, Rollout(max_sequences=16))


def test_greedy_equals_generate_and_packed_equals_plain(engine: TorchEngine) -> None:
    found = engine.generate(PROMPTS, Sampling(1, 0.0, 20), seed=0)
    for prompt, group in zip(PROMPTS, found, strict=True):
        ids = torch.tensor([prompt])
        expected = engine.model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=20, do_sample=False)
        assert list(group[0].tokens) == expected[0, len(prompt) :].tolist()


def test_a_model_in_training_samples_without_its_dropout(engine: TorchEngine) -> None:
    modes: list[bool] = []
    engine.model.model.register_forward_pre_hook(lambda module, arguments: modes.append(module.training))
    engine.model.train()
    engine.generate(PROMPTS, Sampling(2, 1.0, 20), seed=0)
    assert modes and not any(modes) and engine.model.training, "it trains on afterwards"


def test_logprobs_are_those_of_the_sampling_distribution(engine: TorchEngine) -> None:
    sampling = Sampling(6, 0.8, 24)
    groups = engine.generate(PROMPTS, sampling, seed=3)
    for prompt, group in zip(PROMPTS, groups, strict=True):
        assert len(group) == 6 and len({tuple(completion.tokens) for completion in group}) > 1
        packed = [Group(prompt, [completion.tokens for completion in group])]
        expected, _ = response_logprobs(engine.model, packed, 0.8)
        told = torch.tensor([value for completion in group for value in completion.logprobs])
        assert torch.allclose(told, expected, atol=2e-4)
        for completion in group:
            ended = completion.tokens[-1] == TOKENIZER.eos_token_id
            assert (completion.finish_reason == "stop") == ended
            assert TOKENIZER.eos_token_id not in completion.tokens[:-1]
            assert ended or len(completion.tokens) == 24
            assert completion.text == TOKENIZER.decode(completion.tokens, skip_special_tokens=True)


def test_equal_seeds_give_equal_samples_and_progress_adds_up(engine: TorchEngine) -> None:
    counted: list[int] = []
    sampling = Sampling(8, 1.0, 16)
    first = engine.generate(PROMPTS, sampling, 7, counted.append)
    assert sum(counted) == len(PROMPTS) * 8
    assert engine.generate(PROMPTS, sampling, 7) == first != engine.generate(PROMPTS, sampling, 8)
    # A sequence's random numbers are its own: whoever leaves the batch beside it.
    torch.manual_seed(0)
    assert engine.generate(PROMPTS, sampling, 7) == first


def test_every_batch_has_random_numbers_of_its_own(network: Callable[..., Any]) -> None:
    engine = TorchEngine(network(alphabet="arithmetic"), TOKENIZER, Rollout(max_sequences=4))
    groups = engine.generate([PROMPTS[0]] * 6, Sampling(2, 1.0, 16), seed=1)
    # Three batches of equal prompts: with equal numbers they would be equal.
    batches = [[each.tokens.tolist() for group in groups[start : start + 2] for each in group] for start in (0, 2, 4)]
    assert all(batch not in batches[:number] for number, batch in enumerate(batches))


def test_more_than_a_batch_of_sequences_and_long_ones(network: Callable[..., Any]) -> None:
    model = network(alphabet="arithmetic")
    engine = TorchEngine(model, TOKENIZER, Rollout(max_sequences=4))
    # More tokens than the cache has columns at first.
    groups = engine.generate(PROMPTS, Sampling(2, 1.0, 200), seed=1)
    expected, _ = response_logprobs(
        model, [Group(p, [c.tokens for c in g]) for p, g in zip(PROMPTS, groups, strict=True)]
    )
    told = torch.tensor([value for group in groups for each in group for value in each.logprobs])
    assert len(told) > 100 and torch.allclose(told, expected, atol=5e-4)


def test_prompts_read_in_several_passes_give_the_same(engine: TorchEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = engine.generate(PROMPTS, Sampling(3, 1.0, 16), seed=4)
    monkeypatch.setattr(decode, "MOST_PROMPT_TOKENS", 7)
    parts = engine.generate(PROMPTS, Sampling(3, 1.0, 16), seed=4)
    for group, other in zip(whole, parts, strict=True):
        for completion, same in zip(group, other, strict=True):
            assert completion.tokens.tolist() == same.tokens.tolist()
            assert completion.logprobs == pytest.approx(same.logprobs, abs=2e-4)


def test_bfloat16_sampler_and_trainer_agree(network: Callable[..., Any]) -> None:
    model = network(alphabet="arithmetic")
    use_half_products(model)
    engine = TorchEngine(model, TOKENIZER, Rollout())
    groups = engine.generate(PROMPTS, Sampling(16, 1.0, 16), seed=1)
    packed = [Group(p, [c.tokens for c in g]) for p, g in zip(PROMPTS, groups, strict=True)]
    expected, _ = response_logprobs(model, packed)
    told = torch.tensor([value for group in groups for each in group for value in each.logprobs])
    # Rounded alike; a sum in another order may round an activation to its neighbour.
    assert (told - expected).abs().mean() < 0.02


def test_choose_inverts_the_distribution_function() -> None:
    logits = torch.tensor([[0.1, 0.2, 0.0, 0.7]]).log().expand(4, 4)
    uniform = torch.tensor([0.05, 0.15, 0.31, 0.999999])
    tokens, logprobs = sample_token(logits, uniform, 1.0, 1.0)
    assert tokens.tolist() == [0, 1, 3, 3]
    assert logprobs.exp().tolist() == pytest.approx([0.1, 0.2, 0.7, 0.7])
    tokens, logprobs = sample_token(logits, uniform, 0.0, 1.0)
    assert tokens.tolist() == [3] * 4 and logprobs.exp().tolist() == pytest.approx([0.7] * 4)


def test_no_random_number_gives_a_token_that_cannot_be() -> None:
    never = -math.inf
    logits = torch.tensor([[0.0, 0.5, never, never], [never, never, 0.0, 0.5], [never, 0.0, never, never]])
    for uniform, tokens in ((0.0, [0, 2, 1]), (1 - 2**-24, [1, 3, 1])):
        assert sample_token(logits, torch.full((3,), uniform), 1.0, 1.0)[0].tolist() == tokens
    thousand = torch.randn(1000, 37, generator=torch.Generator().manual_seed(0))
    chosen, logprobs = sample_token(thousand, torch.rand(1000, generator=torch.Generator().manual_seed(1)), 0.7, 1.0)
    plain = torch.softmax(thousand / 0.7, -1).gather(1, chosen[:, None])[:, 0].log()
    assert torch.equal(logprobs, plain), "without a nucleus nothing is divided by a sum near 1"


def test_finished_sequences_leave_the_batch_and_a_prompt_with_many_samples_is_a_batch_alone(
    engine: TorchEngine,
) -> None:
    sizes: list[int] = []

    def count(module: Any, args: Any, inputs: Any) -> None:
        if inputs["input_ids"].shape[0] == 1 or inputs["input_ids"].shape[1] == 1:  # a step, packed or plain
            sizes.append(inputs["input_ids"].numel())

    hook = engine.model.register_forward_pre_hook(count, with_kwargs=True)
    engine.ends = list(range(0, len(TOKENIZER), 2))  # half of the rest ends at each step
    engine.rollout = Rollout(max_sequences=64)
    (found,) = engine.generate([PROMPTS[1]], Sampling(64, 1.0, 12), seed=2)
    hook.remove()
    alive = [sum(len(each.tokens) > step for each in found) for step in range(1, 12)]
    steps = sizes[1:]  # after the prompt
    assert alive[0] < 48 and alive[2] < 24
    for left, size in zip(alive, steps, strict=False):
        assert left <= size <= max(rounded_up(left), left + left // 7)
    engine.rollout = Rollout(max_sequences=4)
    groups = engine.generate(PROMPTS, Sampling(8, 1.0, 6), seed=2)
    assert groups[1] == engine.generate([PROMPTS[1]], Sampling(8, 1.0, 6), seed=2)[0], "the shortest is the first"


def test_a_model_that_is_not_finite_samples_tokens_that_there_are() -> None:
    tokens, logprobs = sample_token(torch.full((2, 4), math.nan), torch.tensor([0.1, 0.9]), 1.0, 1.0)
    assert set(tokens.tolist()) <= set(range(4)) and logprobs.isnan().all()


def test_a_string_is_complete_with_its_last_token_and_no_special_token_spells_a_part_of_it() -> None:
    def places(*strings: str) -> dict[str, list[int]]:
        """The tokens of each text that complete a string, whatever follows them."""
        stops, found = StopStrings(strings, TOKENIZER), {}
        for text in ("1==5", "==1=", "1=5=", "12=1", "1<pad>2="):
            tokens = torch.tensor([TOKENIZER.encode(text)] * 2)
            rows = [stops.rows_at_stop(tokens, torch.tensor([1]), column).tolist() for column in range(4)]
            assert set(map(tuple, rows)) <= {(), (1,)}, "of the rows that are asked for"
            found[text] = [column for column in range(4) if rows[column]]
        return found

    assert places("==") == {"1==5": [2], "==1=": [1], "1=5=": [], "12=1": [], "1<pad>2=": []}
    assert places("=", "12") == {"1==5": [1, 2], "==1=": [0, 1, 3], "1=5=": [1, 3], "12=1": [1, 2], "1<pad>2=": [3]}
    assert not any(places("d>").values())


def test_frequencies_follow_the_probabilities() -> None:
    logits = torch.tensor([1.0, 0.0, -1.0]).expand(20_000, 3)
    uniform = torch.rand(20_000, generator=torch.Generator().manual_seed(0))
    tokens, _ = sample_token(logits, uniform, 0.5, 1.0)
    shares = torch.bincount(tokens, minlength=3) / 20_000
    # Standard error of a share is below 0.0035.
    assert torch.allclose(shares, torch.softmax(logits[0] / 0.5, 0), atol=0.012)


def test_nucleus_keeps_the_fewest_that_reach_top_p() -> None:
    kept = nucleus(torch.tensor([[0.5, 0.3, 0.15, 0.05]]), 0.6)
    assert kept.tolist()[0] == pytest.approx([0.625, 0.375, 0, 0])
    assert nucleus(torch.tensor([[0.5, 0.3, 0.2]]), 0.5).tolist()[0] == [1, 0, 0]
    assert nucleus(torch.tensor([[0.25, 0.25, 0.5], [0.25, 0.5, 0.25]]), 0.75).sum(-1).tolist() == [1, 1]
    assert (nucleus(torch.tensor([[0.25, 0.25, 0.5]]), 0.75) > 0).sum() == 2
    logits = torch.tensor([[0.15, 0.5, 0.05, 0.3]]).log().expand(3, 4)
    tokens, logprobs = sample_token(logits, torch.tensor([0.01, 0.6, 0.99]), 1.0, 0.6)
    assert tokens.tolist() == [1, 1, 3]
    assert logprobs.exp().tolist() == pytest.approx([0.625, 0.625, 0.375])


def test_responses_are_of_the_nucleus(network: Callable[..., Any]) -> None:
    engine = TorchEngine(network(alphabet="arithmetic"), TOKENIZER, Rollout())
    (greedy,), (nearly,) = (
        engine.generate(PROMPTS[:1], Sampling(1, *how), seed=1) for how in ((0.0, 12), (1.0, 12, 1e-6))
    )
    assert nearly[0].tokens.tolist() == greedy[0].tokens.tolist() and set(nearly[0].logprobs.tolist()) == {0.0}


def test_a_models_own_sampling_settings_change_nothing_but_the_end(network: Callable[..., Any]) -> None:
    """What Qwen's and Llama's folders set for chats would sample another distribution than the trainer's."""
    model = network(alphabet="arithmetic")
    plain = TorchEngine(model, TOKENIZER, Rollout()).generate(PROMPTS, Sampling(2, 0.7, 12), seed=1)
    model.generation_config.update(temperature=0.1, top_p=0.1, top_k=1, min_p=0.5, repetition_penalty=3.0)
    assert TorchEngine(model, TOKENIZER, Rollout()).generate(PROMPTS, Sampling(2, 0.7, 12), seed=1) == plain
    model.generation_config.eos_token_id = [TOKENIZER.eos_token_id, int(plain[0][0].tokens[0])]
    ended = TorchEngine(model, TOKENIZER, Rollout()).generate(PROMPTS, Sampling(2, 0.7, 12), seed=1)[0][0]
    assert (len(ended.tokens), ended.finish_reason) == (1, "stop")
