r"""The quality gate: which rules a problem breaks.

Rule-based filters in the manner of Big-Math (arXiv:2502.17387, section 3): a problem is worth training on if its answer
is one checkable value, everything that it needs stands in its text, and its answer is right as far as one can see.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mathrl.core.types import Problem
from mathrl.data.answers import after_hashes, answer_tag, last_boxed
from mathrl.data.prompt_leaks import leak
from mathrl.grading.matching import compare
from mathrl.grading.readable import reading
from mathrl.grading.words import option, option_set
from mathrl.params.quality import Quality, Rule

DESCRIPTIONS: dict[Rule, str] = {
    "proof": "asks for a proof",
    "parts": "asks several questions",
    "yes_no": "its answer is yes, no, true or false",
    "choice": "asks for the letter of an option",
    "link": "has a link or a picture's address",
    "figure": "refers to a figure that its text does not have",
    "leak": "its question holds its answer or worked solution",
    "solution_disagrees": "its own solution ends with another answer",
    "unparseable": "the grader cannot read its answer",
    "majority": "a policy's samples agree on another answer",
}
_PROVE = re.compile(
    r"(?:^|[.!?:;)\]$]\s*|\n\s*|\band\s+|\(?\b[a-d]\)\s*)(?:then\s+|please\s+|hence\s+|now\s+)?"
    r"(?:prove|show\s+(?:by\s+\w+\s+)?that|demonstrate\s+that|disprove|verify\s+that|justify)\b|\bgive\s+a\s+proof\b|证明(?!了|过|书|自己)",
    re.IGNORECASE,
)
_ASKS = re.compile(
    r"\b(?:find|compute|determine|calculate|evaluate|how\s+many|what\s+is|what\s+are|what's)\b|[?？]|求|多少",
    re.IGNORECASE,
)
_LABELS = (
    re.compile(r"(?<![\w\\^_({$+\-*/=,])\(([a-h])\)(?!\s*[=+\-*/^,)])"),  # (a) … (b) …
    re.compile(r"(?<![\w\\^_$+\-*/=])\((i{1,3}|iv|v)\)(?!\s*[=+\-*/^,)])"),
    re.compile(r"(?:^|[.?!;:]\s+|\n\s*)([a-h])\)\s", re.MULTILINE),
    re.compile(r"(?:^|\n)\s*(?:[Pp]art\s+)?([1-9])[.)]\s+(?=[A-Z])"),
    re.compile(r"[（(]([1-9])[)）]\s*(?=[\u4e00-\u9fff])"),
)
_VERBS = "find|compute|determine|calculate|evaluate|prove|show|solve|what|how|which|sketch|simplify|give|write|express"
# A part asks: it begins with such a verb, or has one after a comma, or a question mark.
_PART_ASKS = re.compile(
    rf"^\W*(?:\w+\W+){{0,2}}(?:{_VERBS})\b|(?:,|\bthen)\s+(?:{_VERBS})\b|[?？]|求|计算|证明|多少|写出", re.IGNORECASE
)
_FURTHER = re.compile(rf"[.?!]\s+(?:Also|Additionally|In addition),?\s+(?:{_VERBS})\b", re.IGNORECASE)
_YES_NO = {"yes", "no", "true", "false", "是", "否", "不是", "对", "错", "正确", "错误"}
_OPTIONS = re.compile(
    r"(?:\(\s*A\s*\)|\bA[.)]|\(A\)|\\text(?:bf)?\{\s*\(?A[).]?\)?\s*\}|（A）|A、|A．).+?"
    r"(?:\(\s*B\s*\)|\bB[.)]|\\text(?:bf)?\{\s*\(?B[).]?\)?\s*\}|（B）|B、|B．).+?"
    r"(?:\(\s*C\s*\)|\bC[.)]|\\text(?:bf)?\{\s*\(?C[).]?\)?\s*\}|（C）|C、|C．)",
    re.DOTALL,
)
_LINK = re.compile(r"https?://|www\.\w|\\(?:url|href|includegraphics)\b|!\[[^\]]*\]\(|<img\b", re.IGNORECASE)
_PICTURE = "figure|diagram|picture|image|drawing"
_SHAPE = "triangle|square|circle|polygon|rectangle|quadrilateral|region|shape|solid|cube|pyramid|board|curve|parabola"
_FIGURE = re.compile(
    rf"\b(?:in|from|see|of|on)\s+the\s+(?:\w+\s+)?(?:{_PICTURE})\s*(?:below|above|shown|at\s+(?:the\s+)?right|,)"
    rf"|\b(?:in|from|see|of|on)\s+the\s+(?:\w+\s+)?(?:graph|map|chart|table)\s*(?:below|above|shown)"
    rf"|\b(?:{_PICTURE}|graph|map|chart|table|grid)s?\s+(?:\w+\s+)?(?:is\s+|are\s+)?"
    r"(?:shown|below|above|pictured|depicted)\b"
    rf"|\b(?:as|is|are)\s+(?:shown|pictured|depicted|illustrated|shaded)\s+in\s+the\s+(?:{_PICTURE})"
    rf"|\b(?:{_SHAPE})s?\b[^.?!]{{0,60}}\b(?:shown|pictured|depicted)\s+(?:below|above|here|at\s+right)\b"
    r"|\bas\s+(?:shown|pictured|depicted|illustrated)\s+(?:below|above|here)\b"
    r"|\b(?:figure|fig\.)\s+\d"
    r"|如(?:右|左|下|上)?图|(?:下|右|左|上)图|图中|图所示",
    re.IGNORECASE,
)
_DRAWN = re.compile(r"\[/?asy\]|\\begin\{(?:asy|tikzpicture|tabular|array|picture|table)|\bdraw\s*\(|\n\s*\|.*\|")


@dataclass(frozen=True, slots=True)
class Broken:
    """A line of quality.jsonl: a row and the rules that it breaks.

    Example:
        Broken(id="dapo/08414", source="dapo", split="rl", rules=("link", "figure"), question="…", answers=("49",))
    """

    id: str
    source: str
    split: str
    rules: tuple[Rule, ...]
    question: str
    answers: tuple[str, ...]

    @classmethod
    def from_row(cls, row: dict[str, Any]) -> "Broken":
        return cls(**row | {"rules": tuple(row["rules"]), "answers": tuple(row["answers"])})


def broken_rules(problem: Problem, votes: Mapping[str, Sequence[str]], quality: Quality) -> list[Rule]:
    """The rules that a problem breaks, in the order of DESCRIPTIONS; `votes` are a policy's answers by problem id."""
    broken: dict[Rule, bool] = {
        "proof": asks_for_a_proof(problem.question),
        "parts": has_parts(problem.question),
        "yes_no": all(_plain(answer) in _YES_NO for answer in problem.answers),
        "choice": is_choice(problem),
        "link": _LINK.search(problem.question) is not None,
        "figure": lacks_its_figure(problem.question),
        "leak": leak(_shown(problem), problem) is not None,
        "solution_disagrees": solution_disagrees(problem),
        "unparseable": problem.control.task is None and not any(map(_is_readable, problem.answers)),
        "majority": majority_disagrees(problem, votes.get(problem.id, ()), quality),
    }
    return [rule for rule in DESCRIPTIONS if broken[rule]]


def asks_for_a_proof(question: str) -> bool:
    """Whether a sentence demands a proof, and none asks for a value.

    >>> asks_for_a_proof("Prove that 2+2=4."), asks_for_a_proof("Find x. Show that it is even.")
    (True, False)
    """
    return _PROVE.search(question) is not None and _ASKS.search(question) is None


def has_parts(question: str) -> bool:
    """Whether two or more labelled parts, in order, each ask for something, or a further question follows.

    >>> has_parts("(a) Find x. (b) Find y."), has_parts("Points (a) and (b) lie on it. Find x.")
    (True, False)
    """
    for label in _LABELS:
        marks = list(label.finditer(question))
        names = [mark[1].lower() for mark in marks]
        if len(marks) < 2 or len(set(names)) < len(names) or names != sorted(names, key=_place):
            continue
        ends = [mark.start() for mark in marks[1:]] + [len(question)]
        texts = [question[mark.end() : end] for mark, end in zip(marks, ends, strict=True)]
        if sum(_PART_ASKS.search(text) is not None for text in texts) >= 2 and _PLACES.get(names[0]) == 1:
            return True
    further = _FURTHER.search(question)
    return further is not None and _ASKS.search(question[: further.start() + 1]) is not None


def is_choice(problem: Problem) -> bool:
    """Whether the question lists options, and the answer is the letter of one."""
    letters = [option(answer) for answer in problem.answers]
    return all(letters) and _OPTIONS.search(problem.question) is not None


def lacks_its_figure(question: str) -> bool:
    """Whether the question refers to a figure or table, and has neither drawing code nor a table."""
    return _FIGURE.search(question) is not None and _DRAWN.search(question) is None


def solution_disagrees(problem: Problem) -> bool:
    r"""Whether the solution marks a final answer (\boxed{}, ####, <answer>) that is surely none of the accepted."""
    solution = problem.solution or ""
    marked = [answer for rule in (last_boxed, after_hashes, answer_tag) if (answer := rule(solution)) is not None]
    return bool(marked) and not any(
        _may_be_equal(accepted, answer) for accepted in problem.answers for answer in marked
    )


def majority_disagrees(problem: Problem, votes: Sequence[str], quality: Quality) -> bool:
    """Whether enough of a policy's answers agree with each other and not with an accepted answer."""
    if len(votes) < quality.min_votes:
        return False
    classes: Counter[str] = Counter()
    for vote in votes:
        same = next((seen for seen in classes if seen == vote or compare(seen, vote).equal is True), vote)
        classes[same] += 1
    winner, count = classes.most_common(1)[0]
    return count >= quality.majority_share * len(votes) and not any(
        _may_be_equal(answer, winner) for answer in problem.answers
    )


def votes_of(rows: Iterable[Mapping[str, object]]) -> dict[str, list[str]]:
    """A policy's extracted answers by problem, from rows of samples.jsonl or responses.jsonl."""
    votes: dict[str, list[str]] = {}
    for row in rows:
        if row.get("extracted") is not None:
            votes.setdefault(str(row["problem_id"]), []).append(str(row["extracted"]))
    return votes


_PLACES = {name: place for names in ("abcdefgh", "123456789", ("i", "ii", "iii", "iv", "v"))
           for place, name in enumerate(names, start=1)}  # fmt: skip


def _place(name: str) -> int:
    return _PLACES.get(name, 0)


def _may_be_equal(accepted: str, answer: str) -> bool:
    """Not surely different: what only the symbolic engine could tell counts as equal."""
    return accepted == answer or compare(accepted, answer).equal is not False


def _is_readable(answer: str) -> bool:
    return reading(answer) != "not parsed" or option_set(answer, contiguous=True) is not None


def _shown(problem: Problem) -> str:
    return "\n".join([problem.question, *(turn["content"] for turn in problem.control.messages)])


def _plain(answer: str) -> str:
    return re.sub(r"\\text(?:bf)?\{([^{}]*)\}", r"\1", answer).strip(" $.。").lower()
