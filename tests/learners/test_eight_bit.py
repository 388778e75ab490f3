"""AdamW with moments of 8 bits beside its paper's rule written again here, and what a learner keeps of it."""

import sys
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from mathrl.core.errors import UserError
from mathrl.learners.checkpoint import Checkpoint
from mathrl.learners.deepspeed_learner import check_supported
from mathrl.learners.eight_bit import EightBitAdamW
from mathrl.learners.torch_learner import TorchLearner
from mathrl.models.base import character_tokenizer, fresh_network
from mathrl.models.linear import use_half_products
from mathrl.params.optimizer import AdamW8Bit, other_rates
from mathrl.params.run import FreshModel

PARAMS = AdamW8Bit(lr=0.01, beta1=0.8, beta2=0.9, weight_decay=0.1, warmup_steps=0, schedule="constant", clip_norm=None)
ARGUMENTS: dict[str, Any] = {"lr": 0.01, "betas": (0.8, 0.9), "eps": 1e-8, "weight_decay": 0.1}
BLOCK = 256
BASE = FreshModel(hidden_size=128, intermediate_size=160, layers=1, heads=4, kv_heads=4)


def codes(signed: bool) -> np.ndarray:
    """Dynamic quantisation (arXiv:2110.02861, section 2.1): midpoints of 2^i parts of [0.1, 1] times 10^(i - 6)."""
    values = [0.0, 1.0]
    for exponent in range(7):
        parts = 2**exponent * (1 if signed else 2)
        for part in range(parts):
            middle = 0.1 + 0.9 * (part + 0.5) / parts
            values += [sign * middle * 10.0 ** (exponent - 6) for sign in ((1, -1) if signed else (1,))]
    return np.sort(np.array(values))


def per_weight(scales: torch.Tensor, size: int) -> np.ndarray:
    return np.repeat(scales.numpy().astype(float), BLOCK)[:size]


def test_the_codes_are_256_and_hold_the_ends() -> None:
    for signed in (True, False):
        assert len(set(codes(signed))) == 256 and codes(signed).max() == 1
    # By hand: the largest signed exponent has 64 parts of [0.1, 1], so its last midpoint is 1 - 0.9 / 128.
    assert codes(True)[-2] == pytest.approx(1 - 0.9 / 128) and codes(True)[0] == -codes(True)[-2]
    assert codes(False)[1] == pytest.approx((0.1 + 0.9 / 4) * 1e-6)


def test_updates_are_those_of_the_paper() -> None:
    """4,100 weights: 16 blocks and a rest of 4. Each update begins at the moments as the codes say them."""
    draw, size, steps = np.random.default_rng(0), 4100, 5
    weight = nn.Parameter(torch.tensor(draw.normal(size=size), dtype=torch.float32))
    optimizer = EightBitAdamW([weight], **ARGUMENTS)
    moments = {"1": np.zeros(size), "2": np.zeros(size)}
    for step in range(1, steps + 1):
        gradient = draw.normal(size=size) * np.exp(draw.normal(size=size))
        before = weight.detach().numpy().astype(float)
        weight.grad = torch.tensor(gradient, dtype=torch.float32)
        optimizer.step()
        moments = {"1": 0.8 * moments["1"] + 0.2 * gradient, "2": 0.9 * moments["2"] + 0.1 * gradient**2}
        mean, square = moments["1"] / (1 - 0.8**step), moments["2"] / (1 - 0.9**step)
        expected = before * (1 - 0.01 * 0.1) - 0.01 * mean / (np.sqrt(square) + 1e-8)
        assert np.abs(weight.detach().numpy() - expected).max() < 2e-6, "a step is 1e-2"
        state = optimizer.state_of(weight)
        for name, values in moments.items():
            table, scales = codes(signed=name == "1"), per_weight(state[f"absmax{name}"], size)
            blocks = np.pad(np.abs(values), (0, -size % BLOCK)).reshape(-1, BLOCK)
            assert np.allclose(state[f"absmax{name}"], blocks.max(axis=1), rtol=1e-6)
            chosen = state[f"state{name}"].numpy().astype(int)
            # On a CPU the library looks codes up by a coarser table: some small values get one beside the nearest.
            errors = np.abs(table[chosen] * scales - values) / scales
            assert errors.max() < (0.9 / 128 if name == "1" else 0.9 / 256) + 1e-4, "half a part of the widest"
            moments[name] = table[chosen] * scales


def network(seed: int = 0) -> Any:
    return fresh_network(BASE, character_tokenizer(BASE), seed=seed)


def learner(model: Any) -> TorchLearner:
    return TorchLearner(model, PARAMS, updates=9)


def update(policy: TorchLearner, seed: int) -> None:
    policy.flat.gradients.normal_(generator=torch.Generator().manual_seed(seed))
    policy.update(1.0)


def test_a_resumed_learner_goes_on_to_the_bit() -> None:
    policy, again = learner(network()), learner(network(seed=1))
    for seed in range(3):
        update(policy, seed)
    tensors = {name: value.clone() for name, value in policy.tensors().items()}
    assert {value.dtype for name, value in tensors.items() if name.endswith("state1")} == {torch.uint8, torch.float32}
    again.load(Checkpoint(3, tensors, {}), policy.counts)
    for each, seed in product((policy, again), (7, 8)):
        update(each, seed)
    assert torch.equal(policy.flat.weights, again.flat.weights)
    lost = {name: value for name, value in tensors.items() if not name.endswith("absmax1")}
    with pytest.raises(KeyError):
        learner(network()).load(Checkpoint(3, lost, {}), policy.counts)


def test_rounded_copies_of_the_weights_follow_an_update() -> None:
    """bitsandbytes writes past autograd's counter of versions, by which they are made again."""
    model, ids = network(), torch.arange(6).view(1, 6)
    use_half_products(model)
    policy = learner(model)
    with torch.no_grad():
        before = model(input_ids=ids).logits
        update(policy, 0)
        after = model(input_ids=ids).logits
        other = network()
        other.load_state_dict(model.state_dict())
        use_half_products(other)
        assert torch.equal(after, other(input_ids=ids).logits) and not torch.equal(after, before)


def test_what_cannot_be_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"neither Muon, 8-bit AdamW nor .*: set rl.optimizer.type to adamw|deepspeed"):
        check_supported(PARAMS, "rl", None)
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with pytest.raises(UserError, match=r"optimizer.type adamw_8bit needs bitsandbytes, .*: `pip install .*bitsandb"):
        learner(network())


def test_its_rate_is_adamws() -> None:
    assert other_rates("adamw", "adamw_8bit", {"lr": 1e-5}) == {}
    assert other_rates("adamw_8bit", "muon", {"lr": 1e-6})["lr"] == 1e-5
    assert other_rates("muon", "adamw_8bit", {"lr": 0.01, "adamw_scale": 0.1}) == {"lr": 0.001}


def test_fsdp_steps_and_resumes_it(run_program: Callable[..., str], tmp_path: Path) -> None:
    printed = run_program(Path(__file__).with_name("eight_bit_ranks.py"), tmp_path)
    assert printed.split() == ["equal", "refused"], printed
