r"""Instructions that a program can check, such as "no comma" or "three sentences at least" (IFEval, arXiv:2311.07911).

A truth is JSON: {"instructions": [{"id": "punctuation:no_comma"}, {"id": "keywords:existence", "keywords": ["x"]}]}.
The names and their arguments are those of the published rows. A response is right if it follows every one (the paper's
strict accuracy by prompt). Sentences are counted by their ends and languages told by py3langid, where the paper's
program has NLTK and langdetect; all other rules follow the paper's table 4.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

Check = Callable[[str, Mapping[str, Any]], bool]
_WORD = re.compile(r"\w+")
_SENTENCE_END = re.compile(r"[.!?]+[\"'”’)\]]*(?=\s|$)|[。！？]+")
_STARS = "******"  # between two responses
_CHOICES = ("My answer is yes.", "My answer is no.", "My answer is maybe.")


def instructions_followed(response: str, instructions: list[dict[str, Any]]) -> tuple[bool, str]:
    """Whether the response follows every instruction, and the first that it does not or that cannot be checked.

    >>> instructions_followed("yes, no", [{"id": "punctuation:no_comma"}])
    (False, 'not followed: punctuation:no_comma')
    """
    for instruction in instructions:
        if fault := instruction_fault(instruction):
            return False, fault
        if not response.strip() or not CHECKS[instruction["id"]](response, instruction):
            return False, f"not followed: {instruction['id']}"
    return True, ""


def instruction_fault(instruction: Any) -> str:
    """Why an instruction cannot be checked; empty if it can.

    >>> instruction_fault({"id": "keywords:existence", "keywords": "sun"})
    "keywords:existence: 'keywords' is 'sun', expected a list of texts"
    """
    name = instruction.get("id") if isinstance(instruction, dict) else instruction
    if not (isinstance(instruction, dict) and isinstance(name, str) and name in CHECKS):
        return f"no check of the instruction {name!r}; known: {', '.join(CHECKS)}"
    for argument, (expected, fits) in ARGUMENTS.get(name, {}).items():
        if not fits(instruction.get(argument)):
            return f"{name}: {argument!r} is {instruction.get(argument)!r}, expected {expected}"
    return ""


def read_instructions(truth: str) -> list[dict[str, Any]] | None:
    """The instructions of a truth, or None for any other truth.

    >>> read_instructions('{"instructions": [{"id": "punctuation:no_comma"}]}')
    [{'id': 'punctuation:no_comma'}]
    """
    if not truth.startswith('{"instructions"'):
        return None
    try:
        return list(json.loads(truth)["instructions"])
    except (ValueError, TypeError):
        return None


def _relation(count: int, limit: Any, relation: Any) -> bool:
    return count < int(limit) if relation == "less than" else count >= int(limit)


def _occurrences(text: str, phrase: str) -> int:
    return len(re.findall(re.escape(phrase), text, re.IGNORECASE))


def _paragraphs(text: str, separator: str) -> list[str]:
    return [part.strip() for part in re.split(separator, text)]


def _starred_paragraphs(text: str, rule: Mapping[str, Any]) -> bool:
    parts = _paragraphs(text, r"\s?\*\*\*\s?")
    inner = parts[1:-1] if len(parts) > 1 else []
    filled = [part for part in parts if part]
    return all(inner) and len(filled) == int(rule["num_paragraphs"])


def _first_word(text: str, rule: Mapping[str, Any]) -> bool:
    filled = [part for part in _paragraphs(text, r"\n\n") if part]
    number = int(rule["nth_paragraph"])
    if len(filled) != int(rule["num_paragraphs"]) or number > len(filled):
        return False
    word = _WORD.search(filled[number - 1])
    return word is not None and word[0].lower() == str(rule["first_word"]).strip().lower()


def _language(text: str, rule: Mapping[str, Any]) -> bool:
    from py3langid import classify  # numpy: the grader starts without it

    return bool(classify(text)[0] == rule["language"])


def _json(text: str, rule: Mapping[str, Any]) -> bool:
    inside = re.sub(r"^\s*```(?:json)?\s*|\s*```\s*$", "", text, flags=re.IGNORECASE)
    try:
        json.loads(inside)
    except (ValueError, RecursionError):
        return False
    return True


def _two_responses(text: str, rule: Mapping[str, Any]) -> bool:
    parts = [part.strip() for part in text.split(_STARS)]
    inner = parts[1:-1] if len(parts) > 1 else []
    filled = [part for part in parts if part]
    return all(inner) and len(filled) == 2 and filled[0] != filled[1]


def _sections(text: str, rule: Mapping[str, Any]) -> bool:
    splits = re.findall(rf"\s?{re.escape(str(rule['section_spliter']))}\s?\d+\s?", text)
    return len(splits) >= int(rule["num_sections"])


def _postscript(text: str, rule: Mapping[str, Any]) -> bool:
    marker = str(rule["postscript_marker"]).strip()
    letters = [re.escape(letter) for letter in re.findall(r"\w", marker)]
    return re.search(r"\.?\s?".join(letters), text, re.IGNORECASE) is not None


def _highlights(text: str, rule: Mapping[str, Any]) -> bool:
    double = re.findall(r"\*\*([^*\n]+)\*\*", text)
    single = re.findall(r"\*([^*\n]+)\*", re.sub(r"\*\*[^*\n]+\*\*", "", text))
    return sum(bool(part.strip()) for part in (*double, *single)) >= int(rule["num_highlights"])


def _capital_words(text: str, rule: Mapping[str, Any]) -> bool:
    capitals = [word for word in re.findall(r"[\w'’-]+", text) if word.isupper()]
    return _relation(len(capitals), rule["capital_frequency"], rule["capital_relation"])


def _bullets(text: str, rule: Mapping[str, Any]) -> bool:
    return len(re.findall(r"^\s*(?:\*[^*\n]|-)[^\n]*$", text, re.MULTILINE)) == int(rule["num_bullets"])


def _ends(text: str, rule: Mapping[str, Any]) -> bool:
    return text.strip().strip('"').strip().lower().endswith(str(rule["end_phrase"]).strip().lower())


def _without_words(text: str, rule: Mapping[str, Any]) -> bool:
    return not any(re.search(rf"\b{re.escape(word)}\b", text, re.IGNORECASE) for word in rule["forbidden_words"])


CHECKS: dict[str, Check] = {
    "keywords:existence": lambda text, rule: all(_occurrences(text, word) for word in rule["keywords"]),
    "keywords:frequency": lambda text, rule: _relation(
        _occurrences(text, str(rule["keyword"])), rule["frequency"], rule["relation"]
    ),
    "keywords:forbidden_words": _without_words,
    "keywords:letter_frequency": lambda text, rule: _relation(
        text.lower().count(str(rule["letter"]).lower()), rule["let_frequency"], rule["let_relation"]
    ),
    "language:response_language": _language,
    "length_constraints:number_sentences": lambda text, rule: _relation(
        len([part for part in _SENTENCE_END.split(text) if part.strip()]), rule["num_sentences"], rule["relation"]
    ),
    "length_constraints:number_paragraphs": _starred_paragraphs,
    "length_constraints:number_words": lambda text, rule: _relation(
        len(_WORD.findall(text)), rule["num_words"], rule["relation"]
    ),
    "length_constraints:nth_paragraph_first_word": _first_word,
    "detectable_content:number_placeholders": lambda text, rule: (
        len(re.findall(r"\[.*?\]", text)) >= int(rule["num_placeholders"])
    ),
    "detectable_content:postscript": _postscript,
    "detectable_format:number_bullet_lists": _bullets,
    "detectable_format:constrained_response": lambda text, rule: any(choice in text for choice in _CHOICES),
    "detectable_format:number_highlighted_sections": _highlights,
    "detectable_format:multiple_sections": _sections,
    "detectable_format:json_format": _json,
    "detectable_format:title": lambda text, rule: re.search(r"<<[^\n<>]*[^\s<>][^\n<>]*>>", text) is not None,
    "combination:two_responses": _two_responses,
    "combination:repeat_prompt": lambda text, rule: (
        text.strip().lower().startswith(str(rule["prompt_to_repeat"]).strip().lower())
    ),
    "startend:end_checker": _ends,
    "startend:quotation": lambda text, rule: len(text.strip()) > 1 and text.strip()[0] == text.strip()[-1] == '"',
    "change_case:capital_word_frequency": _capital_words,
    "change_case:english_capital": lambda text, rule: text.isupper() and _language(text.lower(), {"language": "en"}),
    "change_case:english_lowercase": lambda text, rule: text.islower() and _language(text, {"language": "en"}),
    "punctuation:no_comma": lambda text, rule: "," not in text,
}

_TEXT = ("a text", lambda value: isinstance(value, str) and value != "")
_TEXTS = ("a list of texts", lambda value: isinstance(value, list) and all(isinstance(text, str) for text in value))
_COUNT = (
    "a whole number",
    lambda value: str(value).isdecimal() or (isinstance(value, float) and value >= 0 and value.is_integer()),
)
_RELATION = ('"less than" or "at least"', lambda value: value in ("less than", "at least"))
# What each check needs; the others need nothing.
ARGUMENTS: dict[str, dict[str, tuple[str, Callable[[Any], bool]]]] = {
    "keywords:existence": {"keywords": _TEXTS},
    "keywords:frequency": {"keyword": _TEXT, "frequency": _COUNT, "relation": _RELATION},
    "keywords:forbidden_words": {"forbidden_words": _TEXTS},
    "keywords:letter_frequency": {"letter": _TEXT, "let_frequency": _COUNT, "let_relation": _RELATION},
    "language:response_language": {"language": _TEXT},
    "length_constraints:number_sentences": {"num_sentences": _COUNT, "relation": _RELATION},
    "length_constraints:number_paragraphs": {"num_paragraphs": _COUNT},
    "length_constraints:number_words": {"num_words": _COUNT, "relation": _RELATION},
    "length_constraints:nth_paragraph_first_word": {
        "num_paragraphs": _COUNT,
        "nth_paragraph": _COUNT,
        "first_word": _TEXT,
    },
    "detectable_content:number_placeholders": {"num_placeholders": _COUNT},
    "detectable_content:postscript": {"postscript_marker": _TEXT},
    "detectable_format:number_bullet_lists": {"num_bullets": _COUNT},
    "detectable_format:number_highlighted_sections": {"num_highlights": _COUNT},
    "detectable_format:multiple_sections": {"section_spliter": _TEXT, "num_sections": _COUNT},
    "combination:repeat_prompt": {"prompt_to_repeat": _TEXT},
    "startend:end_checker": {"end_phrase": _TEXT},
    "change_case:capital_word_frequency": {"capital_frequency": _COUNT, "capital_relation": _RELATION},
}
