"""Asynchronous RL at a free pace: equal to the synchronous run at staleness 0, bounded, replayed and resumed."""

import copy
import hashlib
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from mathrl.core.errors import UserError
from mathrl.core.metrics import without_timings
from mathrl.core.types import Completion, Graded
from mathrl.learners.distributed import Ranks
from mathrl.models.logprobs import response_logprobs
from mathrl.models.packing import Group
from mathrl.params.curriculum import PassRate
from mathrl.params.rollout import Rollout
from mathrl.params.run import Prompt
from mathrl.params.train import Asynchronous, Dev, Rl
from mathrl.rollout.sampler import Sampler
from mathrl.rollout.torch_engine import CopyEngine
from mathrl.trainers.collect import Collector
from mathrl.trainers.curriculum import make_order
from mathrl.trainers.pooled_group import GroupPool, PartialResponse, PooledGroup, groups_digest
from mathrl.trainers.rl import train_rl
from mathrl.trainers.rollout_stream import EventLog
from tests.learners.test_shares import Threads, together
from tests.trainers.small import short_rl
from tests.trainers.test_asynchronous import run

NO_DEV = Dev(every=0)
FREE = short_rl(
    steps=6,
    checkpoint_every=2,
    dev={"every": 3},
    asynchronous=Asynchronous(staleness=2, segment_tokens=3),
    max_tokens=9,
)


def same(model: Any, other: Any) -> bool:
    pairs = zip(model.state_dict().values(), other.state_dict().values(), strict=True)
    return all(torch.equal(ours, theirs) for ours, theirs in pairs)


def events(state: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (state / "events.jsonl").read_text().splitlines()]


def with_segments(monkeypatch: pytest.MonkeyPatch, *counts: int) -> None:
    """The sampler has sampled so many segments before each update, whatever the machine's speed."""
    monkeypatch.setattr(EventLog, "segments", lambda self, step: counts[step - 1])


def test_staleness_0_equals_the_synchronous_run_to_the_bit(small: Any, tmp_path: Path) -> None:
    params = short_rl(steps=3, dev={"every": 2, "samples": 8}, curriculum=PassRate(), minibatches=2)
    _, rows, model = small.run(params, tmp_path / "synchronous", dev=small.PROBLEMS[:2])
    apart = params.model_copy(update={"asynchronous": Asynchronous(staleness=0)})
    others, other, engine = run(small, apart, tmp_path / "asynchronous")
    assert same(model, other) and len(rows) == len(others) == 3
    for row, found in zip(rows, others, strict=True):
        assert row == {name: found[name] for name in row}
        assert found["rollout/lag"] == found["rollout/lag_max"] == found["rollout/dropped_groups"] == 0
    assert [len(prompts) for _, prompts, *_ in engine.drawn] == [4] * 3
    ahead = params.model_copy(update={"asynchronous": Asynchronous(pace="fixed")})
    assert not same(model, run(small, ahead, tmp_path / "ahead")[1]), "the comparison can fail"


class Recorded(CopyEngine):
    """Keeps the weights of each sync."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.synced: list[dict[str, torch.Tensor]] = []

    def sync(self, weights: Any) -> str:
        message = super().sync(weights)
        self.synced.append({name: weight.clone() for name, weight in self.model.state_dict().items()})
        return message


def test_each_token_of_a_partial_response_has_the_logprob_of_its_own_versions_weights(
    small: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_segments(monkeypatch, 4, 7, 11, 14, 17, 18)
    taken: list[PooledGroup] = []
    keep_keys, update = [], GroupPool.update

    def watched(self: GroupPool, version: int, staleness: int) -> list[PooledGroup]:
        keep_keys.append(any(each.kept for group in self.running for each in group.responses))
        return update(self, version, staleness)

    monkeypatch.setattr(GroupPool, "update", watched)
    monkeypatch.setattr("mathrl.trainers.rollout_stream.groups_digest", lambda groups: taken.extend(groups) or "digest")
    rows, model, engine = run(small, FREE.model_copy(update={"dev": NO_DEV}), tmp_path, kind=Recorded)
    assert any(keep_keys), "responses continue from what was computed"
    assert len(taken) == 24
    several = 0
    for group in taken:
        prompt = small.policy()[1].prompt_tokens(small.PROBLEMS[group.problem])
        for response in group.responses:
            assert sum(count for _, count in response.versions) == len(response.tokens) <= 9
            several += len(response.versions) > 1
            start = 0
            for version, count in response.versions:
                expected, others = [], []
                for number, found in ((version, expected), (version + 1, others)):
                    model.load_state_dict(engine.synced[number])
                    with torch.no_grad():
                        found += response_logprobs(model, [Group(prompt, [np.array(response.tokens)])])[0].tolist()
                places = slice(start, start + count)
                assert response.logprobs[places] == pytest.approx(expected[places], abs=1e-5)
                if count == 3:
                    assert response.logprobs[places] != pytest.approx(others[places], abs=1e-5)
                start += count
    assert several > 20
    assert 0.5 < max(row["rollout/partial_share"] for row in rows) <= 1
    assert max(row["rollout/lag_max"] for row in rows) <= 2 and max(row["rollout/lag"] for row in rows) > 0


def test_groups_that_are_too_old_are_dropped_counted_and_sampled_again(
    small: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = {tuple(small.policy()[1].prompt_tokens(small.PROBLEMS[number])) for number in (0, 1)}

    class Slow(CopyEngine):
        """Responses to two of the problems take all segments, the others end with their first token."""

        def generate(self, prompts: Any, sampling: Any, *rest: Any, **more: Any) -> Any:
            groups = super().generate(prompts, sampling, *rest, **more)
            if sampling.max_tokens != 3:  # the canary, dev
                return groups
            return [
                [
                    replace(each, finish_reason="length" if tuple(prompt[:4]) in starts else "stop")
                    for each in group
                    if len(each.tokens)
                ]
                for prompt, group in zip(prompts, groups, strict=True)
            ]

    starts = {prompt[:4] for prompt in long}
    params = FREE.model_copy(
        update={"steps": 8, "dev": NO_DEV, "asynchronous": Asynchronous(staleness=1, segment_tokens=3)}
    )
    with_segments(monkeypatch, 2, 4, 6, 8, 10, 12, 16, 20)
    rows, *_ = run(small, params, tmp_path, kind=Slow)
    log = events(tmp_path)[1:]
    dropped = [number for row in log for number in row["ranks"][0]["dropped"]]
    assert sum(row["rollout/dropped_groups"] for row in rows) == len(dropped) > 0
    trained = Counter(number for row in log for number in row["ranks"][0]["trained"])
    assert trained == Counter(range(32)), "each problem's turn is trained on once, dropped or not"
    assert max(row["rollout/lag_max"] for row in rows) == 1


SIZES: dict[str, Any] = {"group_size": 2, "max_tokens": 6, "dev": {"every": 0}}


class Summing(Threads):
    def sum_(self, tensor: torch.Tensor) -> None:
        tensor.copy_(torch.stack(self.gather(tensor.clone())).sum(0))


@pytest.mark.parametrize("pace", ["free", "continuous"])
def test_two_ranks_sample_own_groups_and_train_on_all_again_and_resumed(small: Any, tmp_path: Path, pace: str) -> None:
    own, dynamic = ({"segment_tokens": None, "pace": pace}, {"rounds": 2}) if pace == "continuous" else ({}, None)
    steps, log, start = 3, tmp_path / "run" / "events.jsonl", small.policy()[0]

    def two(name: str, last: int = steps, **replay: Any) -> tuple[list[dict[str, float]], list[torch.Tensor]]:
        paced = {"asynchronous": {"staleness": 1, **own, **replay}, "dynamic_sampling": dynamic}
        params = small.changed(FREE, **SIZES, steps=steps, **paced)

        def work(ranks: Ranks) -> torch.Tensor:
            model = copy.deepcopy(start)  # not made in threads, which would share its random numbers
            engine = CopyEngine(copy.deepcopy(start), small.TOKENIZER, Rollout(), 1e-4)
            sampler = Sampler(engine, small.TOKENIZER, Prompt())
            given = replace(small.training_run(tmp_path / name, last), ranks=ranks)
            train_rl(model, sampler, small.PROBLEMS, (), small.CountsOnes(), params, given)
            return torch.cat([weight.detach().flatten() for weight in model.parameters()])

        weights = together(2, work, Summing)
        return without_timings(tmp_path / name / "metrics.jsonl"), weights

    rows, weights = two("run")
    assert torch.equal(*weights)
    told = events(tmp_path / "run")
    assert told[0]["settings"]["run.processes"] == 2 and [len(row["ranks"]) for row in told[1:]] == [2] * steps
    trained = [[number for row in told[1:] for number in row["ranks"][rank]["trained"]] for rank in (0, 1)]
    if dynamic is None:
        assert sorted(trained[0]) == list(range(0, 4 * steps, 2)) and sorted(trained[1]) == list(range(1, 4 * steps, 2))
    else:
        replaced = [number for row in told[1:] for rank in row["ranks"] for number in rank["replaced"]]
        assert len({*trained[0], *trained[1], *replaced}) == 4 * steps + len(replaced) > 4 * steps
    with pytest.raises(small.Killed):
        two("again", last=2, replay=str(log))
    resumed, others = two("again", replay=str(log))
    assert resumed == rows and torch.equal(others[0], weights[0]) and torch.equal(*others)
    assert events(tmp_path / "again") == told


def test_other_ranks_than_the_first_write_no_log(tmp_path: Path) -> None:
    EventLog(tmp_path / "events.jsonl", {"run.processes": 2}, 1, None, None).write(1, [{}, {}])
    assert not list(tmp_path.iterdir())


def test_the_digest_is_of_all_that_a_step_trains_on() -> None:
    def digest(problem: int = 17, **changes: Any) -> str:
        given = {"tokens": (5, 9), "logprobs": (-0.5, -0.25), "versions": [(3, 2)], "reward": 1.0} | changes
        completion = Completion(given["tokens"], given["logprobs"], "", "stop")
        graded = Graded("p", completion, True, given["reward"], {}, None, "")
        response = PartialResponse(versions=given["versions"], completion=completion)
        return groups_digest([PooledGroup(64, problem, 1, [response], [graded])])

    changes: list[dict[str, Any]] = [
        {"problem": 18}, {"tokens": (5, 8)}, {"logprobs": (-0.5, -0.125)}, {"versions": [(2, 2)]}, {"reward": 0.0},
    ]  # fmt: skip
    found = [digest(), *(digest(**each) for each in changes)]
    assert len(set(found)) == 6 and digest() == found[0] and {len(each) for each in found} == {16}
    assert groups_digest([]) == hashlib.sha256(b"").hexdigest()[:16]


def test_a_replay_that_is_another_run_is_refused(small: Any, tmp_path: Path) -> None:
    short = FREE.model_copy(update={"steps": 3, "dev": NO_DEV})
    run(small, short, tmp_path / "run")
    log = events(tmp_path / "run")

    def replay(name: str, rows: list[Any], **changes: Any) -> None:
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
        asynchronous = short.asynchronous.model_copy(update={"replay": str(tmp_path / name)})  # type: ignore[union-attr]
        run(small, short.model_copy(update={"asynchronous": asynchronous, **changes}), tmp_path / f"{name} state")

    with pytest.raises(UserError, match=r"rl\.group_size is 4 there and 2 here; set it as in the log"):
        replay("size", log, group_size=2)
    with pytest.raises(UserError, match=r"not a log of events; name the events\.jsonl of a run's record"):
        replay("metrics", [{"step": 1, "loss": 0.0}])
    with pytest.raises(UserError, match=r"no events of step 3, the last is of step 2: set rl\.steps to that"):
        replay("cut", log[:3])
    with pytest.raises(UserError, match=r"resumed with run\.processes 2 before step 3 .* set rl\.steps to 2"):
        replay("ranks", [*log[:3], {"step": 3, "ranks": log[3]["ranks"] * 2}])
    log[2]["ranks"][0]["digest"] = "0" * 16
    with pytest.raises(UserError, match="step 2 departs from the log at rank 0: digest differ"):
        replay("digest", log)
    with pytest.raises(UserError, match=r"rl\.asynchronous\.replay: .*none: no such file"):
        missing = Asynchronous(replay=str(tmp_path / "none"))
        run(small, short.model_copy(update={"asynchronous": missing}), tmp_path / "none state")


def test_a_killed_run_loses_no_group_stays_within_the_bound_and_is_repeated_to_the_bit(
    small: Any, tmp_path: Path
) -> None:
    with pytest.raises(small.Killed):
        run(small, FREE, tmp_path / "killed", last=3)
    rows, model, _ = run(small, FREE, tmp_path / "killed")
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5, 6]
    log = events(tmp_path / "killed")
    assert [row["step"] for row in log] == list(range(7))
    trained = Counter(number for row in log[1:] for number in row["ranks"][0]["trained"])
    assert trained == Counter(range(24)) and max(row["rollout/lag_max"] for row in rows) <= 2
    again = Asynchronous(staleness=2, segment_tokens=3, replay=str(tmp_path / "killed" / "events.jsonl"))
    replayed, other, _ = run(small, FREE.model_copy(update={"asynchronous": again}), tmp_path / "replay")
    assert replayed == rows and same(model, other), "the interruption changed no bit"
    assert events(tmp_path / "replay") == log and log[0]["settings"] == {
        "run.seed": 0, "run.processes": 1, "rl.prompts_per_step": 4, "rl.group_size": 4, "rl.max_tokens": 9,
        "rl.asynchronous.staleness": 2, "rl.asynchronous.segment_tokens": 3,
    }  # fmt: skip
    for row in log[1:]:
        assert row.keys() == {"step", "ranks"} and len(row["ranks"]) == 1
        assert row["ranks"][0].keys() == {"segments", "arrived", "trained", "dropped", "digest"}


def made_pool(small: Any) -> GroupPool:
    """Of four groups, of which three have room; a segment has three tokens, a response nine."""
    _, sampler = small.policy()
    sampler.engine.rollout = Rollout(max_sequences=5)
    params, problems = short_rl(max_tokens=9), small.PROBLEMS
    order = make_order(params.curriculum, problems, range(8), 8, 0)
    prompts = [sampler.prompt_tokens(problem) for problem in problems]
    ranks = Ranks(torch.device("cpu"))
    pool = GroupPool(Collector(sampler, problems, prompts, order, small.CountsOnes(), None, params, ranks), 0, 3, 3, 0)
    pool.add_round()
    return pool


def test_groups_that_grow_too_old_while_they_are_sampled_begin_again(small: Any) -> None:
    pool = made_pool(small)
    turns = [(group.number, group.problem, group.size) for group in pool.pending]
    pool.sample()
    assert pool.update(1, staleness=1) == [] and len(pool.running) == 3
    running = list(pool.running)
    assert pool.update(2, staleness=1) == running and pool.running == []
    assert [(group.number, group.problem, group.size) for group in pool.pending] == turns, "first again, in their order"
    assert not any(group.responses for group in pool.pending)
    whole = [group for _ in range(6) for group in pool.sample()[0]]
    assert sorted(group.number for group in whole) == [0, 1, 2, 3] and not pool.has_work
    assert {version for group in whole for version in group.tokens} == {2}
    assert pool.arrived == [group.event() for group in whole]
    pool.ready = list(whole)
    assert pool.update(4, staleness=1) == whole and pool.ready == [], "nor is one trained on that waited too long"


def test_keys_are_kept_of_as_many_responses_as_a_batch_has_and_of_none_that_is_whole(
    small: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = made_pool(small)

    def responses(kept: bool) -> int:
        all_of_it = [response for group in pool.running for response in group.responses]
        return sum(response.completion is None if not kept else response.kept is not None for response in all_of_it)

    given: list[tuple[Any, ...]] = []
    generate = pool.collector.sampler.engine.generate

    def watched(prompts: Any, sampling: Any, *rest: Any, **named: Any) -> Any:
        given.append(sampling.kept)
        return generate(prompts, sampling, *rest, **named)

    monkeypatch.setattr(pool.collector.sampler.engine, "generate", watched)
    for tokens in (3, 6):
        assert pool.sample()[0] == [] and len(pool.running) == 3 and len(pool.pending) == 1
        assert responses(kept=False) > 5 == responses(kept=True), "and a group waits for room"
        assert max(len(response.tokens) for group in pool.running for response in group.responses) == tokens
    assert [sum(keys is not None for keys in kept) for kept in given] == [0, 5], "responses go on from their keys"
    assert pool.update(1, staleness=8) == [] and responses(kept=True) == 0, "keys are of the weights before"
    whole, seconds = pool.sample()
    assert [len(group.graded) for group in whole] == [4] * 3 and pool.running == [] and pool.has_work
    done = [response for group in whole for response in group.responses if response.completion is not None]
    assert len(done) == 12 and all(response.kept is None for response in done)
    ends = set()
    for tokens, completion in ((response.tokens, response.completion) for response in done):
        assert completion is not None and completion.tokens.tolist() == tokens
        assert completion.text == small.TOKENIZER.decode(tokens, skip_special_tokens=True)
        assert (completion.finish_reason == "stop") == (tokens[-1] == small.TOKENIZER.eos_token_id)
        ends.add((completion.finish_reason, len(tokens) > 3))
    assert {("stop", True), ("length", True)} <= ends, "responses of more than a segment end in either way"
    assert min(seconds["generation"], seconds["reward"]) > 0 == seconds["tools"]
    pool.sample()
    assert len(pool.running) == 1 and not pool.pending and pool.segments == 4


def test_the_state_for_a_checkpoint_does_not_change_while_responses_grow() -> None:
    def completion(*tokens: int) -> Completion:
        return Completion(np.array(tokens, np.int32), np.zeros(len(tokens), np.float32), "", "length")

    response = PartialResponse()
    response.add(completion(5, 9), 3)
    row, written = response.to_row(), json.dumps(response.to_row())
    response.add(completion(2), 3)
    response.add(completion(4), 4)
    assert json.dumps(row) == written != json.dumps(response.to_row())


def test_a_group_on_its_way_knows_by_whom_its_tokens_are() -> None:
    def response(*versions: tuple[int, int]) -> PartialResponse:
        return PartialResponse(versions=list(versions))

    group = PooledGroup(64, 17, 3, [response((3, 2), (4, 1)), response((4, 5)), response((0, 1), (3, 2), (5, 6))])
    assert group.tokens == {0: 1, 3: 4, 4: 6, 5: 6} and group.oldest == 0
    assert group.event() == [64, 17, [[(3, 2), (4, 1)], [(4, 5)], [(0, 1), (3, 2), (5, 6)]]]


def test_groups_are_dealt_to_another_number_of_ranks(small: Any, tmp_path: Path) -> None:
    def pool(rank: int, world: int) -> GroupPool:
        place = SimpleNamespace(ranks=SimpleNamespace(rank=rank, world=world))
        return GroupPool(place, 0, 3, 4, 0)  # type: ignore[arg-type]

    first = pool(0, 1)
    first.pending.extend(PooledGroup(number, problem=9 - number, size=2) for number in range(12))
    first.version, first.segments, first.numbered, first.startable = 3, 7, 12, 12
    states = [json.loads(json.dumps(first.state()))]
    for world in (3, 2, 1):
        pools = [pool(rank, world) for rank in range(world)]
        for each in pools:
            each.load(states)
        assert {len(each.pending) for each in pools} == {each.startable for each in pools} == {12 // world}
        assert sorted(group.number for each in pools for group in each.pending) == list(range(12))
        assert {(each.version, each.segments, each.numbered) for each in pools} == {(3, 7, 12)}
        states = [json.loads(json.dumps(each.state())) for each in pools]
    del states[0]["startable"]  # as in checkpoints of before spare groups
    pools[0].load(states)
    assert pools[0].startable == 12
    assert Rl(asynchronous=Asynchronous(staleness=8))
