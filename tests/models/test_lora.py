"""Adapters: the same model at the start, off again at any time, merged on export; checked by peft."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from mathrl.core.errors import UserError
from mathrl.learners.optimizer import FlatParameters, OptimizerSet, split_parameters
from mathrl.models.base import character_tokenizer
from mathrl.models.export import export_model
from mathrl.models.linear import HalfLinear, use_half_products
from mathrl.models.load import load_model
from mathrl.models.logprobs import prepare_language_model, response_logprobs
from mathrl.models.lora import ADAPTER, adapter_tensors, adapters_off, add_lora, merged_state
from mathrl.models.norm import use_fast_norms
from mathrl.models.packing import Group
from mathrl.models.scores import make_scorer
from mathrl.params.optimizer import Lora, Muon
from mathrl.params.run import FreshModel, Model

GROUPS = [Group((7, 8, 9), ((10, 11, 12, 2), (20, 2), (5, 6, 7))), Group((30, 31), ((9, 2), (14, 15, 2)))]
LORA = Lora(r=4, alpha=8)
Make = Callable[..., Any]


def trained(network: Any, lora: Lora = LORA, seed: int = 0) -> Any:
    """Adapters as after training: B no longer zero."""
    add_lora(network, lora, seed)
    with torch.no_grad():
        for name, weight in network.named_parameters():
            if ".lora_B." in name:
                weight.copy_(torch.randn(weight.shape, generator=torch.Generator().manual_seed(len(name))) * 0.3)
    return network


def logprobs(network: Any) -> torch.Tensor:
    with torch.no_grad():
        return response_logprobs(network, GROUPS)[0]


def test_the_start_is_the_model_and_equal_seeds_give_equal_adapters(network: Make) -> None:
    before = logprobs(network())
    one, same, other = (network() for _ in range(3))
    for made, seed in ((one, 0), (same, 0), (other, 1)):
        add_lora(made, LORA, seed)
        assert torch.equal(logprobs(made), before)
    name = "model.layers.0.self_attn.q_proj.lora_A.default.weight"
    factors = [dict(made.named_parameters())[name] for made in (one, same, other)]
    assert torch.equal(factors[0], factors[1]) and not torch.equal(factors[0], factors[2])


def test_adapters_on_usual_weights_leave_bitsandbytes_alone(network: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its import takes a second, and on some processors asks the hub for a file, with a warning."""
    for name in [name for name in sys.modules if name.partition(".")[0] in ("peft", "bitsandbytes")]:
        monkeypatch.delitem(sys.modules, name)
    made = network()
    add_lora(made, LORA, 0)
    adapter_tensors(made)
    assert "peft" in sys.modules and "bitsandbytes" not in sys.modules


def test_switched_off_is_the_start_and_on_again_learns(network: Make) -> None:
    start = logprobs(network())
    made = trained(network())
    moved = logprobs(made)
    assert (moved - start).abs().max() > 0.05
    found, _ = response_logprobs(made, GROUPS)
    with torch.no_grad(), adapters_off(made):
        reference, _ = response_logprobs(made, GROUPS)
    assert torch.equal(reference, start) and torch.equal(logprobs(made), moved)
    # The reference pass between forward and backward takes nothing from the gradient.
    (found - reference).square().sum().backward()
    gradients = {name: weight.grad for name, weight in made.named_parameters() if weight.requires_grad}
    assert all(gradient is not None and gradient.abs().sum() > 0 for gradient in gradients.values())
    again = trained(network())
    (response_logprobs(again, GROUPS)[0] - start).square().sum().backward()
    for name, weight in again.named_parameters():
        if weight.requires_grad:
            assert torch.equal(weight.grad, gradients[name])  # type: ignore[arg-type]


def test_off_even_after_an_error(network: Make) -> None:
    made = trained(network())
    moved = logprobs(made)
    with pytest.raises(RuntimeError), adapters_off(made):
        raise RuntimeError
    assert torch.equal(logprobs(made), moved)
    plain = network()
    with adapters_off(plain):
        assert torch.isfinite(logprobs(plain)).all()


def test_only_adapters_are_trained_and_by_adamw(network: Make) -> None:
    made = trained(network())
    flat = FlatParameters(made)
    assert all(".lora_" in name for name in flat.named)
    # Seven linear layers in each of two blocks, r (inputs + outputs) numbers each.
    shapes = [(32, 32), (32, 16), (32, 16), (32, 32), (32, 48), (32, 48), (48, 32)]
    assert len(flat.weights) == 2 * sum(4 * (i + o) for i, o in shapes)
    assert split_parameters(made, flat.named)[0] == []
    frozen = {name: weight.clone() for name, weight in made.named_parameters() if not weight.requires_grad}
    optimizer = OptimizerSet(made, flat, Muon(lr=0.01), 10)
    before = logprobs(made)
    (-response_logprobs(made, GROUPS)[0].sum()).backward()
    optimizer.step(0)
    assert (logprobs(made) - before).abs().max() > 1e-3
    for name, weight in frozen.items():
        assert torch.equal(dict(made.named_parameters())[name], weight)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_the_fast_path_stays_and_the_export_is_a_plain_folder(network: Make, tmp_path: Path, precision: str) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    tokenizer = character_tokenizer(FreshModel())
    export_model(network(), tokenizer, tmp_path / "start", "start")
    made = network()
    use_fast_norms(made)
    if precision == "bfloat16":
        use_half_products(made)
    trained(made, LORA.model_copy(update={"keep_adapter": True}))
    assert prepare_language_model(made).packed and made.config._attn_implementation == "mathrl"
    assert (sum(isinstance(each, HalfLinear) for each in made.modules()) == 14) == (precision == "bfloat16")
    found = logprobs(made)
    export_model(made, tokenizer, tmp_path / "end", "end")

    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "end")
    adapted = PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(tmp_path / "start"), str(tmp_path / "end" / ADAPTER)
    )
    ours = load_model(tmp_path / "end", Model(precision=precision), "cpu")  # type: ignore[arg-type]
    assert not any("lora" in name for name, _ in ours.named_parameters())
    place = 0
    for group in GROUPS:
        for response in group.responses:
            ids = torch.tensor([[*group.prompt, *response]])
            for model in (plain, adapted):
                with torch.no_grad():
                    table = torch.log_softmax(model(ids).logits[0, len(group.prompt) - 1 : -1], -1)
                expected = table.gather(1, torch.tensor(response)[:, None])[:, 0]
                # Rounded products move log-probs of this sharpened model by up to a tenth.
                tolerance = 1e-4 if precision == "float32" else 0.2
                assert (found[place : place + len(response)] - expected).abs().max() < tolerance
            place += len(response)
    assert (logprobs(ours) - found).abs().max() < (1e-4 if precision == "float32" else 0.2)
    # Another scale, the likely mistake, would be seen.
    halved = network()
    trained(halved, LORA.model_copy(update={"alpha": 4.0}))
    assert (logprobs(halved) - found).abs().max() > (0.05 if precision == "float32" else 0.0)


def test_targets_by_name(network: Make) -> None:
    made = network()
    add_lora(made, Lora(r=2, targets=("q_proj", "v_proj")), 0)
    adapted = {name.split(".")[-4] for name, weight in made.named_parameters() if weight.requires_grad}
    assert adapted == {"q_proj", "v_proj"}
    with pytest.raises(
        UserError, match=r"lora\.targets: no linear layer's name ends in query; this model has .*q_proj"
    ):
        add_lora(network(), Lora(targets=("query",)), 0)


def test_a_critic_of_an_adapted_policy(network: Make) -> None:
    policy = trained(network())
    scorer = make_scorer(policy)
    merged = merged_state(policy.base_model)
    assert all(torch.equal(weight, merged[name]) for name, weight in scorer.base_model.state_dict().items())
    add_lora(scorer, LORA, 0)
    trainable = [name for name, weight in scorer.named_parameters() if weight.requires_grad]
    assert "score.weight" in trainable and all(".lora_" in n or n.startswith("score") for n in trainable)
