"""The values of a row, of any type: found by a path, and read as text, answer, level, pass rate or conversation.

The answer of a solution's text: after ####, in the last \\boxed{}, in an <answer> tag, in "The answer is 12.".
"""

import datetime
import decimal
import hashlib
import json
import math
import re
import uuid
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from mathrl.grading.boxes import closing_brace

HIGHEST = 10**6  # a level; what is larger is an id or a mistake
DEEPEST = 64  # levels of nesting that a payload may have
ROLES = {
    "human": "user",
    "prompter": "user",
    "gpt": "assistant",
    "model": "assistant",
    "bot": "assistant",
    "chatbot": "assistant",
    "ai": "assistant",
}
# A text of nothing but these is blank: zero-width characters, the blanks of Hangul and Braille, direction marks.
_VISIBLE = re.compile(r"[^\s\u00ad\u115f\u1160\u180e\u200b-\u200f\u2028-\u202e\u2060-\u2064\u2800\u3164\ufeff]")
# Where an object holds its answer: Open-Reasoner-Zero, DROP and others.
ANSWER_KEYS = ("value", "answer", "ground_truth", "final_answer", "text", "content", "label", "number")

_TAG = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_SENTENCE = re.compile(r"\banswer\s+is\s*:?\s*(\S.*?)\s*[.!]?\s*\Z", re.IGNORECASE)
_BOXED = re.compile(r"\\(?:f|d)?box(?:ed)?\s*")


class BadRow(ValueError):
    """A row without a problem; the message names the field."""


def look_up(row: Mapping[str, Any], key: str) -> Any:
    """The value under a key, or at a path: reward_model.ground_truth, 0.value, messages.-1.content.

    A text on the way is read as JSON, since many sets keep lists and objects as texts.
    """
    if key in row:
        return row[key]
    value: Any = row
    for part in key.split("."):
        value = from_json(value)
        if isinstance(value, list | tuple) and re.fullmatch(r"-?\d+", part):
            index = int(part)
            value = value[index] if -len(value) <= index < len(value) else None
        elif isinstance(value, Mapping) and part in value:
            value = value[part]
        else:
            return None
    return value


def optional(row: Mapping[str, Any], key: str | None) -> Any:
    """The value of a field that a row may lack; NaN, as pandas has it, is none."""
    value = look_up(row, key) if key else None
    return value if value == value else None


def is_blank(text: str) -> bool:
    r"""Whether a text shows nothing.

    >>> is_blank(" \n\u200b"), is_blank("\u200bx")
    (True, False)
    """
    return _VISIBLE.search(text) is None


def from_json(value: Any) -> Any:
    """The list or object that a text holds as JSON; any other value as it is.

    >>> from_json('["1/2", "0.5"]'), from_json("[1, 2)")
    (['1/2', '0.5'], '[1, 2)')
    """
    if not (isinstance(value, str) and value.lstrip()[:1] in ("[", "{")):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def as_text(value: Any) -> str | None:
    """A single value as an answer's text; None for what holds none.

    >>> as_text(2.0), as_text(decimal.Decimal("3.50")), as_text(True), as_text(float("nan"))
    ('2', '3.50', 'True', None)
    """
    if isinstance(value, float):
        return None if not math.isfinite(value) else str(int(value)) if value.is_integer() else repr(value)
    if isinstance(value, decimal.Decimal):
        return f"{value:f}" if value.is_finite() else None
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, bytes):
        return _decode(value)
    if isinstance(value, list | tuple):  # a list within the list of answers is one answer: a tuple or a row
        parts = [as_text(item) for item in value]
        return f"({', '.join(map(str, parts))})" if parts and None not in parts else None
    if value is None or isinstance(value, Mapping):
        return None
    text = str(value).strip()
    return None if is_blank(text) else text


def accepted_answers(value: Any) -> list[str]:
    """The accepted answers in a value: one, or a list of them.

    A text that holds a JSON list of texts is such a list (Skywork-OR1); "[1, 2]" is an answer.

    Raises:
        BadRow: an object in which no key is known to hold the answer.
    """
    inside = from_json(value) if isinstance(value, str) else value
    if isinstance(inside, Mapping) and (game := _countdown_truth(inside)):
        return [game]
    if isinstance(inside, list) and isinstance(value, str) and not all(isinstance(item, str) for item in inside):
        inside = value
    if isinstance(inside, Mapping) and isinstance(value, str) and not any(key in inside for key in ANSWER_KEYS):
        inside = value
    items = inside if isinstance(inside, list | tuple) else [inside]
    answers: list[str] = []
    for item in items:
        if isinstance(item, Mapping):
            key = next((key for key in ANSWER_KEYS if as_text(item.get(key)) is not None), None)
            if key is None:
                raise BadRow(_no_answer(item))
            item = item[key]
        text = as_text(item)
        answers += [text] if text else []
    return answers


def _countdown_truth(item: Mapping[str, Any]) -> str:
    """A Countdown's numbers and target as the grader reads them (TinyZero's ground_truth); "" for another object.

    >>> _countdown_truth({"target": 24, "numbers": [4, 6]}), _countdown_truth({"target": 24})
    ('{"numbers": [4, 6], "target": 24}', '')
    """
    numbers, target = item.get("numbers", item.get("nums")), item.get("target")
    if not isinstance(numbers, list) or not all(isinstance(number, int) for number in (*numbers, target)):
        return ""
    return json.dumps({"numbers": numbers, "target": target})


def _no_answer(item: Mapping[str, Any]) -> str:
    """Why an object holds no answer: the value under a key that should have it is missing, or no key is known."""
    if empty := next((key for key in ANSWER_KEYS if key in item and item[key] in (None, "")), None):
        return f"no answer ({empty!r} is {'null' if item[empty] is None else 'empty'})"
    return f"an object with {', '.join(map(repr, item)) or 'no key'}; name one after a dot"


def level_of(value: Any) -> int | None:
    """The level as an integer: 5, 5.5, "5" and MATH's "Level 5" give 5; "Level ?" gives None.

    Raises:
        BadRow: a share such as 0.35 or 3/8, which is a pass rate and no level.
    """
    number = _number(value)
    if number is not None and not abs(number) <= HIGHEST:  # NaN is not
        return None
    share = isinstance(value, str) and re.fullmatch(r"\s*[\d.]+\s*(%|/\s*\d+)\s*", value)
    if share or (number is not None and 0 < abs(number) < 1):
        raise BadRow(f"level {value!r} is a share; a measured pass rate belongs to pass_rate_key")
    if number is not None:
        return int(number)
    match = re.search(r"\d+", value) if isinstance(value, str) else None
    digits = _number(match.group()) if match else None
    return int(digits) if digits is not None and digits <= HIGHEST else None


def pass_rate_of(value: Any) -> float | None:
    """A measured pass rate from 0 to 1: 0.625, "0.625", "62.5%" and "5/8" are equal; None for "n/a" and the like.

    Raises:
        BadRow: a number outside 0 to 1.
    """
    text = value.strip() if isinstance(value, str) else ""
    if match := re.fullmatch(r"(\d{1,18})\s*/\s*([1-9]\d{0,17})", text):
        rate: float | None = float(Fraction(int(match[1]), int(match[2])))
    elif text.endswith("%"):
        number = _number(text[:-1])
        rate = None if number is None else number / 100
    else:
        rate = _number(value)
    if rate is None or math.isnan(rate):
        return None
    if not 0 <= rate <= 1:
        raise BadRow(f"pass rate {value!r} is not from 0 to 1; 0.625, 62.5% and 5/8 are read")
    return rate


def _number(value: Any) -> float | None:
    if isinstance(value, bool):
        return None
    try:
        return float(value) if isinstance(value, int | float | decimal.Decimal | str) else None
    except (ValueError, OverflowError):
        return None


def conversation(value: Any) -> list[dict[str, str]] | None:
    """The turns of a chat list, or of a text that holds one as JSON; None for any other value.

    Example: [{"from": "human", "value": "Q"}] → [{"role": "user", "content": "Q"}]
    """
    turns = from_json(value)
    if not (isinstance(turns, list | tuple) and turns and all(isinstance(turn, Mapping) for turn in turns)):
        return None
    read = [(_first(turn, "role", "from"), _first(turn, "content", "value", "text")) for turn in turns]
    if not all(isinstance(role, str) and isinstance(content, str) for role, content in read):
        return None
    return [{"role": ROLES.get(role.lower(), role.lower()), "content": content} for role, content in read]


def question_and_reply(turns: Sequence[Mapping[str, str]]) -> tuple[str, str | None]:
    """The question of a conversation, and the assistant's reply if the conversation has it.

    Raises:
        BadRow: no user turn, or several, whose meaning depends on one another.
    """
    asked = [index for index, turn in enumerate(turns) if turn["role"] == "user"]
    if len(asked) != 1:
        raise BadRow(f"a conversation with {len(asked)} user turns; a problem has one")
    replies = [turn["content"] for turn in turns[asked[0] + 1 :] if turn["role"] == "assistant"]
    return turns[asked[0]]["content"], replies[-1] if replies else None


def payload(value: Any, depth: int = 0) -> Any:
    """The value as JSON holds it: dates and decimals as text, no NaN; other bytes by size and digest.

    Raises:
        BadRow: it is nested deeper than 64 levels.
    """
    if value is None or isinstance(value, str | int):
        return value
    if depth > DEEPEST:
        raise BadRow(f"nested deeper than {DEEPEST} levels")
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): payload(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [payload(item, depth + 1) for item in value]
    if isinstance(value, bytes) and _decode(value) is None:
        return {"bytes": len(value), "sha256": hashlib.sha256(value).hexdigest()[:16]}
    if isinstance(value, bytes | decimal.Decimal | datetime.date | datetime.time):
        return as_text(value)
    # An image of the hub's client, for one: its text would name a place in memory.
    return str(value) if isinstance(value, datetime.timedelta | uuid.UUID) else f"<{type(value).__name__}>"


def _decode(value: bytes) -> str | None:
    try:
        return value.decode().strip() or None
    except UnicodeDecodeError:
        return None


def _first(turn: Mapping[str, Any], *keys: str) -> Any:
    return next((turn[key] for key in keys if key in turn), None)


def after_hashes(text: str) -> str | None:
    """The answer by the rule of GSM8K, without thousands separators.

    >>> after_hashes("48/2 = <<48/2=24>>24 clips.\\n#### 1,024")
    '1024'
    """
    _, marks, tail = text.rpartition("####")
    if not marks:
        return None
    answer = tail.strip().split("\n")[0].strip()
    if re.fullmatch(r"[-+$]*\d{1,3}(,\d{3})+(\.\d+)?", answer):
        answer = answer.replace(",", "")
    return answer or None


def last_boxed(text: str) -> str | None:
    r"""The content of the last \boxed{…} whose braces balance (also \fbox{…} and `\boxed 5`).

    >>> last_boxed(r"so $x=\boxed{\frac{1}{2}}$.")
    '\\frac{1}{2}'
    """
    for match in reversed(list(_BOXED.finditer(text))):
        rest = text[match.end() :]
        if rest.startswith("{"):
            end = closing_brace(rest, 0)
            if end > 0:
                return rest[1:end].strip() or None
        elif bare := re.match(r"[^\s$.,;{}\\]+", rest):
            return bare.group()
    return None


def answer_tag(text: str) -> str | None:
    """The content of the last <answer> tag."""
    tags = _TAG.findall(text)
    return (tags[-1].strip() or None) if tags else None


def answer_sentence(text: str) -> str | None:
    r"""What the last line says that the answer is (MetaMath's and many Alpaca files' solutions end so).

    >>> answer_sentence("3+4=7.\nThe answer is: 7"), answer_sentence("So the final answer is $0.5$.")
    ('7', '$0.5$')
    >>> answer_sentence("The answer is 7, since 3+4=7.") is None
    True
    """
    *_, last = text.strip().split("\n")
    starts = [match.start() for match in re.finditer(r"\banswer\s+is\b", last, re.IGNORECASE)]
    match = _SENTENCE.search(last, starts[-1]) if starts else None
    if match is None or re.search(r",?\s(?:since|because|so|which)\s|[.!?]\s", match[1]):
        return None
    return match[1]
