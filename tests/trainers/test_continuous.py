"""Asynchronous RL of pace continuous, and uniform groups that are replaced while training goes on."""

import json
import threading
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mathrl.core.errors import UserError
from mathrl.core.hashing import derive_seed
from mathrl.core.types import Completion, Graded
from mathrl.learners.distributed import Ranks
from mathrl.models.logprobs import DECODERS, response_logprobs
from mathrl.models.packing import Group
from mathrl.params.responses import DynamicSampling
from mathrl.params.rollout import Rollout
from mathrl.params.run import Prompt
from mathrl.params.train import Asynchronous
from mathrl.rewards.compose import RewardInput, RewardResult
from mathrl.rollout.continuous_batch import ContinuousBatch, NewSequences
from mathrl.rollout.sampler import Sampler
from mathrl.rollout.torch_engine import CopyEngine, TorchEngine
from mathrl.trainers.collect import Collector
from mathrl.trainers.continuous_pool import ContinuousPool
from mathrl.trainers.curriculum import make_order
from mathrl.trainers.pooled_group import GroupPool, PooledGroup
from tests.trainers.small import PROBLEMS, TOKENIZER, CountsOnes, policy, short_rl
from tests.trainers.test_asynchronous import run
from tests.trainers.test_staleness import events, same

CONTINUOUS = Asynchronous(staleness=2, pace="continuous")
PARAMS = short_rl(
    steps=5, checkpoint_every=2, dev={"every": 0}, max_tokens=9, asynchronous=CONTINUOUS, dynamic_sampling={"rounds": 3}
)


class EverySecondUniform(CountsOnes):
    """Of every second problem all responses are wrong, of the others every other response is right."""

    def score(self, items: Sequence[RewardInput]) -> list[RewardResult]:
        right = [n % 2 == 0 and int(item.ground_truth[0]) % 4 == 0 for n, item in enumerate(items)]
        return [replace(each, correct=is_right) for each, is_right in zip(super().score(items), right, strict=True)]


def test_a_killed_run_is_repeated_to_the_bit_without_the_kill(small: Any, tmp_path: Path) -> None:
    reward = EverySecondUniform()
    with pytest.raises(small.Killed):
        run(small, PARAMS, tmp_path / "killed", last=3, kind=CopyEngine, reward=reward)
    rows, model, _ = run(small, PARAMS, tmp_path / "killed", kind=CopyEngine, reward=reward)
    log = events(tmp_path / "killed")
    assert [row["step"] for row in log] == list(range(6)) and log[0]["settings"]["rl.dynamic_sampling"] == 4
    trained, replaced = (
        [number for row in log[1:] for number in row["ranks"][0][name]] for name in ("trained", "replaced")
    )
    assert len(trained) == 20 and set(Counter(trained + replaced).values()) == {1}, "no group is lost or comes twice"
    assert sum(row["rollout/replaced_groups"] for row in rows) == len(replaced) > 0
    assert max(row["rollout/lag_max"] for row in rows) <= 2
    again = Asynchronous(staleness=2, pace="continuous", replay=str(tmp_path / "killed" / "events.jsonl"))
    whole = PARAMS.model_copy(update={"asynchronous": again})
    repeated, other, _ = run(small, whole, tmp_path / "whole", kind=CopyEngine, reward=reward)
    assert repeated == rows and same(model, other) and events(tmp_path / "whole") == log
    free = PARAMS.model_copy(update={"asynchronous": again.model_copy(update={"pace": "free"})})
    with pytest.raises(UserError, match=r"rl\.asynchronous\.(segment_tokens|pace) is .* set it as in the log"):
        run(small, free, tmp_path / "free", kind=CopyEngine)


class Verdicts(CountsOnes):
    """A response is right if it has a 1; grading waits until it may go on."""

    def __init__(self) -> None:
        super().__init__(right_above=0.0)
        self.began, self.may_grade = threading.Event(), threading.Event()
        self.graders, self.limits = set[str](), set[int]()

    def score(self, items: Sequence[RewardInput]) -> list[RewardResult]:
        self.graders.add(threading.current_thread().name)
        self.limits |= {item.max_length for item in items}
        self.began.set()
        assert self.may_grade.wait(300)
        return super().score(items)


def made_pool(spare: int = 0, reward: Any = None, problems: int = 8) -> ContinuousPool:
    """Of one round of four groups of four responses of up to nine tokens; two groups' responses have room at a time."""
    model, sampler = policy()
    sampler = Sampler(TorchEngine(model, TOKENIZER, Rollout(max_sequences=8)), TOKENIZER, Prompt())
    order = make_order(PARAMS.curriculum, PROBLEMS, range(problems), 8, 0)
    prompts = [sampler.prompt_tokens(problem) for problem in PROBLEMS]
    collector = Collector(
        sampler, PROBLEMS, prompts, order, reward or CountsOnes(), None, PARAMS, Ranks(torch.device("cpu"))
    )
    pool = ContinuousPool(collector, 0, 4, spare, lambda step: None)
    pool.add_round()
    pool.add_spare([spare])
    return pool


def finish(pool: GroupPool) -> list[PooledGroup]:
    groups: list[PooledGroup] = []
    while pool.has_work:
        groups += pool.sample()[0]
    return groups


def test_groups_begin_as_responses_end_and_no_pass_is_for_the_longest_response_alone() -> None:
    pool = made_pool()
    pool.engine.ends = [TOKENIZER.eos_token_id, 5, 6, 7]  # responses of many lengths
    pool.sample()
    assert len(pool.running) == 2 and len(pool.pending) == 2, "eight rows are two groups"
    lengths_at_start = []
    while pool.pending:
        under_way = [group for group in pool.running if any(r.completion is None for r in group.responses)]
        before = len(pool.pending)
        pool.sample()
        if len(pool.pending) < before:
            lengths_at_start.append(sum(r.completion is None for group in under_way for r in group.responses))
    assert max(lengths_at_start) > 0, "a group began while others were under way"
    groups = finish(pool)
    responses = [response.completion for group in groups for response in group.responses]
    assert any(each.tokens[-1] == TOKENIZER.eos_token_id for each in responses)
    assert all(each.text == TOKENIZER.decode(each.tokens, skip_special_tokens=True) for each in responses)
    arrays = [(each.tokens, each.logprobs) for each in [*responses, *(g.completion for x in groups for g in x.graded)]]
    assert {tuple(array.dtype for array in pair) for pair in arrays} == {(np.dtype(np.int32), np.dtype(np.float32))}
    assert {len(group.graded) for group in groups} == {4} and pool.batch is not None and not pool.has_work
    tokens = [len(response.tokens) for group in groups for response in group.responses]
    assert pool.segments < -(-sum(tokens) // 4), "more than four of the eight rows are of use in a pass"


def test_each_token_has_the_logprob_of_the_weights_that_sampled_it_also_where_they_arrive_in_flight() -> None:
    pool = made_pool()
    model = pool.engine.model
    first = {name: weight.clone() for name, weight in model.state_dict().items()}
    for _ in range(4):
        pool.sample()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(1.1)
    pool.settle()
    assert pool.update(1, staleness=2) == []
    second = {name: weight.clone() for name, weight in model.state_dict().items()}
    groups = finish(pool)
    assert len(groups) == 4
    versions = [response.versions for group in groups for response in group.responses]
    assert any(len(runs) == 2 for runs in versions), "some go on with the new weights"
    for group in groups:
        for response in group.responses:
            prompt, start = pool._prompt(group), 0
            for version, count in response.versions:
                near, far = [], []
                for weights, found in ((first, near), (second, far)):
                    model.load_state_dict(weights)
                    with torch.no_grad():
                        found += response_logprobs(model, [Group(prompt, [np.array(response.tokens)])])[0].tolist()
                expected, other = (near, far) if version == 0 else (far, near)
                places = slice(start, start + count)
                assert response.logprobs[places] == pytest.approx(expected[places], abs=1e-5)
                assert count < 3 or response.logprobs[places] != pytest.approx(other[places], abs=1e-5)
                start += count
            assert start == len(response.tokens) <= 9
            assert (response.tokens[-1] == TOKENIZER.eos_token_id) == (response.completion.finish_reason == "stop")


def test_responses_go_on_with_their_own_random_numbers_when_weights_arrive() -> None:
    whole, met = made_pool(), made_pool()
    for pool in (whole, met):
        for _ in range(3):
            pool.sample()
    begun = {group.number for group in met.running}
    met.settle()
    met.update(1, staleness=2)  # the weights are equal, so the tokens are too
    tokens = [
        {group.number: [response.tokens for response in group.responses] for group in finish(pool)}
        for pool in (whole, met)
    ]
    assert len(begun) >= 2 and all(tokens[0][number] == tokens[1][number] for number in begun)


def test_sampling_goes_on_while_a_group_is_graded() -> None:
    reward = Verdicts()
    pool = made_pool(reward=reward)
    while pool.startable or any(response.completion is None for group in pool.running for response in group.responses):
        assert pool.sample()[0] == [], "nothing is graded as yet"
    assert len(pool.grading) == len(pool.running) == 4
    threading.Timer(0.1, reward.may_grade.set).start()
    pool.settle()
    assert all(verdicts.done() for verdicts in pool.grading.values())
    assert len(pool.sample()[0]) == 4 and not pool.has_work
    assert all(name.startswith("grading_") for name in reward.graders) and reward.limits == {9}
    pool.close()


def test_a_group_that_is_too_old_is_sampled_again_though_it_is_being_graded() -> None:
    reward = Verdicts()
    pool = made_pool(reward=reward)
    while len(pool.grading) < 4:
        pool.sample()
    assert len(pool.update(3, staleness=2)) == 4 and not pool.grading and not pool.running
    reward.may_grade.set()
    groups = finish(pool)
    assert sorted(group.number for group in groups) == [0, 1, 2, 3] and {group.oldest for group in groups} == {3}
    pool.close()


def test_a_group_that_is_too_old_is_sampled_again_though_not_all_of_it_is_there() -> None:
    pool = made_pool()
    pool.sample()
    assert not pool.grading and len(pool.update(3, staleness=2)) == 2 and len(pool.pending) == 4


def test_a_run_that_ends_early_waits_for_no_grader() -> None:
    reward = Verdicts()
    pool = made_pool(reward=reward)
    while len(pool.grading) < 4:
        pool.sample()
    assert reward.began.wait(300)
    pool.close()
    found = [(each.running(), each.cancelled()) for each in pool.grading.values()]
    reward.may_grade.set()
    assert sorted(found) == [*3 * [(False, True)], (True, False)]


def test_a_pool_needs_a_batch_that_can_be_joined_and_has_rows_for_its_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    collector = made_pool().collector
    assert [ContinuousPool(collector, 0, most, 0, lambda step: None).most_rows for most in (1, 2, 3)] == [4, 8, 8]
    for name, what in (("turns", r"rollout\.tool calls a tool"), ("engine", "vLLM samples")):
        with (
            monkeypatch.context() as patch,
            pytest.raises(UserError, match=f"pace is continuous, but {what}: set pace"),
        ):
            patch.setattr(collector.sampler, name, object())
            ContinuousPool(collector, 0, 4, 0, lambda step: None)


def test_random_numbers_are_of_the_run_the_group_and_the_version_at_which_it_began() -> None:
    random = torch.Generator().manual_seed(derive_seed(0, "rl", 5, 2))
    assert torch.equal(made_pool()._random(PooledGroup(5, 0, 4), 2), torch.rand(4, 9, generator=random))


def test_uniform_groups_are_replaced_as_long_as_there_are_spare_problems() -> None:
    pool = made_pool(spare=2, reward=CountsOnes(right_above=2.0))  # no response is right
    assert (len(pool.pending), pool.startable, pool.used) == (6, 4, 0)
    groups = finish(pool)
    pool.ready += groups
    assert [group.replaced for group in groups] == [True, True, False, False, False, False]
    assert pool.trainable == 4 and pool.used == 2 and not pool.has_work
    state = json.loads(json.dumps(pool.state()))
    taken = pool.take(1)
    assert [group.replaced for group in taken] == [True, True, False] and pool.trainable == 3
    numbers = [group.number for group in taken]
    pool.add_spare([pool.used])
    assert (len(pool.pending), pool.startable, pool.used) == (2, 0, 0)
    again = made_pool(spare=2)
    again.load([state])
    assert (again.trainable, again.startable, again.used) == (4, 0, 2)
    assert [group.number for group in again.take(1)] == numbers, "a resumed run trains and counts as before"
    none = made_pool(reward=CountsOnes(right_above=2.0))
    assert not any(group.replaced for group in finish(none)) and none.used == 0


def test_other_ranks_have_equal_shares_of_the_groups_that_are_trained_on() -> None:
    pool, counts = made_pool(), []
    pool.ready = [PooledGroup(number, 7 - number, 4, replaced=number % 2 == 0) for number in range(8)]
    pool.startable, pool.pending = 0, deque()
    states = [json.loads(json.dumps(pool.state()))]
    for rank in (0, 1):
        dealt = made_pool()
        dealt.collector.ranks.rank, dealt.collector.ranks.world = rank, 2
        dealt.load(states)
        counts.append((len(dealt.ready), dealt.trainable, dealt.startable))
    assert counts == [(4, 2, 0)] * 2


def test_a_group_is_uniform_whose_responses_are_all_right_or_all_wrong() -> None:
    completion = Completion(np.array([5], np.int32), np.array([-1.0], np.float32), "1", "stop")

    def uniform(*verdicts: bool) -> bool:
        graded = [Graded("p", completion, correct, float(correct), {}, None, "") for correct in verdicts]
        return PooledGroup(0, 0, len(graded), graded=graded).uniform

    assert uniform(True, True) and uniform(False, False) and not uniform(True, False)


def test_groups_begin_when_an_eighth_of_the_rows_is_free() -> None:
    pool = made_pool()
    pool.most_rows = 64
    pool._batch().names = list(range(64))
    pool._batch().going = 57
    assert pool._new_sequences() == [], "four of seven free rows are not worth a joining"
    pool._batch().going = 56
    assert [len(sequences.names) for sequences in pool._new_sequences()] == [4, 4]


def test_sequences_that_join_cost_their_own_prompt_alone() -> None:
    model, _ = policy()
    batch, random = ContinuousBatch(TorchEngine(model, TOKENIZER, Rollout()), 1.0, 9), torch.full((2, 9), 0.5)
    tokens: list[int] = []
    model.get_input_embeddings().register_forward_hook(lambda module, given, output: tokens.append(given[0].numel()))
    batch.step([NewSequences([5, 6, 7, 8], [0], random[:1])])
    batch.step([NewSequences([7, 8, 9, 10, 11, 12], [1], random[1:])])
    assert tokens == [8, 1, 8], "prompts are padded to eight; the first goes on by a token from what is kept of it"


@pytest.mark.parametrize(("temperature", "joins"), [(0.5, True), (1.0, False)], ids=["", "run again"])
def test_a_batch_gives_each_sequence_its_own_tokens_whatever_joins_and_leaves(
    temperature: float, joins: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with a decoder that no sequence can join, which runs all of them again."""
    if not joins:
        monkeypatch.setattr("mathrl.rollout.continuous_batch.make_decoder", DECODERS["cached"])
    model, _ = policy()
    engine = TorchEngine(model, TOKENIZER, Rollout())
    prompts = [[5, 6, 7, 8], [7, 8, 9, 10, 11, 12], [6, 7]]
    random = torch.rand(3, 9, generator=torch.Generator().manual_seed(0))

    def sampled(starts: Sequence[int]) -> dict[int, tuple[list[int], list[float]]]:
        """By prompt, where prompt n joins at step starts[n]."""
        batch, found, step = ContinuousBatch(engine, temperature, 9), {}, 0
        while len(found) < 3:
            new = [NewSequences(prompts[n], [n], random[n, None]) for n in range(3) if starts[n] == step]
            for part in batch.step(new):
                found[part.name] = (part.tokens, part.logprobs)
            step += 1
        return found

    together, apart, later = sampled([0, 0, 0]), sampled([0, 3, 5]), sampled([0, 3, 10])
    for n in range(3):
        assert later[n][0] == apart[n][0], "also where the first has ended before the last joins"
        assert together[n][0] == apart[n][0] and together[n][1] == pytest.approx(apart[n][1], abs=1e-5)
        group = Group(tuple(prompts[n]), (np.array(apart[n][0]),))
        expected = response_logprobs(model, [group], temperature)[0].tolist()
        assert apart[n][1] == pytest.approx(expected, abs=1e-5)
        limit = ContinuousBatch(engine, temperature, 9)
        rest = limit.step([NewSequences([*prompts[n], *apart[n][0][:1]], [n], random[n, None], 1)])
        tokens = [token for part in [*rest, *limit.parts()] for token in part.tokens]
        assert tokens == apart[n][0][1:2], "a sequence goes on from its tokens with its own random numbers"


def test_ended_sequences_leave_before_they_outgrow_their_room_or_once_they_are_many() -> None:
    """Token 0 ends a sequence; a random number of 0 gives it, one of 0.5 another token."""
    engine = TorchEngine(policy()[0], TOKENIZER, Rollout())
    engine.ends = [0]
    random = torch.full((10, 9), 0.5)
    random[0, 5] = 0  # the first joins with five tokens of nine, and ends with its sixth
    random[8:, 4] = 0  # two more end with their fifth
    batch, rows, ended = ContinuousBatch(engine, 1.0, 9), [], []
    new = [NewSequences([7, 8, 9, 10, 11, 12], [0], random[:1], 5), NewSequences([7], list(range(1, 10)), random[1:])]
    for step in range(9):
        ended += [(step, part.name, part.reason) for part in batch.step(new if step == 0 else [])]
        rows.append(len(batch.names))
    # It has room for three more passes; two of nine are more than an eighth.
    assert rows == [10, 10, 10, 9, 9, 7, 7, 7, 7]
    assert ended[:3] == [(0, 0, "stop"), (4, 8, "stop"), (4, 9, "stop")]
    assert ended[3:] == [(8, name, "length") for name in range(1, 8)] and batch.passes == 9


def test_an_ended_sequence_leaves_once_it_is_an_eighth_of_the_batch() -> None:
    engine = TorchEngine(policy()[0], TOKENIZER, Rollout())
    engine.ends = [0]
    random = torch.full((9, 9), 0.5)
    random[0, 0] = 0  # the first ends with its first token
    for count, rows in ((8, [8, 7]), (9, [9, 9])):
        batch = ContinuousBatch(engine, 1.0, 9)
        batch.step([NewSequences([7], list(range(count)), random[:count])])
        before = len(batch.names)
        batch.step([])
        assert [before, len(batch.names)] == rows


def test_what_is_whole_is_whole_after_a_checkpoint_and_what_grows_goes_on_growing() -> None:
    pool = made_pool()
    pool.engine.ends = [TOKENIZER.eos_token_id, 5, 6, 7]
    for _ in range(2):
        pool.sample()
    pool.update(1, staleness=2)
    for group in pool.running:
        again = PooledGroup.from_row(json.loads(json.dumps(group.to_row())))
        for ours, other in zip(group.responses, again.responses, strict=True):
            assert vars(ours) == vars(other)
    assert len({response.completion is None for group in pool.running for response in group.responses}) == 2


def test_the_number_of_spare_prompts() -> None:
    assert [DynamicSampling(rounds=1).spare(8), DynamicSampling(rounds=2, prompts_per_round=24).spare(8)] == [0, 8]
