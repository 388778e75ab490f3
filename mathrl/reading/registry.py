"""Problem sources by name: their hub id, the names of their local files, their fields and licence.

The normalised shape (id, question, answer, …) is tried first, then the shapes in which the set is published.
"""

from dataclasses import dataclass, replace

from mathrl.core.errors import UserError
from mathrl.params.messages import did_you_mean
from mathrl.reading.row_formats import RowShape

NORMALISED = RowShape(solution_key="solution", id_key="id", level_key="level", subject_key="subject")
_GSM8K = RowShape(solution_key="answer", answer_rule="hash")
_PROBLEM = RowShape(prompt_key="problem", solution_key="solution")
_MATH = replace(_PROBLEM, answer_key="solution", level_key="level", subject_key="type", answer_rule="boxed")
# The competitions' final answers as MathArena publishes them (arXiv:2505.23281), with the month of the competition.
_ARENA = replace(_PROBLEM, solution_key=None, subject_key="problem_type")
_MATHARENA = (
    ("aime25", "AIME 2025 I and II", "aime_2025", "2025-02"),
    ("aime26", "AIME 2026 I and II", "aime_2026", "2026-02"),
    ("hmmt25", "HMMT February 2025", "hmmt_feb_2025", "2025-02"),
    ("hmmt25_nov", "HMMT November 2025", "hmmt_nov_2025", "2025-11"),
    ("hmmt26", "HMMT February 2026", "hmmt_feb_2026", "2026-02"),
    ("brumo25", "BRUMO 2025", "brumo_2025", "2025-04"),
    ("apex25", "Apex 2025, the hardest problems of that year's competitions", "apex_2025", "2025-08"),
)


@dataclass(frozen=True)
class NamedSource:
    """A public problem set.

    `splits` maps the split names of mathrl to those of the hub; `evaluation` is the split of benchmarks; local
    files are `<stem>_<split>` with any known suffix, for each stem, in the data folder. `released` is the month in
    which the problems became public: a model that is older cannot have been trained on them.
    """

    name: str
    title: str
    hub: str
    splits: dict[str, str]
    shapes: tuple[RowShape, ...]
    licence: str
    stems: tuple[str, ...]
    subset: str | None = None
    evaluation: str | None = "test"
    note: str = ""
    released: str = ""


_ALL = (
    NamedSource("gsm8k", "GSM8K, grade-school word problems", "openai/gsm8k", {"train": "train", "test": "test"},
          (NORMALISED, _GSM8K), "MIT", ("gsm8k", "gsm8k_openai"), subset="main",
          released="2021-10"),
    NamedSource("math", "MATH, competition problems in 5 levels", "DigitalLearningGmbH/MATH-lighteval",
          {"train": "train", "test": "test"}, (NORMALISED, _MATH), "MIT", ("math", "hendrycks_math"),
          note="DAPO-17k holds 972 of its test questions",
          released="2021-03"),
    NamedSource("math500", "MATH-500, the part of MATH test that PRM800K held out", "HuggingFaceH4/MATH-500",
          {"test": "test"}, (NORMALISED, RowShape(prompt_key="problem", solution_key="solution",
          id_key="unique_id", level_key="level", subject_key="subject")), "MIT", ("math500", "math_500"),
          released="2021-03"),
    NamedSource("dapo_17k", "DAPO-Math-17k, whole-number answers", "open-r1/DAPO-Math-17k-Processed",
          {"train": "train"}, (NORMALISED, RowShape("verl", prompt_key="prompt",
          answer_key="reward_model.ground_truth"), RowShape(prompt_key="prompt", answer_key="solution")),
          "Apache-2.0", ("dapo_math_17k", "dapo_17k"), subset="all", evaluation=None,
          note="overlaps MATH test and AMC23: decontaminate"),
    NamedSource("numina_math", "NuminaMath-CoT", "AI-MO/NuminaMath-CoT", {"train": "train", "test": "test"},
          (NORMALISED, RowShape(prompt_key="problem", answer_key="solution", solution_key="solution",
          answer_rule="boxed")), "Apache-2.0", ("numina_math", "numina_math_cot"),
          note="proofs have no boxed answer: on_bad_row reject"),
    NamedSource("open_reasoner_zero", "Open-Reasoner-Zero, 57k", "Open-Reasoner-Zero/orz_math_57k_collection",
          {"train": "train"}, (NORMALISED, RowShape(prompt_key="0.value", answer_key="1.ground_truth.value")),
          "MIT", ("open_reasoner_zero", "orz_math_57k_collected", "orz_math_57k"), evaluation=None),
    NamedSource("deepscaler", "DeepScaleR-Preview, 40k", "agentica-org/DeepScaleR-Preview-Dataset",
          {"train": "train"}, (NORMALISED, _PROBLEM), "MIT", ("deepscaler",), evaluation=None),
    NamedSource("aime24", "AIME 2024 I and II", "HuggingFaceH4/aime_2024", {"test": "train"},
          (NORMALISED, _PROBLEM), "problems (c) MAA: measure only", ("aime24", "aime_2024"),
          released="2024-02"),
    *(NamedSource(name, title, f"MathArena/{id}", {"test": "train"}, (NORMALISED, _ARENA),
            "CC-BY-NC-SA-4.0: measure only", (name, id), released=released)
      for name, title, id, released in _MATHARENA),
    NamedSource("amc23", "AMC 12 2023, whole-number answers", "math-ai/amc23", {"test": "test"},
          (NORMALISED, _PROBLEM), "problems (c) MAA: measure only", ("amc23", "amc_2023"),
          released="2023-11"),
    NamedSource("minerva", "Minerva Math, OCW courses", "math-ai/minervamath", {"test": "test"},
          (NORMALISED, _PROBLEM), "MIT", ("minerva_math", "minerva"),
          released="2022-06"),
    NamedSource("olympiadbench", "OlympiadBench, English, open-ended, text only", "Hothan/OlympiadBench",
          {"test": "train"}, (NORMALISED, RowShape(answer_key="final_answer", solution_key="solution",
          subject_key="subfield")), "Apache-2.0", ("olympiadbench", "olympiad_bench"),
          subset="OE_TO_maths_en_COMP",
          released="2024-02"),
    NamedSource("svamp", "SVAMP, varied one-step word problems", "ChilleD/SVAMP",
          {"train": "train", "test": "test"}, (NORMALISED, RowShape(prompt_key="Body+Question",
          answer_key="Answer", solution_key="Equation", id_key="ID", subject_key="Type")), "MIT",
          ("svamp", "svamp_qwen"), note="the hub's test has 300 of the 1,000 problems",
          released="2021-03"),
    NamedSource("cmath", "CMATH, Chinese elementary school", "weitianwen/cmath",
          {"dev": "validation", "test": "test"}, (NORMALISED, RowShape(answer_key="golden", level_key="grade")),
          "CC-BY-4.0 on the hub, MIT or BSD at XiaoMi/cmath", ("cmath",), evaluation="dev",
          released="2023-06"),
    *(NamedSource(f"mgsm_{lang}", f"MGSM, GSM8K in other languages ({lang})", "juletxara/mgsm", {"test": "test"},
            (NORMALISED, RowShape(answer_key="answer_number")), "CC-BY-SA-4.0", (f"mgsm_{lang}",), subset=lang,
            released="2022-10")
      for lang in ("bn", "de", "en", "es", "fr", "ja", "ru", "sw", "te", "th", "zh")),
    NamedSource("gpqa_diamond", "GPQA diamond, multiple choice", "Idavidrein/gpqa", {"test": "train"},
          (RowShape("multiple_choice", prompt_key="Question", answer_key="Correct Answer"), NORMALISED),
          "CC-BY-4.0", ("gpqa_diamond",), subset="gpqa_diamond",
          note="gated: accept its terms on the hub first",
          released="2023-11"),
    NamedSource("countdown", "Countdown, 3 to 4 numbers", "Jiayi-Pan/Countdown-Tasks-3to4", {"train": "train"},
          (RowShape("countdown", prompt_key="nums", answer_key="target"), NORMALISED), "MIT",
          ("countdown", "countdown_3to4"), evaluation=None),
)  # fmt: skip
REGISTRY = {named.name: named for named in _ALL}


def find(name: str) -> NamedSource | None:
    """The source of this name, or of this hub id."""
    if name in REGISTRY:
        return REGISTRY[name]
    return next((named for named in _ALL if named.hub == name and named.subset in (None, "main", "all")), None)


def newer_than(name: str, released: str | None) -> str:
    """What a table says of a benchmark beside a model: "newer than the model", or nothing.

    >>> newer_than("aime26", "2025-04"), newer_than("aime24", "2025-04"), newer_than("test", "2025-04")
    ('newer than the model', '', '')
    """
    named = REGISTRY.get(name)
    return "newer than the model" if named and released and named.released > released[:7] else ""


def benchmark(name: str) -> NamedSource:
    """The source whose evaluation split is a benchmark.

    Raises:
        UserError: no such benchmark.
    """
    named = REGISTRY.get(name)
    if named is None or named.evaluation is None:
        names = [n.name for n in _ALL if n.evaluation]
        hint = did_you_mean(name, ["test", *names])
        raise UserError(f"no benchmark {name!r}{hint}; known: test (the curated split), {', '.join(names)}")
    return named
