"""Language consistency: the share of the reasoning in the target language (DeepSeek-R1, section 2.3.2)."""

from __future__ import annotations

import re

from mathrl.core.errors import UserError

_SCRIPTS = {
    "latin": re.compile(r"[A-Za-z\u00c0-\u024f]{2,}"),
    "han": re.compile(r"[\u4e00-\u9fff\u3400-\u4dbf]"),
    "kana": re.compile(r"[\u3040-\u30ff]"),
    "hangul": re.compile(r"[\uac00-\ud7af]"),
    "cyrillic": re.compile(r"[\u0400-\u04ff]{2,}"),
    "arabic": re.compile(r"[\u0600-\u06ff]{2,}"),
    "devanagari": re.compile(r"[\u0900-\u097f]{2,}"),
}
_LANGUAGES = dict.fromkeys("en fr de es".split(), "latin")
_LANGUAGES |= {"zh": "han", "ru": "cyrillic", "ar": "arabic", "hi": "devanagari", "ko": "hangul", "ja": "kana"}
_MATH = re.compile(
    r"\$[^$]{0,2000}\$|\\\(.{0,2000}?\\\)|\\\[.{0,2000}?\\\]|\\[A-Za-z]+|</?(?:think|answer)>", re.DOTALL
)


def language_share(response: str, language: str = "en") -> float:
    """The share of words (Han characters count as words) in the target language; 1 where there are none.

    Formulas, LaTeX commands and tags do not count.

    Raises:
        UserError: an unknown language.

    >>> language_share("So 3+4=7"), language_share("so 所以 thus", "en")
    (1.0, 0.5)
    """
    if language not in _LANGUAGES:
        raise UserError(f"language part: unknown language {language!r}; write one of {', '.join(sorted(_LANGUAGES))}")
    text = _MATH.sub(" ", response)
    counts = {script: len(pattern.findall(text)) for script, pattern in _SCRIPTS.items()}
    total = sum(counts.values())
    matching = counts[_LANGUAGES[language]] + (counts["han"] if language == "ja" else 0)
    return matching / total if total else 1.0
