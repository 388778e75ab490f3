r"""Whether a prompt gives its problem's answer away: the worked solution stands in it, or the truth is marked in it.

A truth is marked where a solution would mark it: `\boxed{72}`, `#### 72`, `<answer>72</answer>`, "the answer is 72".
A truth that merely occurs, as a number of the question, gives nothing away.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Any

from mathrl.core.errors import UserError
from mathrl.core.types import Problem
from mathrl.curation.question_digests import question_tokens
from mathrl.data.templates import prompt_text
from mathrl.params.run import Prompt
from mathrl.reading.row_values import after_hashes, answer_tag, last_boxed

SPAN = 10  # tokens of a solution in a row that count as copied
SHORTEST = 6  # tokens that a solution must have: "x = 5" may stand in a question
COPIED = 0.5  # share of the solution that must be copied
_LAST_NUMBER = re.compile(r"(?<![0-9.,])([0-9]+)[^0-9]{0,5}\Z")  # within the last 6 characters: of the last 6 tokens
_NUMBERS = re.compile("[0-9]+")
_DRAWING = re.compile(r"\[asy\].*?\[/asy\]", re.DOTALL)
_CONDITION = re.compile(
    r"(?:\b(?:if|when|where|unless|suppose|assume|assuming|let|given)\b(?!(?:\s+\w+){1,3}\s+(?:right|correctly|properly)\b)"
    r"|如果|若|假设)[^.?!。？！\n]*$",
    re.IGNORECASE,
)
_IS = (
    r"(?:=|(?:is|are|was|be|equals?|(?:comes?|came|works?|turns?)\s+(?:out\s+)?(?:to\s+be|to|as|at)"
    r"|(?:should|must|will|would|has\s+to|ought\s+to)\s+(?:\w+\s+)?(?:be|equal|come\s+(?:out\s+)?(?:to|as|at)))\b)"
)
_SURE = (
    r"(?:(?:therefore|thus|then|hence|so|simply|just|exactly|indeed|clearly|obviously|always|precisely|actually)\s+)*"
)
_GET = (
    r"(?:gets?|got|obtain(?:s|ed)?|finds?|found|reach(?:es|ed)?|arrive[sd]?\s+at|end(?:s|ed)?\s+up\s+with"
    r"|come\s+(?:out\s+)?(?:to|at|with|up\s+with)|conclude)"
)
_REQUIRED = (
    r"(?:required|desired|sought|correct|right|true|final|expected|exact|actual|intended|official|reference|wanted)"
)
# What comes before an answer that a text states, wherever it stands.
_SAYS = re.compile(
    rf"""
    (?: \b(?:answers?|ans|solution|result)\b (?:\s+[\w']+){{0,6}}? \s+{_SURE}{_IS}\s*{_SURE}
      | \b(?:answer|ans|solution|sol|key|ground[\s-]truth)(?:\s+key)?\b [*_}}\])】\s.]* (?:[:：=→⇒>*_\s]|->|[-–—]\s)+
      | \b(?:answer|ans)\b[.*_}}\])】]*\s+
      | \b{_REQUIRED}\s+(?:\w+\s+)?(?:choice|option|value|number|quantity|total|sum|amount|figure|output|reply|response)
        \s*(?:{_SURE}{_IS}|[:：=→])\s*{_SURE}
      | \b(?:value|number|quantity|total|sum|amount)\s+(?:that\s+)?you(?:'re|\s+are|\s+were)?\s+
        (?:looking\s+for|seek(?:ing)?|need|want|should\s+(?:report|get|find))\s+{_IS}\s*
      | \b(?:you|we|one)(?:'ll|’ll)?\s+
        (?:(?:should|will|must|would|can|may|shall|indeed|then|ought\s+to)\s+){{0,2}}{_GET}\s+
      | \b(?:should|will|must|would)\s+(?:\w+\s+)?{_GET}\s+
      | \b(?:show|verify|check|confirm|prove|note|see|observe|ensure|(?:make|be)\s+sure|explain|demonstrate|justify)\s+
        (?:that|why)\s+(?:\w+\s+){{0,8}}?(?:{_IS}|gives|makes|yields|{_GET})\s*{_SURE}
      | \b(?:explain|show|describe|demonstrate|justify|derive|work\s+out|see)\b[^.?!\n]{{0,60}}?
        \b(?:{_GET}|leads?\s+to|gives|yields)\s+
      | 【答案】|(?:答案|答|得数|结果|正解)\s*(?:应该?|就)?(?:是|为|等于|得|：|:|=)
    )
    \s*[:：]?\s*(?=\S)
    """,
    re.IGNORECASE | re.VERBOSE,
)
# A sentence that draws a conclusion: its last "=" or "is" is followed by it.
_THEREFORE = re.compile(
    r"(?:^|[.!?;\n\]$]\s*)(?:so|thus|therefore|hence|consequently|accordingly|finally|in\s+total|in\s+all|altogether)\b,?\s"
    r"((?:[^.?!\n]|[.!](?=\S))+)",
    re.IGNORECASE,
)
_LAST_VALUE = re.compile(rf".*(?:=|\b{_IS}){_SURE}", re.DOTALL | re.IGNORECASE)
_FOR_A_VALUE = re.compile(r"\b(?:for|with|at|taking)\s+\S+\s*=$", re.IGNORECASE)  # "Give it for n = 72."
# The same after the question, where "it" is the answer.
_IT_IS = re.compile(rf"\b(?:it|that|this)(?:'s|’s|\s+{_IS})\s*{_SURE}", re.IGNORECASE)
_IS_IT = re.compile(
    rf"\s+is\s+(?:the\s+)?(?:{_REQUIRED}\s+)?(?:answer|result|solution)\b|\s+is\s+(?:correct|right)\b", re.IGNORECASE
)
_END_OF_ANSWER = re.compile(r"(?=[.,;:!?)\]}<]+(?:\s|$|[/<])|[。，；！）】？]|\n|$)")
_UNITS = re.compile(r"(\S+)(?:\s+[a-z]+){1,2}(?=[.。!)\]]*(?:\s*$|[.。!)\]]\s))", re.IGNORECASE)
_VARIABLE = re.compile(r"^\$?\\?[a-z]\s*=\s*", re.IGNORECASE)
LONGEST = 200  # characters of an answer
CUTS = 6  # places where it may end: "(1, 2)." has two
# A few words and a value as the last sentence, after the question: "Output: 7", "=> 7". With one of the last words
# the value is a part of the task.
_SENTENCE = re.compile(r"[?？!！。\n]+|\.(?=\s)|(?<=\$)\s(?=[=→(\[-])")
LAST = 60
_FEW_WORDS = re.compile(r"[^\w\\^$]*(?:[^\W\d_]+(?:['’-][^\W\d_]+)?[^\w\\^$]+){0,3}[^\w\\^$]*")
_TASK = re.compile(
    r"\b(?:assum\w*|suppos\w*|let|take|use|using|round\w*|express|given?|note|where|with|bases?|mod|modulo|places?|digits?"
    r"|if|when|for|page|problem|question|exercise|level|points?|of|from|to|by|and|or|than|per|make|write|n|x|y|at|in|on)\b"
    r"|[a-z]\s*[=<>]|取|设|保留|用|按",
    re.IGNORECASE,
)


def leak(text: str, problem: Problem) -> str | None:
    r"""What of the solution or the truth the text gives away; None if nothing.

    >>> leak(r"What is 2+2? \boxed{4}", Problem("p", "What is 2+2?", ("4",), "s", "rl"))
    'its answer, marked as the answer'
    """
    if problem.solution and copied_share(problem.solution, text) >= COPIED:
        return "its worked solution"
    truths, keyed = {_key(answer) for answer in problem.answers} - {""}, _key(text)
    if not any(truth in keyed for truth in truths):
        return None
    return (
        "its answer, marked as the answer" if any(_key(answer) in truths for answer in _marked_answers(text)) else None
    )


def copied_share(solution: str, text: str) -> float:
    """The share of a solution that stands in the text, in runs of 10 tokens (of all, if it has 6 to 9).

    0 if its end does not: solutions repeat the question at their beginning, and its drawings anywhere.
    """
    end = _LAST_NUMBER.search(solution)
    if end is not None and text.isascii() and end[1] not in _NUMBERS.findall(text):  # far faster than its tokens
        return 0.0
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


def _marked_answers(text: str) -> Iterator[str]:
    """What the text marks as an answer."""
    for rule in (last_boxed, after_hashes, answer_tag):
        if (answer := rule(text)) is not None:
            yield answer
    text = _DRAWING.sub(" ", text)
    for match in _SAYS.finditer(text):
        if not _CONDITION.search(text[: match.start()]):
            yield from _beginnings(text[match.end() : match.end() + LONGEST])
    for match in _THEREFORE.finditer(text):
        yield from _last_values(match[1])
    for match in _IS_IT.finditer(text):
        yield from (text[start : match.start()] for start in _word_starts(text[: match.start()]))
    before, last = _last_sentence(text)
    if before:
        for match in _IT_IS.finditer(last):
            if not _CONDITION.search(last[: match.start()]):
                yield from _beginnings(last[match.end() :])
        for sentence in _SENTENCE.split(last) if "?" in before or "？" in before else ():
            yield from _last_values(sentence)
        yield from _after_few_words(last)


def _beginnings(text: str) -> Iterator[str]:
    """Of a text that begins with an answer, the beginnings that may be the answer."""
    text = _VARIABLE.sub("", text)
    for count, end in enumerate(_END_OF_ANSWER.finditer(text)):
        if count == CUTS:
            break
        yield text[: end.start()]
    if with_units := _UNITS.match(text):
        yield with_units[1]


def _last_values(sentence: str) -> Iterator[str]:
    """What a sentence says that something is, at its end."""
    said = _LAST_VALUE.match(sentence)
    if said is not None and not (_CONDITION.search(said[0]) or _FOR_A_VALUE.search(said[0])):
        yield from _beginnings(sentence[said.end() :].strip())


def _word_starts(text: str) -> Iterator[int]:
    """Where the last words of the last sentence begin, from the last on."""
    start = len(text)
    while (start := text.rfind(" ", 0, start)) >= 0 and len(text) - start <= LAST:
        yield start + 1
        if text[start - 1 : start] in ".?!":
            break


def _last_sentence(text: str) -> tuple[str, str]:
    """What follows the last question mark, or the last sentence or line, and what is before it."""
    body = text.rstrip()
    ends = [end.end() for end in _SENTENCE.finditer(body) if end.end() < len(body.rstrip(".。!)]）】"))]
    asked = max(body.rfind("?", 0, -1), body.rfind("？", 0, -1)) + 1
    start = asked or (ends[-1] if ends else 0)
    return body[:start], body[start:]


def _after_few_words(last: str) -> Iterator[str]:
    """The value of a last sentence that is a few words and it, such as "Output: 7"."""
    sentence = last.strip()
    if not sentence or len(sentence) > LAST:
        return
    words = _FEW_WORDS.match(sentence)
    if words is not None and not _TASK.search(words[0]):
        yield sentence[words.end() :].strip(")]）】.。!*_ ")


def _key(answer: str) -> str:
    """The answer without spaces, dollar signs and a full stop at its end."""
    return re.sub(r"[\s$]|\\[$()]|\*\*", "", answer).rstrip(".。").lower()
