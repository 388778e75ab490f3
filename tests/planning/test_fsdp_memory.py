"""What the plan divides under FSDP, and among ranks that share micro-batches."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mathrl.cli.plan import plan_run
from mathrl.compose import load_params
from mathrl.core.errors import UserError
from mathrl.models.model_shape import config_of, shape_of
from mathrl.params.schema import Params
from mathrl.planning.memory import plan_memory
from mathrl.planning.memory_states import trainable

ROOT = Path(__file__).parents[2]


def params(*overrides: str, preset: str | None = None) -> Params:
    return load_params(ROOT / "params", preset=preset, overrides=overrides)


def test_ranks_that_share_micro_batches_divide_their_activations() -> None:
    """Qwen2-7B, a response of 32,768 tokens over 8 GPUs: 28 query heads, so 2 or 4 ranks share it, and 8 cannot."""
    long = ["training.backend=fsdp", "prompt.max_tokens=1024", "rl.max_tokens=31744", "rl.gradient_checkpointing=false"]

    def planned(ranks: int) -> dict[str, float]:
        given = params(*long, f"training.fsdp.context_parallel={ranks}", preset="gsm8k-grpo-8gpu")
        plan = plan_memory(shape_of(config_of(given.model.base)), given, "rl", "cuda", gpu_memory=80e9)
        return plan.phases["forward and backward"] | {"standing": sum(plan.standing.values())}

    alone, of_two, of_four = planned(1), planned(2), planned(4)
    # Norms 8 D, heads 4 (H + K) d and 4 H, MLP 6 I, in each of 28 layers.
    by_hand = 32_768 * 28 * (8 * 3584 + 4 * (28 + 4) * 128 + 4 * 28 + 6 * 18_944)
    assert alone["activations"] == by_hand == 2 * of_two["activations"] == 4 * of_four["activations"]
    assert alone["standing"] == of_two["standing"] == of_four["standing"]


@pytest.mark.parametrize(
    ("ranks", "gpus", "message"),
    [(8, 8, "28 query heads and 4 key heads, .* set it to 1 or 2 or 4"), (2, 3, "3 ranks")],
)
def test_the_command_refuses_ranks_that_cannot_share(
    monkeypatch: pytest.MonkeyPatch, ranks: int, gpus: int, message: str
) -> None:
    monkeypatch.chdir(ROOT)
    context: Any = SimpleNamespace(invoked_subcommand=None)
    settings = ["training.backend=fsdp", f"training.fsdp.context_parallel={ranks}"]
    with pytest.raises(UserError, match=message):
        plan_run(context, ["gsm8k-grpo-8gpu"], settings, gpus=gpus, gpu_memory="80GB")


def test_fsdp_divides_everything() -> None:
    # 32.8 billion parameters over 128 processes, AdamW: 16 bytes each; the layers are gathered in bfloat16, by hand.
    given = params("training.backend=fsdp", preset="dapo-32b")
    shape = shape_of(config_of(given.model.base))
    found = plan_memory(shape, given, "rl", "cuda", gpu_memory=80e9)
    states = sum(found.standing[f"policy: {part}"] for part in ("weights", "gradients", "optimizer states"))
    assert states == 16 * 32_763_876_352 / 128
    assert found.early["start"]["policy: weights as loaded"] == 2 * 32_763_876_352 / 128
    layer, head = shape.matrices / shape.layers, 152_064 * 5_120
    gathered = found.phases["forward and backward"]["gathered weights (FSDP)"]
    assert gathered == found.phases["scoring"]["gathered weights (FSDP)"] == 2 * (layer + head)
    assert found.phases["forward and backward"]["gradients on their way to their ranks"] == 6 * head
    assert found.phases["export"] == {"policy: gathered weights": 2 * head}
    adapters = params("training.backend=fsdp", "rl.lora={}", preset="dapo-32b")
    found = plan_memory(shape, adapters, "rl", "cuda", gpu_memory=80e9)
    count = trainable(shape, adapters.rl.lora)
    assert found.standing["policy: weights"] == pytest.approx(2 * 32_763_876_352 / 128 + 6 * count)
    assert found.standing["policy: optimizer states"] == 8 * count
