"""Controls of another trainer's run: a file of reward functions, and the commands that train with them.

controls-imported-NAME/rewards.py   functions `random`, `form` and `inverted`, as the trainer calls them
                       run.sh       verl: a command per control, with the overrides of the run
"""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
from jinja2 import Environment, StrictUndefined
from ruamel.yaml import YAML

from mathrl.core.errors import UserError
from mathrl.core.files import read_json, write_text
from mathrl.core.metrics import complete_rows
from mathrl.core.records import IMPORTED, RunRecord
from mathrl.core.statistics import sum_in_order
from mathrl.health.rules import ACCURACY
from mathrl.rollout.rollout_files import WHOLE

CONTROLS = ("random", "form", "inverted")
TRAINERS = ("verl", "TRL")
# Where verl has the user's reward function: since 0.7, and before.
REWARD = ("reward.custom_reward_function", "custom_reward_function")
Config = dict[str, Any]


def write_foreign_controls(record: RunRecord, only: Sequence[str], folder: Path) -> list[str]:
    """Write the files into `folder`; returns what to do with them, a line each.

    Raises:
        UserError: an unknown control, a trainer whose rewards are no functions, or a run without an accuracy.
    """
    trainer = str(record.resolved.get("trainer"))
    if unknown := [name for name in only if name not in CONTROLS]:
        raise UserError(f"no control {', '.join(unknown)} of an imported run; controls: {', '.join(CONTROLS)}")
    if trainer not in TRAINERS:
        raise UserError(
            f"{record.name}: controls are written for runs of {' and '.join(TRAINERS)}, whose rewards are functions in "
            f"Python; this one is of {trainer or 'an unknown trainer'}"
        )
    rows = complete_rows(record.metrics_file)
    right = [row[ACCURACY] for row in rows if ACCURACY in row]
    if not right:
        raise UserError(f"{record.name}: no accuracy of its rollouts is known, which gives the rate of random rewards")
    config: Config = read_json(record.artifacts / "config.json")
    own = next((config[f"{name}.path"] for name in REWARD if config.get(f"{name}.path")), None)
    function = next((config[f"{name}.name"] for name in REWARD if config.get(f"{name}.name")), "compute_score")
    values = {
        "name": record.name,
        "trainer": trainer,
        "rate": round(sum_in_order(right) / len(right), 4),
        "half": _largest_reward(record) / 2,
        "own_reward": own if trainer == "verl" else None,
        "own_function": function,
    }
    write_text(folder / "rewards.py", render("control_rewards.py.j2", **values))
    chosen = only or CONTROLS
    if trainer == "TRL":
        functions = ", ".join("inverted(YOUR_REWARD)" if name == "inverted" else name for name in chosen)
        return [
            f"wrote {folder / 'rewards.py'}",
            f"train again with reward_funcs=[FUNCTION], FUNCTION being {functions}, and an output_dir of its own",
            "then: mathrl import OUTPUT_DIR --name NAME; mathrl runs report imported-NAME",
        ]
    write_text(folder / "run.sh", _commands(record, config, chosen, folder))
    return [f"wrote {folder / 'rewards.py'} and {folder / 'run.sh'}", f"train: bash {folder / 'run.sh'}"]


def _largest_reward(record: RunRecord) -> float:
    table = pq.read_table(record.rollouts / WHOLE, columns=["reward"]) if (record.rollouts / WHOLE).is_file() else None
    return float(pc.max(table["reward"]).as_py() or 1.0) if table else 1.0


def _commands(record: RunRecord, config: Config, controls: Sequence[str], folder: Path) -> str:
    """run.sh: verl's command with the run's overrides, then those of the control."""
    kept = Path(record.imported_from) / ".hydra" / "overrides.yaml"
    overrides = [str(text) for text in YAML(typ="safe").load(kept) or ()] if kept.is_file() else []
    reward = next((name for name in REWARD if f"{name}.path" in config), REWARD[0])
    last = max((int(step) for step in record.resolved.get("checkpoints", {})), default=0)
    return render(
        "control_runs.sh.j2",
        name=record.name.removeprefix(IMPORTED),
        overrides=[text for text in overrides if text.partition("=")[0].lstrip("+") not in _own_settings(reward)],
        reward=reward,
        folder=folder.absolute(),
        controls=controls,
        last=last,
    )


def _own_settings(reward: str) -> set[str]:
    """The settings that a control has for itself."""
    trainer = ("logger", "experiment_name", "default_local_dir", "rollout_data_dir", "validation_data_dir")
    return {f"{reward}.path", f"{reward}.name", "hydra.run.dir", *(f"trainer.{name}" for name in trainer)}


def render(template: str, **values: Any) -> str:
    """A script from the template of this name beside this file."""
    shell = Environment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)
    shell.filters |= {"pyrepr": repr, "quote": lambda value: shlex.quote(str(value))}
    return shell.from_string(Path(__file__).with_name(template).read_text("utf-8")).render(**values)
