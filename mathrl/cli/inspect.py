"""`mathrl inspect`: what a file of problems holds, before anything is made of it, as text, JSON or one HTML page."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import wrap
from typing import Annotated, Any

import typer

from mathrl.cli.output import AsJson, print_document, print_table
from mathrl.core.environment import Variable
from mathrl.core.errors import UserError
from mathrl.core.files import encodable, write_text
from mathrl.curation.inspection import GATE, Inspection, Prompting, inspect_rows
from mathrl.curation.quality import DESCRIPTIONS
from mathrl.params.load import validate_section
from mathrl.params.messages import did_you_mean
from mathrl.params.run import Prompt
from mathrl.reports.pictures import render

KEYS = (
    "format",
    "prompt_key",
    "answer_key",
    "solution_key",
    "id_key",
    "level_key",
    "subject_key",
    "pass_rate_key",
    "choices_key",
    "answer_rule",
)
# The languages of published problem sets other than English.
NAMES = {"zh": "Chinese", "ja": "Japanese", "ko": "Korean", "ru": "Russian", "de": "German", "fr": "French",
         "es": "Spanish", "it": "Italian", "pt": "Portuguese", "pl": "Polish", "tr": "Turkish", "vi": "Vietnamese",
         "ar": "Arabic", "hi": "Hindi", "bn": "Bengali", "th": "Thai", "sw": "Swahili", "te": "Telugu"}  # fmt: skip
CHINESE_INSTRUCTION = r"'请逐步推理，并将最终答案放在 \boxed{} 中。'"
LINES = 12  # of a prompt on the screen

ONE_TEMPLATE = (
    "most rows share half of their words with others, 10 in a row; with one_template: true they are compared with the "
    "test problems of other sources alone"
)


def inspect(
    file: Annotated[
        Path, typer.Argument(help="A file, a folder of files, or a quoted pattern such as 'data/*.parquet'.")
    ],
    field: Annotated[
        list[str] | None, typer.Option(help="A field by name instead of a guess, e.g. answer_key=gold; repeatable.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Model folder or hub id: prompts by its chat template, lengths in its tokens.")
    ] = None,
    template: Annotated[
        str | None, typer.Option(help="plain, boxed, r1_zero or chat; default: the one that suits the model.")
    ] = None,
    benchmarks: Annotated[
        Path | None, typer.Option(help="Folder with files of benchmarks to compare with; default: $MATHRL_DATA.")
    ] = None,
    limit: Annotated[int, typer.Option(min=0, help="Maximum number of rows (seeded choice); 0: all.")] = 50_000,
    html: Annotated[Path | None, typer.Option(help="Also write an HTML page to this file.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show what a file of problems holds: fields, faults, answers, languages, lengths, overlaps, and how to use it."""
    keys = given_keys(field or ())
    prompting = prompting_of(model, template)
    folder = benchmarks or (Path(default) if (default := Variable.DATA.get()) else None)
    data_folder = str(folder.expanduser().absolute()) if folder else None
    path = file.expanduser().resolve()
    inspection = inspect_rows(path, keys, prompting, limit=limit or None, data_folder=data_folder)
    if html is not None:
        write_text(html, inspection_page(inspection, file.name))
    if as_json:
        print_document(_document(inspection, html))
        return
    show(inspection, model)
    print("\nThe section for params/curate.yaml or a preset:\n")
    print(inspection.section, end="")
    if html is not None:
        print(f"\npage: {html}")


def _document(inspection: Inspection, page: Path | None) -> dict[str, Any]:
    sniffed = inspection.sniffed
    kept = ["rows", "looked_at", "usable", "bad", "duplicates", "conflicts", "readings", "unread", "languages"]
    kept += ["prompts", "solutions", "levels", "subjects", "overlaps", "one_template", "missing_benchmarks", "flawed"]
    return {
        "files": inspection.files,
        "fields": {key: getattr(sniffed.shape, key) for key in KEYS if key in sniffed.reasons},
        "reasons": sniffed.reasons,
        "doubts": sniffed.doubts,
        "flaws": {flaw.rule: flaw.rows for flaw in inspection.flaws},
        **{name: getattr(inspection, name) for name in kept},
        "section": inspection.section,
        "page": page,
    }


def given_keys(fields: Sequence[str]) -> dict[str, str]:
    """{"answer_key": "gold"} from ["answer_key=gold"].

    Raises:
        UserError: no "=", or an unknown key.
    """
    keys = {}
    for text in fields:
        key, equals, value = text.partition("=")
        if not equals or key not in KEYS:
            raise UserError(f"--field {text}: write KEY=FIELD{did_you_mean(key, KEYS)}; keys: {', '.join(KEYS)}")
        keys[key] = value
    return keys


def prompting_of(model: str | None, template: str | None) -> Prompting:
    """How the rows are prompted: by the model's chat template if it has one, else by the template boxed. Chat
    lists without a model, and so without its chat template, are shown by their question.

    Raises:
        UserError: no such template, or a model without a tokenizer.
    """
    from mathrl.data.templates import is_chat, prompt_text, render

    if model is None:
        prompt = validate_section(Prompt, {"template": template or "boxed"}, "--template")
        return Prompting(lambda problem: problem.question if is_chat(problem, prompt) else prompt_text(problem, prompt))
    from mathrl.models.load import load_tokenizer  # torch
    from mathrl.planning.project import suited_prompt

    tokenizer = load_tokenizer(model)
    prompt = validate_section(
        Prompt, suited_prompt(tokenizer) | ({"template": template} if template else {}), "--template"
    )
    return Prompting(
        lambda problem: prompt_text(problem, prompt, tokenizer),
        lambda text: len(tokenizer.encode(text, add_special_tokens=False)),
        lambda problem: len(render(problem, prompt, tokenizer)),
    )


def show(inspection: Inspection, model: str | None) -> None:
    """Print the inspection as one screen after the other: fields, faults, answers, texts and examples."""
    sniffed, looked = inspection.sniffed, inspection.looked_at
    files = f"{len(inspection.files)} files" if len(inspection.files) > 1 else inspection.files[0].name
    part = "" if looked == inspection.rows else f"; {looked:,} of them, chosen by a seed, were looked at"
    print(f"{files}: {inspection.rows:,} rows{part}\n")
    keys: Mapping[str, Any] = {key: getattr(sniffed.shape, key) for key in KEYS if key in sniffed.reasons}
    rows = [{"key": key, "field": str(value), "why": sniffed.reasons[key]} for key, value in keys.items()]
    print_table("What was taken for what (change it with --field KEY=NAME)", rows, ("key", "field", "why"))
    for doubt in sniffed.doubts:
        print(f"note: {doubt}")
    _faults(inspection)
    _answers(inspection)
    _flaws(inspection)
    _texts(inspection, model)
    for number, example in enumerate(inspection.examples, start=1):
        prompt = [part for line in encodable(example.prompt).splitlines() for part in wrap(line, 150) or [""]]
        print(f"\nprompt {number} of {len(inspection.examples)}: {encodable(example.id)}")
        print("\n".join(f"  | {line}" for line in prompt[:LINES]))
        if len(prompt) > LINES:
            print(f"  | … {len(prompt) - LINES} more lines")
        solution = f"; solution of {len(example.solution):,} characters" if example.solution else "; no solution"
        print(f"  graded against: {encodable(' or '.join(example.answers))[:160]}{solution}")


def _faults(inspection: Inspection) -> None:
    looked = inspection.looked_at
    print(
        f"\nfaults: unusable rows {inspection.bad.total():,}, repeated questions {inspection.duplicates:,}, questions "
        f"with answers that contradict each other {len(inspection.conflicts):,}"
    )
    for reason, count in inspection.bad.most_common(8):
        print(f"  {count:,} of {looked:,}: {encodable(reason)[:160]}")
    for where, reason in inspection.bad_examples[:2]:
        print(f"  for example {where}: {encodable(reason)[:160]}")
    for question, answers, rows in inspection.conflicts[:3]:
        print(f"  contradiction in {rows}: {encodable(' '.join(question.split()))[:80]} — {encodable(answers)[:120]}")


def _answers(inspection: Inspection) -> None:
    total = inspection.readings.total()
    shares = ", ".join(f"{kind} {count / total:.1%}" for kind, count in inspection.readings.most_common())
    print(f"\nanswers as the grader reads them: {shares}")
    for where, answer in inspection.unread[:8]:
        print(f"  not parsed, {encodable(where)}: {encodable(' '.join(answer.split()))[:120]}")
    if len(inspection.unread) > 8:
        print(f"  … and {len(inspection.unread) - 8:,} more (--html FILE lists all)")
    if advice := unread_advice(inspection):
        print(f"  {advice}")


def unread_advice(inspection: Inspection) -> str:
    """What to do where the grader reads most answers as nothing; empty where it does not."""
    share = len(inspection.unread) / max(1, inspection.readings.total())
    if share <= 0.5:
        return ""
    return (
        f"the grader cannot compare {share:.0%} of the answers, so no response to these could be right: name the field "
        "with the final answer (--field answer_key=FIELD), or let a model compare (reward.model_verifier)"
    )


def _flaws(inspection: Inspection) -> None:
    if not inspection.flaws:
        print("quality: no row breaks a rule of curate.quality")
        return
    print(
        f"\nquality: {inspection.flawed:,} of {len(inspection.problems):,} rows break a rule of curate.quality "
        "and would be dropped"
    )
    for flaw in inspection.flaws:
        question = encodable(" ".join(flaw.example.question.split()))
        shown = question if len(question) <= 100 else f"{question[:60]} … {question[-40:]}"
        answer = encodable(" or ".join(flaw.example.answers))[:40]
        why = "most rows are so: this rule is left out of the section" if flaw.rule in GATE.drop else "only reported"
        kept = "" if flaw.drops else f" ({why})"
        print(f"  {flaw.rule} {flaw.rows:,}: {DESCRIPTIONS[flaw.rule]}{kept}")
        print(f"    for example {encodable(flaw.example.id)}: {shown} (answer: {answer})")


def _instruction_note(inspection: Inspection) -> str:
    """What to say where most questions are in one language and the instruction beside them in English."""
    from mathrl.data.templates import BOXED_INSTRUCTION  # transformers: --help answers without it

    language, count = inspection.languages.most_common(1)[0]
    share = count / len(inspection.problems)
    prompted = any(BOXED_INSTRUCTION in example.prompt for example in inspection.examples)
    if not prompted or share < 0.5 or language not in NAMES:
        return ""
    key = "prompt.system or prompt.instruction"
    wording = f", such as {CHINESE_INSTRUCTION}" if language == "zh" else f" in {NAMES[language]}"
    return (
        f"{share:.0%} of the questions are in {NAMES[language]}, and the instruction of each prompt is English: a "
        f"model may answer in English. To change it, write your own instruction into {key}{wording}"
    )


def _texts(inspection: Inspection, model: str | None) -> None:
    total = len(inspection.problems)
    spoken = [(name, n / total) for name, n in inspection.languages.most_common() if n >= 0.005 * total]
    others = 1 - sum(share for _, share in spoken)
    named = [f"{name} {share:.1%}" for name, share in spoken]
    print("languages: " + ", ".join([*named, *([f"others {others:.1%}"] if others > 1e-9 else [])]))
    if note := _instruction_note(inspection):
        print(f"note: {note}")
    for name, lengths in (("prompts", inspection.prompts), ("solutions", inspection.solutions)):
        if lengths is not None:
            print(
                f"{name}: {lengths.median:,.0f} {lengths.unit} (median), 95% up to {lengths.p95:,.0f}, the longest "
                f"{lengths.longest:,} ({lengths.texts:,} texts)"
            )
    if model is None:
        print("  (--model FOLDER_OR_HUB_ID counts in its tokens and prompts by its chat template)")
    for name, counts in (("levels", inspection.levels), ("subjects", inspection.subjects)):
        if counts:
            ordered = sorted(counts.items()) if name == "levels" else counts.most_common(8)
            print(f"{name}: " + ", ".join(f"{key} {count:,}" for key, count in ordered[:12]))
    for overlap in inspection.overlaps:
        if overlap.equal or overlap.near:
            print(
                f"overlap with {overlap.benchmark} ({overlap.questions:,} questions): {overlap.equal:,} rows equal "
                f"one, decontamination drops {overlap.near:,} more"
            )
    if inspection.one_template:
        print(f"template: {ONE_TEMPLATE}")
    clean = [o.benchmark for o in inspection.overlaps if not (o.equal or o.near)]
    if clean:
        print(f"no overlap with: {', '.join(clean)}")
    if missing := inspection.missing_benchmarks:
        names = ", ".join(missing[:4]) + (f" and {len(missing) - 4} more" if len(missing) > 4 else "")
        print(f"not compared, since their files are not in --benchmarks or $MATHRL_DATA: {names}")


def inspection_page(inspection: Inspection, title: str) -> str:
    """The page about a file of problems."""
    sniffed = inspection.sniffed
    return encodable(
        render(
            "inspection.html",
            title=title,
            inspection=inspection,
            descriptions=DESCRIPTIONS,
            one_template=ONE_TEMPLATE,
            keys=[(key, getattr(sniffed.shape, key), reason) for key, reason in sniffed.reasons.items()],
            readings=[(kind, n, n / inspection.readings.total()) for kind, n in inspection.readings.most_common()],
            languages=[(name, n, n / len(inspection.problems)) for name, n in inspection.languages.most_common(12)],
            lengths=[("prompts", inspection.prompts), ("solutions", inspection.solutions)],
            groups=[("level", sorted(inspection.levels.items())), ("subject", inspection.subjects.most_common(30))],
        )
    )
