"""Text to one spelling: Unicode to LaTeX, spacing, wrappers, thousands separators.

Superscripts, subscripts and vulgar fractions are rewritten *before* NFKC, because NFKC turns ``4²`` into
``42``. Nothing here knows about mathematics beyond spelling; see `lexer` and `parser` for that.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

_SUPERSCRIPTS = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁼⁽⁾ⁿⁱˣ", "0123456789+-=()nix", strict=True))
_SUBSCRIPTS = dict(zip("₀₁₂₃₄₅₆₇₈₉₊₋₌₍₎ₙᵢₓ", "0123456789+-=()nix", strict=True))
_VULGAR = {
    "½": "1/2", "⅓": "1/3", "⅔": "2/3", "¼": "1/4", "¾": "3/4", "⅕": "1/5", "⅖": "2/5", "⅗": "3/5",
    "⅘": "4/5", "⅙": "1/6", "⅚": "5/6", "⅛": "1/8", "⅜": "3/8", "⅝": "5/8", "⅞": "7/8", "⅐": "1/7",
    "⅑": "1/9", "⅒": "1/10",
}  # fmt: skip
_SYMBOLS = {
    "−": "-", "﹣": "-", "－": "-", "‐": "-", "‑": "-", "‒": "-", "–": "-", "—": "-", "＋": "+",
    "×": r"\times ", "✕": r"\times ", "⨯": r"\times ", "÷": "/", "∕": "/", "⁄": "/", "·": r"\cdot ",
    "⋅": r"\cdot ", "∙": r"\cdot ", "•": r"\cdot ", "∗": "*", "∞": r"\infty ", "π": r"\pi ",
    "≤": r"\le ", "≥": r"\ge ", "⩽": r"\le ", "⩾": r"\ge ", "≦": r"\le ", "≧": r"\ge ", "≠": r"\ne ",
    "≈": r"\approx ", "≡": r"\equiv ", "∪": r"\cup ", "∩": r"\cap ", "∈": r"\in ", "∅": r"\emptyset ",
    "∖": r"\setminus ", "±": r"\pm ", "∓": r"\mp ", "°": r"^\circ ", "º": r"^\circ ", "˚": r"^\circ ",
    "′": "'", "″": "''", "’": "'", "‘": "'", "“": '"', "”": '"', "√": r"\sqrt ", "∛": r"\sqrt[3]",
    "∜": r"\sqrt[4]", "⟨": r"\langle ", "⟩": r"\rangle ", "〈": r"\langle ", "〉": r"\rangle ",
    "⌊": r"\lfloor ", "⌋": r"\rfloor ", "⌈": r"\lceil ", "⌉": r"\rceil ", "∣": "|", "→": r"\to ",
    "ℝ": r"\mathbb{R}", "ℤ": r"\mathbb{Z}", "ℕ": r"\mathbb{N}", "ℚ": r"\mathbb{Q}", "ℂ": r"\mathbb{C}",
    "α": r"\alpha ", "β": r"\beta ", "γ": r"\gamma ", "δ": r"\delta ", "ε": r"\epsilon ",
    "θ": r"\theta ", "λ": r"\lambda ", "μ": r"\mu ", "ρ": r"\rho ", "σ": r"\sigma ", "τ": r"\tau ",
    "φ": r"\phi ", "ω": r"\omega ", "∠": r"\angle ", "△": r"\triangle ", "∑": r"\sum ", "∏": r"\prod ",
    "∫": r"\int ", "…": r"\ldots ", "⋯": r"\cdots ", "٬": ",", "٫": ".", "，": ",", "；": ";", "：": ":",
    "。": ".", "、": ",", "（": "(", "）": ")", "％": "%", "￥": "¥", "＄": "$", "\u00a0": " ", "\u202f": " ",
    "\u2009": " ", "\u3000": " ", "∨": r"\lor ", "∧": r"\land ",
    "⊂": r"\subset ", "⊆": r"\subseteq ", "⊃": r"\supset ", "⊇": r"\supseteq ", "⇒": r"\implies ", "⇔": r"\iff ",
    "∘": r"\circ ", "∇": r"\nabla ", "∂": r"\partial ", "¬": r"\neg ", "∤": r"\nmid ", "⊥": r"\perp ",
    "∥": r"\parallel ", "∴": "", "✓": "", "✔": "", "✅": "",
}  # fmt: skip
_TABLE = str.maketrans(_SYMBOLS)
_SUPER_RUN = re.compile("[" + "".join(_SUPERSCRIPTS) + "]+")
_SUB_RUN = re.compile("[" + "".join(_SUBSCRIPTS) + "]+")
_VULGAR_RUN = re.compile("[" + "".join(_VULGAR) + "]")
_CIRCLED = re.compile("[①-⑳]{2,}")  # of several statements
_STRIKES = frozenset(map(chr, (*range(0x334, 0x339), *range(0x20D2, 0x20D4), *range(0x20E5, 0x20E9))))  # crossed out
_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


def ascii_math(text: str) -> str:
    r"""Unicode mathematics in LaTeX spelling, invisible and control characters removed.

    >>> ascii_math("−4²")
    '-4^{2}'
    """
    if text.isascii() and text.isprintable():
        return text
    text = _ANSI.sub("", text)
    text = _SUPER_RUN.sub(lambda m: "^{" + "".join(_SUPERSCRIPTS[c] for c in m[0]) + "}", text)
    text = _SUB_RUN.sub(lambda m: "_{" + "".join(_SUBSCRIPTS[c] for c in m[0]) + "}", text)
    text = _CIRCLED.sub(lambda m: ",".join(str(ord(char) - ord("①") + 1) for char in m[0]), text)
    text = _VULGAR_RUN.sub(lambda m: " " + "\\frac{{{}}}{{{}}}".format(*_VULGAR[m[0]].split("/")), text)
    text = text.translate(_TABLE)
    text = unicodedata.normalize("NFKC", text).translate(_TABLE)
    if text.isascii() and text.isprintable():
        return text
    kept = []
    for char in text:
        category = unicodedata.category(char)
        if category == "Nd" and not char.isascii():
            kept.append(str(unicodedata.decimal(char)))
        elif char in "\n\t\r":
            kept.append(" ")
        elif category not in ("Cc", "Cf", "Cs", "Co", "Cn", "Mn") or char in _STRIKES:
            kept.append(char)
    return "".join(kept)


# A group of three digits after one of the unmistakable separators: 1{,}000, 1,\!000, 1\,000, 1 000.
_HARD_GROUPS = re.compile(
    r"(?<![\d.,])(?<!\d )(\d{1,3})"
    r"((?:\s*(?:\{\s*,\s*\}|,\\!|\\,|\\ |~|\{\\,\}|(?<=\d) (?=\d))\s*\d{3})+)(?![\d])"
)
# With a plain comma it may also be a list: one of two readings.
COMMA_GROUPS = re.compile(r"(?<![\d.,])([1-9]\d{0,2})((?:,\d{3})+)(?!\d|,\d)")
_TEX_DECIMAL_COMMA = re.compile(r"(?<=\d)\{,\}(?=\d)")
_NOT_DIGIT = re.compile(r"\D")
_WRAPPERS = (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"), ("**", "**"), ('"', '"'), ("`", "`"))
_SIZING = re.compile(
    r"\\(?:left|right|middle)(?![a-zA-Z])\s*\.?|\\[bB]igg?[lrm]?(?![a-zA-Z])|"
    r"\\(?:displaystyle|textstyle|limits|nolimits|tiny|small|large|Large|LARGE|huge|Huge|bf|rm|it|cal)(?![a-zA-Z])|"
    r"\\color\s*\{[a-zA-Z]+\}"
)
_ALIGNED = re.compile(r"\\(?:begin|end)\{(?:aligned|align|align\*|gathered|split|equation|equation\*)\}")
_CASES = re.compile(  # \\left\\{ \\begin{array}{ll} … \\end{array} \\right.
    r"\\left\s*(?:\\\{|\\lbrace)\s*\\begin\{(array|aligned|align\*?|gathered|matrix|split)\}(?:\{[lcr| ]*\})?"
    r"((?:(?!\\begin|\\end).)*)\\end\{\1\}\s*\\right\s*(?:\.|$)",
    re.DOTALL,
)
_ALIGNMENT = re.compile(r"\s*&\s*(=|<|>|\\[lg]eq?(?![a-z]))\s*&?")
_ROWS = re.compile(r"\\begin\{(aligned|align\*?|gathered|split)\}((?:(?!\\begin).)*?)\\end\{\1\}", re.DOTALL)
_CONTINUED = re.compile(r"\s*(?:=|<|>|\\(?:le|ge|leq|geq|approx|equiv)(?![a-z]))")
_VARIANT = re.compile(r"\\var(epsilon|phi|theta|rho|sigma|kappa)(?![a-zA-Z])")
_HAN_JOINER = re.compile(r"(?:\\text\s*\{\s*)?(?<![\u3400-\u9fff])(?:或者?|并?且)(?![\u3400-\u9fff])(?:\s*\})?")
# Of a number with two decimals or more: 2e-3 may be 2e - 3.
_EXPONENT = re.compile(r"(?<![\w.])(\d+\.\d{2,})[eE]\+?(-?\d{1,3})(?![\w.])")
_SET_BRACE = re.compile(r"\\(?:left|right)\s*\\([{}])")
_ORDINAL = re.compile(
    r"(?<=\d)\s?(?:\^\s*\{\s*\\(?:text|mathrm|textrm|mbox)\s*\{\s*(?:st|nd|rd|th)\s*\}\s*\}|\^\s*\{\s*(?:st|nd|rd|th)\s*\}|"
    r"\\(?:text|mathrm|textrm|mbox)\s*\{\s*(?:st|nd|rd|th)\s*\}|(?:st|nd|rd|th)(?![a-zA-Z]))"
)
_TEMPERATURE = re.compile(
    r"\^?\s*\{?\s*\\circ\s*\}?\s*(?:\\(?:text|mathrm|textrm)\s*\{\s*([CF])\s*\}|([CF])(?![A-Za-z]))"
)
_GIVEN = re.compile(r"(\b(?:P|Pr|E)\s*[(\[][^()|\[\]]+)\|([^()|\[\]]+[)\]])")
# "For all x" adds nothing to a function.
_FOR_ALL = re.compile(
    r"\s*,?\s*\\text\s*\{\s*for (?:all|every|any)(?: real)?(?: numbers?)?\s*\}\s*[a-z]?"
    r"(?:\s*\\in\s*\\mathbb\s*\{?R\}?)?$"
)
_ANY_NUMBER = re.compile(
    r"\s*,?\s*(?:\\text\s*\{[\s,]*for (?:any|all|every|some)(?: real)? (?:constant|number)\s*\}\s*([a-zA-Z])|"
    r"\\text\s*\{[\s,]*(?:where|with)\s*\}\s*([a-zA-Z])\s*"
    r"\\text\s*\{\s*is an?(?: arbitrary| real)* (?:constant|number)\s*\})$"
)
_NUMBER_SET = re.compile(r"\\in\s*(?:\\(?:mathbf|mathrm|boldsymbol)\s*\{([ZRNQC])\}|([ZRNQ])(?![A-Za-z_({]))")
_POWER_OF_TEN = re.compile(r"(?<=\d)\s*x\s*(?=10\s*\^)")  # 6.02 x 10^{23}
_BARE_POINT = re.compile(r"(?<=\d)\.(?=\s*[/)])")
_TANGENT = re.compile(r"\\(?:(?:operatorname|text|mathrm)\s*\{\s*(arc|)(c?)tg\s*\}|(arc|)(c?)tg(?![a-zA-Z]))\s*")
_BOLD_CROSS = re.compile(
    r"\\(?:mathbf|boldsymbol|bm)\s*\{?\s*([a-zA-Z])\s*\}?\s*\\times\s*\\(?:mathbf|boldsymbol|bm)\s*\{?\s*([a-zA-Z])\s*\}?"
)
_CHOICES = re.compile(r"(?:\{\s*\})?\s*[_^]\s*\{?(\d+|n)\}?\s*(?:\\(?:text|mathrm)\{)?([CP])\}?\s*_\s*\{?(\d+|[rk])\}?")
_FACTORIAL_IS = re.compile(r"(?<=\d)!=(?=\d)")
_TEN_THOUSANDS = re.compile(r"(\d+(?:\.\d+)?)\s*([万亿])")
_PLAIN_BUILDER = re.compile(r"^\{\s*([a-zA-Z])\s*[|:]\s*([^{}]*)\}$")
_CONDITION = re.compile(  # 2k (k \\in Z), x^2 (x > 0)
    r"(?<=[\w}\])])(?:\s|\\[ ,;:]|\\q?quad(?![a-z]))*"
    r"\(\s*([a-zA-Z]\s*(?:[<>]=?|\\(?:in|[lg]eq?|neq?|[lg]eqslant)(?![a-z]))[^()]*)\)$"
)
_QUANTIFIED = re.compile(r"(\\(?:exists|forall)[^:;,]*?):")
_MICRO = re.compile(r"\\mu\s*\\(?:text|mathrm)\s*\{\s*(?=[A-Za-z])")
_CENTS = re.compile(r"(\d)\s*¢")
_OHM = re.compile(r"(\d)(?:\s|\\[ ,;:!]|~)*\\Omega\s*$")
_EXTREME = re.compile(r"\\(max|min)(?=\s*=)")
_CYCLIC = re.compile(
    r"\\mathbb\s*\{?Z\}?\s*/\s*(?:\(?(\d+|[a-z])\)?\s*\\mathbb\s*(?:\{Z\}|Z)|\(?(\d+)\)?(?![\d\s]*\\mathbb))"
)
_POINT_GROUPS = re.compile(r"(?<![\d.,])[1-9]\d{0,2}(?:\.\d{3}){2,}(?![\d.,])")
_DISTRIBUTIONS = {"Bin": "Binomial", "Binom": "Binomial", "Unif": "Uniform", "Pois": "Poisson", "Geom": "Geometric"}
_DISTRIBUTION = re.compile(rf"\\(?:text|mathrm|operatorname)\s*\{{({'|'.join(_DISTRIBUTIONS)})\}}(?=\s*\()")
_HAN_TEXT = re.compile(r"\\text\s*\{\s*([\u3400-\u9fff]+)\s*\}")
_HAS_SUFFIX = re.compile(r"(?:st|nd|rd|th|\.\s?m)\b", re.IGNORECASE)
_CURRENCY = re.compile(r"^(USD|US\s?\\?\$|EUR|RMB|Rs\.?)\s*([\d.,]*\d)(?=\D|$)")
_NOON = re.compile(r"\b([ap])\.\s?m\b\.?", re.IGNORECASE)
_TRAILING = " \t\n.,;:"


def strip_wrappers(text: str) -> str:
    r"""Without surrounding math delimiters, emphasis, outer spaces and trailing punctuation.

    >>> strip_wrappers("$\\frac{1}{2}$.")
    '\\frac{1}{2}'
    """
    while True:
        previous = text
        text = text.strip()
        if text and text[-1] in _TRAILING and not text.endswith(("\\,", "\\;", "\\:", "\\.", "...")):
            text = text.rstrip(_TRAILING)
        if text.endswith("\\") and not text.endswith("\\\\"):
            text = text[:-1]
        while text.endswith("\\\\"):
            text = text[:-2]
        while text.endswith(("\\,", "\\;", "\\!", "\\:")):
            text = text[:-2]
        for left, right in _WRAPPERS:
            if len(text) >= len(left) + len(right) and text.startswith(left) and text.endswith(right):
                inner = text[len(left) : len(text) - len(right)]
                if left not in inner and right not in inner:
                    text = inner
        if text == previous:
            return text


def _join_rows(match: re.Match[str]) -> str:
    """The rows of an aligned environment: a list, but for those that go on with the formula above."""
    joined = ""
    for row in filter(str.strip, match[2].replace("&", "").split("\\\\")):
        joined += row if _CONTINUED.match(row) or not joined else f", {row}"
    return joined


def _as_cases(match: re.Match[str]) -> str:
    return "\\begin{cases}" + _ALIGNMENT.sub(r"\1", match[2]) + "\\end{cases}"


def _choices_value(match: re.Match[str]) -> str:
    """{}_5C_2 and {}_5P_2: the subsets and the arrangements of two of five."""
    n, kind, k = match.groups()
    return f"\\binom{{{n}}}{{{k}}}" if kind == "C" else f"\\frac{{{n}!}}{{({n}-{k})!}}"


def merge_thousands(text: str, commas: bool) -> str:
    r"""Digit groups joined; plain commas only when `commas` is true (they may separate a list).

    >>> merge_thousands("1{,}000", False), merge_thousands("1,000", True), merge_thousands("32, 349", True)
    ('1000', '1000', '32, 349')
    """
    text = _HARD_GROUPS.sub(lambda m: m[1] + _NOT_DIGIT.sub("", m[2]), text)
    text = _TEX_DECIMAL_COMMA.sub(".", text)
    if commas and "," in text:
        text = COMMA_GROUPS.sub(lambda m: m[1] + m[2].replace(",", ""), text)
    return text


_BRACED_OVER = re.compile(r"\{([^{}]+)\\over(?![a-z])([^{}]+)\}")
_OVER = re.compile(r"^([^{}]+)\\over(?![a-z])([^{}]+)$")
_ROW_SPACE = re.compile(r"\\\\\s*\[-?[\d.]+(?:ex|em|pt|mm|cm)\]")


@lru_cache(maxsize=16384)
def canonical(text: str) -> str:
    r"""The answer in one spelling; every comparison starts from it.

    >>> canonical(" $\\left( −1 , 2 \\right)$. ")
    '( -1 , 2  )'
    """
    text = _CURRENCY.sub(r"\2\\text{ \1}", strip_wrappers(ascii_math(text)))
    if "或" in text or "且" in text:
        text = _HAN_JOINER.sub(lambda m: f"\\text{{ {'or' if '或' in m[0] else 'and'} }}", text)
    if "e-" in text or "E-" in text or "e+" in text:
        text = _EXPONENT.sub(r"\1 \\times 10^{\2}", text)
    if "x" in text:
        text = _POWER_OF_TEN.sub(r"\\times ", text)
    if "|" in text:
        text = _GIVEN.sub(r"\1\\mid \2", text)
    if "¢" in text:
        text = _CENTS.sub(r"\1\\text{ cents}", text)
    if "Å" in text:
        text = text.replace("\\text{Å}", "Å").replace("Å", "\\text{ angstrom}")
    if "./" in text or ".)" in text:
        text = _BARE_POINT.sub("", text)
    if "{:}" in text:
        text = text.replace("{:}", ":")
    if "!=" in text:
        text = _FACTORIAL_IS.sub(" ! = ", text)
    if "万" in text or "亿" in text:
        text = _TEN_THOUSANDS.sub(lambda m: f"{m[1]}\\times 10^{{{4 if m[2] == '万' else 8}}}", text)
    if text.startswith("{") and text.endswith("}"):
        text = _PLAIN_BUILDER.sub(r"\\{\1 : \2\\}", text)
    if text.endswith(")"):
        text = _CONDITION.sub(r", \1", text)
    if text.startswith(("_", "^", "{}_", "{}^")):
        text = _CHOICES.sub(_choices_value, text)
    if text.count(".") > 1:
        text = _POINT_GROUPS.sub(lambda m: m[0].replace(".", ""), text)
    if _HAS_SUFFIX.search(text):
        text = _NOON.sub(r"\1m", _ORDINAL.sub("", text))
    if "\\" in text:
        if "\\right" in text:
            text = _CASES.sub(_as_cases, text)
        text = _SET_BRACE.sub(r"\\\1", text)
        if "\\over" in text:
            text = _OVER.sub(r"\\frac{\1}{\2}", _BRACED_OVER.sub(r"\\frac{\1}{\2}", text))
        text = _ROW_SPACE.sub(r"\\\\ ", text)
        text = _ALIGNED.sub(" ", _ROWS.sub(_join_rows, _SIZING.sub(" ", text)))
        text = _TEMPERATURE.sub(lambda m: f"\\text{{ {'celsius' if 'C' in m[0] else 'fahrenheit'}}}", text)
        text = _DISTRIBUTION.sub(lambda m: f"\\text{{{_DISTRIBUTIONS[m[1]]}}}", text)
        text = _NUMBER_SET.sub(lambda m: f"\\in \\mathbb{{{m[1] or m[2]}}}", text)
        text = _ANY_NUMBER.sub(lambda m: f", {m[1] or m[2]}\\in \\mathbb{{R}}", text)
        text = _MICRO.sub(r"\\text{μ", _FOR_ALL.sub("", text))
        text = _OHM.sub(r"\1\\text{ ohm}", text)
        text = _EXTREME.sub(r"\\text{\1}", text)
        if "\\exists" in text or "\\forall" in text:
            text = _QUANTIFIED.sub(r"\1,", text)
        if "tg" in text:
            text = _TANGENT.sub(lambda m: f"\\{m[1] or m[3] or ''}{'cot' if m[2] or m[4] else 'tan'} ", text)
        if "\\times" in text:
            text = _BOLD_CROSS.sub(r"\\vec{\1}\\times\\vec{\2}", text)
        text = _CYCLIC.sub(lambda m: f"\\mathbb{{Z}}_{{{m[1] or m[2]}}}", _HAN_TEXT.sub(r"\1", text))
        text = _VARIANT.sub(lambda m: m[0] if f"\\{m[1]}" in text else f"\\{m[1]}", text)
        text = text.replace("\\lbrace", "\\{").replace("\\rbrace", "\\}")
        text = text.replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac").replace("\\cfrac", "\\frac")
        text = strip_wrappers(text)
    return text


_SPACE = re.compile(r"(?<!\d)\s+|\s+(?!\d)|\\[,;:! ]|~|\\q?quad(?![a-zA-Z])")


@lru_cache(maxsize=16384)
def squeeze(text: str) -> str:
    """`canonical` without any spacing, for the equal-strings fast path."""
    text = canonical(text)
    if "text" in text or "mbox" in text or "mathrm" in text:
        return text
    return _SPACE.sub("", _SPACE_AFTER_COMMAND.sub(r"\1{}", text))


_SPACE_AFTER_COMMAND = re.compile(r"(\\[a-zA-Z]+)\s+(?=[a-zA-Z])")
