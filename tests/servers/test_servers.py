"""Servers that fail in ways that a real one only does when it is broken: each is a small HTTP server here.

With real vLLM servers: tests/engines/test_vllm_servers.py.
"""

import gc
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from mathrl.core.errors import UserError
from mathrl.models.base import character_tokenizer
from mathrl.params.rollout import Rollout
from mathrl.params.run import FreshModel
from mathrl.rollout.engine import Sampling
from mathrl.rollout.server_engine import MOST_TRIES, ServerEngine
from mathrl.servers.protocol import PATH
from mathrl.servers.server import OtherWeights, SentWeights, Server
from mathrl.servers.server_pool import ServerPool
from mathrl.trainers.rollout_stream import SamplerThread
from tests.servers.stand import HANG_SECONDS, Stand, params

TOKENIZER = character_tokenizer(FreshModel())


def engine(*stands: Stand, **settings: Any) -> ServerEngine:
    rollout = Rollout(engine="vllm_server", servers=params(*stands, **settings))
    return ServerEngine(TOKENIZER, [2], rollout, "float32", 1e-3)


def sent(number: int) -> SentWeights:
    return SentWeights(f"/weights/{number}", f"digest {number}")


def used(pool: ServerPool) -> set[str]:
    taken = [pool.take() for _ in range(6)]
    for server in taken:
        pool.give_back(server)
    return {server.url for server in taken}


def test_every_process_leaves_out_a_server_that_missed_the_weights(stand: Any) -> None:
    good, bad = stand(), stand()
    first, second = ServerPool(params(good, bad)), ServerPool(params(good, bad))
    first.send(sent(1))
    second.follow(first.sync_message())
    assert used(second) == {good.url, bad.url}
    bad.weights = 500
    first.send(sent(2))
    second.follow(first.sync_message())
    # It answers, and looks well to the second process, but has /weights/1.
    assert used(first) == used(second) == {good.url}
    bad.weights = 200
    first.send(sent(3))
    second.follow(first.sync_message())
    assert used(first) == used(second) == {good.url, bad.url}
    assert bad.taken == ["/weights/1", "/weights/3"]
    assert [server.failure for server in first.servers] == ["", ""]


def test_the_servers_of_a_clusters_job_replace_those_of_the_parameters(
    stand: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    named, started = stand(), [stand(), stand()]
    monkeypatch.setenv("MATHRL_SERVERS", ",".join(server.url for server in started))
    assert used(ServerPool(params(named))) == {server.url for server in started}


def test_a_server_that_a_process_has_lost_is_used_again_after_the_next_sync(stand: Any) -> None:
    one, other = stand(), stand()
    first, second = ServerPool(params(one, other)), ServerPool(params(one, other))
    second.died(second.servers[0], RuntimeError("it broke off"))
    first.send(sent(1))
    second.follow(first.sync_message())
    assert used(second) == {one.url, other.url}


def test_many_requests_wait_together_and_not_one_after_the_other(stand: Any) -> None:
    lost = stand()
    pool = ServerPool(params(lost, wait_seconds=1.0))
    lost.health = 503
    pool.died(pool.servers[0], RuntimeError("it broke off"))
    start = time.monotonic()

    def wait(_: int) -> str:
        with pytest.raises(UserError, match="can be used after 1 s") as raised:
            pool.take()
        return str(raised.value)

    with ThreadPoolExecutor(200) as threads:
        said = list(threads.map(wait, range(200)))
    assert len(said) == 200 and "answers /health with 503" in said[0]
    assert time.monotonic() - start < 150  # each in its turn: at least 200 s


def test_the_first_error_ends_the_step_while_other_requests_hang(stand: Any) -> None:
    lost = stand()
    sampler = engine(lost, wait_seconds=1.0)
    lost.hangs_on, lost.completions, lost.health = 5, 500, 503
    start = time.monotonic()
    with pytest.raises(UserError, match="no vLLM server can be used after 1 s"):
        sampler.generate([[5 + n] for n in range(32)], Sampling(1, 1.0, 4), 0)
    assert time.monotonic() - start < HANG_SECONDS / 2  # the request that hangs is the first of them
    assert 5 in lost.asked
    while asking := [each for each in threading.enumerate() if each.name.startswith("ThreadPoolExecutor")]:
        assert time.monotonic() - start < HANG_SECONDS / 2, f"an exit would wait for {asking}"
        time.sleep(0.05)


def test_an_error_elsewhere_ends_requests_of_the_thread_that_samples(stand: Any) -> None:
    hanging = stand()
    sampler, hanging.hangs_on = engine(hanging, wait_seconds=HANG_SECONDS), 5
    start = time.monotonic()
    thread = SamplerThread(
        torch.device("cpu"), lambda: True, lambda: sampler.generate([[5], [6]], Sampling(1, 1.0, 4), 0), lambda _: None
    )
    with pytest.raises(RuntimeError, match="of the update"), thread:
        while 5 not in hanging.asked:
            time.sleep(0.05)
        raise RuntimeError("of the update")
    while asking := [each for each in threading.enumerate() if each.name.startswith(("ThreadPool", "rollouts"))]:
        assert time.monotonic() - start < HANG_SECONDS / 2, f"an exit would wait for {asking}"
        time.sleep(0.05)


def test_a_response_that_was_aborted_is_asked_for_elsewhere(stand: Any, capsys: Any) -> None:
    aborting, well = stand(), stand()
    sampler = engine(aborting, well)
    aborting.ending, aborting.health = "abort", 503  # 503: or it may be used again at once
    found = sampler.generate([[5 + n] for n in range(8)], Sampling(1, 1.0, 4), 0)
    assert [row[0].tokens for row in found] == [(5 + n,) for n in range(8)]
    assert {row[0].finish_reason for row in found} == {"stop"}
    assert aborting.asked and [server.alive for server in sampler.pool.servers] == [False, True]
    assert "ended a response with 'abort'; 1 other server" in capsys.readouterr().err


def test_a_response_may_have_characters_that_end_lines_elsewhere(stand: Any) -> None:
    server = stand()
    server.text = "one\u2028two\x85three\u2029"
    found = engine(server).generate([[5]], Sampling(1, 1.0, 4), 0)
    assert [row[0].tokens for row in found] == [(5,)]


def test_a_closed_engine_leaves_no_weights_and_may_send_again(stand: Any, tmp_path: Path) -> None:
    server = stand()
    sampler = engine(server, folder=str(tmp_path))
    for number in range(2):
        sampler.sync([("weight", torch.full((2,), float(number)))])
        assert Path(server.taken[-1]).is_relative_to(tmp_path)
        sampler.close()
        assert not list(tmp_path.iterdir())
    sampler.sync([("weight", torch.ones(2))])
    del sampler  # as by who does not close it
    gc.collect()
    assert not list(tmp_path.iterdir())


def test_another_key_and_an_unseen_folder_are_named(stand: Any, capsys: Any) -> None:
    closed = stand()
    closed.health = 401
    with pytest.raises(UserError, match=r"health with 401: MATHRL_SERVE_KEY must be the same there"):
        ServerPool(params(closed, wait_seconds=0.1))
    assert capsys.readouterr().err.count("MATHRL_SERVE_KEY") == 1  # and not once a second
    blind = stand()
    blind.weights = 500
    pool = ServerPool(params(blind, wait_seconds=2.5))
    with pytest.raises(UserError, match=r"cannot see their folder, set rollout\.servers\.folder"):
        pool.send(sent(1))
    assert capsys.readouterr().err.count("rollout.servers.folder") == 1


@pytest.mark.parametrize("kind", ["slow", "queued"])
def test_a_request_lives_as_long_as_its_server_makes_progress(stand: Any, kind: str) -> None:
    working = stand()
    sampler, start = engine(working, timeout_seconds=0.5), time.monotonic()
    (server,) = sampler.pool.servers

    def wait_for_a_piece() -> None:
        seen = server.pieces
        while server.pieces == seen and server.requests:
            time.sleep(0.001)

    def work_for_others() -> None:
        working.work()
        if time.monotonic() > start + 2:
            working.release.set()

    if kind == "slow":
        working.slow_on, working.pieces, working.pause, working.on_look = 5, 20, 0.1, wait_for_a_piece
    else:
        working.held_on, working.on_look = 5, work_for_others
    (responses,) = sampler.generate([[5]], Sampling(1, 1.0, 20), 0)
    assert time.monotonic() - start >= 4 * 0.5
    assert responses[0].tokens.tolist() == [5] * working.pieces and responses[0].finish_reason == "stop"
    assert working.asked == [5] and server.alive


def test_a_server_that_hangs_is_left_for_the_others(stand: Any, capsys: Any) -> None:
    hanging, well = stand(), stand()
    hanging.hangs_on, well.on_look = 5, well.work
    sampler, start = engine(hanging, well, timeout_seconds=1.0), time.monotonic()
    responses = sampler.generate([[5], [5]], Sampling(1, 1.0, 4), 0)
    assert time.monotonic() - start < HANG_SECONDS / 2
    assert [row[0].tokens[0] for row in responses] == [5, 5]
    assert [server.alive for server in sampler.pool.servers] == [False, True]
    assert f"{hanging.url} made no progress for 1 s; 1 other server" in capsys.readouterr().err
    # The canary goes to every server that is alive, and one that hangs then is found too.
    hanging.hangs_on, hanging.on_look = None, hanging.work
    well.hangs_on, well.on_look = 7, lambda: None
    assert [url for url, _ in sampler.probe([[7]], Sampling(1, 1.0, 4), 0)] == [hanging.url]


def test_a_server_that_was_restarted_answers_from_the_newest_weights_alone(stand: Any, capsys: Any) -> None:
    server = stand()
    sampler = engine(server)
    sampler.pool.send(sent(1))
    sampler.pool.send(sent(2))
    server.restart()  # no request fails by it
    sampler.generate([[5], [6]], Sampling(1, 1.0, 4), 0)
    assert server.answered == ["digest 2"] * 2 and server.taken == ["/weights/1", "/weights/2", "/weights/2"]
    assert f"{server.url} was restarted (generation 1, now 2); 0 other server(s) remain" in capsys.readouterr().err
    # It missed a sync, but is the same process: as after a network failure during a sync.
    server.digest = "digest 1"
    sampler.generate([[7]], Sampling(1, 1.0, 4), 0)
    assert server.answered[2:] == ["digest 2"]
    assert f"{server.url} has other weights (digest 1); 0 other" in capsys.readouterr().err
    # A server that has the newest weights after a failure is not sent them again.
    sampler.pool.died(sampler.pool.servers[0], RuntimeError("it broke off"))
    sampler.generate([[8]], Sampling(1, 1.0, 4), 0)
    assert server.taken == ["/weights/1", *["/weights/2"] * 3] and sampler.pool.servers[0].alive


def test_two_requests_that_a_restarted_server_refuses_both_say_that_it_was_restarted(stand: Any) -> None:
    standing = stand()
    server = Server(standing.url)
    assert server.healthy()
    standing.restart()

    def ask() -> None:
        with pytest.raises(OtherWeights, match=r"was restarted \(generation 1, now 2\)"):
            server.complete({"prompt": [5]}, 1, ["digest 1"])

    def ask_before(_: Any) -> None:
        server.client.event_hooks = {}
        ask()

    server.client.event_hooks = {"request": [ask_before]}
    ask()


@pytest.mark.parametrize("newest", [2, 3])  # 3: newer ones come before the refusal of the request is read
@pytest.mark.parametrize("by", ["files", "transfer"])
def test_a_request_that_new_weights_overtake_is_asked_again_of_its_server(
    by: str, newest: int, stand: Any, capsys: Any
) -> None:
    server = stand()
    sampler = engine(server)
    pool, digests = sampler.pool, sampler.pool.digests

    def transfer(number: int) -> tuple[str, dict[str, str]]:
        server.digest = f"digest {number}"
        time.sleep(0.5)  # what was asked for the weights before is refused within it
        return server.digest, {}

    def send(number: int) -> None:
        if by == "files":
            pool.send(sent(number))
        else:
            pool.send_by(lambda servers: transfer(number))

    def slow_digests() -> list[str]:
        before = digests()
        if server.digest == "digest 1":
            threading.Thread(target=send, args=[2]).start()
            while server.digest == "digest 1" or (by == "files" and pool.replaced):
                time.sleep(0.01)
        return before

    def slow_died(refusing: Server, error: Exception) -> None:
        if newest == 3:
            send(3)
        died(refusing, error)

    send(1)
    died = pool.died
    pool.digests, pool.died = slow_digests, slow_died  # type: ignore[method-assign]
    sampler.generate([[5]], Sampling(1, 1.0, 4), 0)
    assert server.answered == [f"digest {newest}"] and pool.servers[0].alive
    assert server.taken == ([f"/weights/{number + 1}" for number in range(newest)] if by == "files" else [])
    assert "other weights" not in capsys.readouterr().err


def test_a_server_that_was_restarted_is_used_again_while_others_still_sample(stand: Any) -> None:
    busy, restarted = stand(), stand()
    sampler, busy.held_on, restarted.held_on = engine(busy, restarted), 5, 5
    sampler.pool.send(sent(1))
    restarted.restart()
    with ThreadPoolExecutor(1) as thread, ThreadPoolExecutor(1) as others:
        # The first prompt goes to `busy`, which holds it; the second finds that the other was restarted.
        held = thread.submit(sampler.generate, [[5]], Sampling(1, 1.0, 4), 0)
        start = time.monotonic()
        while busy.asked != [5]:
            assert time.monotonic() < start + HANG_SECONDS
            time.sleep(0.01)
        other = others.submit(sampler.generate, [[6]], Sampling(1, 1.0, 4), 0)
        while restarted.taken != ["/weights/1"] * 2 or not sampler.pool.servers[1].alive:
            assert time.monotonic() < start + HANG_SECONDS
            time.sleep(0.01)
        assert busy.in_flight == 1
        busy.release.set()
        assert [row[0].tokens.tolist() for row in (*held.result(), *other.result())] == [[5], [6]]
    assert sampler.pool.servers[1].alive and set(busy.answered + restarted.answered) == {"digest 1"}


def test_weights_that_did_not_arrive_as_they_were_sent_are_not_used(stand: Any, capsys: Any) -> None:
    well, torn = stand(), stand()
    sampler = engine(well, torn)
    torn.weights = 409
    sampler.pool.send(sent(1))
    assert used(sampler.pool) == {well.url}
    assert f"the weights were not accepted: {torn.url} answered {PATH} with 409" in capsys.readouterr().err


def test_while_weights_are_sent_those_before_them_count_too_and_never_others(stand: Any) -> None:
    pool = ServerPool(params(stand()))
    assert pool.digests() == []
    pool.send(sent(1))
    assert pool.digests() == ["digest 1"]
    during: list[list[str]] = []
    load = pool.servers[0].load
    pool.servers[0].load = lambda *sending: during.append(pool.digests()) or load(*sending)  # type: ignore[method-assign,func-returns-value]
    pool.send(sent(2))
    assert during == [["digest 2", "digest 1"]] and pool.digests() == ["digest 2"]


@pytest.mark.parametrize("lost", [False, True], ids=["both", "one lost"])
def test_requests_in_flight_are_bounded_per_server_also_when_others_are_lost(stand: Any, lost: bool) -> None:
    servers = [stand(), stand()]
    sampler = engine(*servers, at_a_time=3)
    for server in servers:
        server.slow_on, server.pieces, server.pause = 5, 2, 0.02
    if lost:
        servers[1].completions = servers[1].health = 500
    responses = sampler.generate([[5]] * 30, Sampling(1, 1.0, 4), 0)
    assert len(responses) == 30 and len(servers[0].asked) + len(servers[1].asked) >= 30
    assert servers[0].most_in_flight == 3 and (servers[1].most_in_flight <= 3)


def test_a_prompt_on_which_every_server_breaks_ends_the_run(stand: Any) -> None:
    server = stand()
    sampler, server.ending = engine(server), "abort"
    with pytest.raises(UserError, match=rf"prompt 0 \(3 tokens\) failed {MOST_TRIES} times .* ended a response with"):
        sampler.generate([[5, 6, 7]], Sampling(1, 1.0, 4), 0)
    assert server.asked == [5] * MOST_TRIES
