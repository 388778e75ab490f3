"""Problem sources by name: their hub id, the names of their local files, their fields and licence.

The normalised shape (id, question, answer, …) is tried first, then the shapes in which the set is published.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

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
    ("hmmt23", "HMMT February 2023", "hmmt_feb_2023", "2023-02"),
    ("hmmt24", "HMMT February 2024", "hmmt_feb_2024", "2024-02"),
    ("hmmt25", "HMMT February 2025", "hmmt_feb_2025", "2025-02"),
    ("hmmt25_nov", "HMMT November 2025", "hmmt_nov_2025", "2025-11"),
    ("hmmt26", "HMMT February 2026", "hmmt_feb_2026", "2026-02"),
    ("brumo25", "BRUMO 2025", "brumo_2025", "2025-04"),
    ("apex25", "Apex 2025, the hardest problems of that year's competitions", "apex_2025", "2025-08"),
)
# The instructions of DeepSeekMath's evaluation (arXiv:2402.03300) and of MathArena's, one per language.
_ENGLISH = {"instruction": r"Please reason step by step, and put your final answer within \boxed{}."}
_CHINESE = {"instruction": r"请通过逐步推理来解答问题，并把最终答案放置于\boxed{}中。"}
_FEW_SHOT = {"template": "question_answer", "system": None, "instruction": None}
# Multiple choice and cloze of AGIEval (arXiv:2304.06364), as published with its own texts around each question.
_CHOICES = RowShape(prompt_key="query", answer_key="gold", choices_key="choices")
_AGIEVAL = (
    ("sat_math", "SAT mathematics (AGIEval), multiple choice", "sat-math", _CHOICES, _ENGLISH),
    ("aqua_rat", "AQuA-RAT (AGIEval), multiple choice", "aqua-rat", _CHOICES, _ENGLISH),
    ("gaokao_mathqa", "Gaokao mathematics (AGIEval), multiple choice, Chinese", "gaokao-mathqa", _CHOICES, _CHINESE),
    ("gaokao_mathcloze", "Gaokao mathematics (AGIEval), cloze, Chinese", "gaokao-mathcloze",
     RowShape(prompt_key="query"), _CHINESE),
    ("agieval_math", "AGIEval's 1,000 problems of MATH", "math", RowShape(prompt_key="query"), _ENGLISH),
)  # fmt: skip
# The subjects that MMLU's authors count as STEM (arXiv:2009.03300).
_STEM = (
    "abstract_algebra", "astronomy", "college_biology", "college_chemistry", "college_computer_science",
    "college_mathematics", "college_physics", "computer_security", "conceptual_physics", "electrical_engineering",
    "elementary_mathematics", "high_school_biology", "high_school_chemistry", "high_school_computer_science",
    "high_school_mathematics", "high_school_physics", "high_school_statistics", "machine_learning",
)  # fmt: skip
_MMLU = RowShape(choices_key="choices", subject_key="subject")
_BBH = (
    "boolean_expressions", "causal_judgement", "date_understanding", "disambiguation_qa", "dyck_languages",
    "formal_fallacies", "geometric_shapes", "hyperbaton", "logical_deduction_five_objects",
    "logical_deduction_seven_objects", "logical_deduction_three_objects", "movie_recommendation",
    "multistep_arithmetic_two", "navigate", "object_counting", "penguins_in_a_table",
    "reasoning_about_colored_objects", "ruin_names", "salient_translation_error_detection", "snarks",
    "sports_understanding", "temporal_sequences", "tracking_shuffled_objects_five_objects",
    "tracking_shuffled_objects_seven_objects", "tracking_shuffled_objects_three_objects", "web_of_lies",
    "word_sorting",
)  # fmt: skip


@dataclass(frozen=True)
class NamedSource:
    """A public problem set.

    `splits` maps the split names of mathrl to those of the hub; `evaluation` is the split of benchmarks; local
    files are `<stem>_<split>` with any known suffix, for each stem, in the data folder. `released` is the month in
    which the problems became public: a model that is older cannot have been trained on them. `prompt` is how the set
    is usually asked, as values of section prompt; its worked examples are the first of the train split of `examples`.
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
    prompt: Mapping[str, Any] = field(default_factory=dict)
    examples: str = ""


_ALL = (
    NamedSource("gsm8k", "GSM8K, grade-school word problems", "openai/gsm8k", {"train": "train", "test": "test"},
          (NORMALISED, _GSM8K), "MIT", ("gsm8k", "gsm8k_openai"), subset="main",
          released="2021-10", prompt={**_FEW_SHOT, "few_shot": 8}, examples="gsm8k"),
    NamedSource("math", "MATH, competition problems in 5 levels", "DigitalLearningGmbH/MATH-lighteval",
          {"train": "train", "test": "test"}, (NORMALISED, _MATH), "MIT", ("math", "hendrycks_math"),
          note="DAPO-17k holds 972 of its test questions",
          released="2021-03", prompt={**_FEW_SHOT, "few_shot": 4}, examples="math"),
    NamedSource("math500", "MATH-500, the part of MATH test that PRM800K held out", "HuggingFaceH4/MATH-500",
          {"test": "test"}, (NORMALISED, RowShape(prompt_key="problem", solution_key="solution",
          id_key="unique_id", level_key="level", subject_key="subject")), "MIT", ("math500", "math_500"),
          released="2021-03", prompt={**_FEW_SHOT, "few_shot": 4}, examples="math"),
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
          released="2024-02", prompt=_ENGLISH),
    *(NamedSource(f"aime{year % 100}", f"AIME {year} I and II", "gneubig/aime-1983-2024", {"test": "train"},
            (NORMALISED, RowShape(prompt_key="Question", answer_key="Answer", id_key="ID", keep={"Year": year})),
            "CC0-1.0 on the hub, problems (c) MAA: measure only", (f"aime{year % 100}", f"aime_{year}"),
            released=f"{year}-02", prompt=_ENGLISH)
      for year in (2021, 2022, 2023)),
    *(NamedSource(name, title, f"MathArena/{id}", {"test": "train"}, (NORMALISED, _ARENA),
            "CC-BY-NC-SA-4.0: measure only", (name, id), released=released, prompt=_ENGLISH)
      for name, title, id, released in _MATHARENA),
    NamedSource("amc23", "AMC 12 2023, whole-number answers", "math-ai/amc23", {"test": "test"},
          (NORMALISED, _PROBLEM), "problems (c) MAA: measure only", ("amc23", "amc_2023"),
          released="2023-11", prompt=_ENGLISH),
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
          released="2023-06", prompt=_CHINESE),
    *(NamedSource(f"mgsm_{lang}", f"MGSM, GSM8K in other languages ({lang})", "juletxara/mgsm", {"test": "test"},
            (NORMALISED, RowShape(answer_key="answer_number")), "CC-BY-SA-4.0", (f"mgsm_{lang}",), subset=lang,
            released="2022-10", prompt=_CHINESE if lang == "zh" else {})
      for lang in ("bn", "de", "en", "es", "fr", "ja", "ru", "sw", "te", "th", "zh")),
    NamedSource("gpqa_diamond", "GPQA diamond, multiple choice", "Idavidrein/gpqa", {"test": "train"},
          (RowShape("multiple_choice", prompt_key="Question", answer_key="Correct Answer"), NORMALISED),
          "CC-BY-4.0", ("gpqa_diamond",), subset="gpqa_diamond",
          note="gated: accept its terms on the hub first",
          released="2023-11"),
    *(NamedSource(name, title, f"hails/agieval-{id}", {"test": "test"}, (NORMALISED, shape), "MIT",
            (name, f"agieval_{id.replace('-', '_')}"), released="2023-04", prompt=prompt)
      for name, title, id, shape, prompt in _AGIEVAL),
    NamedSource("mmlu", "MMLU, 57 subjects, multiple choice", "cais/mmlu", {"test": "test", "dev": "validation"},
          (_MMLU, NORMALISED), "MIT", ("mmlu",), subset="all", released="2020-09", prompt=_ENGLISH),
    NamedSource("mmlu_stem", "MMLU, the 18 subjects of STEM, multiple choice", "cais/mmlu", {"test": "test"},
          (replace(_MMLU, keep={"subject": _STEM}), NORMALISED), "MIT", ("mmlu_stem", "mmlu"), subset="all",
          released="2020-09", prompt=_ENGLISH),
    NamedSource("ifeval", "IFEval, instructions that a program can check", "google/IFEval", {"test": "train"},
          (RowShape("ifeval", prompt_key="prompt", answer_key="instruction_id_list"),), "Apache-2.0", ("ifeval",),
          released="2023-11"),
    *(NamedSource(f"bbh_{task}", f"BIG-Bench Hard, {task.replace('_', ' ')}", "lukaemon/bbh", {"test": "test"},
            (NORMALISED, RowShape(prompt_key="input", answer_key="target")), "MIT", (f"bbh_{task}",), subset=task,
            released="2022-10")
      for task in _BBH),
    NamedSource("countdown", "Countdown, 3 to 4 numbers", "Jiayi-Pan/Countdown-Tasks-3to4", {"train": "train"},
          (RowShape("countdown", prompt_key="nums", answer_key="target"), NORMALISED), "MIT",
          ("countdown", "countdown_3to4"), evaluation=None),
)  # fmt: skip
REGISTRY = {named.name: named for named in _ALL}
# What `mathrl compare --forgetting` asks where no benchmark is named.
GENERAL = ("mmlu", "ifeval", *(f"bbh_{task}" for task in _BBH))


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
        raise UserError(
            f"no benchmark {name!r}{hint}; known: test (the curated split), {', '.join(names)}; or a file of problems "
            "(.jsonl, .parquet, .csv), or a hub set as owner/name:config:split"
        )
    return named
