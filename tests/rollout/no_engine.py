"""What stands for an engine where a sampler renders or grades and samples nothing."""

from types import SimpleNamespace
from typing import Any

from mathrl.params.rollout import Rollout

NO_ENGINE: Any = SimpleNamespace(rollout=Rollout())
