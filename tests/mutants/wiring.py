"""Changes of the wiring that no test notices: mutmut's changes and some of our own, a sample of them in a given time.

    wiring.py COUNT SEED MINUTES PROCESSES [NAMES]

In a folder with setup.cfg: tries COUNT changes (of those whose name has the pattern NAMES in it), drawn by SEED, for at
most MINUTES, and prints each when it is through and, of those that no test notices, the lines; at last their share with
its 95 % interval. Which tests run which lines is measured first, and kept in reach.json for the next time.

Beside what mutmut changes, a statement is left out, a condition negated, two arguments are swapped. Texts of messages,
asserts, times, `strict`, `encoding` and `device` stay as they are.
"""

import ast
import difflib
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from statistics import median
from typing import Any

import libcst as cst
import pytest
from libcst.metadata import MetadataWrapper, PositionProvider
from mutmut.configuration import config
from mutmut.mutation import file_mutation, mutators
from mutmut.utils.file_utils import walk_mutatable_files
from warm import Change, Outcome, Reach, Warm

# Calls whose arguments are texts, or that have no meaning in another order.
MESSAGES = (
    "UserError",
    "OutOfMemory",
    "ValueError",
    "print",
    "memory_part",
    "cast",
    "TypeVar",
    "ParamSpec",
    "check_trl",
)
UNORDERED = ("isinstance", "zip", "range", "max", "min", "hasattr", "getattr", "setattr", "replace", "gcd")
SYMMETRIC = ("correlation", "logprob_alignment", "gap_counts", "squared_log_ratio")
EQUIVALENT = Path(__file__).parents[2] / "docs" / "reference" / "mutants.md"
# By the beginning of a file's name: tests that start processes, in which no line is traced.
RANKS = ("tests/trainers/test_ranks.py", "tests/learners/test_distributed.py")
STARTING = {
    "mathrl/trainers/": RANKS[:1],
    "mathrl/learners/": (*RANKS, "tests/learners/test_preemption.py", "tests/learners/test_context_parallel.py"),
    "mathrl/rollout/ranks": (*RANKS, "tests/stages/test_sample.py"),
    "mathrl/rollout/sample_problems": (RANKS[1], "tests/stages/test_sample.py"),
    "mathrl/stages/rl": ("tests/trainers/test_trl_engine.py",),
}
# All that these run is in other processes.
NOT_TRACED = ("tests/trainers/test_trl_engine.py", "tests/learners/test_context_parallel.py", *RANKS[:1])
ALIVE = ("unnoticed", "unreached")
LOG = Path("trials.log")


def string(node: cst.SimpleString) -> Iterable[cst.CSTNode]:
    """A name, such as a metric's; a text with spaces is for people."""
    if isinstance(node, cst.SimpleString) and " " not in node.value and len(node.value) > 2:
        yield node.with_changes(value=f"{node.value[:-1]}XX{node.value[-1]}")


def dropped(node: cst.Expr | cst.Assign | cst.AugAssign) -> Iterable[cst.CSTNode]:
    """A call whose result nobody takes, or a change of an attribute or an entry, is left out."""
    if isinstance(node, cst.Expr):
        if isinstance(node.value, cst.Call):
            yield cst.Pass()
    elif isinstance(node, cst.AugAssign) or isinstance(node.targets[0].target, cst.Attribute | cst.Subscript):
        yield cst.Pass()


def negated(node: cst.If | cst.CompIf) -> Iterable[cst.CSTNode]:
    test = node.test.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
    yield node.with_changes(test=cst.UnaryOperation(cst.Not(), test), whitespace_before_test=cst.SimpleWhitespace(" "))


def swapped(node: cst.Call) -> Iterable[cst.CSTNode]:
    """Every two neighbouring arguments without a keyword."""
    if isinstance(node.func, cst.Name) and node.func.value in UNORDERED + SYMMETRIC:
        return
    for place, (first, second) in enumerate(zip(node.args, node.args[1:], strict=False)):
        if first.keyword is None and second.keyword is None and not first.star and not second.star:
            pair = [first.with_changes(value=second.value), second.with_changes(value=first.value)]
            yield node.with_changes(args=[*node.args[:place], *pair, *node.args[place + 2 :]])


def operators() -> list[tuple[Any, Any]]:
    own = [(cst.SimpleString, string), (cst.Call, swapped), *((kind, negated) for kind in (cst.If, cst.CompIf))]
    own += [(kind, dropped) for kind in (cst.Expr, cst.Assign, cst.AugAssign)]
    return [pair for pair in mutators.mutation_operators if pair[1] is not mutators.operator_string] + own


skips = file_mutation.MutationVisitor._skip_node_and_children


def skipped(self: Any, node: cst.CSTNode) -> bool:
    """As mutmut, but functions with any decorator are changed, and what is for people or only asserts is not."""
    if isinstance(node, cst.FunctionDef) and node.decorators:
        return any(isinstance(d.decorator, cst.Name) and d.decorator.value == "overload" for d in node.decorators)
    if isinstance(node, cst.Raise | cst.Assert):
        return True
    if isinstance(node, cst.Arg) and of_no_effect(node):
        return True
    if isinstance(node, cst.Call) and isinstance(node.func, cst.Name) and node.func.value in MESSAGES:
        return True
    return bool(skips(self, node))


def of_no_effect(argument: cst.Arg) -> bool:
    """An argument that asserts (`strict`), says the default of every machine (`encoding`) or of a CPU (`device`)."""
    name = argument.keyword.value if argument.keyword is not None else ""
    is_device = isinstance(argument.value, cst.Attribute) and argument.value.attr.value == "device"
    return name in ("strict", "encoding", "device") or is_device


def leaves_out_no_effect(old: cst.CSTNode, new: cst.CSTNode) -> bool:
    """Whether the change of a call takes away such an argument, or changes its value."""
    if not isinstance(old, cst.Call) or not isinstance(new, cst.Call):
        return False
    return [each for each in old.args if of_no_effect(each)] != [each for each in new.args if of_no_effect(each)]


@dataclass(frozen=True)
class Place:
    """Where a change is made; `lines` are the statement's, of one with a body its head's."""

    name: str
    file: str
    module: cst.Module
    old: cst.CSTNode
    new: cst.CSTNode
    lines: tuple[int, int]

    def change(self) -> Change:
        return Change(self.name, self.file, self.lines, self.module.deep_replace(self.old, self.new).code)


def statements(text: str) -> list[tuple[int, int]]:
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.stmt | ast.ExceptHandler):
            body = getattr(node, "body", None)
            found.append((node.lineno, max(node.lineno, body[0].lineno - 1) if body else node.end_lineno or 0))
    return found


def places(file: str) -> Iterator[Place]:
    """Every change of the functions of a file; its name is the module, the function and a number."""
    text = Path(file).read_text(encoding="utf-8")
    module, mutations, _, _ = file_mutation.create_mutations(file, text)
    positions = MetadataWrapper(module, unsafe_skip_copy=True).resolve(PositionProvider)
    classes = {
        id(child): f"{statement.name.value}."
        for statement in module.body
        if isinstance(statement, cst.ClassDef)
        for child in statement.body.body
    }
    room, found, numbers = ".".join(Path(file).with_suffix("").parts[1:]), statements(text), Counter[str]()
    for each in mutations:
        function = each.contained_by_top_level_function
        if not isinstance(function, cst.FunctionDef):
            continue
        name = f"{room}.{classes.get(id(function), '')}{function.name.value}"
        if leaves_out_no_effect(each.original_node, each.mutated_node):
            continue
        numbers[name] += 1
        lines = positions[function].start.line, positions[function].end.line
        line = positions[each.original_node].start.line if each.original_node in positions else 0
        if line >= positions[function.body].start.line:  # and not among its parameters
            lines = max(lines for lines in found if lines[0] <= line <= lines[1])
        yield Place(f"{name} {numbers[name]}", file, module, each.original_node, each.mutated_node, lines)


def difference(change: Change) -> tuple[list[str], list[str]]:
    """The lines that the change takes, and those that it puts there."""
    old = Path(change.file).read_text(encoding="utf-8").splitlines()
    lines = list(difflib.unified_diff(old, change.text.splitlines(), n=0, lineterm=""))[2:]
    return [line[1:].strip() for line in lines if line[0] == "-"], [
        line[1:].strip() for line in lines if line[0] == "+"
    ]


def equivalents(text: str) -> set[tuple[str, str, str]]:
    """The changes that docs/reference/mutants.md calls equivalent: function, first line taken, first line put."""
    rows = re.findall(r"^\| `([\w.]+)` \| `(.+?)` \| `(.*?)` \| ", text.replace("\\|", "¦"), re.MULTILINE)
    return {(function, *(line.replace("¦", "|") for line in lines)) for function, *lines in rows}


class Sample:
    """The plugin's work: tries the changes and prints what comes of them.

    First each with the quicker of its tests; then those that these did not notice, and that docs/reference/mutants.md
    does not call equivalent, with the others; at last those that are left with the tests that start processes.
    """

    def __init__(self, changes: list[Change], minutes: float, processes: int) -> None:
        self.changes, self.minutes, self.processes = changes, minutes, processes
        self.fates: dict[str, str] = {}
        self.seconds: Counter[str] = Counter()

    def __call__(self, warm: Warm) -> None:
        begun = time.monotonic()
        reach = warm.reach_kept(Path("reach.json"), not_traced=NOT_TRACED)
        self.say(f"{len(reach.seconds)} tests; which lines they run was known after {time.monotonic() - begun:.0f} s")
        rl, end = "mathrl/trainers/rl.py", begun + 60 * self.minutes
        self.control(warm, reach, reach.halves(reach.tests(rl, (1, 1 << 20)))[0])
        halves = {change.name: reach.halves(reach.tests(change.file, change.lines)) for change in self.changes}
        self.part([(change, halves[change.name][0]) for change in self.changes], warm, reach, end)
        left = [change for change in self.changes if self.alive(change)]
        self.part([(each, tests) for each in left if (tests := halves[each.name][1])], warm, reach, end)
        left = [change for change in self.changes if self.alive(change)]
        last = [(change, tests) for change in left if (tests := starting(change.file, warm.items))]
        self.control(warm, reach, sorted({test for _, tests in last for test in tests}))
        self.part(last, warm, reach, end)
        self.report()

    def part(self, changes: list[tuple[Change, list[str]]], warm: Warm, reach: Reach, end: float) -> None:
        for outcome in warm.outcomes(changes, reach, LOG, self.processes, end):
            self.take(outcome)

    def control(self, warm: Warm, reach: Reach, tests: Sequence[str]) -> None:
        """None of the tests may notice a change that changes nothing."""
        if not tests:
            return
        file = "mathrl/trainers/rl.py"
        change = Change("nothing", file, (1, 1 << 20), Path(file).read_text(encoding="utf-8"))
        (outcome,) = warm.outcomes([(change, tests)], reach, LOG, 1, time.monotonic() + 1)
        if outcome.fate != "unnoticed":
            sys.exit(f"{outcome.by} fails without a change, in a fork: trials.log")
        self.say(f"{outcome.tests} tests pass without a change in {outcome.seconds:.0f} s")

    def alive(self, change: Change) -> bool:
        """Whether no test has noticed the change so far, and it is not known to be equivalent."""
        if self.fates.get(change.name) not in ALIVE:
            return False
        taken, put = difference(change)
        if not taken and not put:  # two equal arguments that were swapped
            self.fates[change.name] = "unmade"
            return False
        known = equivalents(EQUIVALENT.read_text(encoding="utf-8"))
        if (f"mathrl.{change.name.split()[0]}", taken[0] if taken else "", put[0] if put else "") in known:
            self.fates[change.name] = "equivalent"
        return self.fates[change.name] != "equivalent"

    def take(self, outcome: Outcome) -> None:
        change, fate = outcome.change, outcome.fate
        again = change.name in self.fates
        self.fates[change.name] = fate
        self.seconds[change.name] += outcome.seconds
        alive = self.alive(change)
        self.say(
            f"{len(self.fates)}/{len(self.changes)}{' again' * again} {self.fates[change.name]}: {change.name} "
            f"({change.file}:{change.lines[0]}), {outcome.seconds:.1f} s, {outcome.tests} tests"
            + f", {outcome.by}"
            * bool(outcome.by)
        )
        if alive and not again:
            for sign, lines in zip("-+", difference(change), strict=True):
                self.say("".join(f"    {sign} {line}\n" for line in lines).rstrip("\n"))

    def report(self) -> None:
        fates = Counter(self.fates.values())
        for change in self.changes:
            if self.fates.get(change.name) in ALIVE:
                self.say(f"{self.fates[change.name]}: {change.name}")
        self.say(", ".join(f"{count} {fate}" for fate, count in fates.most_common()))
        alive, total = sum(fates[fate] for fate in ALIVE), sum(fates.values()) - fates["unmade"] - fates["equivalent"]
        if total:
            low, high = wilson(alive, total)
            self.say(
                f"{alive} of {total} changes unnoticed: {alive / total:.1%} [{low:.1%}, {high:.1%}]; "
                f"{median(self.seconds.values()):.1f} s each (median), {sum(self.seconds.values()) / 60:.1f} min in all"
            )

    @staticmethod
    def say(text: str) -> None:
        print(text, file=sys.__stdout__, flush=True)


def starting(file: str, tests: Iterable[str]) -> list[str]:
    """The tests of the file's code that start processes."""
    files = [each for beginning, files in STARTING.items() if file.startswith(beginning) for each in files]
    return [test for test in tests if test.startswith(tuple(files))] if files else []


def wilson(count: int, total: int, z: float = 1.96) -> tuple[float, float]:
    """Wilson's interval of a share."""
    share, scale = count / total, 1 + z * z / total
    middle, half = share + z * z / (2 * total), z * sqrt(share * (1 - share) / total + z * z / (4 * total * total))
    return max(0.0, (middle - half) / scale), min(1.0, (middle + half) / scale)


def run(count: int, seed: int, minutes: float, processes: int, names: str) -> int:
    file_mutation.mutation_operators = operators()
    file_mutation.MutationVisitor._skip_node_and_children = skipped
    files = sorted(map(str, walk_mutatable_files()))
    found = [place for file in files for place in places(file) if re.search(names, place.name)]
    chosen = random.Random(seed).sample(found, min(count, len(found)))
    Sample.say(f"{len(chosen):,} of {len(found):,} changes")
    work = Sample([place.change() for place in chosen], minutes, processes)
    arguments = [*config().pytest_add_cli_args_test_selection, *config().pytest_add_cli_args]
    return pytest.main(["-q", "-s", *arguments], plugins=[Warm(files, work)])


if __name__ == "__main__":
    count, seed, minutes, processes, *pattern = sys.argv[1:]
    sys.path.insert(0, "")
    sys.exit(run(int(count), int(seed), float(minutes), int(processes), *(pattern or [""])))
