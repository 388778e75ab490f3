"""Responses in turns: every turn is a plain call of the engine; limits hold; how long a tool takes changes nothing."""

import threading
import time
from dataclasses import replace
from typing import Any

import pytest
import torch

from mathrl.core.types import Completion
from mathrl.models.attention import DecodeCache
from mathrl.models.base import character_tokenizer, fresh_network
from mathrl.models.logprobs import response_logprobs
from mathrl.models.packing import Group
from mathrl.params.rollout import Rollout, Turns
from mathrl.params.run import FreshModel
from mathrl.rollout.call_formats import Asked
from mathrl.rollout.engine import Sampling
from mathrl.rollout.torch_engine import TorchEngine
from mathrl.rollout.turns import Response, TurnSampler, wave_seed
from mathrl.tools.tool import ToolOutput
from mathrl.trainers.rollout_stream import SamplerThread
from tests.rollout.calculator import Calculator, CalculatorSession, Equations

TOKENIZER = character_tokenizer(FreshModel(alphabet="arithmetic", marks=()))
PROMPTS = [TOKENIZER.encode(text) for text in ("7+5", "1", "12*(3+4)", "9-8")]
MOST = 48
SAMPLING = Sampling(12, 1.0, MOST)


@pytest.fixture
def engine() -> TorchEngine:
    """Near uniform over the characters, so that every other response has a `=`."""
    torch.set_num_threads(1)
    base = FreshModel(
        hidden_size=32, intermediate_size=48, layers=2, heads=4, kv_heads=2, alphabet="arithmetic", marks=()
    )
    model = fresh_network(base, TOKENIZER, seed=1).eval()
    for weight in model.parameters():
        if weight.dim() > 1:
            weight.data.mul_(3)
    return TorchEngine(model, TOKENIZER, Rollout(max_sequences=16))


def turn_sampler(engine: TorchEngine, tool: Any, **params: Any) -> TurnSampler:
    sampler = TurnSampler(engine, TOKENIZER, tool, Turns(**params))
    sampler.format = Equations()
    return sampler


def test_a_sequence_stops_at_a_string_and_is_else_as_without(engine: TorchEngine) -> None:
    plain = engine.generate(PROMPTS, SAMPLING, 3)
    told = {}

    def ended(prompt: int, sample: int, tokens: Any, reason: str, keep: Any) -> None:
        told[prompt, sample] = (tokens, reason)

    stopped = engine.generate(PROMPTS, replace(SAMPLING, stop=("=", "12")), 3, on_end=ended)
    assert told == {
        (prompt, sample): (each.tokens.tolist(), each.finish_reason)
        for prompt, group in enumerate(stopped)
        for sample, each in enumerate(group)
        if each.finish_reason != "length"
    }
    pairs = [pair for groups in zip(plain, stopped, strict=True) for pair in zip(*groups, strict=True)]
    stops = [cut for _, cut in pairs if cut.finish_reason == "stop_string"]
    assert 5 < len(stops) < len(pairs) and {cut.text[-1] for cut in stops} == {"=", "2"}
    for free, cut in pairs:
        first = next((n for n in range(len(free.text) + 1) if free.text[:n].endswith(("=", "12"))), len(free.text))
        assert cut.text == free.text[:first]
        assert (cut.finish_reason == "stop_string") == cut.text.endswith(("=", "12"))
        assert free.tokens.tolist()[: len(cut.tokens)] == cut.tokens.tolist()
        assert cut.finish_reason == "stop_string" or cut.finish_reason == free.finish_reason


def test_limits_of_prompts_cut_their_responses_alone(engine: TorchEngine) -> None:
    free = engine.generate(PROMPTS, SAMPLING, 3)
    limits = (MOST, 5, 1, 17)
    cut = engine.generate(PROMPTS, replace(SAMPLING, limits=limits), 3)
    for limit, before, after in zip(limits, free, cut, strict=True):
        for whole, part in zip(before, after, strict=True):
            assert part.tokens.tolist() == whole.tokens.tolist()[:limit]
            assert (part.finish_reason == "stop") == (whole.finish_reason == "stop" and len(whole.tokens) <= limit)


def test_every_turn_is_a_plain_call_of_the_engine(engine: TorchEngine) -> None:
    tool, most = Calculator(), 80  # room for the words that refuse a call
    free = replace(SAMPLING, max_tokens=most)
    groups = turn_sampler(engine, tool, max_calls=1).generate(PROMPTS, free, 3)
    assert tool.runs > 10 and not tool.open
    flat = [(prompt, completion) for prompt, group in zip(PROMPTS, groups, strict=True) for completion in group]

    def check(pairs: list[tuple[list[int], Completion]], turn: int, plain: list[Completion]) -> None:
        for (_, completion), expected in zip(pairs, plain, strict=True):
            start = completion.calls[turn - 1].end if turn else 0
            assert completion.tokens[start : start + len(expected.tokens)].tolist() == expected.tokens.tolist()
            # Keys of the prefix are kept from the turn before; the plain call reads it in another order of sums.
            part = completion.logprobs[start : start + len(expected.tokens)]
            assert part.tolist() == pytest.approx(expected.logprobs.tolist(), rel=0, abs=2e-6 if turn else 0)

    stops = replace(free, stop=("=",))
    check(flat, 0, [c for group in engine.generate(PROMPTS, stops, 3) for c in group])
    for turn in (1, 2):  # the second call is refused, and what follows it stops no more
        pairs = [pair for pair in flat if len(pair[1].calls) >= turn and pair[1].calls[turn - 1].end < most]
        prefixes = [[*prompt, *completion.tokens[: completion.calls[turn - 1].end]] for prompt, completion in pairs]
        limits = tuple(most - completion.calls[turn - 1].end for _, completion in pairs)
        sampling = Sampling(1, 1.0, max(limits), stop=("=",) if turn < 2 else (), limits=limits)
        plain = engine.generate(prefixes, sampling, wave_seed(3, 0, turn, turn == 2))
        check(pairs, turn, [group[0] for group in plain])
    assert {call.status for _, completion in flat for call in completion.calls} == {"ok", "error", "limit"}


def test_log_probs_of_the_sampled_tokens_are_the_models(engine: TorchEngine) -> None:
    groups = turn_sampler(engine, Calculator()).generate(PROMPTS, SAMPLING, 4)
    packed = [
        Group(prompt, [c.tokens for c in group], [c.sampled_mask for c in group])
        for prompt, group in zip(PROMPTS, groups, strict=True)
    ]
    expected, _ = response_logprobs(engine.model, packed)
    sampled = torch.cat([torch.from_numpy(c.logprobs[c.sampled_mask]) for group in groups for c in group])
    assert torch.allclose(sampled, expected, atol=2e-4)
    for completion in (c for group in groups for c in group):
        assert not completion.logprobs[~completion.sampled_mask].any()
        assert len(completion.tokens) <= MOST
        assert completion.text == TOKENIZER.decode(completion.tokens.tolist(), skip_special_tokens=True)
        for call in completion.calls:
            written = TOKENIZER.decode(completion.tokens[call.start : call.end].tolist())
            assert f"{call.output};".startswith(written) and written


class Rereading(TorchEngine):
    """Runs the whole prefix of a continued response."""

    def generate(self, prompts: Any, sampling: Sampling, *args: Any, **kwargs: Any) -> Any:
        return super().generate(prompts, replace(sampling, kept=()), *args, **kwargs)


class Counting(TorchEngine):
    """Notes of how many responses something was kept at each call."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.kept: list[int] = []
        self.prompts: list[int] = []

    def generate(self, prompts: Any, sampling: Sampling, *args: Any, **kwargs: Any) -> Any:
        self.prompts.append(len(prompts))
        self.kept.append(sum(keys is not None for keys in sampling.kept))
        assert not sampling.limits or (sampling.samples, sampling.max_tokens) == (1, max(sampling.limits))
        return super().generate(prompts, sampling, *args, **kwargs)


class Nines(Equations):
    """Stops at every other character, and only what has a nine is a call."""

    def calls(self, turn: str) -> list[Asked]:
        return super().calls(turn) if "9" in turn else []


# Of 16 sequences some responses are not kept, and read again beside the others. Nines: stops that are no calls.
@pytest.mark.parametrize(("sequences", "form"), [(16, Equations()), (64, Nines("=", "1"))])
def test_a_turn_goes_on_from_what_was_computed_and_gives_what_a_reread_gives(
    engine: TorchEngine, sequences: int, form: Equations
) -> None:
    rollout = Rollout(max_sequences=sequences)
    read: list[int] = []

    def count(module: Any, args: Any, inputs: Any) -> None:
        if not isinstance(inputs["layout"], DecodeCache):  # one token per sequence, in either way
            read.append(inputs["input_ids"].numel())

    engine.model.register_forward_pre_hook(count, with_kwargs=True)
    found = []
    own = Counting(engine.model, TOKENIZER, rollout)
    for sampling_engine in (own, Rereading(engine.model, TOKENIZER, rollout)):
        sampler = turn_sampler(sampling_engine, Calculator(), max_calls=3)
        sampler.format = form
        read.append(0)
        found.append((sampler.generate(PROMPTS, SAMPLING, 1), sum(read)))
        read.clear()
        assert sampler.room_to_keep == sequences, "nothing is kept of a response that has ended"
    assert sequences >= max(own.kept) >= 16
    if sequences == 64:
        assert own.kept[1:] == own.prompts[1:], "whatever goes on goes on from what was computed"
    (continued, fewer), (reread, more) = found
    assert fewer < 0.6 * more
    for one, other in zip((c for g in continued for c in g), (c for g in reread for c in g), strict=True):
        assert one.tokens.tolist() == other.tokens.tolist() and one.calls == other.calls
        assert one.logprobs.tolist() == pytest.approx(other.logprobs.tolist(), rel=0, abs=2e-6)


@pytest.mark.parametrize("room", [1, 2])
def test_what_ends_with_its_last_token_calls_nothing(engine: TorchEngine, room: int) -> None:
    tool = Calculator()
    sampler = turn_sampler(engine, tool, max_calls=3)
    responses = [each for group in sampler.generate(PROMPTS, replace(SAMPLING, max_tokens=room), 3) for each in group]
    assert any(len(each.tokens) == room and each.text.endswith("=") for each in responses)
    assert tool.runs == sum(len(each.calls) for each in responses) and sampler.room_to_keep == 16


def test_a_response_goes_on_after_an_answer_that_leaves_room_for_one_token(engine: TorchEngine) -> None:
    def sampled(room: int) -> list[Completion]:
        groups = turn_sampler(engine, Calculator()).generate(PROMPTS, Sampling(4, 1.0, room), 3)
        return [each for group in groups for each in group]

    number, end = next((n, each.calls[0].end) for n, each in enumerate(sampled(40)) if each.calls)
    cut = sampled(end + 1)[number]
    assert cut.calls[-1].end == end and len(cut.tokens) == end + 1 and cut.sampled_mask[-1]


class Mistaken(Equations):
    """A call with a nine in it is none."""

    def calls(self, turn: str) -> list[Asked]:
        return [replace(call, mistake="no nines") if "9" in turn else call for call in super().calls(turn)]


def test_a_call_that_is_none_is_answered_with_its_mistake_and_runs_nothing(engine: TorchEngine) -> None:
    tool = Calculator()
    sampler = turn_sampler(engine, tool, max_calls=3)
    sampler.format = Mistaken()
    calls = [call for group in sampler.generate(PROMPTS, SAMPLING, 3) for each in group for call in each.calls]
    mistakes = [call for call in calls if "9" in call.code and call.status != "limit"]
    assert mistakes and all((c.output, c.status, c.seconds) == ("no nines", "error", 0.0) for c in mistakes)
    assert tool.runs == sum(call.status != "limit" for call in calls) - len(mistakes) > 0


def test_a_response_is_sampled_once_per_wave_also_when_it_comes_to_stop_no_more(engine: TorchEngine) -> None:
    """The stop that uses up its stops may be a call: it is continued in the next wave, after the answer."""
    sampler = turn_sampler(engine, Calculator(), max_calls=1)
    sampler.format = Nines("=", "1", "3", "5", "9")
    sampled: dict[int, int] = {}
    generate = engine.generate

    def counted(prompts: Any, sampling: Sampling, seed: int, **options: Any) -> Any:
        sampled[seed] = len(prompts) * sampling.samples
        return generate(prompts, sampling, seed, **options)

    engine.generate = counted  # type: ignore[method-assign, assignment]
    groups = sampler.generate(PROMPTS, SAMPLING, 3)
    seeds = [[3]] + [[wave_seed(3, 0, wave, quiet) for quiet in (False, True)] for wave in range(1, 20)]
    waves = [sum(sampled.pop(seed, 0) for seed in wave) for wave in seeds]
    assert not sampled and waves[0] == 48 and waves == sorted(waves, reverse=True) and waves[4] and not waves[5]
    calls = [(c, call) for group in groups for c in group for call in c.calls]
    assert calls
    for completion, call in calls:
        written = TOKENIZER.decode(completion.tokens[call.start : call.end].tolist())
        assert TOKENIZER.decode(completion.tokens[: call.start].tolist()).endswith(("=", "1", "3", "5", "9"))
        assert call.status == "limit" or f"{call.output};".startswith(written)
        assert call.status != "limit" or call.seconds == 0


class MeetingSession(CalculatorSession):
    def run(self, code: str) -> ToolOutput:
        assert isinstance(self.tool, Meeting)
        if self.tool.runs < self.tool.barrier.parties:
            self.tool.barrier.wait(600)
        return super().run(code)


class Meeting(Calculator):
    """Nobody gets an answer before `count` calls have been made."""

    kind = MeetingSession

    def __init__(self, count: int) -> None:
        super().__init__()
        self.barrier = threading.Barrier(count)


def test_calls_run_at_once_and_their_order_changes_nothing(engine: TorchEngine) -> None:
    expected = turn_sampler(engine, Calculator()).generate(PROMPTS, SAMPLING, 5)
    callers = sum(bool(completion.calls) for group in expected for completion in group)
    assert callers > 5
    assert turn_sampler(engine, Meeting(callers)).generate(PROMPTS, SAMPLING, 5) == expected


@pytest.mark.parametrize("sessions", [48, 47])  # of 48 responses
def test_calls_begin_while_others_are_sampled_unless_sessions_are_few(engine: TorchEngine, sessions: int) -> None:
    """A call of the engine is over: all that it has asked for ran meanwhile, or nothing of a first wave did."""
    tool, waves = Calculator(), [(0, 0)]
    generate = engine.generate

    def watched(prompts: Any, sampling: Sampling, seed: int, **options: Any) -> Any:
        found = generate(prompts, sampling, seed, **options)
        limits = [limit for limit in sampling.limits or (sampling.max_tokens,) * len(prompts) for _ in found[0]]
        flat = [completion for group in found for completion in group]
        asked = sum(
            completion.finish_reason == "stop_string" and len(completion.tokens) < limit
            for completion, limit in zip(flat, limits, strict=True)
        )
        expected, since = waves[-1][0] + asked, time.monotonic()
        while tool.runs < expected and sessions == 48 and time.monotonic() < since + 120:
            time.sleep(0.01)
        waves.append((expected, tool.runs))
        return found

    engine.generate = watched  # type: ignore[method-assign]
    turn_sampler(engine, tool, sessions=sessions, max_calls=9).generate(PROMPTS, SAMPLING, 5)
    if sessions == 48:
        assert len(waves) > 3 and waves[1][0] > 5 and all(expected == runs for expected, runs in waves)
    else:
        assert waves[1][0] > 5 and waves[1][1] == 0


def test_an_error_elsewhere_ends_the_thread_that_waits_for_calls(engine: TorchEngine) -> None:
    never, sampled = Meeting(1000), threading.Event()  # so many calls are not made
    sampler, generate = turn_sampler(engine, never), engine.generate

    def first_turns(*given: Any, **named: Any) -> Any:
        found = generate(*given, **named)
        sampled.set()
        return found

    engine.generate = first_turns  # type: ignore[method-assign]
    thread = SamplerThread(
        torch.device("cpu"), lambda: True, lambda: sampler.generate(PROMPTS, SAMPLING, 5), lambda _: None
    )
    with pytest.raises(RuntimeError, match="of the update"), thread:
        assert sampled.wait(600)
        time.sleep(0.2)  # until it waits
        raise RuntimeError("of the update")
    assert thread._running is not None
    try:
        with pytest.raises(SystemExit):
            thread._running.result(600)
    finally:
        never.barrier.abort()


class FailingSession(CalculatorSession):
    def run(self, code: str) -> ToolOutput:
        assert isinstance(self.tool, Failing)
        self.tool.begun.append(self)
        if self.tool.begun[0] is self:
            while len(self.tool.begun) < self.tool.at_once:
                time.sleep(0.01)
            raise RuntimeError("of the tool")
        self.tool.over.wait(300)
        return ToolOutput("1", "ok", 9.0)


class Failing(Calculator):
    """Its first call fails once `at_once` have begun; the others take their time."""

    kind = FailingSession

    def __init__(self, at_once: int) -> None:
        super().__init__()
        self.over, self.begun, self.at_once = threading.Event(), list[CalculatorSession](), at_once


def test_a_call_that_fails_ends_the_sampling_and_nobody_waits_for_the_others(
    engine: TorchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool, began = Failing(4), time.monotonic()
    with pytest.raises(RuntimeError, match="of the tool"):
        turn_sampler(engine, tool, sessions=48).generate(PROMPTS, SAMPLING, 5)
    assert time.monotonic() < began + 120 and tool.begun[0].closed
    tool.over.set()
    monkeypatch.setattr("mathrl.rollout.turns.THREADS", 1)
    few = Failing(1)
    with pytest.raises(RuntimeError, match="of the tool"):
        turn_sampler(engine, few, sessions=48).generate(PROMPTS, SAMPLING, 5)
    few.over.set()
    time.sleep(0.2)
    assert len(few.begun) <= 3, "calls that have not begun are not made"


def test_a_session_that_is_open_only_when_its_response_has_ended_is_closed(engine: TorchEngine) -> None:
    tool, response = Calculator(), Response([], 1, asked=[Asked("1+1"), Asked("2+2")])
    sampler, opened = turn_sampler(engine, tool), tool.session

    def late() -> CalculatorSession:
        response.end()
        return opened()

    tool.session = late  # type: ignore[method-assign]
    assert sampler._call(response) == [] and (tool.open, tool.most_open) == (0, 1)


@pytest.mark.parametrize("room", [MOST, 12], ids=["", "which answers fill"])
def test_no_more_sessions_than_the_tool_has(engine: TorchEngine, room: int) -> None:
    tool, sampling = Calculator(), replace(SAMPLING, max_tokens=room)
    counted: list[int] = []
    groups = turn_sampler(engine, tool, sessions=3).generate(PROMPTS, sampling, 5, counted.append)
    assert sum(bool(c.calls) for group in groups for c in group) > 3
    assert tool.most_open == 3 and not tool.open and sum(counted) == len(PROMPTS) * 12


def test_seconds_and_tokens_of_a_response_are_limited(engine: TorchEngine) -> None:
    slow = turn_sampler(engine, Calculator(seconds=2.0), seconds=3).generate(PROMPTS, SAMPLING, 5)
    statuses = [[call.status for call in c.calls] for group in slow for c in group]
    assert any(len(row) == 3 for row in statuses)
    for row in statuses:
        assert "limit" not in row[:2] and row[2:] in ([], ["limit"])
    outputs = {call.output for g in slow for c in g for call in c.calls[2:]}
    assert outputs == {"This call was not made: the calls of a response may take 3 seconds."}
    assert {call.seconds for g in slow for c in g for call in c.calls[2:]} == {0.0}
