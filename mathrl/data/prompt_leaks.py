r"""Whether a prompt gives its problem's answer away: the worked solution stands in it, or the truth is marked in it.

A truth is marked where a solution would mark it: `\boxed{72}`, `#### 72`, `<answer>72</answer>`, "the answer is 72".
A truth that merely occurs, as a number of the question, gives nothing away.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Any

from mathrl.core.errors import UserError
from mathrl.core.types import Problem
from mathrl.data.answers import after_hashes, answer_tag, last_boxed
from mathrl.data.question_tokens import question_tokens
from mathrl.data.templates import prompt_text
from mathrl.params.run import Prompt

SPAN = 10  # tokens of a solution in a row that count as copied
SHORTEST = 6  # tokens that a solution must have: "x = 5" may stand in a question
COPIED = 0.5  # share of the solution that must be copied
_DRAWING = re.compile(r"\[asy\].*?\[/asy\]", re.DOTALL)
_CONDITION = re.compile(r"(?:\b(?:if|when|where|unless)\b|如果|若)[^.?!。？！\n]*$", re.IGNORECASE)
_SAYS = re.compile(
    r"""
    (?: \b(?:answer|ans\.?|key|solution|result|correct\s+(?:choice|option|value))\s*
        (?:is|equals|should\s+be|must\s+be|=|:|：)
      | 答案(?:是|为|：|:)
      | \b(?:should|will|must|'ll|would)\s+(?:\w+\s+)?(?:get|obtain|find|arrive\s+at|end\s+up\s+with|come\s+out\s+to)\b
      | \b(?:show|verify|check|confirm|prove|note|see)\s+that\s+(?:\w+\s+){0,3}?
        (?:is|equals|are|=|comes\s+(?:out\s+)?to|gives|makes)\b
    )
    \s*:?\s*([^\n]{1,200})
    """,
    re.IGNORECASE | re.VERBOSE,
)
_END_OF_ANSWER = re.compile(r"[.,;:!?)\]。，；！）】]\s|[.。)）\]!！】:：]+$")


def leak(text: str, problem: Problem) -> str | None:
    r"""What of the solution or the truth the text gives away; None if nothing.

    >>> leak(r"What is 2+2? \boxed{4}", Problem("p", "What is 2+2?", ("4",), "s", "rl"))
    'its answer, marked as the answer'
    """
    if problem.solution and copied_share(problem.solution, text) >= COPIED:
        return "its worked solution"
    truths = {_key(answer) for answer in problem.answers}
    return "its answer, marked as the answer" if any(_key(answer) in truths for answer in _marked(text)) else None


def copied_share(solution: str, text: str) -> float:
    """The share of a solution that stands in the text, in runs of 10 tokens (of all, if it has 6 to 9).

    0 if its end does not: solutions repeat the question at their beginning, and its drawings anywhere.
    """
    tokens, shown = question_tokens(_DRAWING.sub(" ", solution)), question_tokens(text)
    if len(tokens) < SHORTEST:
        return 0.0
    size = min(SPAN, len(tokens))
    present = {tuple(shown[i : i + size]) for i in range(len(shown) - size + 1)}
    if tuple(tokens[-size:]) not in present:
        return 0.0
    starts = (i for i in range(len(tokens) - size + 1) if tuple(tokens[i : i + size]) in present)
    return len({place for i in starts for place in range(i, i + size)}) / len(tokens)


def check_prompts(problems: Iterable[Problem], prompt: Prompt, tokenizer: Any) -> None:
    """Check that no problem's prompt, as it will be rendered, gives its answer away; few-shot examples do not count.

    Raises:
        UserError: names the first such problem, what stands in its prompt, and what to change.
    """
    leaks: list[tuple[Problem, str]] = []
    for problem in problems:
        if leaked := leak(prompt_text(problem, prompt, tokenizer), problem):
            leaks.append((problem, leaked))
    if leaks:
        problem, leaked = leaks[0]
        further = f" (and the prompts of {len(leaks) - 1} further problems)" if len(leaks) > 1 else ""
        raise UserError(
            f"problem {problem.id}: its prompt holds {leaked}{further}, so there is nothing to learn from it; correct "
            f"the prompt_key of source {problem.source}, or drop such rows with curate.quality.drop=[leak]"
        )


def _marked(text: str) -> Iterator[str]:
    """What the text marks as an answer."""
    for rule in (last_boxed, after_hashes, answer_tag):
        if (answer := rule(text)) is not None:
            yield answer
    for match in _SAYS.finditer(text):
        if _CONDITION.search(text[: match.start()]):
            continue
        yield match[1]
        yield _END_OF_ANSWER.split(match[1])[0]


def _key(answer: str) -> str:
    """The answer without spaces, dollar signs and a full stop at its end."""
    return re.sub(r"[\s$]|\\[()]|\*\*", "", answer).rstrip(".。").lower()
