"""Parity with independent code: the same random ragged batches through verl, TRL and mathrl.

`make parity` installs verl beside the development packages and runs this folder. What each comparison was off
by at most is printed at the end.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from torch import Tensor

torch.set_num_threads(1)
TOLERANCE = 1e-6
_worst: dict[str, float] = {}
HERE = __file__.rpartition("/")[0]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if not str(item.path).startswith(HERE):
            continue
        name = item.path.name
        package = next(package for package in ("verl", "reasoning_gym", "lm_eval", "trl") if package in name)
        if find_spec(package) is None:
            how = "`make parity` installs and runs"
            if package == "lm_eval":  # it and lighteval pin packages that the others need otherwise
                how = "docs/explanation/other_harnesses.md says how"
            item.add_marker(pytest.mark.skip(reason=f"{package} is not installed; {how}"))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if _worst:
        terminalreporter.section("parity: largest differences")
        for name, value in sorted(_worst.items()):
            terminalreporter.write_line(f"{name:<58} {value:.1e}")


@pytest.fixture
def agree(request: pytest.FixtureRequest) -> Callable[[Any, Any], None]:
    """Both within `TOLERANCE` (relative above 1); remembers the largest difference of the test."""

    def check(ours: Any, theirs: Any) -> None:
        ours, theirs = (torch.as_tensor(each, dtype=torch.float64).detach() for each in (ours, theirs))
        assert ours.shape == theirs.shape and torch.isfinite(ours).all()
        off = float(((ours - theirs).abs() / theirs.abs().clamp(min=1)).max()) if ours.numel() else 0.0
        name = re.sub(r"\[\d-?", "[", request.node.name).removesuffix("[]")  # over all batches
        _worst[name] = max(_worst.get(name, 0.0), off)
        assert off <= TOLERANCE, f"{off:.1e}"

    return check


@dataclass
class Ragged:
    """S responses in groups of G, some of one token, padded to L with noise where nothing counts."""

    lengths_S: Tensor
    mask_SL: Tensor
    groups_S: Any
    group: int
    generator: torch.Generator

    def noise(self, scale: float = 1.0) -> Tensor:
        return torch.randn(self.mask_SL.shape, generator=self.generator, dtype=torch.float64) * scale

    def flat(self, padded_SL: Tensor) -> Tensor:
        return padded_SL[self.mask_SL.bool()]

    def rewards(self) -> Tensor:
        """0 or 1, fractions, and a group in which all are equal."""
        kinds = torch.stack(
            [
                torch.randint(0, 2, (len(self.lengths_S),), generator=self.generator).double(),
                torch.rand(len(self.lengths_S), generator=self.generator, dtype=torch.float64),
            ]
        )
        rewards_S = kinds[
            torch.randint(0, 2, (len(self.lengths_S),), generator=self.generator), torch.arange(len(self.lengths_S))
        ]
        rewards_S[: self.group] = 0.1
        return rewards_S

    def at_ends(self, rewards_S: Tensor) -> Tensor:
        out_SL = torch.zeros(self.mask_SL.shape, dtype=torch.float64)
        out_SL[torch.arange(len(rewards_S)), self.lengths_S - 1] = rewards_S
        return out_SL


@pytest.fixture(params=range(3))
def ragged(request: pytest.FixtureRequest) -> Iterator[Ragged]:
    import numpy as np

    generator = torch.Generator().manual_seed(request.param)
    prompts, group = 3 + request.param, 2 + request.param
    lengths_S = torch.randint(1, 4 + 3 * request.param, (prompts * group,), generator=generator)
    lengths_S[-1] = 1
    mask_SL = (torch.arange(int(lengths_S.max()) + 2)[None] < lengths_S[:, None]).double()
    yield Ragged(lengths_S, mask_SL, np.arange(prompts).repeat(group), group, generator)
