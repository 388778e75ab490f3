"""The documents that commands print with --json, a type per command; tools/json_reference.py writes a page from them.

A field may be added in any release; none is renamed, removed or given another type without a notice in the changelog.
Shares are from 0 to 1, times in seconds, lengths in tokens, folders absolute where nothing else is said.
"""

from typing import Annotated, Any, NotRequired, TypedDict

from mathrl.cli.result_documents import (
    AdoptDocument,
    AlignmentDocument,
    AuditDocument,
    CompareDocument,
    DecideDocument,
    DecontaminateDocument,
    EvaluateDocument,
    EvaluationsDocument,
    ExportDocument,
    ForgettingDocument,
    GradeDocument,
    HealthDocument,
    ImportDocument,
    LineageDocument,
    LineageForwardDocument,
    LooksDocument,
    PromoteDocument,
    PushDocument,
    RemoveDocument,
    ReportDocument,
    ReproduceDocument,
    RollbackDocument,
    RunsDocument,
    SecondOpinionDocument,
    SourcesDocument,
    SyncDocument,
    VaryDocument,
)


class ErrorDocument(TypedDict):
    """A command that ended with exit status 2."""

    error: Annotated[str, "What is wrong, where, and what to write instead; the line that stderr has too."]


class InitDocument(TypedDict):
    """`mathrl init`"""

    project: Annotated[str, "Folder of the project."]
    sections: Annotated[dict[str, Any], "The parameters that were chosen, by section."]
    warning: Annotated[str, "What is wrong with most of the answers; empty: nothing."]
    next: Annotated[str, "The next command."]


class InspectDocument(TypedDict):
    """`mathrl inspect`"""

    files: Annotated[list[str], "The files that were read."]
    rows: Annotated[int, "Rows of all files."]
    looked_at: Annotated[int, "Rows that were looked at."]
    usable: Annotated[int, "Different good problems of the whole file, as the rows that were looked at let expect."]
    fields: Annotated[dict[str, str | None], "What was taken for what: {answer_key: gold}."]
    reasons: Annotated[dict[str, str], "Why, by the same keys."]
    doubts: Annotated[list[str], "What a person should look at."]
    bad: Annotated[dict[str, int], "Unusable rows by reason."]
    duplicates: Annotated[int, "Repeated questions."]
    conflicts: Annotated[list[list[str]], "Questions with answers that contradict each other: question, answers, rows."]
    readings: Annotated[dict[str, int], "Answers by what the grader reads them as."]
    unread: Annotated[list[list[str]], "Answers that the grader cannot compare: row, answer."]
    languages: Annotated[dict[str, int], "Questions by language."]
    prompts: Annotated[dict[str, Any], "Lengths of prompts: unit, median, p95, longest, texts."]
    solutions: Annotated[dict[str, Any] | None, "The same of solutions; null: there are none."]
    levels: Annotated[dict[str, int], "Questions by level."]
    subjects: Annotated[dict[str, int], "Questions by subject."]
    overlaps: Annotated[list[dict[str, Any]], "Per benchmark: its questions, rows equal to one, rows near one."]
    missing_benchmarks: Annotated[list[str], "Benchmarks whose files are not here."]
    flaws: Annotated[dict[str, int], "Rows by the rule of curate.quality that they break."]
    flawed: Annotated[int, "Rows that break a rule."]
    one_template: Annotated[bool, "Whether most rows are written from one template, which decontamination would drop."]
    section: Annotated[str, "The section for params/curate.yaml, as YAML."]
    page: Annotated[str | None, "The HTML page of --html."]


class Finding(TypedDict):
    """A line of `mathrl doctor`."""

    state: Annotated[str, "ok, missing (exit status 1), other, or absent (optional)."]
    subject: Annotated[str, "What was looked at."]
    remedy: Annotated[str, "The command or step that mends it; empty: none is needed."]


class DoctorDocument(TypedDict):
    """`mathrl doctor`"""

    findings: Annotated[list[Finding], "What is installed and what is missing."]


class PlanDocument(TypedDict):
    """`mathrl plan`"""

    fits: Annotated[bool, "Whether every stage fits the hardware; if not, the exit status is 1."]
    verdict: Annotated[list[str], "Whether each stage fits, the time, and the next command, a sentence each."]
    warnings: Annotated[list[str], "Doubtful parameters."]
    details: Annotated[str, "Memory by part and time by stage, as the terminal shows them."]


class SimulateDocument(TypedDict):
    """`mathrl plan --simulate`"""

    description: Annotated[str, "What the set-up is."]
    gpus: Annotated[int, "GPUs of the set-up."]
    nodes: Annotated[int, "Nodes of the set-up."]
    modes: Annotated[dict[str, dict[str, float]], "Per way to share the GPUs: seconds per step by part, staleness."]


class EvaluationPlan(TypedDict):
    """A row of `mathrl plan evaluate`."""

    samples: Annotated[int, "Responses per problem."]
    problems: Annotated[int | None, "Problems that are enough; null: no number is."]
    reached: Annotated[float | None, "What the known number of problems shows; null: it is not known."]


class PlanEvaluateDocument(TypedDict):
    """`mathrl plan evaluate`"""

    difference: Annotated[float | None, "The difference that must be shown."]
    width: Annotated[float | None, "Or the width of one model's interval."]
    runs: Annotated[int, "Training runs per recipe."]
    problems: Annotated[int | None, "Problems of the benchmark, where they are known."]
    confidence: Annotated[float, "Confidence of the intervals."]
    spread: Annotated[str, "Where the spread was taken from."]
    plans: Annotated[list[EvaluationPlan], "A row per number of responses."]


class RunDocument(TypedDict):
    """`mathrl run`"""

    target: Annotated[str, "The stage, or pipeline."]
    folder: Annotated[str, "Folder with params/, models/ and reports/ of the run."]
    ran: Annotated[bool, "Whether anything had to run."]
    seconds: Annotated[float, "How long the command took."]
    results: Annotated[dict[str, Any] | None, "Of pipeline: reports/summary.json."]
    registered: Annotated[dict[str, Any] | None, "Of pipeline: name, version, alias and digest of the model."]


class Parameter(TypedDict):
    """A value that differs from its default."""

    key: Annotated[str, "Dotted key, rl.steps."]
    value: Annotated[str, "The value as JSON, cut at 96 characters."]
    source: Annotated[str, "Who said so: a group, preset, file, --set, or derived."]


class DryRunDocument(TypedDict):
    """`mathrl run --dry-run`"""

    target: Annotated[str, "The stage, or pipeline."]
    stages: Annotated[list[str], "The stages that lead to the target, and itself."]
    up_to_date: Annotated[list[str], "Those that would be skipped; none where the run has a worktree of its own."]
    composition: Annotated[dict[str, Any], "data, model, method, hardware and presets that apply."]
    parameters: Annotated[list[Parameter], "Values that differ from the defaults."]
    sources: Annotated[list[str], "Sources and benchmarks, a line each."]
    model: Annotated[str, "The model that training starts from."]
    warnings: Annotated[list[str], "Doubtful or idle parameters."]


class RecipeDocument(TypedDict):
    """`mathrl recipe NAME`, `mathrl runs controls`"""

    recipe: Annotated[str, "Name of the recipe."]
    folder: Annotated[str, "Folder with the steps' outputs."]
    seconds: Annotated[float, "How long the command took."]
    results: Annotated[dict[str, Any], "Figures and comparisons, by evaluating step and benchmark."]


class RecipeStep(TypedDict):
    """A step of a recipe."""

    name: Annotated[str, "Name of the step."]
    command: Annotated[str, "The stage that it starts."]
    settings: Annotated[str, "Rates and lengths that it gets."]


class RecipeStepsDocument(TypedDict):
    """`mathrl recipe NAME --dry-run`, `mathrl runs controls --dry-run`"""

    recipe: Annotated[str, "Name of the recipe."]
    description: Annotated[str, "What it is for."]
    steps: Annotated[list[RecipeStep], "The steps in their order."]
    warnings: Annotated[list[str], "Doubtful parameters."]


class ForeignControlsDocument(TypedDict):
    """`mathrl runs controls imported-NAME`"""

    folder: Annotated[str, "Folder with the reward functions and, for verl, the commands."]
    notes: Annotated[list[str], "What was written, and how to run it."]


class ListedRecipe(TypedDict):
    """A recipe."""

    name: Annotated[str, "Name of the recipe."]
    description: Annotated[str, "What it is for."]
    steps: Annotated[list[str], "Names of its steps."]
    misfit: Annotated[str, "Why it cannot run with the project's parameters; empty if it can."]


class RecipesDocument(TypedDict):
    """`mathrl recipe --list`"""

    recipes: Annotated[list[ListedRecipe], "Every recipe of the project."]


class Trial(TypedDict):
    """A trial of a sweep."""

    trial: Annotated[int, "Number; 0 has the present parameters."]
    state: Annotated[str, "complete, ended early, failed, unfinished or waiting."]
    dev: Annotated[float | None, "Accuracy on the dev problems; of a trial that ended early that at its end."]
    seconds: Annotated[float | None, "How long it took."]
    error: Annotated[str | None, "Why it failed."]
    values: Annotated[dict[str, Any], "The searched parameters, by dotted key."]


class StudyDocument(TypedDict):
    """`mathrl sweep run`, `mathrl sweep show`"""

    study: Annotated[str, "Name of the study."]
    folder: Annotated[str, "Folder with its pictures, metrics and logs."]
    trials: Annotated[list[Trial], "The trials, the best first."]
    best: Annotated[int | None, "Number of the best complete trial."]
    comparison: Annotated[dict[str, Any] | None, "As `mathrl sweep compare` last made it."]


class SweepCompareDocument(TypedDict):
    """`mathrl sweep compare`"""

    winner: Annotated[int, "Number of the trial; 0: none was better than the present parameters, and nothing was run."]
    verdict: Annotated[str, "The verdict on test."]
    folder: Annotated[str, "Folder of the study."]
    seeds: NotRequired[Annotated[list[int], "Fresh seeds."]]
    benchmark: NotRequired[Annotated[str, "As of `mathrl compare`, with the next six."]]
    metric: NotRequired[str]
    problems: NotRequired[int]
    models: NotRequired[dict[str, Any]]
    comparison: NotRequired[dict[str, Any]]
    by_level: NotRequired[dict[str, Any]]
    by_subject: NotRequired[dict[str, Any]]


class SweepPromoteDocument(TypedDict):
    """`mathrl sweep promote`"""

    study: Annotated[str, "Name of the study."]
    trial: Annotated[int, "The winner."]
    dev: Annotated[float, "Its accuracy on the dev problems."]
    diff: Annotated[str, "What was changed in params/, for you to commit; empty: nothing."]
    not_written: Annotated[list[str], "Overrides that every trial had and that were not written."]


class FileDocument(TypedDict):
    """`mathrl recipe NAME --graph`, `mathrl launch`"""

    file: Annotated[str, "The file that was written."]
    folder: NotRequired[Annotated[str, "launch: the folder in which the job works."]]
    command: Annotated[str, "The command that runs or submits it."]


# By the words of the command; commands that serve until Ctrl-C have none.
DOCUMENTS: dict[str, tuple[type, ...]] = {
    "init": (InitDocument,),
    "inspect": (InspectDocument,),
    "doctor": (DoctorDocument,),
    "plan": (PlanDocument, SimulateDocument),
    "plan evaluate": (PlanEvaluateDocument,),
    "run": (RunDocument, DryRunDocument),
    "recipe": (RecipeDocument, RecipeStepsDocument, RecipesDocument, FileDocument),
    "sweep run": (StudyDocument,),
    "sweep compare": (SweepCompareDocument,),
    "sweep show": (StudyDocument,),
    "sweep promote": (SweepPromoteDocument,),
    "runs controls": (RecipeDocument, RecipeStepsDocument, ForeignControlsDocument),
    "launch": (FileDocument,),
    "evaluate": (EvaluateDocument, EvaluationsDocument, VaryDocument),
    "compare": (CompareDocument, ForgettingDocument, LooksDocument),
    "grade": (GradeDocument, SecondOpinionDocument),
    "import": (ImportDocument,),
    "runs audit": (AuditDocument,),
    "models alignment": (AlignmentDocument,),
    "runs": (RunsDocument,),
    "runs remove": (RemoveDocument,),
    "runs adopt": (AdoptDocument,),
    "runs health": (HealthDocument,),
    "runs report": (ReportDocument,),
    "models lineage": (LineageDocument, LineageForwardDocument),
    "runs sync": (SyncDocument,),
    "data sources": (SourcesDocument,),
    "data decontaminate": (DecontaminateDocument,),
    "data decide": (DecideDocument,),
    "data export": (ExportDocument,),
    "models push": (PushDocument,),
    "models reproduce": (ReproduceDocument,),
    "models promote": (PromoteDocument,),
    "models rollback": (RollbackDocument,),
}
SERVERS = ("ui", "serve", "watch", "runs rollouts", "sweep dashboard")
