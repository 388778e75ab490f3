"""In a Python that tests start: the module that MUTANTS_CHANGED names (module=file) is read from that file.

`make mutants-wiring` has every start of .venv-mutants' Python import it.
"""

import os
import sys
from importlib.abc import MetaPathFinder
from importlib.util import spec_from_file_location
from typing import Any


class Finder(MetaPathFinder):
    def __init__(self, module: str, file: str) -> None:
        self.module, self.file = module, file

    def find_spec(self, name: str, *_: Any) -> Any:
        return spec_from_file_location(name, self.file) if name == self.module else None


if "MUTANTS_CHANGED" in os.environ:
    sys.meta_path.insert(0, Finder(*os.environ["MUTANTS_CHANGED"].split("=", 1)))
