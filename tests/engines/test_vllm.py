"""vLLM in the trainer's process: weights are synced after each update, and a canary checks it; tool calls; exports."""

import importlib.util
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from mathrl.models.load import load_model
from mathrl.params.run import Model
from tests.marks import needs_vllm

HERE = Path(__file__).parent
pytestmark = [pytest.mark.engines, needs_vllm]


@pytest.fixture(scope="module")
def where(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("vllm")


@pytest.fixture(scope="module")
def results(where: Path, run_program: Callable[..., str]) -> dict[str, Any]:
    """The results of all runs, from one process, since vLLM's imports take seconds."""
    run_program(HERE / "vllm_rl.py", where)
    loaded: dict[str, Any] = json.loads((where / "results.json").read_text())
    return loaded


@pytest.fixture(scope="module")
def on_two(tmp_path_factory: pytest.TempPathFactory, run_ranks: Callable[..., None]) -> dict[str, Any]:
    """The same on two gloo processes, an engine in each, with the torch backend and with ZeRO 3."""
    if not importlib.util.find_spec("deepspeed"):
        pytest.skip("DeepSpeed is not installed: make engines")
    where = tmp_path_factory.mktemp("vllm-zero")
    run_ranks(HERE / "vllm_rl.py", {where: 2})
    loaded: dict[str, Any] = json.loads((where / "results.json").read_text())
    return loaded


@pytest.mark.parametrize("head", ["tied", "untied"])
def test_zero_3_gives_the_same_run_as_the_torch_backend(on_two: dict[str, Any], head: str) -> None:
    rows, expected = on_two[f"{head}, zero 3"], on_two[f"{head}, torch"]
    assert len(rows) == len(expected) == 3
    for row, other in zip(rows, expected, strict=True):
        # vLLM samples the same tokens from the gathered weights.
        assert row["response_length"] == other["response_length"]
        assert row["reward/overall"] == other["reward/overall"]
        assert row["rollout/canary_gap"] < 2e-5 and row["rollout/gap_above/0.001"] == 0
        for name in ("actor_loss", "grad_norm", "entropy", "rollout/logprob_alignment"):
            assert row[name] == pytest.approx(other[name], abs=1e-4), name
    # The weights moved, so the test would notice a sampler that kept the first ones.
    assert len({row["reward/overall"] for row in rows}) == 3


def test_two_processes_that_share_an_engine_get_the_same_samples_as_with_separate_ones(on_two: dict[str, Any]) -> None:
    rows, expected = on_two["halves"], on_two["tied, torch"]
    assert len(rows) == 3
    for row, other in zip(rows, expected, strict=True):
        assert row["rollout/canary_gap"] < 2e-5
        assert row == pytest.approx(other, abs=1e-4)


def test_memory_that_two_processes_share_has_a_name_per_run_and_no_file(on_two: dict[str, Any]) -> None:
    """Else two runs at once, or a run after one that was killed, fail with errno 17."""
    assert len(on_two["shared memory"]) == (2 if on_two["shares memory"] else 0)
    for number, name in enumerate(on_two["shared memory"]):
        assert re.fullmatch(rf"/dev/shm/mathrl-[0-9a-f]{{32}}-tp:\d+-\[0-1\]-cpushm_{number} \(deleted\)", name)


def test_adapters_under_zero_3_are_merged_for_the_sampler(on_two: dict[str, Any]) -> None:
    assert all(row["rollout/canary_gap"] < 2e-5 and row["grad_norm"] > 0 for row in on_two["lora"])
    assert on_two["lora"][1]["kl"] > 0  # the policy without its adapters is the reference


def test_the_canary_stops_a_broken_sync_under_zero_3(on_two: dict[str, Any]) -> None:
    assert "vLLM in this process differ from the trainer's" in on_two["zero 3, without head"]


def test_zero_3_gathers_a_bucket_for_the_sync_and_a_layer_for_scores(on_two: dict[str, Any]) -> None:
    gathered = on_two["gathered"]
    assert gathered["network"] > 60_000
    assert gathered["rollouts"] == 0  # vLLM has weights of its own
    assert 0 < gathered["sync"] <= 20_000
    assert 0 < gathered["scoring"] < 10_000  # the largest: a matrix of the MLP, 6,144, or the head


@pytest.mark.parametrize("run", ["rows", "lora", "untied", "importance"])
def test_sampler_and_trainer_agree_at_every_step(results: dict[str, Any], run: str) -> None:
    rows = results[run]
    assert len(rows) == 2
    for row in rows:
        # float32 with other kernels: 1.7e-5 was the largest difference of a token.
        assert row["rollout/canary_gap"] < 2e-5
        assert row["rollout/logprob_alignment"] == pytest.approx(1, abs=2e-5)
        assert row["rollout/gap_above/0.001"] == 0
        assert row["ratio/mean"] == pytest.approx(1, abs=2e-5)
        assert row["dev/response_length"] > 0
    # The policy has moved, so they do not agree only because nothing changed.
    assert rows[0]["grad_norm"] > 0 and rows[0]["reward/overall"] != rows[1]["reward/overall"]
    if run == "importance":
        assert rows[1]["importance/mean"] == pytest.approx(1, abs=2e-5)


def test_one_step_ahead_the_probe_agrees_and_the_rollouts_are_older(results: dict[str, Any]) -> None:
    rows = results["ahead"]
    assert [row["rollout/lag"] for row in rows] == [0, 1, 1]
    assert all(row["rollout/canary_gap"] < 2e-5 for row in rows)
    assert rows[0]["rollout/logprob_alignment"] == pytest.approx(1, abs=2e-5)
    assert all(row["rollout/logprob_alignment"] > 1.001 for row in rows[1:])


def test_torch_and_the_environment_are_as_before_an_engine_is_opened(results: dict[str, Any]) -> None:
    before, after = results["state"]
    assert after == before and before["cuda.matmul.allow_tf32"] == "True"


@pytest.mark.parametrize("part", ["head", "layer", "embedding"])
def test_the_canary_stops_a_run_whose_sync_leaves_something_out(results: dict[str, Any], part: str) -> None:
    error = results[f"without {part}"]
    assert "vLLM in this process differ from the trainer's" in error and "nothing was trained" in error


def test_samples_depend_on_their_seed_and_prompt_alone(results: dict[str, Any]) -> None:
    assert results["repeats"] == [True] * 4


def test_responses_that_do_not_fit_are_refused(results: dict[str, Any]) -> None:
    assert "163 tokens, but the vLLM engine allows 128" in results["too long"]


def test_chats_of_two_families_keep_their_tokens_and_log_probs(results: dict[str, Any]) -> None:
    """All families: `python -m tests.models.test_families`."""
    assert results["families"]["qwen3"] == "yes"
    # vLLM runs OLMo 2 by transformers' class and changes its calls: the trainer's model would fail in its next pass.
    assert results["families"]["olmo2"].startswith("refused: vLLM changes Olmo2Model of transformers in this process")


def test_turns_of_vllm_are_plain_calls_with_the_models_log_probs(results: dict[str, Any]) -> None:
    """It stops at strings, and every turn is a plain call of the engine."""
    turns = results["turns"]
    assert turns["calls"] > 10 and turns["refused"] > 0
    assert turns["same"] == 1 and turns["gap"] < 1e-4


def test_vllm_serves_an_exported_model_with_the_log_probs_of_a_plain_forward(
    results: dict[str, Any], where: Path
) -> None:
    model = load_model(where / "plain", Model(precision="float32"), "cpu").eval()
    assert len(results["greedy"]) == 3
    for row in results["greedy"]:
        prompt = row["prompt"]
        ids = torch.tensor([prompt + row["tokens"]])
        with torch.no_grad():
            logprobs_TV = model(input_ids=ids).logits[0].log_softmax(-1)[len(prompt) - 1 : -1]
        assert logprobs_TV.argmax(-1).tolist() == row["tokens"]
        taken = logprobs_TV.gather(-1, torch.tensor(row["tokens"])[:, None])[:, 0]
        # float32 against float32 with other kernels: 1.7e-5 was the largest difference over 16,384 tokens.
        torch.testing.assert_close(taken, torch.tensor(row["logprobs"]), atol=1e-4, rtol=0)
