"""verl's trainer, in a process of its own run by verl's Python: `python -m mathrl.engines.verl_driver OVERRIDES`.

OVERRIDES is a JSON file with Hydra's overrides of verl's configuration. verl's loader composes and checks them before
Ray starts: what it does not accept ends the process with status 2 and one line. `--check` ends after that.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_module
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from verl.trainer.main_ppo import TaskRunnerV1, run_ppo
from verl.trainer.ppo.utils import need_critic, need_reference_policy
from verl.utils.config import omega_conf_to_dataclass, validate_config

from mathrl.core.errors import EXIT_USER_ERROR
from mathrl.core.guard import die_with_parent

ERROR = "error: verl refuses its configuration: "
# Sections that verl reads as its own data classes, which know their keys and types.
CLASSES = ("actor_rollout_ref.rollout", "algorithm")


def configuration(overrides: list[str]) -> Any:
    """verl's configuration with the overrides, checked by verl.

    Raises:
        HydraException, OmegaConfBaseException, ValueError, AssertionError, TypeError: verl does not accept it.
    """
    with initialize_config_module("verl.trainer.config", version_base=None):
        config = compose("ppo_trainer", overrides=overrides)
    validate_config(config=config, use_reference_policy=need_reference_policy(config), use_critic=need_critic(config))
    for section in CLASSES:
        omega_conf_to_dataclass(OmegaConf.select(config, section))
    return config


def main() -> None:
    die_with_parent()
    parser = argparse.ArgumentParser(prog="python -m mathrl.engines.verl_driver", description=__doc__)
    parser.add_argument("overrides", type=Path)
    parser.add_argument("--check", action="store_true", help="check the configuration, and train nothing")
    options = parser.parse_args()
    try:
        config = configuration(json.loads(options.overrides.read_text(encoding="utf-8")))
    except (HydraException, OmegaConfBaseException, ValueError, AssertionError, TypeError) as error:
        print(f"{ERROR}{' '.join(str(error).split())}", file=sys.stderr, flush=True)
        sys.exit(EXIT_USER_ERROR)
    if not options.check:
        run_ppo(config, task_runner_class=TaskRunnerV1)


if __name__ == "__main__":
    main()
