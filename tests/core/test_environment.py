"""The one table of environment variables, and the processes that end with their parent."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from mathrl.core.environment import Variable
from tests.test_house import repository_files

ROOT = Path(__file__).parents[2]
NAME = re.compile(r"MATHRL_[A-Z_]+")


def test_no_other_file_of_the_library_spells_a_variable_in_its_code() -> None:
    elsewhere = []
    for file in [*ROOT.glob("mathrl/**/*.py"), *ROOT.glob("tasks/*.py"), *ROOT.glob("flows/*.py")]:
        if file.name == "environment.py":
            continue
        nodes = ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        constants = [node.value for node in nodes if isinstance(node, ast.Constant)]
        elsewhere += [(file.name, text) for text in constants if isinstance(text, str) and text in set(Variable)]
    assert elsewhere == []


def test_every_variable_that_is_mentioned_anywhere_is_in_the_table() -> None:
    files = repository_files("*.py", "docs/*.md", "README.md", "prefect.yaml")
    mentioned = {name for file in files for name in NAME.findall((ROOT / file).read_text(encoding="utf-8"))}
    assert mentioned - {"MATHRL_"} <= {*Variable}


def test_the_end_of_input_is_noticed_and_input_before_it_is_not() -> None:
    code = (
        "import os, time\n"
        "from mathrl.core.guard import at_end_of_input\n"
        "at_end_of_input(lambda: os._exit(7))\n"
        "print('ready', flush=True)\n"
        "time.sleep(600)\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, text=True
    )
    assert child.stdin is not None and child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    child.stdin.write("a line\n")
    child.stdin.flush()
    with pytest.raises(subprocess.TimeoutExpired):
        child.wait(timeout=0.3)
    child.stdin.close()
    assert child.wait(timeout=60) == 7
