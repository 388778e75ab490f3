"""Figures of the house: `python tools/house_figures.py [CHECKOUT …]` prints a table with a column per checkout."""

import argparse
import ast
import statistics
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

LIBRARY = ("mathrl", "flows", "tasks")
# Names that say what a word does in a sentence and not what the value holds.
VAGUE = ("each", "found", "how", "given", "own", "said", "known", "told")
# Past participles that do not end in -ed, and words in -ed and -ing that are none.
IRREGULAR = (
    "begun borne bought bound broken brought built caught chosen done drawn fed forgotten fought found given gone "
    "grown held hidden hung kept known led left lent lost made meant met paid said seen sent shown sold sought spent "
    "spoken struck taken told torn understood unseen wound woken won worn written"
).split()
OTHER_WORDS = ("embed", "meaning", "reading", "missing")
# A response and an accepted answer, graded from the public `grade` to the verdict.
GRADED = (("0.5", "1/2"), ("(x-1)(x+1)", "x^2-1"))
_PROFILE = r"""
import sys
sys.path.insert(0, sys.argv[1])
calls, ways = [], []
def record(frame, event, argument):
    file = frame.f_code.co_filename
    if event == "call" and file.startswith(sys.argv[1] + "/mathrl/"):
        calls.append(file)
        if frame.f_code.co_name == "clipped_policy_loss":
            ways.append([])
            while frame.f_code.co_name != "train_rl":
                ways[-1].append(frame.f_code.co_filename)
                frame = frame.f_back
            ways[-1].append(frame.f_code.co_filename)
def print_moves():
    print(len(set(calls)), "/", sum(file != before for file, before in zip(calls, ["", *calls])))
"""
_GRADE = r"""
from mathrl.grading import grade
sys.setprofile(record)
verdict = grade(f"\\boxed{{{sys.argv[2]}}}", sys.argv[3])
sys.setprofile(None)
assert verdict.correct, verdict
print_moves()
"""
# A toy run of one step, from opening it to its end, once what is kept between runs is there.
_RL = r"""
from tests.trainers import small
params = small.short_rl(steps=1, kl={"coef": 0.01})
small.run(params)
sys.setprofile(record)
small.run(params)
sys.setprofile(None)
print_moves()
print(len(ways[0]), "/", len(set(ways[0])))
"""
Function = ast.FunctionDef | ast.AsyncFunctionDef


def figures(checkout: Path) -> dict[str, str]:
    """What the table shows of a checkout, by the label of its row."""
    texts = {file: file.read_text(encoding="utf-8") for folder in LIBRARY for file in (checkout / folder).rglob("*.py")}
    trees = {file: ast.parse(text) for file, text in texts.items()}
    lengths = sorted(len(text.splitlines()) for text in texts.values())
    functions = [(node, file) for file, tree in trees.items() for node in ast.walk(tree) if isinstance(node, Function)]
    longest, in_file = max(functions, key=lambda item: lines(item[0]))
    widest, its_file = max(functions, key=lambda item: len(parameters(item[0])))
    typed = sum(is_typed(function) for function, _ in functions)
    rows = {
        "files of the library": f"{len(texts):,}",
        "lines of the library": f"{sum(lengths):,}",
        "lines per file: median, 90th percentile, maximum": (
            f"{statistics.median(lengths):.0f}, {lengths[int(0.9 * len(lengths))]}, {lengths[-1]}"
        ),
        "files of less than 40 lines": str(sum(length < 40 for length in lengths)),
        "longest function, in lines": f"{lines(longest)} (`{in_file.stem}.{longest.name}`)",
        "functions of more than 120 lines": str(sum(lines(function) > 120 for function, _ in functions)),
        "most parameters of a function": f"{len(parameters(widest))} (`{its_file.stem}.{widest.name}`)",
        "functions with more than 8 parameters": str(sum(len(parameters(node)) > 8 for node, _ in functions)),
        "functions named by a bare participle": str(sum(is_participle(node.name) for node, _ in functions)),
        "functions with all types": f"{100 * typed / len(functions):.1f} %",
        "own imports inside functions": str(sum(len(list(late_imports(tree))) for tree in trees.values())),
        "`# fmt: skip`": str(sum(text.count("# fmt: skip") for text in texts.values())),
    }
    uses = {name: sum(name in variables(function) for function, _ in functions) for name in VAGUE}
    rows["functions with a variable " + ", ".join(f"`{name}`" for name in VAGUE)] = ", ".join(map(str, uses.values()))
    types = Counter(node.name for tree in trees.values() for node in tree.body if isinstance(node, ast.ClassDef))
    rows["names that several types have"] = ", ".join(name for name, count in types.items() if count > 1) or "none"
    floors = import_floors(checkout)
    rows["rooms of mathrl, floors"] = f"{sum(len(floor) for floor in floors)}, {len(floors)}"
    for answer, truth in GRADED if (checkout / "mathrl" / "grading").is_dir() else ():
        rows[f"files / moves between files to grade `{answer}` = `{truth}`"] = profile(checkout, _GRADE, answer, truth)[
            0
        ]
    if (checkout / "tests" / "trainers" / "small.py").is_file():
        moves, way = profile(checkout, _RL)
        rows["files / moves between files in one RL step"] = moves
        rows["frames / files from `train_rl` to the loss"] = way
    rows["lines of the README"] = str(len((checkout / "README.md").read_text(encoding="utf-8").splitlines()))
    return rows


def profile(checkout: Path, program: str, *words: str) -> list[str]:
    """What the program prints in the checkout, by line."""
    command = [sys.executable, "-c", _PROFILE + program, str(checkout.resolve()), *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def is_participle(name: str) -> bool:
    """Whether a function's name is one participle: `tested` says neither what is done nor what comes back.

    >>> [is_participle(name) for name in ("_tested", "drawn", "split_tested", "read", "need", "reading")]
    [True, True, False, False, False, False]
    """
    word = name.strip("_")
    ends = word.endswith(("ed", "ing")) and len(word) > 4 and word not in OTHER_WORDS and not word.endswith("eed")
    return "_" not in word and (ends or word in IRREGULAR)


def lines(function: Function) -> int:
    return (function.end_lineno or function.lineno) - function.lineno + 1


def parameters(function: Function) -> list[ast.arg]:
    arguments = function.args
    return [arg for arg in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs) if arg.arg != "self"]


def is_typed(function: Function) -> bool:
    arguments = [arg for arg in parameters(function) if arg.arg != "cls"]
    arguments += [arg for arg in (function.args.vararg, function.args.kwarg) if arg]
    return function.returns is not None and all(arg.annotation for arg in arguments)


def late_imports(tree: ast.AST) -> Iterator[ast.AST]:
    """Imports of the library that stand inside a function."""
    for function in ast.walk(tree):
        if isinstance(function, Function):
            for node in own_nodes(function):
                names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
                names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
                yield from (node for name in names if name.split(".")[0] in LIBRARY)


def variables(function: Function) -> set[str]:
    """The names that a function binds: parameters, assignments, loops."""
    bound = {node.id for node in own_nodes(function) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    return bound | {arg.arg for arg in parameters(function)}


def own_nodes(function: Function) -> Iterator[ast.AST]:
    """The nodes of a function without those of functions inside it."""
    stack: list[ast.AST] = list(function.body)
    while stack:
        node = stack.pop()
        yield node
        if not isinstance(node, Function):
            stack += ast.iter_child_nodes(node)


def import_floors(checkout: Path) -> list[list[str]]:
    """The rooms of mathrl per floor, from the first import contract of pyproject.toml."""
    settings = tomllib.loads((checkout / "pyproject.toml").read_text(encoding="utf-8"))
    layers = settings["tool"]["importlinter"]["contracts"][0]["layers"]
    return [layer.split(" | ") for layer in layers]


def table(checkouts: list[Path]) -> str:
    columns = [figures(checkout) for checkout in checkouts]
    head = [checkout.resolve().name for checkout in checkouts]
    rows = [[label, *(column[label] for column in columns)] for label in columns[0]]
    return "\n".join(f"| {' | '.join(row)} |" for row in [["", *head], ["---"] * (len(head) + 1), *rows])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkouts", nargs="*", type=Path, default=[Path(__file__).parents[1]])
    print(table(parser.parse_args().checkouts))
