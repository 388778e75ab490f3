"""RL through two real vLLM servers over HTTP: weights, canary, a hung server, a killed one, none left."""

import json
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from mathrl.core.errors import UserError
from mathrl.core.metrics import JsonlSink, without_timings
from mathrl.learners.distributed import Ranks
from mathrl.models.load import load_model, load_tokenizer, make_base
from mathrl.models.logprobs import response_logprobs
from mathrl.models.packing import Group
from mathrl.models.weights import full_weights, write_buckets
from mathrl.params.asynchronous import Asynchronous
from mathrl.params.rollout import Rollout, Servers
from mathrl.params.run import Prompt
from mathrl.params.train import Rl
from mathrl.rollout import server_engine
from mathrl.rollout.engine import Sampling
from mathrl.rollout.open_engine import open_engine, training_engine
from mathrl.rollout.sampler import Sampler
from mathrl.rollout.serve import serve_command, serve_environment
from mathrl.rollout.servers import Pool
from mathrl.trainers.rl import train_rl
from mathrl.trainers.training_run import TrainingRun
from tests.engines.tiny_rl import MODEL, STEPS, Letters
from tests.engines.vllm_turns import measured
from tests.marks import needs_vllm
from tests.trainers.small import PROBLEMS

pytestmark = [pytest.mark.engines, pytest.mark.timeout(600), needs_vllm]
torch.set_num_threads(1)
PROMPTS = [[5, 6, 7], [8, 9, 10, 11], list(range(5, 40)), [12], [13, 14]]
SAMPLING = Sampling(4, 0.8, 12)


@dataclass
class Two:
    """Two servers of one model folder, their processes and addresses."""

    folder: Path
    processes: list[subprocess.Popen[bytes]]
    urls: tuple[str, ...]

    def rollout(self, **servers: Any) -> Rollout:
        given = {"urls": self.urls, "timeout_seconds": 120.0, "wait_seconds": 400.0} | servers
        return Rollout(engine="vllm_server", max_sequences=32, servers=Servers(**given))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Two]:
    where = tmp_path_factory.mktemp("servers")
    make_base(MODEL, where / "base", seed=0)
    ports = [free_port(), free_port()]
    rollout = Rollout(max_sequences=32)
    environment = serve_environment(rollout) | {"OMP_NUM_THREADS": "1"}
    processes = []
    for port in ports:
        with (where / f"{port}.log").open("wb") as log:
            command = serve_command(where / "base", MODEL, rollout, "127.0.0.1", port)
            processes.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True))
    urls = tuple(f"http://127.0.0.1:{port}" for port in ports)
    try:
        pool = Pool(Servers(urls=urls, wait_seconds=400.0))
        within(400, lambda: pool.revive() or len(pool.alive()) == 2)
        yield Two(where / "base", processes, urls)
    finally:
        for process in processes:
            end(process, signal.SIGKILL)
            process.wait()


def end(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """The signal for the server and the engine process that it started."""
    if process.poll() is None:
        os.killpg(process.pid, number)


def train(two: Two, where: Path, params: Rl = STEPS, **servers: Any) -> tuple[list[dict[str, float]], Any, Any]:
    network, tokenizer = load_model(two.folder, MODEL, "cpu"), load_tokenizer(two.folder)
    ahead = params.asynchronous is not None
    engine: Any = training_engine(network, two.folder, tokenizer, MODEL, two.rollout(**servers), ahead)
    train_rl(
        network,
        Sampler(engine, tokenizer, Prompt()),
        PROBLEMS,
        PROBLEMS[:2],
        Letters(),
        params,
        TrainingRun(Ranks(torch.device("cpu")), where, 0, lambda _: JsonlSink(where / "metrics.jsonl")),
    )
    return without_timings(where / "metrics.jsonl"), network, engine


def largest_gap(network: Any, completions: Any) -> float:
    groups = [Group(prompt, [each.tokens for each in row]) for prompt, row in zip(PROMPTS, completions, strict=True)]
    with torch.no_grad():
        expected, _ = response_logprobs(network, groups, SAMPLING.temperature)
    sampled = torch.tensor([value for row in completions for each in row for value in each.logprobs])
    return float((expected - sampled).abs().max())


def test_turns_with_servers_are_plain_calls(two: Two) -> None:
    engine, tokenizer = open_engine(two.folder, MODEL, two.rollout(), "cpu")
    results = measured(engine, tokenizer, load_model(two.folder, MODEL, "cpu"))
    assert results["calls"] > 10 and results["refused"] > 0
    assert results["same"] == 1 and results["gap"] < 1e-4


def test_rl_with_both_servers_and_their_weights_after_it(two: Two, tmp_path: Path) -> None:
    rows, network, engine = train(two, tmp_path)
    for row in rows:
        assert row["rollout/canary_gap"] < 2e-5
        assert row["rollout/logprob_alignment"] == pytest.approx(1, abs=2e-5)
    assert len(rows) == 2 and rows[0]["grad_norm"] > 0
    engine.sync(full_weights(network))
    counted: list[int] = []
    first = engine.generate(PROMPTS, SAMPLING, 3, counted.append)
    assert sum(counted) == len(PROMPTS) * SAMPLING.samples
    assert largest_gap(network, first) < 1e-4 < largest_gap(load_model(two.folder, MODEL, "cpu"), first)
    # A response depends only on its seed and prompt, not on the server or on other requests.
    assert engine.generate(PROMPTS, SAMPLING, 3) == first != engine.generate(PROMPTS, SAMPLING, 4)
    assert engine.generate(PROMPTS[:2], SAMPLING, 3) == first[:2]
    assert [url for url, _ in engine.probe(PROMPTS, SAMPLING, 3)] == list(two.urls)


def test_the_servers_sample_while_the_trainer_updates(two: Two, tmp_path: Path) -> None:
    apart = Asynchronous(staleness=2, segment_tokens=3)
    rows, _, _ = train(two, tmp_path, STEPS.model_copy(update={"asynchronous": apart, "steps": 5}))
    assert len(rows) == 5 and all(row["rollout/canary_gap"] < 2e-5 for row in rows)
    assert all(0 <= row["rollout/lag"] <= row["rollout/lag_max"] <= 2 for row in rows)
    events = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()][1:]
    trained = [number for row in events for number in row["ranks"][0]["trained"]]
    assert sorted(trained) == list(range(5 * STEPS.prompts_per_step))
    arrived = [versions for row in events for _, _, group in row["ranks"][0]["arrived"] for versions in group]
    assert all(versions[0][0] <= versions[-1][0] for versions in arrived) and rows[0]["grad_norm"] > 0


def test_a_stage_that_only_samples_has_the_folders_weights(two: Two) -> None:
    engine, _ = open_engine(two.folder, MODEL, two.rollout(), "cpu")
    completions = engine.generate(PROMPTS, SAMPLING, 0)
    assert largest_gap(load_model(two.folder, MODEL, "cpu"), completions) < 1e-4
    greedy = engine.generate(PROMPTS, Sampling(2, 0.0, 8), 0)
    assert all(row[0] == row[1] and len(row) == 2 for row in greedy)


def test_a_folder_that_the_servers_cannot_see_is_named(two: Two, tmp_path: Path) -> None:
    engine: Any = open_engine(two.folder, MODEL, two.rollout(wait_seconds=4.0), "cpu")[0]
    with pytest.raises(UserError, match=r"answered /collective_rpc with 500.* set rollout\.servers\.folder"):
        engine.sync_folder(tmp_path)  # it is empty


def test_the_canary_notices_a_server_without_the_new_head(
    two: Two, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def headless(weights: Any, *rest: Any) -> None:
        # Both are left out: the server would make a head from the embedding if it received one.
        left_out = ("lm_head.weight", "embed_tokens.weight")
        write_buckets(((name, each) for name, each in weights if not name.endswith(left_out)), *rest)

    train(two, tmp_path / "moved")  # so that the servers' head is not the folder's
    monkeypatch.setattr(server_engine, "write_buckets", headless)
    with pytest.raises(UserError, match=r"the log-probs of http://127.* differ from the trainer's"):
        train(two, tmp_path / "broken")


def within(seconds: float, holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_hung_and_dead_servers(two: Two, capfd: pytest.CaptureFixture[str]) -> None:
    network, tokenizer = load_model(two.folder, MODEL, "cpu"), load_tokenizer(two.folder)
    rollout = two.rollout(timeout_seconds=8.0, wait_seconds=60.0)
    engine: Any = training_engine(network, two.folder, tokenizer, MODEL, rollout, False)
    engine.sync(full_weights(network))
    expected = engine.generate(PROMPTS, SAMPLING, 5)

    # A hung server: its requests time out and go to the other; when it answers again, it gets the new weights.
    end(two.processes[0], signal.SIGSTOP)
    assert engine.generate(PROMPTS, SAMPLING, 5) == expected
    assert "made no progress for 8 s; 1 other server" in capfd.readouterr().err
    assert [server.alive for server in engine.pool.servers] == [False, True]
    newer = load_model(two.folder, MODEL, "cpu")
    with torch.no_grad():
        newer.get_output_embeddings().weight.mul_(1.5)
    engine.sync(full_weights(newer))
    end(two.processes[0], signal.SIGCONT)
    within(60, lambda: engine.pool.revive() or engine.pool.servers[0].alive)
    assert [largest_gap(newer, group) < 1e-4 for _, group in engine.probe(PROMPTS, SAMPLING, 5)] == 2 * [True]

    # A server killed during requests: nothing is lost.
    many = [[5 + n % 90] for n in range(200)]
    expected = engine.generate(many, Sampling(2, 1.0, 100), 6)
    killer = threading.Timer(0.5, end, (two.processes[1], signal.SIGKILL))
    killer.start()
    assert engine.generate(many, Sampling(2, 1.0, 100), 6) == expected
    killer.join()
    within(30, lambda: two.processes[1].poll() is not None)
    assert engine.generate(many, Sampling(2, 1.0, 100), 6) == expected
    assert [server.alive for server in engine.pool.servers] == [True, False]

    # No server left: the run reports it and stops.
    end(two.processes[0], signal.SIGKILL)
    two.processes[0].wait()
    engine.pool.params = engine.pool.params.model_copy(update={"wait_seconds": 2.0})
    with pytest.raises(UserError, match=r"no vLLM server can be used after 2 s .*: start one with"):
        engine.generate(PROMPTS, SAMPLING, 5)
    assert "waiting" in capfd.readouterr().err
