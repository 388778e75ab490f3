r"""The quality gate: which rules a problem breaks.

Rule-based filters in the manner of Big-Math (arXiv:2502.17387, section 3): a problem is worth training on if its answer
is one checkable value, everything that it needs stands in its text, and its answer is right as far as one can see.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from mathrl.core.types import Problem
from mathrl.curation.missing_figures import describes_its_figure, missing_figure
from mathrl.curation.prompt_leaks import leak
from mathrl.grading import compare, option, option_set, reading
from mathrl.params.data import Quality, Rule
from mathrl.reading.row_values import after_hashes, answer_tag, last_boxed

DESCRIPTIONS: dict[Rule, str] = {
    "proof": "asks for a proof",
    "parts": "asks several questions",
    "yes_no": "its answer is yes, no, true or false",
    "choice": "asks for the letter of an option",
    "link": "has a link or a picture's address",
    "html": "has HTML in its text",
    "figure": "needs a figure or table that its text does not have",
    "figure_described": "refers to a figure that its text does not have, and describes it",
    "context": "refers to something before it that its text does not have",
    "leak": "its question holds its answer or worked solution",
    "solution_disagrees": "its own solution ends with another answer",
    "unparseable": "the grader cannot read its answer",
    "majority": "a policy's samples agree on another answer",
}
_PROVE = re.compile(
    r"""
    (?: ^ | [.!?:;,)\]$]\s* | \n\s* | \band\s+ | \(?\b[a-d]\)\s* )
    (?: (?:then|please|hence|now|carefully|formally|rigorously|directly)\s+ )*
    (?: (?:dis)?prove | show(?:,?\s+by\s+\w+,?)?(?:\s+\w+ly)?\s+that
      | (?:demonstrate|verify|argue|deduce|confirm|establish)(?:\s+\w+ly)?\s+(?:that|why) | explain\s+why | justify
      | (?:derive|establish|deduce)\s+(?:the|this)\s+(?:\w+\s+){0,2}
        (?:identity|identities|inequality|formula|relation|law|rule|result|theorem|equality|claim|statement)
      | (?:use|using|by|apply|with)\s+(?:\w+\s+){0,3}(?:induction|contradiction|contraposition|pigeonhole\s+principle),?
        \s+(?:to\s+)?(?:show|prove|establish|verify|demonstrate|argue|deduce)
    )\b
  | \b(?:give|write|provide|present|construct|supply)\s+(?:(?:a|an|the|your|down)\s+)*(?:\w+\s+){0,2}
    (?:proof|justification|argument)\b
  | (?:求证|试证|证明|证[:：])(?!了|过|书|自己)
    """,
    re.IGNORECASE | re.VERBOSE,
)
_ASKS = re.compile(
    r"\b(?:find|compute|determine|calculate|evaluate|how\s+many|what\s+is|what\s+are|what's)\b|[?？]|求(?!证)|多少",
    re.IGNORECASE,
)
_NO_VALUE = {
    "proof",
    "proved",
    "see proof",
    "qed",
    "q.e.d",
    "证明",
    "证明略",
    "略",
    "证毕",
    "见解析",
}  # NuminaMath's "proof"
_START = r"(?:^|[.?!:;]\s+|\n\s*)"  # of a sentence or line
# Labels of parts, and what a text has that begins with the first of them: looking for that is far faster.
_LABELS = (
    (("(a)",), re.compile(r"(?<![\w\\^_({$+\-*/=,])\(([a-h])\)(?!\s*[=+\-*/^,)])")),  # (a) … (b) …
    (("(i)",), re.compile(r"(?<![\w\\^_$+\-*/=])\((i{1,3}|iv|v)\)(?!\s*[=+\-*/^,)])")),
    (("a)",), re.compile(rf"{_START}([a-h])\)\s")),
    (("i.", "i)"), re.compile(rf"{_START}(i{{1,3}}|iv|v)[.)]\s")),
    (("1.", "1)"), re.compile(rf"{_START}([1-9])[.)]\s+(?=[A-Z])")),
    (
        ("1", "a", "A", "i", "I"),
        re.compile(rf"{_START}(?:part|question|task|q)\s*\(?([1-9]|[a-h]|i{{1,3}})\)?\s*[.:)–-]", re.IGNORECASE),
    ),
    (("1)", "1）"), re.compile(r"[（(]([1-9])[)）]\s*(?=[\u4e00-\u9fff])")),
    (("①",), re.compile(r"([①-⑨])")),
)
_VERBS = "find|compute|determine|calculate|evaluate|prove|show|solve|what|how|which|sketch|simplify|give|write|express"
# A part asks: it or a clause of it begins with such a verb, or it has a question mark.
_PART_ASKS = re.compile(
    rf"^\W*(?:\w+\W+){{0,2}}(?:{_VERBS})\b|(?:[,.:;$\])]|\bthen)\s+(?:{_VERBS})\b|[?？]|求|计算|证明|多少|写出",
    re.IGNORECASE,
)
_FURTHER = re.compile(
    rf"[.?!]\s+(?:Also|Additionally|In addition|Furthermore|Moreover),?\s+(?:{_VERBS})\b", re.IGNORECASE
)
_ASKED = (
    r"(?:how\s+(?:many|much|far|long|old|tall|fast|often)|what(?:'s|\s+(?:is|are|was|were|will|fraction|percent\w*)))"
)
_TWICE = re.compile(
    rf"""
    \b{_ASKED}\b[^.?!]*? (?:,?\s*\band|;) \s+{_ASKED}\b[^.?!]*\?  # How many are red, and how many are blue?
  | \b{_ASKED}\b[^.?!]* \?\s+(?:and\s+)? {_ASKED}\b[^.?!]*\?  # What is their sum? What is their product?
  | \bfirst,?\s+(?:{_VERBS})\b[\s\S]{{0,600}}?[.;,?!]\s*(?:and\s+)?
    (?:then|next|second(?:ly)?|afterwards?|finally),?\s+(?:{_VERBS})\b
    """,
    re.IGNORECASE | re.VERBOSE,
)
_YES_NO = {"yes", "no", "true", "false", "是", "否", "不是", "对", "错", "正确", "错误"}
_MARKS = r"\(\s*X\s*\)|\[\s*X\s*\]|\bX[.)]|\\text(?:bf)?\{\s*\(?X[).]?\)?\s*\}|（X）|【X】|X、|X．"
_OPTIONS = re.compile(".+?".join(f"(?:{_MARKS.replace('X', letter)})" for letter in "ABC"), re.DOTALL)
_SMALL_OPTIONS = re.compile(".+?".join(rf"(?:^|\s)(?:\({x}\)|\[{x}\]|{x}[.)])\s" for x in "abc"), re.DOTALL)
_NUMBERED_OPTIONS = re.compile(
    "|".join(".+?".join(marks) for marks in ("①②③", (r"(?:^|\s)\(?1[.)]\s", r"\s\(?2[.)]\s", r"\s\(?3[.)]\s"))),
    re.DOTALL,
)
_NUMBER_OF_OPTION = re.compile(r"\(?[1-9]\)?|[①-⑨]+")
_CHOOSE = re.compile(r"\b(?:which|choose|select|pick|options?|choices?)\b|下列|哪|选", re.IGNORECASE)
_COUNT = re.compile(r"\bhow\s+many|\bnumber\s+of|\bsum\s+of|个数|几个|多少", re.IGNORECASE)  # of the listed statements
_LINK = re.compile(r"https?://|www\.\w|\\(?:url|href|includegraphics)\b|!\[[^\]]*\]\(|<img\b", re.IGNORECASE)
# A tag of one letter needs its end: a<b>c is a pair of inequalities.
_HTML = re.compile(
    r"</?(?:p|br|div|span|em|strong|su[bp]|table|t(?:head|body|[rdh])|[uo]l|li|font|center|h[1-6r]|pre|code|blockquote"
    r"|script|style|iframe|input|button|label|section|svg|small|strike|del|ins|mark|body|html|head|title|meta|link)"
    r"(?:\s[^<>]*)?/?>|<([biusaq])(?:\s[^<>]*)?>[^<>]*</\1>|&(?:nbsp|[lg]t|amp|quot|times|deg|#x?[\da-f]{2,5});",
    re.IGNORECASE,
)
_BEFORE = re.compile(
    r"""
    \b(?:as|like|from|of|using|use|with|to|see|recall|continuing|for|by)\s+(?:in\s+)?(?:the|your)\s+
    (?:previous|preceding|last|prior|earlier)\s+(?:problem|question|exercise|part|example|result)\b
  | \b(?:result|answer|solution|value|formula|notation)s?\s+(?:\w+\s+)?(?:of|to|from|in|obtained\s+in)\s+(?:the\s+)?
    (?:part|question|problem|exercise)\s*\(?\s*(?:[a-h]|\d|i{1,3})\b
  | \b(?:from|by|in|using|use)\s+part\s*\(?\s*(?:[a-h]|\d|i{1,3})\b
  | \bthe\s+(?:above|aforementioned|previously\s+mentioned)\s+(?:\w+\s+){0,2}\w+
  | \bthe\s+(?:expression|equation|formula|function|inequality|system|sequence|polynomial|passage|text|information|data
      |problem|question|statement|scenario|story|sum|product|numbers?|series|matrix|list)\s+
    (?:given\s+|shown\s+|mentioned\s+)?above\b
  | \b(?:mentioned|described|stated|defined|given|found|obtained|calculated)\s+(?:above|earlier|previously|before)\b
  | 上题|上一题|前一题|上述|上面的
    """,
    re.IGNORECASE | re.VERBOSE,
)
_QUANTITY = re.compile(
    r"[\d$\\=+*/^]|[一二三四五六七八九十百两]|\b(?:one|two|three|four|five|six|seven|eight|nine|ten|twice|half|dozen)\b",
    re.IGNORECASE,
)
_LONE = 90  # characters that a question without its story has at most: "How many apples are left in the basket?"
_OF_A_STORY = re.compile(
    r"\W*(?:so|then|now|and)?,?\s*(?:how|what|who|which|when|where|find|calculate)\b[^.?!\n]*"
    r"\b(?:left|remain(?:s|ing)?|s?he|they|them|altogether|in\s+all|in\s+total|the\s+rest)\b[^.?!\n]*[?.]?\W*",
    re.IGNORECASE,
)
# Words of which a text that a pattern matches has one: looking for them first takes a tenth of the time.
_PROOF_WORDS = ("prove", "show", "demonstrat", "verify", "argu", "deduce", "confirm", "establish", "explain", "justif",
                "deriv", "induction", "contra", "pigeonhole", "proof", "证")  # fmt: skip
_BEFORE_WORDS = ("previous", "preceding", "last", "prior", "earlier", "part", "above", "before", "aforementioned",
                 "result", "answer", "solution", "上", "前一题")  # fmt: skip
_COMMAND = re.compile(r"\\([A-Za-z]+)")
_COMMANDS = frozenset(
    """
    frac dfrac tfrac cfrac sqrt root pi text textbf textit textrm textsf texttt textnormal mbox hbox mathrm mathbf
    mathit
    mathbb mathcal mathsf mathfrak mathscr boldsymbol bm operatorname rm bf it circ degree prime begin end left right
    middle big Big bigg Bigg bigl bigr Bigl Bigr biggl biggr lvert rvert lVert rVert vert Vert mid nmid parallel perp
    infty cup cap setminus backslash emptyset varnothing in notin ni subset subseteq supset supseteq subsetneq bigcup
    bigcap times cdot ast star div pm mp oplus otimes odot bullet le leq leqslant ge geq geqslant lt gt ll gg ne neq eq
    equiv approx sim simeq cong propto not sin cos tan cot sec csc arcsin arccos arctan arccot arcsec arccsc sinh cosh
    tanh coth log ln lg exp max min sup inf lim limsup liminf gcd lcm det dim ker deg arg Re Im mod bmod pmod pod sum
    prod int iint iiint oint partial nabla binom dbinom tbinom choose over atop overline underline bar hat widehat vec
    overrightarrow overleftarrow dot ddot tilde widetilde overbrace underbrace overset
    underset stackrel phantom
    hphantom vphantom alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi
    omicron rho varrho sigma varsigma tau upsilon phi varphi chi psi omega Gamma Delta Theta Lambda Xi Pi Sigma Upsilon
    Phi Psi Omega ell hbar imath jmath aleph wp angle measuredangle triangle square Box diamond ldots cdots dots dotsb
    dotsc vdots ddots quad qquad hspace vspace hfill hskip kern enspace thinspace displaystyle textstyle limits nolimits
    to rightarrow leftarrow leftrightarrow Rightarrow Leftarrow Leftrightarrow implies iff mapsto longrightarrow uparrow
    downarrow land wedge lor vee neg lnot forall exists nexists therefore because lfloor rfloor lceil rceil langle
    rangle lbrace rbrace lbrack rbrack boxed fbox color textcolor tag label newline hline cline multicolumn cancel
    complement top bot dagger ddagger checkmark pounds euro textdollar textdegree dollar percent underbar substack
    sideset mathop rightleftharpoons
    """.split()
)
_ENDS_OPEN = re.compile(r"(?:[=+*/^_-]|\\(?:cdot|times|frac|sqrt|pm|div))[\s$]*$")  # x=


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


def broken_rules(problem: Problem, votes: Mapping[str, Sequence[str]], quality: Quality) -> list[Rule]:
    """The rules that a problem breaks, in the order of DESCRIPTIONS; `votes` are a policy's answers by problem id."""
    figure, answers = missing_figure(problem.question), problem.answers  # without an answer no rule on answers counts
    in_words = figure and describes_its_figure(problem.question)
    broken: dict[Rule, bool] = {
        "proof": asks_for_a_proof(problem.question)
        or bool(answers and all(_plain(answer) in _NO_VALUE for answer in answers)),
        "parts": has_parts(problem.question),
        "yes_no": bool(answers) and all(_plain(answer) in _YES_NO for answer in answers),
        "choice": is_choice(problem),
        "link": _LINK.search(problem.question) is not None,
        "html": _HTML.search(problem.question) is not None,
        "figure": figure and not in_words,
        "figure_described": in_words,
        "context": lacks_its_context(problem.question),
        "leak": leak(_text_of(problem), problem) is not None,
        "solution_disagrees": solution_disagrees(problem),
        "unparseable": bool(answers) and problem.control.task is None and not any(map(_is_readable, answers)),
        "majority": majority_disagrees(problem, votes.get(problem.id, ()), quality),
    }
    return [rule for rule in DESCRIPTIONS if broken[rule]]


def asks_for_a_proof(question: str) -> bool:
    """Whether a sentence demands a proof, and none asks for a value.

    >>> asks_for_a_proof("Prove that 2+2=4."), asks_for_a_proof("Find x. Show that it is even.")
    (True, False)
    """
    return _has_one(question, _PROOF_WORDS) and bool(_PROVE.search(question)) and _ASKS.search(question) is None


def has_parts(question: str) -> bool:
    """Whether two or more labelled parts, in order, each ask for something, or a sentence asks for two values, or a
    further question follows.

    >>> has_parts("(a) Find x. (b) Find y."), has_parts("Points (a) and (b) lie on it. Find x.")
    (True, False)
    >>> has_parts("What is their sum? What is their product?")
    True
    """
    for firsts, label in _LABELS:
        if not any(first in question for first in firsts):
            continue
        marks = list(label.finditer(question))
        names = [mark[1].lower() for mark in marks]
        if len(marks) < 2 or len(set(names)) < len(names) or names != sorted(names, key=_place):
            continue
        ends = [mark.start() for mark in marks[1:]] + [len(question)]
        texts = [question[mark.end() : end] for mark, end in zip(marks, ends, strict=True)]
        if sum(_PART_ASKS.search(text) is not None for text in texts) >= 2 and _PLACES.get(names[0]) == 1:
            return True
    if _TWICE.search(question):
        return True
    further = _FURTHER.search(question)
    return further is not None and _ASKS.search(question[: further.start() + 1]) is not None


def is_choice(problem: Problem) -> bool:
    """Whether the question lists options, and the answer is the letter or number of one."""
    question, answers = problem.question, problem.answers
    if not answers:
        return False
    if all(map(option, answers)):
        return _OPTIONS.search(question) is not None or _SMALL_OPTIONS.search(question) is not None
    numbered = all(_NUMBER_OF_OPTION.fullmatch(answer.strip(" $.")) for answer in answers)
    asks_for_one = numbered and _CHOOSE.search(question) and not _COUNT.search(question)
    return bool(asks_for_one) and _NUMBERED_OPTIONS.search(question) is not None


def lacks_its_context(question: str) -> bool:
    """Whether the question refers to a problem, part or expression before it, or is the last sentence of a story.

    >>> lacks_its_context("How many are left?"), lacks_its_context("$x+1=3$. Solve the equation above.")
    (True, False)
    """
    refers = _BEFORE.search(question) if _has_one(question, _BEFORE_WORDS) else None
    if refers is not None and _QUANTITY.search(question[: refers.start()]) is None:
        return True
    alone = len(question) <= _LONE and _OF_A_STORY.fullmatch(question) is not None
    return alone and _QUANTITY.search(question) is None


def _has_one(text: str, words: Sequence[str]) -> bool:
    lower = text.lower()
    return any(word in lower for word in words)


def solution_disagrees(problem: Problem) -> bool:
    r"""Whether the solution marks a final answer (\boxed{}, ####, <answer>) that is surely none of the accepted."""
    solution = problem.solution or ""
    marked = [answer for rule in (last_boxed, after_hashes, answer_tag) if (answer := rule(solution)) is not None]
    return bool(marked and problem.answers) and not any(
        _may_be_equal(accepted, answer) for accepted in problem.answers for answer in marked
    )


def majority_disagrees(problem: Problem, votes: Sequence[str], quality: Quality) -> bool:
    """Whether enough of a policy's answers agree with each other and not with an accepted answer."""
    if not problem.answers or len(votes) < quality.min_votes:
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


_PLACES = {name: place for names in ("abcdefgh", "123456789", "①②③④⑤⑥⑦⑧⑨", ("i", "ii", "iii", "iv", "v"))
           for place, name in enumerate(names, start=1)}  # fmt: skip


def _place(name: str) -> int:
    return _PLACES.get(name, 0)


def _may_be_equal(accepted: str, answer: str) -> bool:
    """Not surely different: what only the symbolic engine could tell counts as equal."""
    return accepted == answer or compare(accepted, answer).equal is not False


def _is_readable(answer: str) -> bool:
    if _ENDS_OPEN.search(answer) or not all(name in _COMMANDS for name in _COMMAND.findall(answer)):
        return False
    return reading(answer) != "not parsed" or option_set(answer, contiguous=True) is not None


def _text_of(problem: Problem) -> str:
    return "\n".join([problem.question, *(turn["content"] for turn in problem.control.messages)])


def _plain(answer: str) -> str:
    return re.sub(r"\\text(?:bf)?\{([^{}]*)\}", r"\1", answer).strip(" $.。").lower()
