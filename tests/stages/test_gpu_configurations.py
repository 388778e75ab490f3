"""Every preset through every stage, as on the GPU that it names: what would be passed, and whether that is accepted."""

import json
from dataclasses import fields
from inspect import signature
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mathrl.compose import load_params
from mathrl.core.errors import UserError
from mathrl.core.gpus import CPU, Hardware
from mathrl.learners.deepspeed_learner import check_supported
from mathrl.models.model_shape import config_of, shape_of
from mathrl.params.rollout import Rollout, Servers, Vllm
from mathrl.params.run import Prompt
from mathrl.planning.final_values import check_final_values
from mathrl.rollout.choices import choose_engine, longest_sequence
from mathrl.rollout.resolve import resolve_importance, resolve_rollout
from mathrl.rollout.vllm_budget import BATCH, GIB, LARGE_BATCH, LARGE_GPU, vllm_budget
from mathrl.servers.vllm_arguments import command_line, transfer_arguments
from tests.marks import needs_vllm
from tests.stages.gpu_configurations import (
    GOLDEN,
    GPUS,
    H100,
    RTX_4090,
    SAMPLES,
    TRAINS,
    budget,
    configurations,
    model_folder,
    parameters,
    resolved,
)

PRESETS = sorted(GPUS)


@pytest.mark.parametrize("preset", PRESETS)
def test_what_would_be_passed_on_its_gpu_is_accepted_and_as_it_was(
    preset: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    golden = json.loads((GOLDEN / f"{preset}.json").read_text(encoding="utf-8"))
    assert configurations(preset) == golden, "python -m tests.stages.gpu_configurations writes the files"
    assert all(golden[stage]["cached_sequences"] >= 24 for stage in SAMPLES), "vLLM holds two dozen of the longest"
    params = parameters(preset)
    check_final_values(params, TRAINS)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)  # whether DeepSpeed is installed is another test
    if params.training.backend == "deepspeed":
        check_supported(params.sft.optimizer, "sft", None)
        check_supported(params.rl.optimizer, "rl", params.rl.ema)
        if params.rl.critic is not None:
            check_supported(params.rl.critic.optimizer, "rl.advantage.critic", None)


@pytest.mark.engines
@needs_vllm
@pytest.mark.parametrize("preset", PRESETS)
def test_vllm_takes_the_arguments(preset: str, tmp_path: Path) -> None:
    from vllm import LLM
    from vllm.engine.arg_utils import EngineArgs
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    golden = json.loads((GOLDEN / f"{preset}.json").read_text(encoding="utf-8"))
    folder = str(model_folder(parameters(preset), tmp_path))
    known = {field.name for field in fields(EngineArgs)}
    for stage in SAMPLES:
        arguments = golden[stage]["llm"] | {"model": folder}
        assert set(arguments) <= known | set(signature(LLM.__init__).parameters)
        made = EngineArgs(**{**arguments, "enable_sleep_mode": False})  # which a CPU's platform refuses
        model = made.create_model_config()
        assert model.max_model_len == arguments["max_model_len"] and str(model.dtype) == "torch.bfloat16"
        assert not model.hf_config.tie_word_embeddings and model.logprobs_mode == "processed_logprobs"
    parser = make_arg_parser(FlexibleArgumentParser())
    by_nccl = transfer_arguments(Rollout(servers=Servers(weights="nccl")), H100)
    assert parser.parse_args(command_line(by_nccl)).weight_transfer_config.backend == "mathrl_nccl"
    parsed = parser.parse_args(golden["serve"])
    assert parsed.weight_transfer_config.backend == "mathrl_nccl", "what auto starts on GPUs"
    assert parsed.max_num_seqs == golden["rl"]["llm"]["max_num_seqs"] and parsed.hf_overrides == {
        "tie_word_embeddings": False
    }


@pytest.mark.engines
@needs_vllm
def test_the_budgets_parts_are_vllms_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch
    from vllm.engine import arg_utils
    from vllm.usage.usage_lib import UsageContext
    from vllm.v1.kv_cache_interface import FullAttentionSpec
    from vllm.v1.worker.utils import request_memory

    params = parameters("countdown-grpo-zero-24gb")
    rollout = resolved(params, "rl", RTX_4090, model_folder(params, tmp_path))
    found = budget(params, rollout, "rl", RTX_4090)
    snapshot: Any = SimpleNamespace(total_memory=RTX_4090.memory, free_memory=RTX_4090.memory)
    cache: Any = SimpleNamespace(gpu_memory_utilization=params.rollout.vllm.memory_share)
    assert found.share == pytest.approx(request_memory(snapshot, cache), abs=1)
    layer = FullAttentionSpec(block_size=16, num_kv_heads=2, head_size=128, dtype=torch.bfloat16)
    config: Any = SimpleNamespace(
        model_config=SimpleNamespace(max_model_len=1320),
        parallel_config=SimpleNamespace(decode_context_parallel_size=1),
    )
    assert found.sequence == 36 * layer.max_memory_usage_bytes(config)
    for memory, batch in ((RTX_4090.memory, BATCH), (H100.memory, LARGE_BATCH), (LARGE_GPU - 1, BATCH)):
        platform = SimpleNamespace(
            get_device_total_memory=lambda memory=memory: memory,
            get_device_name=lambda: "gpu",
            is_tpu=lambda: False,
            is_cpu=lambda: False,
        )
        monkeypatch.setattr(arg_utils, "current_platform", platform)
        tokens, _ = arg_utils.EngineArgs.get_batch_defaults(1)
        assert tokens[UsageContext.LLM_CLASS] == batch


def test_a_share_without_room_for_one_sequence_is_refused_by_name(tmp_path: Path) -> None:
    """The preset as it was: 0.35 of 24 GB for a model of three billion weights and 1,024 sequences."""
    params = parameters("countdown-grpo-zero-24gb")
    folder = model_folder(params, tmp_path)
    rollout = Rollout(engine="vllm", vllm=Vllm(memory_share=0.35))
    with pytest.raises(UserError) as refused:
        resolve_rollout(rollout, folder, params.model, RTX_4090, longest=1280, ranks=1)
    message = str(refused.value)
    assert "rollout.vllm.memory_share 0.35 of a GPU of 23.53 GiB gives vLLM 8.23 GiB" in message
    assert "weights 5.75 GiB, untied head 0.58 GiB, sampler's tables 0.60 GiB" in message
    assert "raise rollout.vllm.memory_share to 0.4 or more, or lower rollout.max_sequences" in message
    enough = rollout.model_copy(update={"vllm": Vllm(memory_share=0.4)})
    resolve_rollout(enough, folder, params.model, RTX_4090, longest=1280, ranks=1)
    # A server takes the machine's GPUs by tensors, whatever the number of the trainer's ranks.
    server = rollout.model_copy(update={"engine": "vllm_server", "servers": Servers(start=1)})
    for sampler, exchanges in ((server, False), (rollout, True)):
        with pytest.raises(UserError, match=r"weights 5\.75 GiB") as refused:
            resolve_rollout(sampler, folder, params.model, RTX_4090, longest=1280, ranks=2)
        assert ("NCCL 0.50 GiB" in str(refused.value)) == exchanges
    named = server.model_copy(update={"servers": Servers(urls=("http://127.0.0.1:8001",))})
    unread = tmp_path / "none"
    assert resolve_rollout(named, unread, params.model, RTX_4090, longest=1280, ranks=1) == named, "it has begun"
    divided = server.model_copy(update={"vllm": Vllm(memory_share=0.35, tensor_parallel=2)})
    resolve_rollout(divided, folder, params.model, RTX_4090, longest=1280, ranks=1)
    with pytest.raises(UserError, match=r"cache_gib 1 holds no sequence of 32768 tokens, which takes 1\.12 GiB"):
        small = rollout.model_copy(update={"vllm": Vllm(cache_gib=1, max_model_length=32768)})
        resolve_rollout(small, folder, params.model, RTX_4090, longest=1280, ranks=1)


def test_the_parts_of_a_budget_by_hand() -> None:
    """Qwen2.5-0.5B with 100 sequences of 1,000 tokens, on one of two GPUs that share the engine."""
    shape = shape_of(config_of(parameters("gsm8k-ppo-24gb").model.base))
    vllm = Vllm(memory_share=0.5, max_model_length=1000, tensor_parallel=2)
    found = vllm_budget(shape, Rollout(max_sequences=100, vllm=vllm), "bfloat16", Hardware("cuda", "", 24 * GIB), 2)
    assert found.share == 12 * GIB
    assert found.parts["weights"] == 494_032_768 and found.parts["untied head"] == 151_936 * 896
    assert found.parts["sampler's tables"] == 100 * (4 * 151_936 + 4 * 4748)
    assert found.parts["activations of the profiling pass"] == 8192 * 2 * (3 * 896 + (3 * 4864 + 2 * 896) / 2)
    assert found.sequence == 63 * 16 * 24 * 2 * 1 * 64 * 2
    assert found.cache == pytest.approx(12 * GIB - sum(found.parts.values()))


def test_auto_is_vllm_for_a_pretrained_model_on_a_gpu_that_has_it() -> None:
    pretrained, fresh = parameters("gsm8k").model, load_params().model
    chosen = {
        (name, hardware.kind, installed): choose_engine(Rollout(), model, hardware, installed).engine
        for name, model in (("pretrained", pretrained), ("fresh", fresh))
        for hardware in (CPU, H100)
        for installed in (True, False)
    }
    assert {key for key, engine in chosen.items() if engine == "vllm"} == {("pretrained", "cuda", True)}
    assert set(chosen.values()) == {"vllm", "torch"}
    assert choose_engine(Rollout(engine="torch"), pretrained, H100, True).engine == "torch"


def test_importance_is_on_where_another_engine_samples_unless_it_is_set() -> None:
    torch_engine, vllm = Rollout(engine="torch"), Rollout(engine="vllm")
    default = load_params().rl
    assert resolve_importance(default, torch_engine).importance is None
    weights = resolve_importance(default, vllm).importance
    assert resolve_importance(default, Rollout(engine="vllm_server", servers=Servers(start=1))).importance == weights
    assert weights is not None and (weights.when, weights.type, weights.high) == ("always", "truncated", 2.0)
    off, on = (load_params(overrides=[f"rl.importance={value}"]).rl for value in ("null", "{}"))
    assert resolve_importance(off, vllm).importance is None
    assert resolve_importance(on, torch_engine).importance is not None


def test_the_longest_sequence_is_the_runs_and_at_most_the_models(tmp_path: Path) -> None:
    params = parameters("deepseekmath-rl")
    folder = model_folder(params, tmp_path)

    def length(longest: int, rollout: Rollout) -> int | None:
        return resolve_rollout(rollout, folder, params.model, H100, longest=longest, ranks=1).vllm.max_model_length

    assert length(1536, Rollout(engine="vllm")) == 1536
    assert length(9000, Rollout(engine="vllm")) == 4096
    assert length(1536, Rollout(engine="vllm", vllm=Vllm(max_model_length=2000))) == 2000
    assert longest_sequence(Prompt(max_tokens=256, response_prefix="Let me"), 1024) == 256 + 7 + 1024
    assert longest_sequence(Prompt(max_tokens=256), 1024, continued=True) == 256 + 2048
