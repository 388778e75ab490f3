from collections.abc import Callable
from typing import Any

import pytest
import torch

from mathrl.models.base import character_tokenizer, fresh_network
from mathrl.params.run import FreshModel

# Tiny products gain nothing from threads, and lose much where cores are busy.
torch.set_num_threads(1)


@pytest.fixture
def network() -> Callable[..., Any]:
    """Small random models, sharpened so that a wrong mask changes log-probs by more than a tolerance."""

    def make(**options: Any) -> Any:
        sizes = {"hidden_size": 32, "intermediate_size": 48, "layers": 2, "heads": 4, "kv_heads": 2}
        base = FreshModel(**{**sizes, **options})
        made = fresh_network(base, character_tokenizer(base), seed=1).eval()
        for weight in made.parameters():
            if weight.dim() > 1:
                weight.data.mul_(6)
        return made

    return make
