r"""Where the answer of a response is, and which rule found it.

Order: (1) the last balanced \boxed{} outside think, or a run of boxes joined by commas or "and";
(2) <answer>; (3) ####; (4) "answer is", "Answer:", 答案; then, only when lenient: (5) a short response as a
whole, (6) the last formula or number. House rules: what stays inside think is no answer; an unclosed think
swallows all; an empty box is an empty answer, and nothing later in the list replaces it; an unclosed box is
no box.
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

from mathrl.grading.boxes import last_boxes
from mathrl.grading.running_text import NUMBER, last_number, value_of

ExtractionMode = Literal["strict", "lenient"]
TAIL = 4000


class Extraction(NamedTuple):
    r"""What was found: Extraction("\\frac{1}{2}", "boxed"), or Extraction(None, "none").

    `rule` is one of boxed, boxed run, answer tag, hashes, answer phrase, whole, last formula, last number,
    think (the answer never left it), none. All but the three lenient ones are marked answers. `boxes` are the
    contents of a run, one by one.
    """

    text: str | None
    rule: str
    boxes: tuple[str, ...] = ()


NOTHING = Extraction(None, "none")
_PHRASE = re.compile(
    r"(?:(?:final|correct|right)\s+)?answer\s*(?:\*\*|\*)?\s*(?:is\s*:?|are\s*:?|=|:|：)|"
    r"(?:correct|right|true)\s+(?:options|choices|statements)\s+are\s*:?\s+(?=[(*]*(?-i:[A-H]|[IVX]+|\d)\b)|"
    r"正确的[^，。\n]{0,6}[是为有]\s*[:：]?\s*(?=[①-⑳A-H]|[(（][1-9A-H][)）])|"
    r"(?:最终|正确)?答案\s*(?:是|为|应为|等于)?\s*(?:[:：]|(?<=[是为于]))|(?:故|应)选\s*[:：]?|答\s*[:：]|"
    r"(?:réponse(?:\s+finale)?|antwort|respuesta(?:\s+final)?|resposta(?:\s+final)?|risposta|ответ|odpowiedź|답|정답)"
    r"\s*(?:\*\*)?\s*(?:[:：]|(?:est|ist|lautet|es|é|è)\s*:?(?=\s))|答えは\s*[:：]?|"
    r"final\s+answer\s*(?:\*\*)?\s*\n|\bAnswer\s+(?=\$|\\\[|\\\()",
    re.IGNORECASE,
)
# The last line that Minerva's prompt asks for; it counts against an earlier box.
_FINAL = re.compile(r"Final Answer:\s*The final answer is\b(?=.*\S)")
_LEAD = re.compile(
    r"^(?:(?:therefore|thus|hence|then|simply|just|clearly|about|approximately|roughly|exactly|given by|"
    r"equal to|found to be|indeed|now|also|actually)\b,?\s*)+",
    re.IGNORECASE,
)
_COPULA = re.compile(r"\s*(?:です|である|입니다|이다)[。.]?\s*$")
_HOPE = re.compile(r"\s*I hope (?:it|this) is correct.*", re.IGNORECASE | re.DOTALL)
_SPECIAL = re.compile(r"<\|[a-z_]{1,30}\|>.*", re.DOTALL)
_SENTENCE_END = re.compile(r",?\s+(?:since|because|so that|which)\b|(?<!\bno)[.!?](?=\s|$)|[。！？]|\n\s*\n")
_FORMULA = re.compile(
    r"\$\$([^$]{1,800})\$\$|\$((?:\\\$|[^$\n]){1,800}?)(?<!\\)\$|\\\[(.{1,800}?)\\\]|\\\((.{1,800}?)\\\)", re.DOTALL
)
_SAID = re.compile(r"([^$\n.]{1,80}\b(?:is|are|equals))\s+\$([^$\n]{1,200})\$\.?\s*$")  # the probability is $\frac14$
_BOLD_END = re.compile(r"(?<!\*)\*\*([^*\n]{1,120})\*\*[.!]?\s*$")
_HEDGED = re.compile(  # "the largest number that could be drawn is 5" is no hedge, "I think that could be 5" is
    r"\b(?:possibly|perhaps|maybe|might|(?<!that )could be|that could be(?!.* (?:is|are) )|not sure|"
    r"or (?:more|less|fewer))\b",
    re.IGNORECASE,
)
_SENTENCE = re.compile(r"(?<=[.!?:])\s+(?=\S)|\n")
_ENVIRONMENT = re.compile(r"\\(?:begin|end)\{[a-zA-Z*]+\}(?:\{[lcr| ]+\})?")
_HAN = re.compile(r"[\u3400-\u9fff]")
_PROSE = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,}(?![A-Za-z{])|[\u0400-\u04ff\u0600-\u06ff\u0900-\u097f]{2,}")
_MATH_WORDS = frozenset("sqrt sin cos tan log ln exp pi and or cm mm km in ft kg oo inf infinity union".split())


def prose_words(text: str) -> int:
    r"""The number of ordinary words in a text; commands and \text{} do not count."""
    if "\\begin" in text:
        text = _ENVIRONMENT.sub(" ", text)
    words = sum(1 for word in _PROSE.findall(text) if word.lower() not in _MATH_WORDS)
    return words if text.isascii() else words + len(_HAN.findall(text))


def without_think(response: str) -> str | None:
    """The response outside its thinking, or None where it never left it.

    >>> without_think("<think>7</think> 8"), without_think("a</think>b"), without_think("<think>7")
    (' 8', 'b', None)
    """
    end = response.rfind("</think>")
    rest = response if end < 0 else response[end + len("</think>") :]
    start = rest.find("<think>")
    if start < 0:
        return rest
    head = rest[:start]
    return head if head.strip() else None


def extract(response: str, mode: ExtractionMode = "lenient") -> Extraction:
    r"""The answer of a response and the rule that found it.

    >>> extract("so $\\boxed{1}$ and $\\boxed{2}$")
    Extraction(text='1, 2', rule='boxed run', boxes=('1', '2'))
    >>> extract("<think>5</think><answer>9</answer>", "strict").text
    '9'
    """
    rest = without_think(response)
    if rest is None:
        return Extraction(None, "think")
    final = _FINAL.search(rest)
    if final and "\\boxed" not in rest[final.start() :]:
        return _phrase(rest) or NOTHING
    extraction = _box_extraction(rest) or _answer_tag(rest, mode) or _hashes(rest) or _phrase(rest)
    if extraction is not None:
        return extraction
    return NOTHING if mode == "strict" else _unmarked_answer(rest)


def _box_extraction(text: str) -> Extraction | None:
    contents = last_boxes(text)
    if contents is None:
        return None
    if len(contents) == 1:
        return Extraction(contents[0], "boxed")
    return Extraction(", ".join(contents), "boxed run", tuple(contents))


def _answer_tag(text: str, mode: ExtractionMode) -> Extraction | None:
    start = text.rfind("<answer>")
    if start < 0:
        return None
    end = text.find("</answer>", start)
    if end < 0:
        if mode == "strict":
            return None
        end = len(text)  # a stop sequence often eats the closing tag
    return Extraction(text[start + len("<answer>") : end].strip(), "answer tag")


_HASHES = re.compile(r"#{4,}[ \t]*((?:(?!####)[^\n])*)")
_HEADING = re.compile(r"\**[A-Za-z]{2,}")


def _hashes(text: str) -> Extraction | None:
    """What follows the last #### that is no heading: "#### Step 2" is one, where text stands below it."""
    end = len(text.rstrip())
    lines = [match[1] for match in _HASHES.finditer(text) if match.end() >= end or not _HEADING.match(match[1])]
    line = next(filter(str.strip, reversed(lines)), "")
    line = _SPECIAL.sub("", line).strip()
    return Extraction(line, "hashes") if line else None


def _phrase(text: str) -> Extraction | None:
    tail = text[-TAIL:]
    ends = [match.end() for match in _PHRASE.finditer(tail)]
    if not ends:
        return None
    claim = _SPECIAL.sub("", _HOPE.sub("", tail[ends[-1] :])).strip().lstrip(":：* ").strip()
    claim = _COPULA.sub("", _LEAD.sub("", claim))
    before = _CLAUSE.split(tail[: _begin(tail, ends[-1])])[-1]
    if _NEGATED.search(before) or claim.startswith("n't"):
        return None
    if _NEGATED.match(claim):
        claimed = after_negation(_CLAUSE.split(claim)[0])
        return Extraction(claimed.strip(" ."), "answer phrase") if claimed else None
    claim = _NOT_BEHIND.sub("", claim)
    return Extraction(_claim(claim), "answer phrase") if claim else None


def _begin(text: str, end: int) -> int:
    """Where the phrase that ends at `end` begins."""
    return max(match.start() for match in _PHRASE.finditer(text) if match.end() == end)


def _claim(claim: str) -> str:
    """What a phrase claims: the formula right after it, else its sentence, cut to the last value if wordy."""
    formula = _FORMULA.match(claim)
    if formula:
        following = claim[formula.end() : formula.end() + 12].lstrip()
        if not following.startswith((",", "and", "or", "，")) or following[1:2] in ("", "\n"):
            return _last_member(_formula_text(formula))
    if claim.startswith("**") and claim.find("**", 2) > 0:
        return claim[2 : claim.find("**", 2)]
    if (found := _SAID.match(claim)) and prose_words(found[1]) <= 6 and not _HEDGED.search(found[1]):
        return found[2].strip()
    end = _SENTENCE_END.search(claim)
    sentence = claim[: end.start()] if end else claim
    line = sentence.split("\n", 1)[0].strip().rstrip("*").strip()
    if (prose_words(line) <= 3 and len(line) <= 200) or _HEDGED.search(line):
        return line
    nested = _unmarked_answer(line)
    return nested.text if nested.text is not None and nested.rule != "whole" else line


def _formula_text(match: re.Match[str]) -> str:
    return next(group for group in match.groups() if group is not None).strip()


_WORKING = re.compile(r"[\d\s.+*/()×÷−-]+=[\d\s.+*/()=;,×÷−-]+")  # 7+5=12;12*3=36 claims its last number


def _is_bare(text: str) -> bool:
    """Whether a short response is an answer by itself, not a sentence around one."""
    if _WORKING.fullmatch(text):
        return False
    words = prose_words(text)
    return words == 0 or (words <= 2 and (text[0] in "-$\\([{0123456789" or not re.search(r"[\d$]", text)))


_NEGATED = re.compile(
    r"\b(?:not|never|cannot|can't|isn't|aren't|wasn't|doesn't|don't|won't|wrong|incorrect|false|impossible|neither|nor|"
    r"unlikely|mistaken|nicht|n'est pas|no es|não é|не)\b|不是|不为|不等于|不能|并非|错误|ではな|아니|≠",
    re.IGNORECASE,
)
_RATHER = re.compile(r"\b(?:but(?: rather)?|it'?s|it is|rather|instead|which is)\b|而是", re.IGNORECASE)


def after_negation(sentence: str) -> str | None:
    """What a sentence claims: all of it, what follows "not 4 but", or None where it only denies something.

    >>> after_negation("it is 5"), after_negation("not 4 but 5"), after_negation("it cannot be 5")
    ('it is 5', ' 5', None)
    """
    denials = list(_NEGATED.finditer(sentence))
    if not denials:
        return sentence
    turns = [match.end() for match in _RATHER.finditer(sentence) if match.start() > denials[-1].start()]
    return sentence[turns[-1] :] if turns else None


_NOT_BEHIND = re.compile(r",\s+not\s[^.\n]*")
_CLAUSE = re.compile(r"(?<=[.!?;:,])\s+|[。！？；，\n]|\b(?:so|therefore|thus|hence)\b", re.IGNORECASE)


def _last_claim(text: str) -> str | None:
    """The text up to its last claim: without "not 4" behind a comma; None where the last clause denies its number."""
    clauses = [clause for clause in _CLAUSE.split(text[-400:]) if clause and NUMBER.search(clause)]
    for n, clause in enumerate(reversed(clauses)):
        claim = after_negation(clause)
        if claim is not None:
            return text if n == 0 and claim == clause else claim
        if not clause.lower().lstrip().startswith(("not ", "而不是", "不是")) or n + 1 == len(clauses):
            return None
    return text


_ROUGHLY = re.compile(  # $\\frac16$, or about 0.167
    r"(\$?),?\s+or\s+(?:approximately|about|roughly)\s+\$?(\d[\d.,]*\d|\d)(\s?\\?%)?\$?"
)
_ASKED = re.compile(r"[^.!?\n]*\?")


def _unmarked_answer(text: str) -> Extraction:
    text = _ROUGHLY.sub(r" \\approx \2\3\1", _SPECIAL.sub("", text[-TAIL:])).strip()
    if not text:
        return NOTHING
    bold = _BOLD_END.search(text)
    if bold and prose_words(bold[1]) <= 3 and not _NEGATED.search(_CLAUSE.split(text[-400 : bold.start()])[-1]):
        return Extraction(bold[1].strip(), "bold at the end")
    if _NEGATED.search(text[-400:]) and prose_words(text[-400:]) > 1:
        claim = _last_claim(text)
        if claim is None:
            return NOTHING
        text = claim.strip()
    if len(text) <= 80 and "\n" not in text and _is_bare(text) and not _SENTENCE_END.search(text[:-1]):
        return Extraction(text, "whole")
    found = [(match, _formula_text(match)) for match in _FORMULA.finditer(text)]
    formulas = [match for match, inside in found if inside and prose_words(inside) < 2]
    formula = formulas[-1] if formulas else None
    number = last_number(text)
    claimed = max(part.end() for part in (formula, number) if part) if formula or number else 0
    if claimed and _ASKED.match(text, claimed):
        return NOTHING
    if formula is not None and (number is None or number.start() < formula.end()):
        joined = _joined_formulas(text, formulas)
        return Extraction(joined or _last_member(_formula_text(formula)), "last formula")
    if number is not None and _HEDGED.search(_SENTENCE.split(text[-400:])[-1]):
        return NOTHING
    if number is not None:
        value = value_of(text, number)
        return NOTHING if value is None else Extraction(value, "last number")
    return Extraction(text, "whole") if len(text) <= 80 else NOTHING


def _joined_formulas(text: str, formulas: list[re.Match[str]]) -> str:
    """The list that the last formula ends: "$\\lambda = 5$ and $\\lambda = 2$"; "" where it stands alone."""
    last = [formulas[-1]]
    while len(last) < len(formulas):
        glue = text[formulas[-len(last) - 1].end() : last[0].start()].strip()
        if glue not in ("and", "or", ", and", ", or") and (glue != "," or len(last) == 1):
            break
        last.insert(0, formulas[-len(last) - 1])
    return ", ".join(map(_formula_text, last)) if len(last) > 1 else ""


_SEVERAL = re.compile(r"=[^=]*(?:(?<!\{)[,;](?!\d{3}(?!\d))|\\q?quad|\\text\s*\{\s*(?:and|or)\b)")


def _last_member(formula: str) -> str:
    """A chain of equalities in running text claims its last member; an equation in symbols stays whole."""
    head, equals, last = formula.rpartition("=")
    if _SEVERAL.search(head):
        return formula
    if equals and last.strip() and not head.rstrip().endswith(("<", ">", "!", "\\", ":")) and head.count("=") >= 1:
        return last.strip()
    if equals and not re.search(r"(?<![\\a-zA-Z])[a-zA-Z](?![a-zA-Z])", head) and not head.endswith(("<", ">", "!")):
        return last.strip()
    return formula
