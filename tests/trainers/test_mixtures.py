"""A large mixture of experts is not trained where another engine samples, except with GSPO's ratio."""

from typing import Any

import pytest
from transformers import AutoConfig

from mathrl.core.errors import UserError
from mathrl.models.model_shape import shape_of
from mathrl.models.small_copy import small_config
from mathrl.params.loss import Gspo, PpoClip
from mathrl.params.rollout import Rollout
from mathrl.params.train import Rl
from mathrl.trainers import open_rl
from mathrl.trainers.open_rl import check_experts

MIXTURE, DENSE = (small_config(AutoConfig.for_model(kind)) for kind in ("qwen3_moe", "qwen3"))
VLLM, TORCH = Rollout(engine="vllm"), Rollout(engine="torch")
MESSAGE = r"experts of .* billion .*arXiv:2507\.18071, section 5\.3; arXiv:2510\.11370\); set rl\.loss to gspo"


@pytest.mark.parametrize(
    ("config", "loss", "rollout", "refused"),
    [
        (MIXTURE, PpoClip(), VLLM, True),
        (MIXTURE, Gspo(), VLLM, False),
        (MIXTURE, PpoClip(), TORCH, False),
        (DENSE, PpoClip(), VLLM, False),
    ],
)
def test_a_large_mixture_is_refused_beside_another_engine(
    monkeypatch: pytest.MonkeyPatch, config: Any, loss: Any, rollout: Rollout, refused: bool
) -> None:
    check_experts(config, Rl(loss=loss), rollout)  # these are small
    monkeypatch.setattr(open_rl, "LARGEST_ROUTED", 100.0)
    if refused:
        with pytest.raises(UserError, match=MESSAGE):
            check_experts(config, Rl(loss=loss), rollout)
    else:
        check_experts(config, Rl(loss=loss), rollout)
    monkeypatch.setattr(open_rl, "LARGEST_ROUTED", shape_of(config).parameters)
    check_experts(config, Rl(loss=loss), rollout)
