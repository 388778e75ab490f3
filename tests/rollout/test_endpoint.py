"""A model at an endpoint: the server is slow, limits rates, drops connections, answers nonsense."""

import math
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mathrl.compose import load_params
from mathrl.core.environment import Variable
from mathrl.core.errors import UserError
from mathrl.core.files import read_json
from mathrl.core.records import RunRecord
from mathrl.core.types import read_problems, write_problems
from mathrl.params import Params
from mathrl.params.evaluate import Evaluate
from mathrl.params.run import Prompt, RemoteModel
from mathrl.reports.evaluation import evaluate_once
from mathrl.rewards.compose import build_reward
from mathrl.rollout.endpoint import Client, EndpointSampler, read_answer
from mathrl.rollout.engine import Sampling
from mathrl.stages.sample import work
from mathrl.stages.stage_run import StageRun
from tests.rollout.endpoint_server import PROBLEMS, Server, remote, sample

ROOT = Path(__file__).resolve().parents[2]


def test_every_fault_is_tried_again_and_counted(server: Server, demo: Params) -> None:
    server.faults = ["drop", "half", "limit", "503", "empty", "drop", "409", "408"]
    sampler, groups = sample(server, demo, at_a_time=3)
    assert all(graded.correct and graded.completion.tokens.tolist() == [-1] * 4 for (graded,) in groups)
    assert all(map(math.isnan, groups[0][0].completion.logprobs)) and len(groups[0][0].completion.logprobs) == 4
    assert {graded.completion.finish_reason for (graded,) in groups} == {"stop"}
    account = sampler.account()
    assert sum(account["retries"].values()) == 8 and account["retries"]["a reply that is no answer"] == 2
    assert [account["retries"][f"status {status}"] for status in (429, 503, 409, 408)] == [1, 1, 1, 1]
    assert account["requests"] == len(server.bodies) == 20 and account["answered_as"] == {"tiny": 12}
    assert account["licence"] == "not stated" and account["endpoint"] == server.url
    (spent,) = sampler.notes()
    assert ", 2 retried (a reply that is no answer), " in spent and ", 1 retried (status 408), " in spent
    assert account["prompt_tokens"] == 120 and account["completion_tokens"] == 48 and account["cost"] is None
    body = server.bodies[0]
    assert (body["model"], body["temperature"], body["top_p"], body["max_tokens"]) == ("tiny", 0.7, 0.9, 20)
    asked = {body["messages"][0]["content"].partition("=\nPlease reason step by step")[0] for body in server.bodies}
    assert asked == {f"{n}+{n}" for n in range(12)}


def test_a_rate_limit_holds_all_requests_back(server: Server, demo: Params) -> None:
    server.faults = ["limit"]
    start = time.monotonic()
    sample(server, demo, PROBLEMS[:2], at_a_time=1)
    assert time.monotonic() - start >= 0.3 and len(server.bodies) == 3


@pytest.mark.parametrize(("problems", "at_a_time"), [(12, 4), (101, 101)])
def test_requests_run_at_once_and_no_more_than_asked(
    server: Server, demo: Params, problems: int, at_a_time: int
) -> None:
    server.together = threading.Barrier(at_a_time)
    before = set(threading.enumerate())
    asked = [replace(PROBLEMS[0], id=f"p{n}", question=f"{n}+{n}=") for n in range(problems)]
    sample(server, demo, asked, at_a_time=at_a_time)
    assert server.most == at_a_time
    assert not any(thread.name.startswith("ThreadPool") for thread in set(threading.enumerate()) - before)


def test_the_waits_between_attempts_double_up_to_the_longest(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]

    def sleep(seconds: float) -> None:
        clock[0] += seconds

    client = Client(remote(server))
    monkeypatch.setattr("mathrl.rollout.endpoint.time", SimpleNamespace(monotonic=lambda: clock[0], sleep=sleep))
    for share, drawn in ((0.5, 0.0), (1.0, 0.5)):
        monkeypatch.setattr("mathrl.rollout.endpoint.random.random", lambda drawn=drawn: drawn)
        for attempt, seconds in enumerate([0, 1, 2, 4, 8, 16, 32, 60, 60]):
            clock[0] = 0.0
            client._wait(attempt)
            assert clock[0] == pytest.approx(share * seconds)
    asked_for = {"7": 7.0, "0.25": 0.25, "3600": 60.0, "Wed, 21 Oct 2026 07:28:00 GMT": 1.0, None: 0.0}
    for header, seconds in asked_for.items():
        clock[0] = client._not_before = 0.0
        client._hold_back(header)
        client._wait(0)
        assert clock[0] == pytest.approx(seconds), "the endpoint's wish, or a second for a date"


def test_a_refusal_ends_a_run_though_requests_that_it_stopped_end_before_it(server: Server, demo: Params) -> None:
    class Stopping(threading.Event):
        """Its setter goes on when others have seen it set so often that one of them has ended."""

        seen, ended = 0, threading.Event()

        def set(self) -> None:
            super().set()
            self.ended.wait(5.0)

        def is_set(self) -> bool:
            self.seen += super().is_set()
            if self.seen > 3:
                self.ended.set()
            return super().is_set()

    sampler = EndpointSampler(remote(server, at_a_time=2), demo, "evaluate")
    sampler.client.stopping = Stopping()
    server.faults = ["400"]
    with pytest.raises(UserError, match="status 400: it is broken"):
        sampler.sample(PROBLEMS, Sampling(1, 0.7, 20), build_reward(), 0)


@pytest.mark.parametrize(
    ("status", "problem"),
    [
        ("400", "status 400: it is broken"),
        ("401", "status 401; set MATHRL_ENDPOINT_KEY"),
        ("403", "status 403; set MATHRL_ENDPOINT_KEY"),
    ],
)
def test_a_refusal_is_not_tried_again(server: Server, demo: Params, status: str, problem: str) -> None:
    server.faults = [status]
    with pytest.raises(UserError, match=problem):
        sample(server, demo, at_a_time=1)
    assert len(server.bodies) == 1, "nor are others sent"


def test_an_attempt_ends_after_the_seconds_that_it_may_take(server: Server, demo: Params) -> None:
    server.seconds = 60.0
    with pytest.raises(UserError, match="no reply, ReadTimeout, after 1 attempts"):
        sample(server, demo, PROBLEMS[:1], timeout_seconds=0.1, attempts=1)


def test_an_answer_that_was_cut_off_is_so_and_rewards_know_how_long_it_could_be(server: Server, demo: Params) -> None:
    server.finish = "length"
    sampler = EndpointSampler(remote(server), demo, "evaluate")
    reward = build_reward({"parts": [{"type": "overlong"}]})
    for max_tokens, value in ((4, -1.0), (20, 0.0)):  # it has 4 tokens
        ((graded,),) = sampler.sample(PROBLEMS[:1], Sampling(1, 0.7, max_tokens), reward, 0)
        assert graded is not None and graded.completion.finish_reason == "length" and graded.reward == value


def test_the_key_and_the_names_of_the_model(server: Server, demo: Params, monkeypatch: pytest.MonkeyPatch) -> None:
    server.key, server.name = "secret", "other-model"
    monkeypatch.setenv(Variable.ENDPOINT_KEY, "secret")
    sampler, _ = sample(server, demo, PROBLEMS[:2], price_input=3.0, price_output=2.0)
    named, spent = sampler.notes()
    assert named.endswith("was asked for 'tiny' and answered as 'other-model' (2 answers)")
    assert "2 requests" in spent and "20 and 8 tokens" in spent and spent.endswith("cost 0.0001")
    assert sampler.account()["cost"] == 76e-6
    for prices, cost in (((0.0, 2.0), 16e-6), ((3.0, 0.0), 60e-6), ((3.0, None), None), ((None, 2.0), None)):
        sampler, _ = sample(server, demo, PROBLEMS[:2], price_input=prices[0], price_output=prices[1])
        assert sampler.account()["cost"] == cost
    server.models = ["tiny-2", "big"]
    with pytest.raises(UserError, match=r"has no model 'tiny' \(did you mean tiny-2\?\); it has: tiny-2, big"):
        Client(remote(server))
    for count, last in ((8, "m7$"), (9, "m7, …$")):
        server.models = [f"m{n}" for n in range(count)]
        with pytest.raises(UserError, match=f"it has: m0, .*{last}"):
            Client(remote(server))
    server.models = []
    Client(remote(server))  # it lists none
    address = RemoteModel(endpoint=f"{server.url}/X//", model="tiny")
    assert Client(address).url == f"{server.url}/X/chat/completions"


@pytest.mark.parametrize(
    ("reply", "text"),
    [
        ({"choices": [{"message": {"content": "9"}}]}, "9"),
        ({"choices": [{"message": {"content": "9", "reasoning_content": "6+3"}}]}, "<think>6+3</think>9"),
        ({"choices": [{"message": {"content": None, "reasoning": "6+3"}}]}, "<think>6+3</think>"),
        ({"choices": [{"text": "9"}], "usage": None}, "9"),
    ],
)
def test_replies_of_several_servers_are_read(reply: dict[str, Any], text: str) -> None:
    answer = read_answer(reply)
    assert (answer["text"], answer["finish"], answer["tokens"], answer["prompt_tokens"]) == (text, "stop", 0, 0)


@pytest.mark.parametrize(
    "reply", [{}, [], {"choices": [{"message": {}}]}, {"choices": [{"message": {"content": [1]}}]}, None]
)
def test_what_is_no_answer_is_not_read_as_one(reply: Any) -> None:
    with pytest.raises((ValueError, KeyError, IndexError, TypeError, AttributeError)):
        read_answer(reply)


@pytest.mark.parametrize(
    ("prompt", "more", "problem"),
    [
        (Prompt(response_prefix="<think>"), {}, "prompt.response_prefix"),
        (Prompt(chat_template_kwargs={"enable_thinking": False}), {}, "extra_body"),
        (Prompt(template="chat"), {"api": "completions"}, "api completions takes a text"),
    ],
)
def test_what_an_endpoint_cannot_do_is_refused(
    server: Server, demo: Params, prompt: Prompt, more: dict[str, Any], problem: str
) -> None:
    with pytest.raises(UserError, match=problem):
        sample(server, demo.model_copy(update={"prompt": prompt}), **more)


def test_completions_get_the_text_of_the_prompt_and_further_fields(server: Server, demo: Params) -> None:
    params = demo.model_copy(update={"prompt": Prompt(template="question_answer")})
    sample(server, params, PROBLEMS[:1], api="completions", extra_body={"min_p": 0.1})
    assert server.bodies[0]["prompt"] == "Question: 0+0=\nAnswer:" and server.bodies[0]["min_p"] == 0.1


def test_an_evaluation_has_the_same_files_and_what_it_cost(server: Server, demo: Params, tmp_path: Path) -> None:
    asked = Evaluate(endpoint=remote(server, price_input=1.0, price_output=1.0), samples=2, ks=(1, 2))
    params = demo.model_copy(update={"evaluate": asked})
    figures = evaluate_once("org/tiny", "mine", params, tmp_path / "out", problems=PROBLEMS)
    assert figures.pass_at_1.mean == 1.0 and figures.response_length == 4
    account = read_json(tmp_path / "out/endpoint.json")
    assert account["requests"] == 24 and account["cost"] == pytest.approx(24 * 14e-6)
    assert not (tmp_path / "out/speed.json").exists()


def test_a_teacher_writes_the_solutions_of_the_stage_sample(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    wrong = [replace(problem, answers=("1",)) for problem in PROBLEMS[:3]]
    write_problems(Path("rl.jsonl"), [*wrong, *PROBLEMS[3:]])
    settings = [f"sample.teacher.endpoint={server.url}", "sample.teacher.model=tiny", "sample.teacher.licence=mit"]
    settings += ["sample.samples=2", "prompt.template=boxed"]

    def draw_into(name: str, processes: int = 1) -> Any:
        params = load_params(ROOT / "params", overrides=[*settings, f"run.processes={processes}"])
        run = StageRun("sample", params, tmp_path / f"{name}-state", RunRecord(tmp_path / f"{name}-record"))
        run.state.mkdir()
        work(run, start=Path("none"), data=[Path("rl.jsonl")], examples=Path("rl.jsonl"), out=Path(name))
        return {file.name: file.read_bytes() for file in sorted(Path(name).iterdir())}

    first = draw_into("first")
    demonstrations = read_problems(Path("first/train.jsonl"))
    assert {problem.id.partition("#")[0] for problem in demonstrations} == {problem.id for problem in PROBLEMS[3:]}
    teacher = read_json(Path("first/summary.json"))["teacher"]
    assert (teacher["model"], teacher["licence"], teacher["answered_as"]) == ("tiny", "mit", {"tiny": 24})
    assert draw_into("second") == first and len(server.bodies) == 24
    with pytest.raises(UserError, match="teacher is asked by one process"):
        draw_into("third", processes=2)
