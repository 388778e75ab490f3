"""Planned memory against what models, optimizers and autograd really hold, and against published figures."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from mathrl.cli.plan import plan, size_in_bytes
from mathrl.core.errors import UserError
from mathrl.models.base import character_tokenizer, fresh_network
from mathrl.models.linear import use_bfloat16_products
from mathrl.models.logprobs import response_logprobs
from mathrl.models.lora import add_lora
from mathrl.models.norm import use_fast_norms
from mathrl.models.packing import Group, pack
from mathrl.models.shape import KNOWN, SIZES, Shape, config_of, shape_of
from mathrl.models.transformers_import import AutoConfig
from mathrl.params.load import load_params
from mathrl.params.lora import Lora
from mathrl.params.run import FreshModel, PretrainedModel
from mathrl.params.schema import Params
from mathrl.params.train import Optimizer
from mathrl.trainers.memory import GIB, divided, kept_activations, plan_memory, trainable, trained
from mathrl.trainers.memory_advice import advise
from mathrl.trainers.optimizer import FlatParameters, OptimizerSet

ROOT = Path(__file__).parents[2]
# Of the model cards; embedding counted once where it is tied.
PARAMETERS = {
    "Qwen/Qwen2.5-0.5B-Instruct": 494_032_768,
    "Qwen/Qwen2.5-1.5B-Instruct": 1_543_714_304,
    "Qwen/Qwen2.5-3B-Instruct": 3_085_938_688,
    "Qwen/Qwen2-7B-Instruct": 7_615_616_512,
    "Qwen/Qwen2.5-32B": 32_763_876_352,
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B": 1_777_088_000,
    "deepseek-ai/deepseek-math-7b-instruct": 6_910_365_696,
}
BASE = FreshModel(hidden_size=64, intermediate_size=176, layers=3, heads=4, kv_heads=2)


def params(*overrides: str, preset: str | None = None) -> Params:
    return load_params(ROOT / "params", preset=preset, overrides=overrides)


def network(base: FreshModel = BASE, bfloat16: bool = True) -> Any:
    model = fresh_network(base, character_tokenizer(base), seed=0)
    use_fast_norms(model)
    if bfloat16:
        use_bfloat16_products(model)
    return model


def test_shapes_of_known_models_have_their_published_number_of_parameters() -> None:
    assert set(KNOWN) == set(PARAMETERS)
    for name, (kind, sizes) in KNOWN.items():
        config = AutoConfig.for_model(kind, **dict(zip(SIZES, sizes, strict=True)))
        assert shape_of(config).parameters == PARAMETERS[name], name


@pytest.mark.parametrize(
    ("bfloat16", "recomputed", "adapters"),
    [(True, True, False), (True, False, False), (False, True, False), (False, False, False),
     (True, False, True), (False, False, True)],
)  # fmt: skip
def test_activations_are_what_autograd_keeps(bfloat16: bool, recomputed: bool, adapters: bool) -> None:
    model, kept = network(bfloat16=bfloat16), {}
    if adapters:
        add_lora(model, Lora(r=2), seed=0)
    groups = [Group([5 + i] * 20, [[7 + i] * 60] * 4) for i in range(4)]
    response_logprobs(model, groups[:1])
    if recomputed:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    model.train()
    own = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
    own |= {
        each.__dict__["_together"].rounded[1].untyped_storage().data_ptr()
        for each in model.modules()
        if "_together" in each.__dict__
    }

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        response_logprobs(model, groups)
    tokens = pack(groups).input_ids_1T.shape[1]
    precision = "bfloat16" if bfloat16 else "float32"
    shape = shape_of(model.config)
    given = params(f"model.precision={precision}")
    parts = kept_activations(shape, tokens, 80, given, recomputed, adapters)
    table = 4 * tokens * shape.vocabulary  # of the logits' softmax
    if recomputed:  # one layer is made again in the backward pass, so it is not among what is kept
        planned = parts["activations: inputs of the layers"] + table
    else:
        planned = parts["activations"] + parts["attention's probabilities"] + table
    planned += parts["activations: after the layers"]
    assert sum(kept.values()) == pytest.approx(planned, rel=0.06)


@pytest.mark.parametrize("kind", ["adamw", "muon"])
@pytest.mark.parametrize("lora", [None, Lora(r=4)])
def test_trained_bytes_are_the_learners(kind: Any, lora: Lora | None) -> None:
    model = network(bfloat16=False)
    shape = shape_of(model.config)
    if lora is not None:
        add_lora(model, lora, seed=0)
    optimizer = Optimizer(type=kind)
    flat = FlatParameters(model)
    learner = OptimizerSet(model, flat, optimizer, 1e-3, 10)
    flat.gradients.fill_(0.1)
    learner.step(0)
    planned = trained(shape, optimizer, lora, "policy")
    assert trainable(shape, lora) == flat.weights.numel()
    assert planned["policy: weights"] == 4 * sum(weight.numel() for weight in model.parameters())
    assert planned["policy: gradients"] == flat.gradients.nbytes
    states = sum(value.nbytes for value in learner.state().values() if value.dim())
    assert planned["policy: optimizer states"] == states


def test_zero_divides_as_its_paper_says() -> None:
    # arXiv:1910.02054, figure 1: 7.5 billion parameters, 64 processes: 31.4, 16.6 and 1.9 GB.
    shape = Shape(1, 1, 10**9, 1, 1, 1, 1, 7_500_000_000, 0, 0, True)
    for stage, published in ((1, 31.4e9), (2, 16.6e9), (3, 1.9e9)):
        given = params("run.processes=64", "training.backend=deepspeed", f"training.deepspeed.stage={stage}")
        device, host = divided(shape, None, given, "policy")
        assert sum(device.values()) == pytest.approx(published, rel=0.02) and not host
    offloaded = params(
        "run.processes=64", "training.backend=deepspeed", "training.deepspeed.stage=3",
        "training.deepspeed.offload_optimizer=true", "training.deepspeed.offload_parameters=true",
    )  # fmt: skip
    device, host = divided(shape, None, offloaded, "policy")
    assert sum(host.values()) == pytest.approx((2 + 12) * 7.5e9 / 64)


def test_ppo_of_half_a_billion_by_its_parts() -> None:
    # veRL's users report 16 GB: actor and critic at 16 bytes a parameter are 15.8e9 bytes of it.
    given = params(preset="gsm8k-ppo-24gb")
    found = plan_memory(shape_of(config_of(given.model.base)), given, "rl", "cuda")
    learners = sum(size for name, size in found.standing.items() if name.split(": ")[-1] in
                   ("weights", "gradients", "optimizer states"))  # fmt: skip
    assert learners == pytest.approx(16 * 2 * 494_032_768, rel=1e-3)
    assert found.peak < 0.95 * 24e9


@pytest.mark.parametrize(
    "preset,gpus,memory",
    [("gsm8k-ppo-24gb", 1, 24e9), ("gsm8k-grpo-8gpu", 8, 80e9), ("deepseekmath-rl", 8, 80e9),
     ("rlinf-1.5b", 64, 80e9), ("countdown-grpo-zero-48gb", 1, 48e9), ("countdown-grpo-zero-24gb", 1, 24e9),
     ("dapo-32b", 128, 80e9), ("qwen2.5-0.5b-gsm8k", 1, 24e9)],
)  # fmt: skip
def test_presets_fit_the_hardware_that_they_name(preset: str, gpus: int, memory: float) -> None:
    given = params(f"run.processes={gpus}", preset=preset)
    shape = shape_of(config_of(given.model.base))
    assert plan_memory(shape, given, "rl", "cuda", gpu_memory=memory).peak < 0.95 * memory


def test_advice_fits_and_holds_nothing_that_is_not_needed() -> None:
    start = params("run.processes=1", preset="qwen2.5-0.5b-gsm8k")
    shape = shape_of(config_of(start.model.base))

    def planned(chosen: Params) -> Any:
        return plan_memory(shape, chosen, "rl", "cuda")

    def resolved(more: Sequence[str]) -> Params | None:
        try:
            return params("run.processes=1", *more, preset="qwen2.5-0.5b-gsm8k")
        except UserError:
            return None

    assert advise(start, "rl", 1e12, resolved, planned) == []
    assert advise(start, "rl", 1e8, resolved, planned) is None
    for room in (16 * GIB, 10 * GIB, 6 * GIB):
        changes = advise(start, "rl", room, resolved, planned)
        assert changes and planned(resolved(changes) or start).peak <= room
        for each in changes:
            fewer = resolved([other for other in changes if other != each])
            assert fewer is None or planned(fewer).peak > room, each


def test_the_command_says_what_to_change(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.chdir(ROOT)
    assert plan(None, [], None, None, None, None)
    said = capsys.readouterr().out
    assert "0.5 million parameters, 2 processes" in said and "key-value cache" in said
    assert not plan("qwen2.5-0.5b-gsm8k", [], 1, "8GB", None, None)
    assert "with these it does:\n    --set" in capsys.readouterr().out
    with pytest.raises(UserError, match="write it as 24GB"):
        size_in_bytes("much")
    with pytest.raises(UserError, match="no such model folder"):
        config_of(PretrainedModel(path="./nothing"))
