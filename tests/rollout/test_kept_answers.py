"""What an endpoint answered is kept, whatever its text, when a run fails or is killed, and is never asked again."""

import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from mathrl.core.errors import UserError
from mathrl.core.files import encodable, write_jsonl
from mathrl.core.hashing import derive_seed, digest
from mathrl.core.types import Problem
from mathrl.data.templates import chat_messages, prompt_text
from mathrl.params import Params
from mathrl.params.run import Prompt, RemoteModel
from mathrl.rewards.compose import build_reward
from mathrl.rollout.endpoint import EndpointSampler
from mathrl.rollout.engine import Sampling
from tests.rollout.endpoint_server import PROBLEMS, Server, remote, sample

ROOT = Path(__file__).resolve().parents[2]


def test_what_was_answered_is_never_asked_again_and_more_samples_ask_for_the_rest(server: Server, demo: Params) -> None:
    _, first = sample(server, demo, samples=2)
    assert len(server.asked) == 24, "each sample has a seed of its own"
    sampler, again = sample(server, demo, samples=2)
    assert len(server.bodies) == 24 and sampler.account()["kept"] == 24 and sampler.account()["requests"] == 0
    texts = [[graded.completion.text for graded in group] for group in first]
    assert texts == [[graded.completion.text for graded in group] for group in again]
    sampler, _ = sample(server, demo, PROBLEMS[3:], samples=3)
    assert sampler.account()["requests"] == 9 and max(server.asked.values()) == 1
    other = demo.model_copy(update={"run": demo.run.model_copy(update={"seed": 7})})
    sample(server, other, PROBLEMS[:1])
    assert len(server.bodies) == 34, "another seed is another sample"


def test_a_sampler_is_asked_in_chunks_and_tells_of_each_answer(
    server: Server, demo: Params, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampler, told, sizes = EndpointSampler(remote(server), demo, "evaluate"), list[int](), list[int]()
    monkeypatch.setattr(os, "fsync", lambda number: sizes.append(os.fstat(number).st_size))
    for problems in (PROBLEMS[:3], PROBLEMS[:5], PROBLEMS[:5]):
        sampler.sample(problems, Sampling(1, 0.7, 20), build_reward(), 0, told.append)
    assert told == [1, 1, 1, 3, 1, 1, 5] and (sampler.counts["kept"], sampler.counts["requests"]) == (8, 5)
    assert sampler.answers.folder == tmp_path / "state/endpoints" / digest([server.url, "tiny"])
    lines = sampler.answers.file.read_bytes().splitlines(keepends=True)
    assert sizes == [sum(map(len, lines[:count])) for count in range(1, 6)], "each is on the disk before the next"
    slash = RemoteModel(endpoint=f"{server.url}/", model="tiny")
    EndpointSampler(slash, demo, "evaluate").sample(PROBLEMS[:6], Sampling(1, 0.7, 20), build_reward(), 0)
    assert len(server.bodies) == 6, "the same endpoint, however its address ends"


@pytest.mark.parametrize("text", ["", "\u2028", "\x85", "\ud83d", "é"])
def test_an_answer_of_any_text_is_kept_and_found_beside_rows_that_a_kill_cut_short(
    server: Server, demo: Params, text: str
) -> None:
    server.text = text
    problem = PROBLEMS[1].with_(question=f"Of {text}: 1+1=")
    sampler, ((first,),) = sample(server, demo, [problem])
    assert first.completion.text == f"\\boxed{{2}}{encodable(text)}"
    file, cut = sampler.answers.file, '{"key": "1", "text": "é'.encode()[:-1]
    file.write_bytes(cut + b"\n{}\n" + file.read_bytes() + cut)
    sampler, ((again,),) = sample(server, demo, [problem])
    assert again.completion.text == first.completion.text and len(server.bodies) == 1
    sample(server, demo, PROBLEMS[:1])  # by a process of the same number, after the row that was cut short
    sample(server, demo, PROBLEMS[:1])
    assert len(server.bodies) == 2


def test_what_is_under_way_when_a_run_is_interrupted_is_kept_and_nothing_more_is_asked(
    server: Server, demo: Params
) -> None:
    def interrupt(_: int) -> None:
        deadline = time.monotonic() + 60
        while len(server.answered) < wanted and time.monotonic() < deadline:
            time.sleep(0.001)
        raise KeyboardInterrupt

    def sample_until_interrupted(problems: list[Problem], at_a_time: int) -> None:
        sampler = EndpointSampler(remote(server, at_a_time=at_a_time), demo, "evaluate")
        with pytest.raises(KeyboardInterrupt):
            sampler.sample(problems, Sampling(1, 0.7, 20, 0.9), build_reward(), 0, interrupt)

    server.faults, wanted = ["", "long limit"], 1
    sample_until_interrupted(PROBLEMS, 1)
    assert len(server.bodies) <= 2 and len(server.answered) == 1
    server.faults, wanted = [], 12
    sample_until_interrupted(PROBLEMS[1:], 11)
    sampler, _ = sample(server, demo)
    assert (sampler.counts["kept"], sampler.counts["requests"]) == (12, 0)
    assert sum(len(file.read_bytes().splitlines()) for file in sampler.answers.folder.iterdir()) == 12


def test_an_answer_is_kept_before_its_thread_asks_again(
    server: Server, demo: Params, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However slow the disk is, a kill loses no more than the requests under way."""
    sampler, kept = EndpointSampler(remote(server, at_a_time=1), demo, "evaluate"), list[int]()
    ask = sampler.client.ask
    monkeypatch.setattr(os, "fsync", lambda _: time.sleep(0.02))
    monkeypatch.setattr(sampler.client, "ask", lambda body: kept.append(len(sampler.answers.rows)) or ask(body))
    sampler.sample(PROBLEMS[:5], Sampling(1, 0.7, 20), build_reward(), 0)
    assert kept == [0, 1, 2, 3, 4]


def test_an_endpoint_that_stays_broken_ends_the_run_with_what_it_answered_kept(server: Server, demo: Params) -> None:
    sampler, _ = sample(server, demo, PROBLEMS[:3])
    sampler.answers.file.rename(sampler.answers.folder / "0-another-process.jsonl")
    sample(server, demo, PROBLEMS[3:5])
    server.faults = 3 * ["500"]
    with pytest.raises(UserError, match="status 500, after 3 attempts; what was answered is kept"):
        sample(server, demo, attempts=3, at_a_time=1)
    sampler, _ = sample(server, demo)
    assert sampler.account()["kept"] == 5 and sampler.account()["requests"] == 7


@pytest.mark.parametrize("api", ["chat", "completions"])
def test_a_request_is_what_its_kept_answer_is_found_by(server: Server, demo: Params, api: Any) -> None:
    """Another body, or another seed in it, would ask again for all that was paid for."""
    prompt, examples = Prompt(template="question_answer", few_shot=1), [PROBLEMS[5].with_(solution="5+5=10")]
    params = demo.model_copy(update={"prompt": prompt})
    sampler = EndpointSampler(remote(server, api=api, extra_body={"min_p": 0.1}), params, "evaluate", examples)
    sampling = Sampling(2, 0.7, 20, 0.9, stop=("\n\n",))
    if api == "chat":
        asked: dict[str, Any] = {"messages": chat_messages(PROBLEMS[0], prompt, examples)}
    else:
        asked = {"prompt": prompt_text(PROBLEMS[0], prompt, None, examples)}
    assert "5+5=10" in json.dumps(asked)
    words, stage = json.dumps(asked, sort_keys=True), derive_seed(params.run.seed, "endpoint", "evaluate")
    settings = {"temperature": 0.7, "top_p": 0.9, "max_tokens": 20, "min_p": 0.1, "stop": ["\n\n"]}
    seeds = [derive_seed(stage, words, number) % 2**31 for number in (0, 1)]
    expected = [{"model": "tiny", **asked, **settings, "seed": seed} for seed in seeds]
    assert [sampler._body(PROBLEMS[0], sampling, number) for number in (0, 1)] == expected
    plain = sampler._body(PROBLEMS[0], Sampling(1, 0.7, 20, 0.9), 0)
    assert plain == {name: value for name, value in expected[0].items() if name != "stop"}


def test_a_killed_evaluation_goes_on_and_asks_nothing_twice_that_was_answered(
    server: Server, tmp_path: Path, warm_python: Path
) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    shutil.copytree(ROOT / "params", tmp_path / "params")
    rows = [{"question": f"{n}+{n}=", "answer": str(2 * n)} for n in range(40)]
    write_jsonl(tmp_path / "exam.jsonl", rows)
    server.holds_after = 9
    words = ["evaluate", "--model", "tiny", "--endpoint", server.url, "--benchmark", "exam.jsonl", "--samples", "1"]
    words += ["--output", "out", "--set", "prompt.template=boxed", "--set", "evaluate.endpoint.at_a_time=2"]
    command = [warm_python / "python", "-c", "from mathrl.cli import main; main()", *words]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    first = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    deadline = time.monotonic() + 300
    # Two requests wait, so that nine answers are kept.
    while (len(server.bodies), len(server.answered)) != (11, 9) and time.monotonic() < deadline:
        time.sleep(0.02)
    first.kill()
    first.communicate()  # until the program that `first` stands for has ended
    assert len(server.answered) == 9
    server.release.set()
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    twice = sum(count > 1 for count in server.asked.values())
    assert len(server.asked) == 40 and twice == 2, "but those that were on their way"
    assert "31 requests" in done.stderr, done.stderr
    assert "pass@1 1.000" in done.stdout
