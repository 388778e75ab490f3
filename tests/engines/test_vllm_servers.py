"""RL through two real vLLM servers over HTTP: weights, canary, a hung server, a killed one, none left.

Weights go as files, or by vLLM's own transfer, with gloo in NCCL's place (tests/engines/gloo_transfer.py).
"""

import json
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from mathrl.compose import load_params
from mathrl.core.environment import Variable
from mathrl.core.errors import UserError
from mathrl.core.types import Problem
from mathrl.models.load import load_model, load_tokenizer, make_base
from mathrl.models.lora import adapter_weights, add_lora
from mathrl.models.weights import full_weights, write_buckets
from mathrl.params.optimizer import Lora
from mathrl.params.rollout import Rollout, Servers
from mathrl.params.run import RemoteModel
from mathrl.params.train import Asynchronous
from mathrl.rewards.compose import build_reward
from mathrl.rollout import server_engine
from mathrl.rollout.endpoint import EndpointSampler
from mathrl.rollout.engine import Sampling
from mathrl.rollout.open_engine import open_engine, training_engine
from mathrl.servers import serve
from mathrl.servers.protocol import state_of
from mathrl.servers.serve import close_servers, start_servers
from mathrl.servers.server import Server
from mathrl.servers.server_pool import ServerPool
from tests.engines.tiny_rl import MODEL, STEPS
from tests.engines.two_servers import (
    PROMPTS,
    SAMPLING,
    Two,
    changed,
    gloo_sender,
    largest_gap,
    train,
    with_transfer,
    within,
)
from tests.engines.vllm_turns import measured
from tests.marks import needs_vllm

pytestmark = [pytest.mark.engines, needs_vllm]
torch.set_num_threads(1)
LORA = Lora(r=4, alpha=8.0)


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Two]:
    where = tmp_path_factory.mktemp("servers")
    make_base(MODEL, where / "base", seed=0)
    rollout = Rollout(engine="vllm_server", max_sequences=32, servers=Servers(start=2, wait_seconds=400.0))
    gloo = {
        "worker_extension_cls": "tests.engines.gloo_transfer.GlooReader",
        "weight_transfer_config": {"backend": "mathrl_gloo"},
    }
    try:
        with pytest.MonkeyPatch.context() as patch:  # for every test: other commands would start other servers
            patch.setattr(serve, "SERVER", serve.SERVER | gloo)
            started = start_servers(where / "base", MODEL, rollout, LORA)
            pool = ServerPool(rollout.servers, started.urls, started.check)
            within(400, lambda: pool.revive() or len(pool.alive()) == 2)
            yield Two(where / "base", started)
    finally:
        close_servers()


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
    assert [url for url, _ in engine.probe(PROMPTS, SAMPLING, 3)] == two.started.urls


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


def test_a_server_is_an_endpoint_that_is_evaluated_and_not_asked_twice(
    two: Two, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(Variable.STATE, str(tmp_path))
    if key := Variable.SERVE_KEY.get():
        monkeypatch.setenv(Variable.ENDPOINT_KEY, key)
    server = Server(two.started.urls[0])
    assert server.healthy()
    problems = [Problem(f"p{n}", f"{n}+{n}=", (str(2 * n),), "s", "test") for n in range(5)]
    asked = RemoteModel(endpoint=f"{server.url}/v1", model=server.model, api="completions")
    params = load_params(Path(__file__).parents[2] / "params", overrides=["prompt.template=plain"])
    sampler = EndpointSampler(asked, params, "evaluate")
    groups = sampler.sample(problems, Sampling(3, 1.0, 12), build_reward(), 0)
    account = sampler.account()
    assert account["requests"] == 15 and account["answered_as"] == {asked.model: 15} and not account["retries"]
    lengths = [len(graded.completion.tokens) for group in groups for graded in group or ()]
    assert sum(lengths) == account["completion_tokens"] and max(lengths) <= 12
    (again := EndpointSampler(asked, params, "evaluate")).sample(problems, Sampling(3, 1.0, 12), build_reward(), 0)
    assert again.account()["requests"] == 0 and again.account()["kept"] == 15


def test_a_stage_that_only_samples_has_the_folders_weights(two: Two) -> None:
    engine, _ = open_engine(two.folder, MODEL, two.rollout(), "cpu")
    completions = engine.generate(PROMPTS, SAMPLING, 0)
    assert largest_gap(load_model(two.folder, MODEL, "cpu"), completions) < 1e-4
    greedy = engine.generate(PROMPTS, Sampling(2, 0.0, 8), 0)
    assert all(row[0] == row[1] and len(row) == 2 for row in greedy)


def test_prompts_of_more_tokens_than_a_batch_takes(two: Two) -> None:
    """vLLM's engine on a CPU ends where it samples with a seed from a prompt that a batch cuts in two."""
    engine, _ = open_engine(two.folder, MODEL, two.rollout(), "cpu")
    long = [[5 + (n + place) % 90 for place in range(110)] for n in range(64)]  # 32 at once; a batch has 2,048 tokens
    together = engine.generate(long, Sampling(2, 0.8, 4), 3)
    assert all(server.alive for server in engine.pool.servers)
    assert engine.generate(long[:2], Sampling(2, 0.8, 4), 3) == together[:2]


def changed_adapter(network: Any, seed: int) -> None:
    torch.manual_seed(seed)
    with torch.no_grad():
        for weight in adapter_weights(network):
            weight.copy_(torch.randn_like(weight) / 4)


def test_adapters_are_sent_alone_and_replaced_in_place(two: Two) -> None:
    network, tokenizer = load_model(two.folder, MODEL, "cpu"), load_tokenizer(two.folder)
    engine: Any = training_engine(network, two.folder, tokenizer, MODEL, two.rollout(), False, LORA)
    add_lora(network, LORA, seed=0)
    digests = set()
    for seed in range(3):
        changed_adapter(network, seed)
        engine.sync(full_weights(network))
        sent = engine.pool.weights
        assert sorted(file.name for file in Path(sent.folder).iterdir()) == [
            "adapter_config.json",
            "adapter_model.safetensors",
        ]
        answers = engine.probe(PROMPTS, SAMPLING, 5)
        assert [url for url, _ in answers] == two.started.urls
        for _, group in answers:
            assert largest_gap(network, group) < 1e-4 < largest_gap(load_model(two.folder, MODEL, "cpu"), group)
        assert {state_of(url).weights for url in two.started.urls} == {sent.digest}
        digests.add(sent.digest)
    assert len(digests) == 3
    # Weights without an adapter are the model's own again.
    engine = open_engine(two.folder, MODEL, two.rollout(), "cpu")[0]
    assert largest_gap(load_model(two.folder, MODEL, "cpu"), engine.generate(PROMPTS, SAMPLING, 0)) < 1e-4


def test_weights_by_vllms_transfer_are_those_of_files(two: Two, tmp_path: Path) -> None:
    rows, network, engine = train(two, tmp_path, sender=gloo_sender(tmp_path))
    assert len(rows) == 2 and all(row["rollout/canary_gap"] < 2e-5 for row in rows)
    assert engine.pool.weights.folder == "" and engine.folder is None  # no file was written
    engine.sync(full_weights(network))
    digest = write_buckets(full_weights(network), tmp_path / "files", torch.float32, 1)
    assert {state_of(url).weights for url in two.started.urls} == {engine.pool.weights.digest} == {digest}
    transferred = engine.generate(PROMPTS, SAMPLING, 3)
    assert largest_gap(network, transferred) < 1e-4 < largest_gap(load_model(two.folder, MODEL, "cpu"), transferred)
    engine.sync_folder(tmp_path / "files")
    assert engine.generate(PROMPTS, SAMPLING, 3) == transferred


def test_a_weight_is_copied_before_the_next_is_gathered() -> None:
    """As under ZeRO 3, where a gathered weight is gone when the next one is taken; vLLM packs several."""
    from vllm.distributed.weight_transfer.packed_tensor import pack_tensors

    from mathrl.servers.weight_transfer import SyncedWeights  # vLLM, which may not be installed

    memory, names = torch.zeros(4), ["a", "b", "c"]

    def gathered() -> Iterator[tuple[str, Tensor]]:
        for number, name in enumerate(names):
            yield name, memory.fill_(number)

    source = SyncedWeights(gathered(), [(name, torch.float32, (4,)) for name in names], torch.bfloat16)
    assert [(each.name, each.dtype, each.shape) for each in source.metadata()] == [
        (name, torch.bfloat16, (4,)) for name in names
    ]
    chunk = pack_tensors(iter(source), lambda item: item[1], 1000)
    assert chunk.packed_tensor.view(torch.bfloat16).tolist() == [0.0] * 4 + [1.0] * 4 + [2.0] * 4
    assert source.largest() == 8


def test_requests_in_flight_go_on_with_transferred_weights(two: Two, tmp_path: Path) -> None:
    network, engine = with_transfer(two, tmp_path)
    engine.sync(full_weights(network))
    many, results = [[5 + n % 90] for n in range(100)], list[Any]()
    asking = threading.Thread(target=lambda: results.append(engine.generate(many, Sampling(2, 1.0, 100), 6)))
    asking.start()
    for seed in range(3):
        changed(network, seed)
        engine.sync(full_weights(network))
        assert all(server.alive for server in engine.pool.servers)
    asking.join()
    assert len(results[0]) == 100 and {each.finish_reason for row in results[0] for each in row} <= {"stop", "length"}
    assert [largest_gap(network, group) < 1e-4 for _, group in engine.probe(PROMPTS, SAMPLING, 5)] == 2 * [True]


def test_a_transfer_that_breaks_off_leaves_nothing_behind(two: Two, tmp_path: Path) -> None:
    """The trainer is lost after the first of its weights: parts of layers have come, and no more will."""
    network, engine = with_transfer(two, tmp_path)
    engine.sync(full_weights(network))
    changed(network, 0)

    def broken() -> Iterator[tuple[str, Tensor]]:
        for number, (name, weight) in enumerate(full_weights(network)):
            if number == 5:  # after the first matrices of a layer's attention
                raise RuntimeError("the trainer is gone")
            yield name, weight

    engine.sender.seconds, engine.sender.buffer_bytes = 3.0, 1  # each weight is sent as it is taken
    engine.sender.groups.clear()
    with pytest.raises(RuntimeError, match="the trainer is gone"):
        engine.sync(broken())
    assert {state_of(url).weights for url in two.started.urls} == {""}
    changed(network, 1)
    # Another trainer sends files; parts of layers that came before would be taken for theirs.
    other: Any = with_transfer(two, tmp_path)[1]
    other.network, other.sender = network, None
    other.sync(full_weights(network))
    assert [largest_gap(network, group) < 1e-4 for _, group in other.probe(PROMPTS, SAMPLING, 5)] == 2 * [True]


def test_ranks_gather_weights_while_rank_0_sends_them(two: Two, tmp_path: Path, run_ranks: Callable[..., None]) -> None:
    whole, scale = load_model(two.folder, MODEL, "cpu"), 1.25  # exact in float32
    with torch.no_grad():
        for weight in whole.parameters():
            weight.mul_(scale)
    digest = write_buckets(full_weights(whole), tmp_path / "whole", torch.float32, 1)
    world = tmp_path / "world"
    world.mkdir()
    (world / "servers.json").write_text(json.dumps([str(two.folder), two.started.urls, scale]))
    run_ranks(Path(__file__).with_name("ranked_transfer.py"), {world: 2})
    first, second = (json.loads((world / f"{rank}.json").read_text()) for rank in range(2))
    assert first["digest"] == second["digest"] == digest and not first["folder"] and not second["folder"]
    assert first["figures"]["rollout/canary_gap"] < 2e-5 and first["alone"] is None
    rows = first["rows"]
    assert len(rows) == 2 and rows[0]["grad_norm"] > 0
    assert all(row["rollout/canary_gap"] < 2e-5 for row in rows)
    assert not first["files"] and not second["files"]
    assert {state_of(url).weights for url in two.started.urls} == {first["digest after"]} != {digest}


def test_a_server_that_is_lost_within_a_transfer_gets_the_weights_as_files(
    two: Two, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    # Each weight is sent as it is taken, and an update may take 30 s.
    network, engine = with_transfer(two, tmp_path, buffer_bytes=1, seconds=30.0)
    engine.sync(full_weights(network))
    # Another rank, which uses the servers that this stage started: the same ones.
    own = Rollout(engine="vllm_server", max_sequences=32, servers=Servers(start=2))
    idle: Any = training_engine(network, two.folder, load_tokenizer(two.folder), MODEL, own, False, LORA)
    assert [server.url for server in idle.pool.servers] == two.started.urls
    idle.sync_folder(two.folder)

    def lost_by(kind: signal.Signals) -> Iterator[tuple[str, Tensor]]:
        for number, (name, weight) in enumerate(full_weights(network)):
            if number == 5:  # after the first matrices of a layer's attention
                two.signal(1, kind)
            yield name, weight

    def gaps() -> list[bool]:
        return [largest_gap(network, group) < 1e-4 for _, group in engine.probe(PROMPTS, SAMPLING, 5)]

    def sent() -> set[str]:
        assert len({state_of(url).weights for url in two.started.urls}) == 1
        return {state_of(two.started.urls[0]).weights, engine.pool.weights.digest}

    # Killed: the transfer comes to its end with the other, which alone samples.
    changed(network, 0)
    process, generation = two.signal(1, signal.SIGCONT), state_of(two.started.urls[1]).generation
    engine.sync(lost_by(signal.SIGKILL))
    killed = two.started.urls[1]
    assert f"rollout: the weights were not accepted: {killed} broke off /update_weights" in capfd.readouterr().err
    assert [server.alive for server in engine.pool.servers] == [True, False] and gaps() == [True]
    assert engine.pool.weights.folder == "" and engine.folder is None
    # Started again, it gets them as files before a request.
    within(400, lambda: state_of(killed).alive)
    state = state_of(killed)
    assert state.weights == "" and state.generation != generation and two.signal(1, signal.SIGCONT) != process
    # The other rank, no request of which failed, notices it, and gives both the weights that its request is for.
    capfd.readouterr()
    assert [server.alive for server in idle.pool.servers] == [True, True]
    answers = idle.probe(PROMPTS, SAMPLING, 5)
    assert f"was restarted (generation {generation}, now {state.generation})" in capfd.readouterr().err
    first = load_model(two.folder, MODEL, "cpu")
    assert [largest_gap(first, group) < 1e-4 for _, group in answers] == [True, True]
    assert idle.generate(PROMPTS, SAMPLING, 5) in [group for _, group in answers]
    engine.pool.revive()
    assert gaps() == [True]  # the first has the other rank's weights: it is left out until it has these
    within(200, lambda: engine.pool.revive() or len(engine.pool.alive()) == 2)
    assert gaps() == [True, True] and len(sent()) == 1
    assert [each.name for each in engine.folder.iterdir()] == ["transferred"]
    # The next transfer finds it in a group of its own, and leaves no file.
    changed(network, 1)
    engine.sync(full_weights(network))
    assert gaps() == [True, True] and len(sent()) == 1
    assert engine.pool.weights.folder == "" and not list(engine.folder.iterdir())
    # One that hangs: it is left out after the limit of a sync, and takes part again when it answers.
    changed(network, 2)
    engine.sync(lost_by(signal.SIGSTOP))
    assert [server.alive for server in engine.pool.servers] == [True, False] and gaps() == [True]
    two.signal(1, signal.SIGCONT)
    within(200, lambda: engine.pool.revive() or engine.pool.servers[1].alive)
    assert gaps() == [True, True] and len(sent()) == 1


def test_a_folder_that_the_servers_cannot_see_is_named(two: Two, tmp_path: Path) -> None:
    engine: Any = open_engine(two.folder, MODEL, two.rollout(wait_seconds=20.0), "cpu")[0]
    with pytest.raises(UserError, match=r"answered /mathrl/weights with 500.*finds no.* set rollout\.servers\.folder"):
        engine.sync_folder(tmp_path)  # it is empty


def test_the_canary_notices_a_server_without_the_new_head(
    two: Two, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def headless(weights: Any, *rest: Any) -> str:
        # Both are left out: the server would make a head from the embedding if it received one.
        left_out = ("lm_head.weight", "embed_tokens.weight")
        return write_buckets(((name, each) for name, each in weights if not name.endswith(left_out)), *rest)

    train(two, tmp_path / "moved")  # so that the servers' head is not the folder's
    monkeypatch.setattr(server_engine, "write_buckets", headless)
    with pytest.raises(UserError, match=r"the log-probs of http://127.* differ from the trainer's"):
        train(two, tmp_path / "broken")


def test_hung_and_dead_servers(two: Two, capfd: pytest.CaptureFixture[str]) -> None:
    network, tokenizer = load_model(two.folder, MODEL, "cpu"), load_tokenizer(two.folder)

    def opened(rollout: Rollout) -> Any:
        return training_engine(network, two.folder, tokenizer, MODEL, rollout, False, LORA)

    engine = opened(two.rollout(timeout_seconds=20.0, wait_seconds=120.0))  # of the model that gets adapters below
    engine.sync(full_weights(network))
    expected = engine.generate(PROMPTS, SAMPLING, 5)

    # A hung server: its requests time out and go to the other; when it answers again, it gets the new weights.
    two.signal(0, signal.SIGSTOP)
    assert engine.generate(PROMPTS, SAMPLING, 5) == expected
    assert "made no progress for 20 s; 1 other server" in capfd.readouterr().err
    assert [server.alive for server in engine.pool.servers] == [False, True]
    add_lora(network, LORA, seed=0)
    changed_adapter(network, 0)
    engine.sync(full_weights(network))
    two.signal(0, signal.SIGCONT)
    within(200, lambda: engine.pool.revive() or engine.pool.servers[0].alive)
    assert [largest_gap(network, group) < 1e-4 for _, group in engine.probe(PROMPTS, SAMPLING, 5)] == 2 * [True]

    # A server killed during requests: nothing is lost.
    many = [[5 + n % 90] for n in range(200)]
    expected = engine.generate(many, Sampling(2, 1.0, 100), 6)
    killer = threading.Timer(0.5, lambda: two.signal(1, signal.SIGKILL))
    killer.start()
    assert engine.generate(many, Sampling(2, 1.0, 100), 6) == expected
    killer.join()
    assert [server.alive for server in engine.pool.servers] == [True, False]

    # No server left: the run reports it and stops.
    capfd.readouterr()
    two.started.close()
    assert not any(state_of(url).alive for url in two.started.urls)
    engine.pool.params = engine.pool.params.model_copy(update={"wait_seconds": 2.0})
    with pytest.raises(UserError, match=r"no vLLM server can be used after 2 s .*: start one with"):
        engine.generate(PROMPTS, SAMPLING, 5)
    assert "waiting" in capfd.readouterr().err
