"""Demonstrations: the response that supervised fine-tuning teaches for a problem."""

import re
from pathlib import Path

from mathrl.core.errors import UserError
from mathrl.core.files import encodable
from mathrl.core.types import Problem, read_problems
from mathrl.params.run import Prompt
from mathrl.reading.row_values import last_boxed

_CALCULATOR = re.compile(r"<<[^<>]*>>")  # GSM8K's calculator annotations: <<48/2=24>>
_FINAL_LINE = re.compile(r"\n?\s*####[^\n]*\s*$")


def demonstration(problem: Problem, prompt: Prompt, terse: bool) -> str:
    r"""The whole response, including `prompt.response_prefix` where that is the solution's own opening tag.

    Lone surrogates, which no tokenizer takes, are written as escapes (`core.files.encodable`).

    Example:
        plain, r1_zero: "<think>7+5=12;12-3=9</think><answer>9</answer>", terse "<answer>9</answer>"
        question_answer: "7+5=12;12-3=9\nThe answer is 9.", terse "The answer is 9."
        boxed, chat: "7+5=12;12-3=9\n\nThe answer is \boxed{9}.", terse "\boxed{9}"

    Raises:
        UserError: the problem has no answer; or the demonstration is worked, and it has no solution.
    """
    return encodable(_demonstration(problem, route(prompt, problem), terse))


def _demonstration(problem: Problem, prompt: Prompt, terse: bool) -> str:
    if problem.control.response is not None:  # of a policy, kept by rejection sampling
        return problem.control.response
    tags = prompt.template in ("plain", "r1_zero")
    shown = problem.control.demonstrated_answer
    if shown is None and not problem.answers:
        raise UserError(
            f"problem {problem.id} has no answer to teach: rows without one (answer_rule none) are for RL alone; name "
            "their answer_key in params/curate.yaml, or set sft.steps and prompt.few_shot to 0"
        )
    answer = problem.answers[0] if shown is None else shown
    if prompt.template == "question_answer":
        return f"{'' if terse else worked_solution(problem) + chr(10)}The answer is {answer}."
    if terse:
        return f"<answer>{answer}</answer>" if tags else rf"\boxed{{{answer}}}"
    solution = worked_solution(problem)
    if tags:
        return f"<think>{solution}</think><answer>{answer}</answer>"
    if last_boxed(solution) is not None:
        return solution
    return f"{solution}\n\nThe answer is \\boxed{{{answer}}}."


def route(prompt: Prompt, problem: Problem) -> Prompt:
    """The prompt section for this problem: the route of its task or source overrides the rest (R7).

    The first of `control.task`, `control.data_source` and the name of the source that has a route counts, as in the
    reward. The result has no routes, so that worked examples are written like the problem itself.
    """
    if not prompt.routes:
        return prompt
    names = (*problem.control.routes, problem.source)
    routes = [prompt.routes[name] for name in names if name in prompt.routes]
    overrides = routes[0].model_dump(exclude_none=True) if routes else {}
    return prompt.model_copy(update={**overrides, "routes": {}})


def worked_solution(problem: Problem) -> str:
    """The text of the solution without calculator annotations and without the `#### answer` line."""
    if not problem.solution:
        raise UserError(
            f"problem {problem.id} has no worked solution to learn from; set sft.terse_share to 1, sft.steps "
            "to 0, or name the field with the solution (solution_key) in params/curate.yaml"
        )
    return _FINAL_LINE.sub("", _CALCULATOR.sub("", problem.solution)).strip()


def few_shot_examples(prompt: Prompt, file: Path) -> list[Problem]:
    """The first `prompt.few_shot` problems of the sft split that have a worked solution.

    Raises:
        UserError: there are too few.
    """
    if not prompt.few_shot:
        return []
    examples = [problem for problem in read_problems(file) if problem.solution][: prompt.few_shot]
    if len(examples) < prompt.few_shot:
        raise UserError(
            f"{file}: prompt.few_shot is {prompt.few_shot}, but only {len(examples)} problems have a solution"
        )
    return examples
