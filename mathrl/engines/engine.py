"""The engines of rl.engine, behind one call: `ENGINES[rl.engine.type].train(inputs)`."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mathrl.core.errors import UserError
from mathrl.engines.verl_process import verl_python

if TYPE_CHECKING:
    from mathrl.trainers.training_run import RlInputs, TrainedModel


def check_trl(setting: str) -> None:
    """Raises UserError: a package of the engine trl, which `setting` names, is missing; the message has the command."""
    missing = [name for name in ("trl", "accelerate") if importlib.util.find_spec(name) is None]
    if missing:
        raise UserError(
            f"{setting} is trl, but {' and '.join(missing)} cannot be found: pip install -c constraints.txt "
            f"'mathrl[trl]', or set {setting} to mathrl"
        )


@dataclass(frozen=True)
class Engine:
    """Where an engine's `train` is, and what can be asked before torch is imported.

    `device` is what its own process needs, where that is not run.device. `other_models`: others than the policy may
    take part.
    """

    name: str
    module: str
    check_packages: Callable[[], object] = lambda: None
    device: str | None = None
    other_models: bool = False

    def check(self, inputs: Iterable[str]) -> None:
        """Raises UserError: the engine is not installed, or the run has another model beside the policy."""
        self.check_packages()
        models = sorted(set(inputs) - {"difficulty"})
        if models and not self.other_models:
            raise UserError(
                f"rl.engine is {self.name}, which takes part in no run with another model ({', '.join(models)}): set "
                "rl.engine to mathrl, or leave the model out of the recipe's step"
            )

    @property
    def train(self) -> Callable[[RlInputs], TrainedModel]:
        """The engine's function, imported: torch, and accelerate before transformers."""
        train: Callable[[RlInputs], TrainedModel] = importlib.import_module(self.module).train
        return train


ENGINES = {
    engine.name: engine
    for engine in (
        Engine("mathrl", "mathrl.trainers.rl", other_models=True),
        Engine("trl", "mathrl.engines.trl_rl", lambda: check_trl("rl.engine")),
        Engine("verl", "mathrl.engines.verl_rl", verl_python, device="cpu"),
    )
}
