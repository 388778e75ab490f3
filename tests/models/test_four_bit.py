"""Frozen weights of 4 bits: the paper's values by hand, the trained model exported, its bytes, what refuses them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy.stats import norm
from torch import nn

from mathrl.learners.checkpoint import Checkpoint
from mathrl.learners.torch_learner import TorchLearner
from mathrl.models.base import character_tokenizer
from mathrl.models.export import export_model
from mathrl.models.four_bit import is_coded, quantise_layers, restore_weight
from mathrl.models.linear import use_half_products
from mathrl.models.load import load_model
from mathrl.models.logprobs import response_logprobs
from mathrl.models.lora import adapters_off, add_lora, frozen_weights, merged_state
from mathrl.models.model_shape import shape_of
from mathrl.models.packing import Group
from mathrl.models.weights import full_weights, weight_shapes
from mathrl.params.optimizer import AdamW, Lora
from mathrl.params.run import FreshModel, Model
from mathrl.planning.memory_states import trainable, trained_states, with_adapters

pytest.importorskip("bitsandbytes")
GROUPS = [Group((7, 8, 9), ((10, 11, 12, 2), (20, 2), (5, 6, 7))), Group((30, 31), ((9, 2), (14, 15, 2)))]
LORA = Lora(r=4, alpha=8, frozen="nf4")
CONSTANT = AdamW(lr=0.01, warmup_steps=0, schedule="constant")
Make = Callable[..., Any]


def nf4_values() -> torch.Tensor:
    """The 16 values of the paper's section 3: quantiles of the normal distribution, 8 at or below 0 and 9 from 0 on."""
    offset = 0.9677083
    below = -norm.ppf(torch.linspace(offset, 0.5, 8)[:-1].numpy())
    above = norm.ppf(torch.linspace(offset, 0.5, 9)[:-1].numpy())
    values = torch.tensor([*below, 0.0, *above], dtype=torch.float64)
    return (values / values.abs().max()).sort().values


def logprobs(network: Any) -> torch.Tensor:
    with torch.no_grad():
        return response_logprobs(network, GROUPS)[0]


def moved(network: Any) -> Any:
    """With adapters as after training: B no longer zero."""
    with torch.no_grad():
        for name, weight in network.named_parameters():
            if ".lora_B." in name:
                weight.copy_(torch.randn(weight.shape, generator=torch.Generator().manual_seed(len(name))) * 0.3)
    return network


def step(learner: Any) -> float:
    for _ in learner.micro_batches([1], 100):
        loss = -response_logprobs(learner.model, GROUPS)[0].mean()
        learner.backward(loss)
    value = float(loss.detach())
    learner.update(value)
    return value


def test_each_weight_is_the_nearest_of_16_values_times_its_block_s_scale() -> None:
    torch.manual_seed(0)
    holder = nn.Module()
    holder.layer = nn.Linear(64, 8, bias=False)
    before = holder.layer.weight.detach().clone()
    quantise_layers(holder, ["layer"])
    found = restore_weight(holder.layer.weight)
    scales = before.abs().amax(dim=1, keepdim=True)  # a row of 64 is a block
    values = nf4_values().float()
    nearest = values[(before[..., None] / scales[..., None] - values).abs().argmin(-1)] * scales
    # The scales themselves are rounded to 8 bits: of a common range of 256 scales by less than a hundredth here.
    assert (found - nearest).abs().max() < 0.01 * float(scales.max())
    assert (found - before).abs().max() > 0.05 * float(scales.max())  # it is rounded
    assert len({round(float(v), 3) for v in (found / found.abs().amax(dim=1, keepdim=True)).flatten()}) <= 16


def test_the_exported_model_is_the_one_that_was_trained(network: Make, tmp_path: Path) -> None:
    trained = network()
    add_lora(trained, LORA, 0)
    start = logprobs(trained)
    moved(trained)
    assert (logprobs(trained) - start).abs().max() > 0.05
    with adapters_off(trained):
        assert torch.equal(logprobs(trained), start)  # the reference: rounded weights without adapters
    export_model(trained, character_tokenizer(FreshModel()), tmp_path / "model", "card")
    loaded = load_model(tmp_path / "model", Model(base=FreshModel(), precision="float32"), "cpu")
    torch.testing.assert_close(logprobs(loaded), logprobs(trained), atol=2e-5, rtol=0)
    assert merged_state(trained).keys() == network().state_dict().keys()


def test_the_head_the_embedding_and_norms_stay_whole(network: Make) -> None:
    made, plain = network(), network()
    add_lora(made, replace_targets("q_proj"), 0)
    coded = {name.replace(".base_layer", "") for name, weight in made.named_parameters() if is_coded(weight)}
    layers = {f"{name}.weight" for name, layer in plain.named_modules() if type(layer) is nn.Linear}
    assert coded == layers - {"lm_head.weight"}
    state, before = dict(frozen_weights(made)), plain.state_dict()
    assert state.keys() == before.keys()
    for name, weight in before.items():
        assert torch.equal(state[name], weight) == (name not in coded), name


def replace_targets(*names: str) -> Lora:
    return LORA.model_copy(update={"targets": names})


def test_shapes_are_those_of_whole_weights(network: Make) -> None:
    made = network()
    add_lora(made, LORA, 0)
    sent = [(name, weight.dtype, tuple(weight.shape)) for name, weight in full_weights(made)]
    assert sent == weight_shapes(made) == weight_shapes(network())


@pytest.mark.parametrize("half", [False, True])
def test_training_moves_adapters_alone_and_resumes_to_the_bit(network: Make, half: bool) -> None:
    def learner() -> TorchLearner:
        model = network()
        if half:
            use_half_products(model)
        add_lora(model, LORA, 0)
        return TorchLearner(model, CONSTANT, 8)

    whole = learner()
    codes = {name: weight.clone() for name, weight in whole.model.named_parameters() if is_coded(weight)}
    losses = [step(whole) for _ in range(4)]
    assert losses[-1] < losses[0] - 0.01
    for name, weight in whole.model.named_parameters():
        if name in codes:
            assert torch.equal(weight, codes[name]) and not weight.requires_grad
    stopped = learner()
    for _ in range(2):
        step(stopped)
    saved = Checkpoint(2, {name: tensor.clone() for name, tensor in stopped.tensors().items()}, {})
    resumed = learner()
    resumed.load(saved, stopped.counts)
    assert [step(resumed) for _ in range(2)] == losses[2:]
    assert torch.equal(resumed.flat.weights, whole.flat.weights)


def test_the_plan_s_bytes_are_those_of_its_tensors(network: Make) -> None:
    made = network(hidden_size=256, intermediate_size=512)
    shape = shape_of(made.config)
    add_lora(made, LORA, 0)
    scales = (tensor for name, tensor in made.state_dict().items() if name.endswith("absmax"))
    # The tables of the 16 and of the 256 values stand beside each layer, which matters in small ones alone.
    held = sum(tensor.nbytes for tensor in (*made.parameters(), *scales))
    assert with_adapters(shape, LORA, 4.0) == pytest.approx(held, rel=2e-3)
    planned = trained_states(shape, CONSTANT, LORA, "policy")
    assert planned["policy: weights"] == with_adapters(shape, LORA, 4.0)
    whole = Lora(r=4, alpha=8)
    assert with_adapters(shape, whole, 4.0) == 4 * (shape.parameters + trainable(shape, whole))
