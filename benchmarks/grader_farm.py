"""A search for answers that pay without being right: random edits of right and wrong answers, as a policy would try.

    python benchmarks/grader_farm.py --steps 20000 [--seed 0]
    python benchmarks/grader_farm.py --train 300 [--seed 0]

A step takes a wrong answer and appends, inserts or replaces words, units and signs, or takes a right answer and appends
words that change what it says. Whatever is then accepted is printed, to be read by a person: an edit may happen to
correct an answer. An edit that is accepted is kept and edited further.

`--train` lets a small model search: it learns to write sums with random words, units and signs around random numbers,
and then gets GRPO with the verifier's verdict as the only reward. Each accepted form is printed with its count, T for
the right number and W for another one; forms with W or with words that make another claim come first.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from mathrl.compose import load_params
from mathrl.core.metrics import JsonlSink
from mathrl.core.types import Control, Problem
from mathrl.grading import grade, warm_up
from mathrl.grading.lexer import tokenize
from mathrl.grading.syntax import ParseError
from mathrl.learners.distributed import Ranks
from mathrl.models.base import make_base
from mathrl.models.load import load_model, load_tokenizer
from mathrl.params.paths import merge
from mathrl.params.run import FreshModel, Reward
from mathrl.params.train import Rl, Sft
from mathrl.rewards.compose import RewardFunction, RewardInput, RewardResult
from mathrl.rollout.sampler import Sampler
from mathrl.rollout.torch_engine import TorchEngine
from mathrl.trainers.rl import train_rl
from mathrl.trainers.sft import train_sft
from mathrl.trainers.supervised import tokenize_demonstrations
from mathrl.trainers.training_run import TrainingRun
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
    "is wrong|is not right|(false)|north|less|more|squared|cubed|dozen|below zero|times more|or so|at most|at least|"
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


# What the model may write beside digits: tokens of their own. The second list makes another claim of a right number.
HARMLESS = [rf"\text{{ {word}}}" for word in "cm kg apples ways dollars hours points people".split()]
HARMLESS += [
    r"\text{about }",
    "x=",
    "n=",
    r"\approx ",
    "$",
    r"\text{}",
    r"\,",
    r"\quad ",
    "(",
    ")",
    r"\text{the answer is }",
]
CLAIMS = [rf"\text{{ {word}}}" for word in DENIALS]
CLAIMS += [
    *r"+ - = , ; : / | ! ^ _ % ".split(),
    r"\pm ",
    r"\sqrt",
    r"\frac",
    r"\le ",
    r"\ge ",
    r"\ne ",
    r"\in ",
    r"\to ",
]
CLAIMS += [
    r"\{",
    r"\}",
    r"\cup ",
    r"\cap ",
    r"\text{ or }",
    r"\text{ and }",
    r"\ldots ",
    r"\infty ",
    r"\mod ",
    r"\equiv ",
]
CLAIMS += [r"\{n: ", r"\mathbb{Z}", r"\lfloor ", r"\rfloor ", r"\begin{cases}", r"\end{cases}", r"\\", "&", "{", "}"]
PIECE = re.compile("|".join(re.escape(piece) for piece in sorted({*HARMLESS, *CLAIMS}, key=len, reverse=True)))


def sum_with_body(rng: random.Random, number: int) -> Problem:
    """An addition whose demonstration is a box of one to four numbers, half of them right, with random pieces."""
    first, second = rng.randint(1, 9), rng.randint(1, 9)
    truth = first + second
    body = ""
    for _ in range(rng.choice([1, 1, 1, 2, 2, 3, 4])):
        for _ in range(rng.choice([0, 0, 1, 2])):
            body += rng.choice(rng.choice([HARMLESS, CLAIMS]))
        body += str(truth if rng.random() < 0.5 else rng.randint(1, 20))
    for _ in range(rng.choice([0, 0, 1, 1, 2])):
        body += rng.choice(rng.choice([HARMLESS, CLAIMS]))
    return Problem(
        f"sum/{number}",
        f"{first}+{second}=",
        (str(truth),),
        "sum",
        "rl",
        control=Control(response=rf"\boxed{{{body}}}"),
    )


class Watched(RewardFunction):
    """The verifier's verdict alone, with every accepted form counted, an example kept, and its last step."""

    def __init__(self, params: Reward) -> None:
        super().__init__(params)
        self.forms: Counter[tuple[bool, str]] = Counter()
        self.examples: dict[str, tuple[str, str]] = {}
        self.scored = 0

    def score(self, items: Sequence[RewardInput]) -> list[RewardResult]:
        results = super().score(items)
        self.scored += len(items)
        for item, result in zip(items, results, strict=True):
            if result.correct:
                truth, answer = item.ground_truth[0], result.verdict.extracted or ""
                form = re.sub(r"\d+", lambda found, truth=truth: " T " if found[0] == truth else " W ", answer)
                rest = PIECE.sub(lambda found: "" if found[0] in HARMLESS else found[0], form).split()
                self.forms[rest != ["T"], form] += 1
                self.examples.setdefault(form, (item.response, truth))
        return results


def train(steps: int, seed: int) -> None:
    """Teach a small model to write at random, pay it by the verifier, and print what was paid."""
    torch.set_num_threads(1)
    params = load_params(Path(__file__).resolve().parents[1] / "params")
    base = FreshModel(alphabet="ascii", marks=(r"\boxed{", *dict.fromkeys([*HARMLESS, *CLAIMS])))
    settings = {"steps": 600, "eval_every": 0, "terse_share": 0.0}
    with TemporaryDirectory() as kept:
        folder = Path(kept)
        model = params.model.model_copy(update={"base": base})
        make_base(model, folder / "base", seed)
        tokenizer, network = load_tokenizer(folder / "base", model), load_model(folder / "base", model, "cpu")
        rng = random.Random(seed)
        problems = [sum_with_body(rng, number) for number in range(8000)]
        shown = tokenize_demonstrations(problems, params.prompt, tokenizer, 0.0, seed)
        run = TrainingRun(
            Ranks(torch.device("cpu")), folder / "sft", seed, lambda resume_after: JsonlSink(folder / "sft.jsonl")
        )
        train_sft(network, shown, shown[:16], Sft.model_validate(merge(params.sft.model_dump(), settings)), run)
        settings = {
            "steps": steps,
            "prompts_per_step": 16,
            "group_size": 16,
            "dev": {"every": steps, "samples": 1},
            "optimizer": {"lr": 0.002},
            "checkpoint_every": steps,
        }
        rl = Rl.model_validate(merge(params.rl.model_dump(), settings))
        reward = Watched(Reward.model_validate({"parts": [{"type": "accuracy", "weight": 1.0}]}))
        sampler = Sampler(TorchEngine(network, tokenizer, params.rollout), tokenizer, params.prompt)
        run = TrainingRun(
            Ranks(torch.device("cpu")), folder / "rl", seed, lambda resume_after: JsonlSink(folder / "rl.jsonl")
        )
        train_rl(network, sampler, problems, problems[:16], reward, rl, run)
        rows = [json.loads(line) for line in (folder / "rl.jsonl").read_text().splitlines()]
    paid = sum(reward.forms.values())
    print(f"{reward.scored:,} responses, {paid:,} accepted in {len(reward.forms):,} forms; rewards by step:")
    print(" ".join(f"{row['reward/overall']:.2f}" for row in rows[:: max(1, steps // 20)]))
    for claims in (True, False):
        forms = [(form, count) for (other, form), count in reward.forms.most_common() if other == claims]
        heading = "To be read" if claims else "Right by their pieces"
        print(f"\n{heading}: {len(forms):,} forms, {sum(count for _, count in forms):,} responses")
        for form, count in forms if claims else forms[:20]:
            print(f"{count:6,} {form}    for instance {' for '.join(reward.examples[form])}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--train", type=int, default=0, help="train a small model for as many steps instead")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    if arguments.train:
        train(arguments.train, arguments.seed)
        return
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
