"""Links to the files that stages read from elsewhere. `python -m mathrl.stages.inputs curate evaluate [SETTING …]`.

`mathrl run` calls it before `dvc repro`, so that DVC sees which files are there now; no stage of its own.
"""

import importlib
import sys

from mathrl.compose import load_params
from mathrl.core.errors import exit_on_user_error
from mathrl.reading.sources import link


def main(words: list[str]) -> None:
    params = load_params(overrides=[word for word in words if "=" in word])
    for stage in (word for word in words if "=" not in word):
        link(stage, importlib.import_module(f"mathrl.stages.{stage}").files(params))


if __name__ == "__main__":
    exit_on_user_error(lambda: main(sys.argv[1:]))
