"""vLLM servers in the plan: on GPUs of their own or on those of the ranks, and what a weight sync to them holds."""

from typing import Any

import pytest

from mathrl.cli.plan import show_servers
from mathrl.models.model_shape import config_of, shape_of
from mathrl.planning.memory import plan_memory
from tests.planning.test_memory import params


def test_servers_that_are_started_and_the_buffers_of_their_weights() -> None:
    """Qwen2.5-0.5B in bfloat16: 494,032,768 weights, of which the embedding has 896 x 151,936."""
    embedding, largest = 896 * 151_936, 2 * 896 * 151_936

    def planned(*more: str) -> Any:
        given = params(
            "rollout.engine=vllm_server", "rollout.servers.start=1", "rollout.vllm.memory_share=0.3",
            "rollout.servers.weights=auto", *more,
            preset="gsm8k-ppo-24gb",
        )  # fmt: skip
        return plan_memory(shape_of(config_of(given.model.base)), given, "rl", "cuda", gpu_memory=80e9)

    apart, beside, files = planned(), planned("rollout.servers.weights=ipc"), planned("rollout.servers.weights=files")
    assert largest == 2 * embedding == 272_269_312
    assert apart.phases["weight sync"]["weights packed for NCCL"] == 3 * (512e6 + largest)
    small = planned("rollout.servers.bucket_mb=2000").phases["weight sync"]
    assert small["weights packed for NCCL"] == 3 * 2 * 494_032_768  # all of them fit
    assert beside.phases["weight sync"]["weights shared by CUDA IPC"] == 512e6 + largest
    assert set(files.phases["weight sync"]) == {"weights in transit to the sampler"}
    assert sum(size for name, size in beside.standing.items() if name.startswith("vLLM")) == pytest.approx(0.3 * 80e9)
    assert not any(name.startswith("vLLM") for name in {**apart.standing, **files.standing})
    assert beside.peak - apart.peak == pytest.approx(0.3 * 80e9, rel=0.1)


def test_servers_on_gpus_of_their_own_are_shown_and_refused(capsys: pytest.CaptureFixture[str]) -> None:
    def shown(*more: str) -> tuple[bool, str]:
        given = params("rollout.engine=vllm_server", *more, preset="gsm8k-ppo-24gb")
        fits = show_servers(shape_of(config_of(given.model.base)), given, 24e9)
        return fits, capsys.readouterr().out

    fits, out = shown("rollout.servers.start=2", "rollout.vllm.tensor_parallel=2", "run.processes=2")
    assert (
        fits and "servers: 2, each on 2 GPUs of its own, for" in out and "set rollout.vllm.max_model_length to" in out
    )
    fits, out = shown("rollout.servers.start=1", "rollout.vllm.memory_share=0.05", "rollout.vllm.max_model_length=768")
    assert not fits and "leave no cache for one sequence of 768 tokens" in out and "model's own length" not in out
    assert shown("rollout.servers.urls=[http://a:1]") == (True, "")
    assert shown("rollout.servers.start=1", "rollout.servers.weights=ipc") == (True, "")  # in the plan of the ranks
