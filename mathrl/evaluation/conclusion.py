"""What the tests of a claim say, in sentences: against which controls it stands, does not, or is not shown."""

from mathrl.core.results import BenchmarkResults, Comparison


def conclusion(results: BenchmarkResults) -> list[str]:
    """One sentence for the claim without controls, one per control, and one for what is left of the claim.

    `results` are those of `mathrl.evaluation.claim.claim_results`: the first model is the start, the last the model.
    """
    start, *controls, model = results.models
    tests = results.comparisons
    gain = tests[f"{start}_to_{model}"]
    if not (gain.shown and gain.difference > 0):
        return [f"nothing to claim: {gain.verdict()}"]
    lines = [f"without controls the claim would be that training raises accuracy by {_figures(gain)}"]
    stands, better, unclear = list[str](), list[str](), list[str]()
    for control in controls:
        control_gain, model_gain = tests[f"{start}_to_{control}"], tests[f"{control}_to_{model}"]
        (unclear if not model_gain.shown else stands if model_gain.difference > 0 else better).append(control)
        lines.append(f"{control}: {_own_effect(start, control_gain)}; {_describe_difference(model, model_gain)}")
    if better:
        lines.append(f"the claim does not stand against {', '.join(better)}: better than {model}")
    if unclear:
        lines.append(
            f"the claim is not shown against {', '.join(unclear)}: no difference from {model} is shown, corrected for "
            f"{len(tests)} tests, which is not the same as equal; more seeds or problems narrow the intervals"
        )
    if stands:
        lines.append(f"the claim stands against {', '.join(stands)}")
    return lines


def _own_effect(start: str, test: Comparison) -> str:
    if not test.shown:
        return f"no difference shown from {start} ({_figures(test)})"
    return f"{'better' if test.difference > 0 else 'worse'} than {start} by {_figures(test)}"


def _describe_difference(model: str, test: Comparison) -> str:
    if not test.shown:
        return f"no difference shown from {model} ({_figures(test)})"
    return f"{model} is {'better' if test.difference > 0 else 'worse'} by {_figures(test)}"


def _figures(test: Comparison) -> str:
    figures = f"{test.difference:+.3f} [{test.low:+.3f}, {test.high:+.3f}]"
    if test.shown or test.corrected_p is None or test.low <= 0 <= test.high:
        return figures
    return f"{figures}, corrected p = {test.corrected_p:.2g}"  # the interval alone leaves out 0
