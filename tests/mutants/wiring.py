"""Mutants of the wiring: mutmut with operators of its kind, on a sample within a time. For `make mutants`.

    wiring.py COUNT SEED MINUTES PROCESSES [NAMES]

In a folder with setup.cfg: runs COUNT of the mutants (of those whose name has the pattern NAMES in it), chosen by SEED,
in random order, for at most MINUTES; prints those that no test noticed, and their share with its 95 % interval. Beside
what mutmut's own operators change, a statement is left out, a condition negated, two arguments are swapped. Texts of
messages, asserts and times stay as they are.
"""

import os
import random
import re
import signal
import sys
import threading
from collections.abc import Iterable
from math import sqrt
from typing import Any

import libcst as cst
import mutmut.__main__ as main
from mutmut.mutation import file_mutation, mutators
from mutmut.stats import status_by_exit_code

# Calls whose arguments are texts, or that have no meaning in another order.
MESSAGES = ("UserError", "OutOfMemory", "ValueError", "print", "memory_part", "cast", "TypeVar", "ParamSpec")
UNORDERED = ("isinstance", "zip", "range", "max", "min", "hasattr", "getattr", "setattr", "replace", "gcd")


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
    if isinstance(node.func, cst.Name) and node.func.value in UNORDERED:
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
arrange = file_mutation.function_trampoline_arrangement


def skipped(self: Any, node: cst.CSTNode) -> bool:
    """As mutmut, but functions with any decorator are mutated, and what is for people is not."""
    if isinstance(node, cst.FunctionDef) and node.decorators:
        return any(isinstance(d.decorator, cst.Name) and d.decorator.value == "overload" for d in node.decorators)
    if isinstance(node, cst.Raise | cst.Assert):
        return True
    if isinstance(node, cst.Call) and isinstance(node.func, cst.Name) and node.func.value in MESSAGES:
        return True
    return skips(self, node)


def arranged(function: cst.FunctionDef, mutants: Any, class_name: str | None) -> Any:
    """As mutmut, but decorators stand on the function that chooses and not on what it chooses from."""
    names = [d.decorator.value for d in function.decorators if isinstance(d.decorator, cst.Name)]
    if not function.decorators or names in (["staticmethod"], ["classmethod"]):
        return arrange(function, mutants, class_name)
    declared, methods, assigned, found = arrange(function.with_changes(decorators=[]), mutants, class_name)
    methods[0] = methods[0].with_changes(decorators=[*function.decorators, *methods[0].decorators])
    return declared, methods, assigned, found


def sampled(count: int, seed: int, names: str, chosen: list[Any]) -> Any:
    """mutmut's function that reads what there is to run, with a sample of it."""
    read = main.collect_source_file_mutation_data

    def collect(**arguments: Any) -> Any:
        mutants, data = read(**arguments)
        mutants = sorted((m for m in mutants if re.search(names, m[1])), key=lambda mutant: mutant[1])
        print(f"{min(count, len(mutants)):,} of {len(mutants):,} mutants")
        chosen[:] = random.Random(seed).sample(mutants, min(count, len(mutants)))
        return list(chosen), data

    return collect


def report(chosen: list[Any]) -> None:
    fates = {name: status_by_exit_code[data.exit_code_by_key[name]] for data, name, _ in chosen}
    run = {name: fate for name, fate in fates.items() if fate not in ("not checked", "skipped")}
    alive = [name for name, fate in run.items() if fate in ("survived", "no tests", "suspicious")]
    for name in sorted(alive):
        print(f"{name} ({run[name]})")
        lines = main.get_diff_for_mutant(name).splitlines()
        print("".join(f"    {line}\n" for line in lines if line[:1] in "+-" and line[:3] not in ("+++", "---")), end="")
    for name, fate in sorted(run.items()):
        if fate in ("timeout", "segfault"):
            print(f"{name} ({fate})")
    low, high = wilson(len(alive), len(run))
    print(f"{len(alive)} of {len(run)} mutants unnoticed: {len(alive) / len(run):.1%} [{low:.1%}, {high:.1%}]")


def wilson(count: int, total: int, z: float = 1.96) -> tuple[float, float]:
    """Wilson's interval of a share."""
    share, scale = count / total, 1 + z * z / total
    middle, half = share + z * z / (2 * total), z * sqrt(share * (1 - share) / total + z * z / (4 * total * total))
    return max(0.0, (middle - half) / scale), min(1.0, (middle + half) / scale)


def run(count: int, seed: int, minutes: float, processes: int, names: str) -> None:
    chosen: list[Any] = []
    file_mutation.mutation_operators = operators()
    file_mutation.MutationVisitor._skip_node_and_children = skipped
    file_mutation.function_trampoline_arrangement = arranged
    main.collect_source_file_mutation_data = sampled(count, seed, names, chosen)
    main.estimated_worst_case_time = lambda name: 0.0  # in the order of the sample, so that its beginning is one too
    main.tests_for_mutant_names = lambda names: {
        min(main.state().duration_by_test, key=main.state().duration_by_test.get)
    }
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a shell ignores it
    # Not an alarm: pytest-timeout sets and clears the process's only one.
    end = threading.Timer(60 * minutes, os.kill, (os.getpid(), signal.SIGINT))
    end.daemon = True
    end.start()
    main._run((), processes)
    end.cancel()
    report(chosen)


if __name__ == "__main__":
    count, seed, minutes, processes, *pattern = sys.argv[1:]
    run(int(count), int(seed), float(minutes), int(processes), *(pattern or [""]))
