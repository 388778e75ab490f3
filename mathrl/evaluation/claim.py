"""The table of a claim: what training reached, beside controls that reach it, or not, without what is claimed."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from mathrl.core.results import BenchmarkResults, Comparison, ModelFigures
from mathrl.evaluation.compare import holm
from mathrl.evaluation.runs import Values, compare_runs
from mathrl.evaluation.summary import Rows, accuracies, interval_over, responses_behind, summarise_seeds, values_of
from mathrl.params.evaluate import Evaluate
from mathrl.params.recipe_steps import Claim

Evaluations = Mapping[str, Mapping[str, Sequence[Rows]]]  # evaluate step → model → runs


def claim_results(evaluations: Evaluations, claim: Claim, settings: Evaluate) -> BenchmarkResults:
    """The start, each control and the model, and the tests of start → control, control → model and start → model.

    Controls are the other models of the evaluations but those `apart`, and the best of k: the start's majority vote
    over k of its samples. A test is shown only by its p-value corrected for all of them (Holm). All steps of a
    recipe have its seeds, so the runs are paired by seed.

    Example: models sft, random, form, thinking, best_of_8, rl; comparisons sft_to_rl, sft_to_random, random_to_rl, …
    """
    first, *others = claim.evaluations
    models = {model: runs for model, runs in evaluations[first].items() if model not in claim.apart}
    for step in others:
        for model, runs in evaluations[step].items():
            name = model if model not in models else f"{step}_{model}"
            models[step if len(evaluations[step]) == 1 else name] = runs
    start_runs, model_runs = models.pop(claim.start), models.pop(claim.model)
    figures = {claim.start: summarise_seeds(start_runs, settings)}
    values = {name: [accuracies(run) for run in runs] for name, runs in models.items()}
    responses = {name: responses_behind(runs) for name, runs in models.items()}
    figures |= {name: summarise_seeds(runs, settings) for name, runs in models.items()}
    k = max((k for k in figures[claim.start].maj_at_k), default=1)
    if k > 1:
        votes = [values_of(run, f"maj_at_{k}") for run in start_runs]
        values[f"best_of_{k}"] = votes
        responses[f"best_of_{k}"] = responses_behind(start_runs, f"maj_at_{k}")
        figures[f"best_of_{k}"] = _vote_figures(figures[claim.start], votes, k, settings)
    figures[claim.model] = summarise_seeds(model_runs, settings)
    for name, runs in ((claim.start, start_runs), (claim.model, model_runs)):
        values[name], responses[name] = [accuracies(run) for run in runs], responses_behind(runs)
    return BenchmarkResults(figures, _tests(values, responses, list(figures), settings))


def _vote_figures(start: ModelFigures, votes: Sequence[Values], k: int, settings: Evaluate) -> ModelFigures:
    """The figures of the start's majority vote over k samples; k responses are sampled for an answer."""
    return replace(
        start,
        pass_at_k={1: interval_over(votes, settings)},
        maj_at_k={},
        response_length=k * start.response_length,
        response_length_low=None,
        response_length_high=None,
    )


def _tests(
    values: Mapping[str, Sequence[Values]], responses: Mapping[str, float], order: Sequence[str], settings: Evaluate
) -> dict[str, Comparison]:
    """The tests by name; the first of `order` is the start, the last the model."""
    start, *controls, model = order
    pairs = [(start, model)]
    for control in controls:
        pairs += [(start, control), (control, model)]
    tests = [
        compare_runs(
            before,
            after,
            values[before],
            values[after],
            responses=(responses[before], responses[after]),
            by_seed=len(values[before]) == len(values[after]),
            confidence=settings.confidence,
        )
        for before, after in pairs
    ]
    corrected = holm([test.p_value for test in tests])
    return {
        f"{before}_to_{after}": replace(test, corrected_p=p, shown=p < 1 - settings.confidence)
        for (before, after), test, p in zip(pairs, tests, corrected, strict=True)
    }
