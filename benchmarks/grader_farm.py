"""A search for answers that pay without being right: random edits of right and wrong answers, as a policy would try.

    python benchmarks/grader_farm.py --steps 20000 [--seed 0]

A step takes a wrong answer and appends, inserts or replaces words, units and signs, or takes a right answer and appends
words that change what it says. Whatever is then accepted is printed, to be read by a person: an edit may happen to
correct an answer. An edit that is accepted is kept and edited further.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from itertools import islice
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from mathrl.grading import grade, warm_up
from mathrl.grading.lexer import tokenize
from mathrl.grading.syntax import ParseError
from tests.grading.pairs import Pair, pairs

WORDS = (
    "correct wrong answer the is not about approximately exactly equal maximum apples dollars cm kg percent degrees "
    "units way ways real integer any all total final value solution none odd even prime positive or and if where for"
).split()
SIGNS = (
    r", ; : . \ldots \approx \sim \equiv = \ne \in \to \implies | \{ \} ( ) [ ] \, ~ \quad ' ! ? % ^\circ \infty \pm "
    r"\text{} \mathrm{} \boxed{} {} \cup \cap \emptyset \mathbb{R} \mathbb{Z} \& \# \$ € _ ^ \displaystyle \cancel{} "
    r"\color{red} \hspace{1cm} \mbox{or} \lor \land \forall \exists \neg k n C T 的 个 不"
).split()
# Said of a right answer, each makes another claim of it.
DENIALS = (
    "is wrong|is not right|(false)|north|less|more|squared|cubed|dozen|below zero|times|or so|at most|at least|"
    "hundredths|base three|mod 2|is impossible|decrease|loss|minus|halves|per cent off|不对|的相反数|not"
).split("|")


def edited(text: str, rng: random.Random) -> str:
    """The text with one word or sign appended, inserted or put in the place of a token."""
    word = rng.choice(WORDS)
    piece = rng.choice(
        [f"\\text{{ {word}}}", f" {word} ", f" {rng.choice(SIGNS)} ", f"\\text{{{word} {rng.choice(WORDS)}}}"]
    )
    kind = rng.random()
    if kind < 0.35:
        return text + piece
    if kind < 0.5:
        return piece + text
    try:
        values = [token.value for token in tokenize(text)[:-1]]
    except ParseError:
        return text + piece
    at = text.find(rng.choice(values)) if values else 0
    return text[:at] + piece + text[at:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    rng = random.Random(arguments.seed)
    warm_up()
    made: list[Pair] = list(islice(pairs(arguments.seed, False), arguments.steps // 4))
    started, paid, denied = time.process_time(), 0, 0
    for step in range(arguments.steps):
        pair = made[step % len(made)]
        if step % 5 == 4:
            answer = f"{pair.truth} \\text{{ {rng.choice(DENIALS)}}}"
            if grade(f"\\boxed{{{answer}}}", pair.truth).correct:
                denied += 1
                print(f"a denial: {answer}   for   {pair.truth}")
            continue
        answer = pair.answer
        for _ in range(rng.choice([1, 1, 2, 3, 5])):
            answer = edited(answer, rng)
        if grade(f"\\boxed{{{answer}}}", pair.truth).correct:
            paid += 1
            print(f"{pair.family}: {answer}   for   {pair.truth}")
            made[step % len(made)] = pair._replace(answer=answer)
    seconds = time.process_time() - started
    accepted = f"{paid} edited wrong answers and {denied} denied right ones accepted"
    print(f"{arguments.steps:,} steps: {accepted}, {seconds:,.0f} s")


if __name__ == "__main__":
    main()
