"""The documents of the commands that evaluate, compare, look at runs, and work on data and the registry."""

from typing import Annotated, Any, TypedDict


class EvaluateDocument(TypedDict):
    """`mathrl evaluate`"""

    benchmark: Annotated[str, "Name of the benchmark."]
    models: Annotated[dict[str, Any], "Figures of the model, and with --tools of the model with the tool."]
    outputs: Annotated[dict[str, str], "Their folders, from the project's."]
    probe: Annotated[dict[str, Any] | None, "With --probe: scores, and why one is missing."]


class EvaluationsDocument(TypedDict):
    """`mathrl evaluate` on several benchmarks"""

    evaluations: Annotated[list[EvaluateDocument], "The document of each benchmark, in their order."]


class VaryDocument(TypedDict):
    """`mathrl evaluate --vary`"""

    model: Annotated[str, "The model."]
    benchmark: Annotated[str, "Name of the benchmark."]
    settings: Annotated[list[dict[str, Any]], "Per setting: its figures, folder, and comparison with the first."]


class CompareDocument(TypedDict):
    """`mathrl compare`"""

    benchmark: Annotated[str, "Name of the benchmark."]
    metric: Annotated[str, "What is compared, pass_at_1."]
    problems: Annotated[int, "Problems that all runs answered."]
    models: Annotated[dict[str, Any], "Figures of both, by name: runs, mean, low, high, samples, pass_at_K, …"]
    comparison: Annotated[dict[str, Any], "difference, low, high, p_value, detectable, shown, verdict, …"]
    by_level: Annotated[dict[str, Any], "The same within each level."]
    by_subject: Annotated[dict[str, Any], "The same within each subject."]


class ForgettingDocument(TypedDict):
    """`mathrl compare --forgetting`"""

    benchmarks: Annotated[
        list[dict[str, Any]], "Per benchmark the document of `mathrl compare`, with corrected_p and outcome."
    ]


class LooksDocument(TypedDict):
    """`mathrl compare --looks`"""

    before: Annotated[str, "Name of A."]
    after: Annotated[str, "Name of B."]
    problems: Annotated[int, "Problems that were evaluated until it was clear."]
    difference: Annotated[float, "B - A."]
    low: Annotated[float, "Lower bound at the look's level."]
    high: Annotated[float, "Upper bound."]
    p_value: Annotated[float, "Two-sided."]
    detectable: Annotated[float, "Smallest difference that is shown with 80 % power."]
    shown: Annotated[bool, "Whether a difference is shown."]
    before_runs: int
    after_runs: int
    by_seed: bool
    corrected_p: float | None
    verdict: Annotated[str, "The verdict in a sentence."]


class GradeDocument(TypedDict):
    """`mathrl grade`"""

    rows: Annotated[int, "Graded rows."]
    correct: Annotated[int, "Correct ones."]
    output: Annotated[str, "The file with the verdicts."]
    response_key: Annotated[str, "The field that was read as response."]
    answer_key: Annotated[str, "The field that was read as true answer."]


class SecondOpinionDocument(TypedDict):
    """`mathrl grade RUN`"""

    rollouts: Annotated[int, "Rollouts of the run."]
    graded: Annotated[int, "Those whose true answer is known."]
    accepted_wrong: Annotated[int, "Responses that their reward accepts and our verifier finds wrong."]
    rejected_right: Annotated[int, "Responses that their reward rejects and our verifier finds right."]
    disagreement: Annotated[float | None, "Share of graded responses on which both disagree."]
    reward_for_wrong: Annotated[float | None, "Share of the positive reward that is for wrong answers."]
    cases: Annotated[list[dict[str, Any]], "The 20 cases to read first."]


class ImportDocument(TypedDict):
    """`mathrl import`"""

    record: Annotated[str, "Name of the record, which the other commands accept."]
    folder: Annotated[str, "Folder of the record."]
    trainer: Annotated[str, "The trainer, empty if unknown."]
    steps: Annotated[int, "Steps with metrics."]
    metrics: Annotated[list[str], "Names of metrics, ours and theirs."]
    rollouts: Annotated[int, "Rollouts of the run."]
    graded: Annotated[int, "Those whose true answer is known."]
    disagreement: Annotated[float | None, "Share of graded responses on which their reward and our verifier disagree."]
    reward_for_wrong: Annotated[float | None, "Share of the positive reward that is for wrong answers."]
    missing: Annotated[list[str], "What was not found, and how the trainer is made to write it."]
    not_taken_over: Annotated[list[str], "Their parameters that are in the record under their own names alone."]


class AuditDocument(TypedDict):
    """`mathrl runs audit`"""

    false_positives: Annotated[dict[str, float] | None, "Rate with its interval: mean, low, high; null: unknown."]
    false_negatives: Annotated[dict[str, float] | None, "The same."]
    labelled: Annotated[int, "Labelled verdicts."]
    unsure: Annotated[int, "Labels unsure."]
    wrong: Annotated[int, "Verdicts that a person calls wrong."]
    open: Annotated[int, "Sampled responses without a label."]
    folder: Annotated[str, "Folder of the audit, with audit.html."]
    cases: Annotated[int, "Cases that were added to --cases."]


class AlignmentDocument(TypedDict):
    """`mathrl models alignment`"""

    gaps: Annotated[list[dict[str, Any]], "Per pair: first, second, largest, mean, tolerance, alignment, limit, fine."]
    tokens: Annotated[int, "Compared tokens."]
    responses: Annotated[int, "Sampled responses."]
    engine: Annotated[str, "What sampled."]
    dtype: Annotated[str, "In which precision."]
    architecture: Annotated[str, "A sentence on the model."]
    fine: Annotated[bool, "Whether no gap is above its limit; if one is, the exit status is 1."]


class ListedRun(TypedDict):
    """A run."""

    name: Annotated[str, "What is different about it."]
    run: Annotated[str, "Id of its MLflow run."]
    started: Annotated[float, "Unix seconds."]
    status: Annotated[str, "RUNNING, FINISHED, FAILED or KILLED."]
    folder: Annotated[str, "Its folder under runs/; empty: the project's."]
    health: Annotated[str, "The worst of its stages."]
    dev: Annotated[float | None, "Best accuracy on the dev problems."]
    sft: Annotated[float | None, "pass@1 after SFT."]
    rl: Annotated[float | None, "pass@1 after RL."]
    rl_low: Annotated[float | None, "Lower bound of its interval."]
    rl_high: Annotated[float | None, "Upper bound."]
    sampled_tokens: Annotated[float | None, "Tokens that RL sampled."]
    minutes: Annotated[float | None, "How long it took."]


class RunsDocument(TypedDict):
    """`mathrl runs`"""

    runs: Annotated[list[ListedRun], "The runs that MLflow has."]
    worktrees: Annotated[list[dict[str, Any]], "The folders under runs/: folder, run, overrides, made, commit."]


class RemoveDocument(TypedDict):
    """`mathrl runs remove`"""

    removed: Annotated[list[str], "What was removed."]


class AdoptDocument(TypedDict):
    """`mathrl runs adopt`"""

    diff: Annotated[str, "What was changed in params/."]


class HealthDocument(TypedDict):
    """`mathrl runs health`"""

    run: Annotated[str, "Name of the run."]
    colour: Annotated[str, "green, yellow or red (exit status 1)."]
    steps: Annotated[int, "Steps that were judged."]
    findings: Annotated[list[dict[str, Any]], "rule, colour, first, last, evidence, cause, remedy."]
    not_judged: Annotated[list[str], "Rules whose metrics are missing, or for which the run is too short."]


class ReportDocument(TypedDict):
    """`mathrl runs report`"""

    file: Annotated[str, "The HTML file."]
    health: Annotated[str, "green, yellow, red or unknown."]


class LineageDocument(TypedDict):
    """`mathrl models lineage MODEL`"""

    name: Annotated[str, "Name of the registered model."]
    version: Annotated[str, "Its version."]
    digest: Annotated[str, "Digest of its bytes."]
    tags: Annotated[dict[str, str], "Tags of the version, gate.* among them."]
    steps: Annotated[list[dict[str, Any]], "The runs behind it: stage, run, commit, params, inputs, outputs, depth."]
    edges: Annotated[list[list[str]], "maker's run, path, reader's run."]
    unexplained: Annotated[list[list[str]], "reader's run, path, digest of what no run made."]
    gaps: Annotated[list[str], "The same in words; empty: the lineage is complete."]


class LineageForwardDocument(TypedDict):
    """`mathrl models lineage --dataset`"""

    digest: Annotated[str, "Digest of the dataset."]
    steps: Annotated[list[dict[str, Any]], "The runs that read it or what others made of it."]
    models: Annotated[list[dict[str, Any]], "Registered versions: name, version, digest, made (else only measured)."]


class SyncDocument(TypedDict):
    """`mathrl runs sync`"""

    complete: Annotated[int, "Runs that MLflow has completely."]


class SourcesDocument(TypedDict):
    """`mathrl data sources`"""

    sources: Annotated[list[dict[str, Any]], "name, title, hub, splits, released, licence, evaluation."]


class DecontaminateDocument(TypedDict):
    """`mathrl data decontaminate`"""

    rows: Annotated[int, "Training rows."]
    kept: Annotated[int, "Clean rows."]
    dropped: Annotated[int, "Dropped rows."]
    hits: Annotated[int, "Rows with a hit, also a weak one."]
    ngram: Annotated[int, "Length of a shared n-gram, in words."]
    min_share: Annotated[float, "Share from which a hit is dropped."]
    evaluation_texts: Annotated[int, "Evaluation texts."]
    too_short: Annotated[int, "Evaluation texts that are too short for an n-gram."]
    hits_by_file: Annotated[dict[str, int], "Dropped rows by evaluation file."]
    output: Annotated[str, "File of the clean rows."]
    report: Annotated[str, "File of the hits."]


class DecideDocument(TypedDict):
    """`mathrl data decide`"""

    undecided: Annotated[int, "Doubtful hits without a decision."]
    added: Annotated[int, "Decisions that were added."]
    decisions: Annotated[str, "File of the decisions."]


class ExportDocument(TypedDict):
    """`mathrl data export`"""

    rows: Annotated[int, "Rows that were written."]
    output: Annotated[str, "The file."]
    format: Annotated[str, "verl or rlinf."]


class PushDocument(TypedDict):
    """`mathrl models push`"""

    repository: Annotated[str, "The repository of the hub, OWNER/NAME."]
    url: Annotated[str, "Address of the commit."]
    files: Annotated[list[str], "What it has now of this model."]


class ReproduceDocument(TypedDict):
    """`mathrl models reproduce`"""

    name: Annotated[str, "Name of the registered model."]
    version: Annotated[str, "Its version."]
    digest: Annotated[str, "Digest of its bytes."]
    commit: Annotated[str, "Commit of the clone."]
    sections: Annotated[dict[str, Any], "Parameters that every stage ran with."]
    stages: Annotated[list[dict[str, Any]], "Per stage: expected and found digests, outcome, seconds."]
    environment: Annotated[dict[str, str], "Python, packages, processor, user."]
    notes: Annotated[list[str], "What to know of the lineage."]
    verdict: Annotated[str, "The verdict in a sentence."]
    same: Annotated[bool, "Whether no output differs; if one does, the exit status is 1."]
    first_difference: Annotated[str | None, "The first stage that differs."]
    page: Annotated[str, "The certificate's page."]


class PromoteDocument(TypedDict):
    """`mathrl models promote`"""

    promoted: Annotated[bool, "Whether it is champion now; if not, the exit status is 1."]
    decision: Annotated[str, "The decision with its reasons."]


class RollbackDocument(TypedDict):
    """`mathrl models rollback`"""

    decision: Annotated[str, "Which version is champion again."]
