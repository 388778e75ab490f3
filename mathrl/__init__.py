"""mathrl: train language models to reason about mathematics with reinforcement learning.

The names of `__all__` are the public ones (docs/reference/api.md); each is imported from its module at its first use,
so that `import mathrl` and the verifier need neither torch nor pandas. Everything else may change from one release to
the next.
"""

import importlib
import warnings
from typing import TYPE_CHECKING, Any

# The modules of the public names.
_PUBLIC = {
    "mathrl.core.errors": ("UserError",),
    "mathrl.core.types": ("Problem",),
    "mathrl.params": ("Params",),
    "mathrl.grading": ("Verdict", "grade", "grade_batch"),
    "mathrl.rewards": ("RewardInput", "RewardResult", "build_reward"),
    "mathrl.api.frames": ("import_run", "metrics", "problems", "responses", "rollouts", "runs", "trials"),
    "mathrl.api.experiments": (
        "audit",
        "compare",
        "evaluate",
        "health_report",
        "inspect",
        "lineage",
        "load_params",
        "promote",
        "run",
        "run_stage",
        "train",
    ),
}
# Old public names: the new one, and the release that renamed it. They work for one minor version more, with a warning.
_RENAMED: dict[str, tuple[str, str]] = {}
_MODULE_OF = {name: module for module, names in _PUBLIC.items() for name in names}

if TYPE_CHECKING:
    from mathrl.api.experiments import (
        audit,
        compare,
        evaluate,
        health_report,
        inspect,
        lineage,
        load_params,
        promote,
        run,
        run_stage,
        train,
    )
    from mathrl.api.frames import import_run, metrics, problems, responses, rollouts, runs, trials
    from mathrl.core.errors import UserError
    from mathrl.core.types import Problem
    from mathrl.grading import Verdict, grade, grade_batch
    from mathrl.params import Params
    from mathrl.rewards import RewardInput, RewardResult, build_reward

    __version__: str

__all__ = [
    "Params",
    "Problem",
    "RewardInput",
    "RewardResult",
    "UserError",
    "Verdict",
    "audit",
    "build_reward",
    "compare",
    "evaluate",
    "grade",
    "grade_batch",
    "health_report",
    "import_run",
    "inspect",
    "lineage",
    "load_params",
    "metrics",
    "problems",
    "promote",
    "responses",
    "rollouts",
    "run",
    "run_stage",
    "runs",
    "train",
    "trials",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return _version()
    if name in _RENAMED:
        new, release = _RENAMED[name]
        text = f"mathrl.{name} is called mathrl.{new} since {release}; the old name goes with the next minor version"
        warnings.warn(text, DeprecationWarning, stacklevel=2)
        return getattr(importlib.import_module(__name__), new)
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'mathrl' has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_MODULE_OF[name]), name)
    return value


def _version() -> str:
    """The installed release's, from its tag; of a copy that nobody installed 0+unknown."""
    import importlib.metadata  # 30 ms, which the verifier does not need

    try:
        return importlib.metadata.version("mathrl")
    except importlib.metadata.PackageNotFoundError:
        return "0+unknown"


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
