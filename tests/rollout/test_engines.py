"""What the engines with weights of their own share: weights by name, folders, seeds, what is refused."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file

from mathrl.core.errors import UserError
from mathrl.core.hashing import derive_seed
from mathrl.models.base import character_tokenizer
from mathrl.models.lora import add_lora
from mathrl.models.tool_messages import end_tokens
from mathrl.models.weights import folder_weights, full_weights, with_head, write_buckets
from mathrl.params.optimizer import Lora
from mathrl.params.rollout import Rollout, Servers
from mathrl.params.run import FreshModel, Model
from mathrl.rollout.engine import Sampling, SyncedEngine, canary_tolerance, request_seeds
from mathrl.rollout.server_engine import ServerEngine
from mathrl.rollout.torch_engine import CopyEngine, TorchEngine
from mathrl.rollout.vllm_engine import check_length
from mathrl.servers.vllm_arguments import check_vllm

TOKENIZER = character_tokenizer(FreshModel())


def test_a_tied_head_is_sent_too_and_adapters_are_merged(network: Any) -> None:
    model = network()
    plain = dict(full_weights(model))
    assert torch.equal(plain["lm_head.weight"], plain["model.embed_tokens.weight"])
    # Also where the source does not list it, as a folder's file does not; never twice.
    without = [(name, each) for name, each in plain.items() if name != "lm_head.weight"]
    assert {name for name, _ in with_head(without)} == set(plain)
    assert [name for name, _ in with_head(plain.items())].count("lm_head.weight") == 1
    add_lora(model, Lora(r=4), seed=0)
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            weight.data.normal_(generator=torch.Generator().manual_seed(0))
    merged = dict(full_weights(model))
    assert list(merged) == list(plain)
    name = "model.layers.0.self_attn.q_proj"
    layer = model.get_submodule(name)
    added = layer.lora_B["default"].weight @ layer.lora_A["default"].weight * layer.scaling["default"]
    torch.testing.assert_close(merged[f"{name}.weight"], plain[f"{name}.weight"] + added)


def test_buckets_hold_every_weight_once_in_the_samplers_type(network: Any, tmp_path: Path) -> None:
    weights = dict(full_weights(network(hidden_size=128, intermediate_size=512)))
    write_buckets(weights.items(), tmp_path / "out", torch.bfloat16, megabytes=1)
    files = sorted((tmp_path / "out").iterdir())
    assert len(files) > 1
    assert sum(len(load_file(file)) for file in files) == len(weights)
    read = dict(folder_weights(tmp_path / "out"))
    for name, weight in weights.items():
        assert torch.equal(read[name], weight.to(torch.bfloat16)), name


def test_a_copy_samples_like_the_model_that_it_was_sent(network: Any) -> None:
    model, other = network(), network(alphabet="ascii")
    for weight in other.parameters():
        weight.data.mul_(0.9)
    copied = CopyEngine(other, TOKENIZER, Rollout(), 1e-3)
    assert isinstance(copied, SyncedEngine) and not isinstance(TorchEngine(model, TOKENIZER, Rollout()), SyncedEngine)
    asked: Any = ([[5, 6, 7], [8, 9]], Sampling(3, 1.0, 12), 0)
    expected = TorchEngine(model, TOKENIZER, Rollout()).generate(*asked)
    assert copied.generate(*asked) != expected
    copied.sync(full_weights(model))
    assert copied.generate(*asked) == expected == copied.probe(*asked)[0][1]


@pytest.mark.parametrize("training", [True, False])
def test_sampling_leaves_a_model_in_the_mode_that_it_found(network: Any, training: bool) -> None:
    model = network().train(training)
    TorchEngine(model, TOKENIZER, Rollout()).generate([[5, 6, 7]], Sampling(2, 1.0, 4), 0)
    assert model.training is training


def test_seeds_are_a_requests_own() -> None:
    seeds = request_seeds(7, 5)
    assert seeds[:3] == request_seeds(7, 3) and len(set(seeds)) == 5 and seeds != request_seeds(8, 5)
    assert all(0 <= seed < 2**62 for seed in seeds)
    assert seeds[1] == derive_seed(7, "request", 1) >> 1


def test_what_ends_a_response() -> None:
    listed = SimpleNamespace(eos_token_id=[3, 9])
    own = TOKENIZER.eos_token_id
    assert end_tokens(TOKENIZER, listed) == sorted({own, 3, 9}) and end_tokens(TOKENIZER, None) == [own]


def test_the_canarys_tolerance_follows_the_precisions() -> None:
    exact, rounded = Model(precision="float32"), Model(precision="bfloat16")
    assert canary_tolerance(Rollout(), exact, "float32") == 1e-4
    for model, dtype in ((exact, "bfloat16"), (rounded, "bfloat16"), (rounded, "float32")):
        assert canary_tolerance(Rollout(), model, dtype) == 0.05
    assert canary_tolerance(Rollout(canary_tolerance=0.5), exact, "float32") == 0.5


def test_servers_are_named_by_urls() -> None:
    with pytest.raises(ValidationError, match=r"needs servers.start, .* or servers.urls, such as"):
        Rollout(engine="vllm_server")
    with pytest.raises(ValidationError, match="'localhost:8001' is not a URL"):
        Rollout(engine="vllm_server", servers=Servers(urls=("localhost:8001",)))


def test_no_server_there(capsys: pytest.CaptureFixture[str]) -> None:
    nobody = Servers(urls=("http://127.0.0.1:9",), wait_seconds=0.5)
    with pytest.raises(UserError, match=r"can be used after 0.5 s \(http://127.0.0.1:9 does not answer as"):
        ServerEngine(TOKENIZER, [2], Rollout(engine="vllm_server", servers=nobody), "float32", 1e-3)
    assert "waiting" in capsys.readouterr().err


def test_vllm_missing_and_too_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match="not installed: `make engines` installs it; or"):
        check_vllm()
    check_length([8, 7], 8)
    with pytest.raises(UserError, match="up to 9 tokens, but the vLLM engine allows 8"):
        check_length([9, 8], 8)
