r"""Notations of their own: molecules and reactions, permutations in cycles, the parts (a), (b) of an answer,
and what a text says of each name."""

from __future__ import annotations

import re

from mathrl.grading.words import SPACING, unwrap

_ELEMENTS = (
    "He Li Be Ne Na Mg Al Si Cl Ar Ca Sc Ti Cr Mn Fe Co Ni Cu Zn Ga Ge As Se Br Kr Rb Sr Zr Nb Mo Tc Ru Rh Pd Ag Cd In "
    "Sn Sb Te Xe Cs Ba La Ce Pr Nd Pm Sm Eu Gd Tb Dy Ho Er Tm Yb Lu Hf Ta Re Os Ir Pt Au Hg Tl Pb Bi Po At Rn Fr Ra Ac "
    "Th Pa Np Pu Am Cm No H B C N O F P S K V Y I W U"
).split()
_ATOMS = rf"(?:{'|'.join(_ELEMENTS)})\d*"
_MOLECULE = rf"\d*(?:{_ATOMS}|\((?:{_ATOMS})+\)\d*){{1,20}}(?:\^?\d?[+-](?![A-Z\d(]))?(?:\((?:s|l|g|aq)\))?"
_REACTION = re.compile(rf"{_MOLECULE}(?:\+{_MOLECULE})*(?:(?:->|<=>){_MOLECULE}(?:\+{_MOLECULE})*)?")
_ARROWS = re.compile(r"\\(?:(?:long)?rightarrow|to)(?![a-z])|→|⟶|-->")
_UPRIGHT = re.compile(r"\\(?:ce|mathrm|text|operatorname|mathbf|rm)(?![a-z])")
_SETS = re.compile(r"([A-Z])\s*(?:\\times|×)\s*([A-Z])")  # which has an order
_CAPITAL = re.compile(r"[A-Z]")
_CYCLES = re.compile(r"(?:\(\s*\d+(?:(?:\s|\\[ ,;])+\d+)+\s*\))+")
_PART = re.compile(r"(?:\\text\s*\{\s*)?\((?P<name>[a-h])\)\s*(?:\}|:)?\s*(?P<value>.+)", re.DOTALL)
_PARTS = re.compile(r"(?:\\text\s*\{\s*)?\([a-h]\)")


def same_notation(truth: str, answer: str) -> bool | None:
    r"""Whether two texts name one molecule, reaction or permutation; None where they are not such names.

    >>> same_notation("\\mathrm{H_2O}", "H2O"), same_notation("Co", "CO"), same_notation("(1\\ 2\\ 3)", "(2 3 1)")
    (True, False, True)
    """
    if _CYCLES.fullmatch(truth.strip()) and _CYCLES.fullmatch(answer.strip()):
        return _permutation(truth) == _permutation(answer) if " " in truth + answer else None
    products = [_SETS.fullmatch(text.strip()) for text in (truth, answer)]
    if products[0] and products[1]:
        return products[0].groups() == products[1].groups()
    if not _CAPITAL.search(truth) or (own := _reaction(truth)) is None or (theirs := _reaction(answer)) is None:
        return None
    if own == theirs:
        return True
    letters = ["".join(each.split()) for each in (unwrap(truth), unwrap(answer))]
    case_alone = letters[0].lower() == letters[1].lower() and letters[0].lower() not in ("no", "in", "as", "at", "he")
    return False if case_alone else None


def _reaction(text: str) -> list[list[str]] | None:
    """The molecules on either side of the arrow, in alphabetical order: [["2H2", "O2"], ["2H2O"]]."""
    plain = _ARROWS.sub("->", _UPRIGHT.sub("", text).replace("\\rightleftharpoons", "<=>").replace("⇌", "<=>"))
    plain = re.sub(r"[\s_{}]|\\[,; ]", "", plain)
    if len(plain) > 200 or not _REACTION.fullmatch(plain) or len(plain) < 2:
        return None
    return [sorted(re.split(r"\+(?=[A-Z\d(])", side)) for side in re.split("->|<=>", plain)]


def _permutation(text: str) -> dict[str, str]:
    """Where each element goes that does not stay: the cycles one after the other, from the right."""
    image: dict[str, str] = {}
    for cycle in reversed(re.findall(r"\(([^()]*)\)", text)):
        elements = re.findall(r"\d+", cycle)
        step = dict(zip(elements, elements[1:] + elements[:1], strict=True))
        image = {each: step.get(image.get(each, each), image.get(each, each)) for each in {*image, *elements}}
    return {each: there for each, there in image.items() if each != there}


def as_tuple(text: str) -> str:
    r"""The parts of an answer in their order: "(a) 3; (b) 5" as "(3, 5)"; any other text as it is.

    >>> as_tuple("\\text{(a) } 3,\\ \\text{(b) } 5"), as_tuple("(a) 3")
    ('(3, 5)', '(a) 3')
    """
    if "(a)" not in text:
        return text
    starts = [match.start() for match in _PARTS.finditer(text)]
    if len(starts) < 2 or text[: starts[0]].strip():
        return text
    pieces = [text[begin:end] for begin, end in zip(starts, [*starts[1:], len(text)], strict=True)]
    parts = [_PART.fullmatch(piece) for piece in pieces]
    if any(part is None or part["name"] != name for part, name in zip(parts, "abcdefgh", strict=False)):
        return text
    values = [re.sub(r"(?:\s|\\[ ,;]|[,;]|\band\b)+$", "", part["value"]) for part in parts if part is not None]
    return f"({', '.join(values)})" if all(values) and not any("," in value for value in values) else text


_GALOIS = re.compile(r"(?:\\(?:mathrm|text|operatorname|mathbf)\s*\{GF\}|\bGF)\s*\((\d+(?:\^\{?\w+\}?)?)\)")
_BOLD = re.compile(r"\\(?:mathbf|boldsymbol|bm)\s*\{([A-Za-z])\}")


def same_spelling(truth: str, answer: str) -> tuple[str, str]:
    r"""The texts with one spelling of Galois fields, and of vectors, with arrows on one side and bold on the other.

    >>> same_spelling("\\vec{a}", "\\mathbf{a}"), same_spelling("x", "GF(9)")
    (('\\vec{a}', '\\vec{a}'), ('x', '\\mathbb{F}_{9}'))
    """
    if not any("GF" in text or "\\vec" in text for text in (truth, answer)):
        return truth, answer
    texts = [_GALOIS.sub(r"\\mathbb{F}_{\1}", text) for text in (truth, answer)]
    if any("\\vec" in text for text in texts) and not all("\\vec" in text for text in texts):
        texts = [_BOLD.sub(r"\\vec{\1}", text) for text in texts]
    return texts[0], texts[1]


_CLAUSE = re.compile(
    r"([a-z][a-z' ]*?)(?: (?:has|have|gets?|is|are|was|were|had))?(?:[:=]| )\s*\$?(\d[\d.,]*)((?: [a-z]+)*)",
    re.IGNORECASE,
)
_NAMED = re.compile(r"([A-Z][A-Za-z]*) (?:is|was) (an?|the) ([a-z]+)")
_CLAUSES = re.compile(r"\s*[,;.]\s+(?:and )?|\s+and\s+")


def same_clauses(truth: str, answer: str) -> bool | None:
    r"""Whether two texts say the same of each name in any order; None where they are no such texts.

    >>> same_clauses("Tom has 5, Ann has 7", "Ann: 7, Tom: 5"), same_clauses("Tom has 5, Ann has 7", "Tom: 7, Ann: 5")
    (True, False)
    """
    said = []
    for text in (truth, answer):
        parts = _CLAUSES.split(SPACING.sub(" ", unwrap(text)).strip(" ."))
        clauses = [_CLAUSE.fullmatch(part) or _NAMED.fullmatch(part) for part in parts]
        if len(clauses) < 2 or None in clauses:
            return None
        said.append(
            {clause[1].lower(): (clause[2].replace(",", ""), clause[3].lower()) for clause in clauses if clause}
        )
        if len(said[-1]) < len(clauses) or any(
            clause and clause.re is _CLAUSE and len(clause[1]) < 2 for clause in clauses
        ):
            return None
    return said[0] == said[1] if said[0].keys() == said[1].keys() else None
