"""What the tests of a claim say, in sentences: against which controls it stands, and against which it does not."""

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
    against: dict[bool, list[str]] = {True: [], False: []}
    for control in controls:
        own, rest = tests[f"{start}_to_{control}"], tests[f"{control}_to_{model}"]
        stands = rest.shown and rest.difference > 0
        against[stands].append(control)
        lines.append(f"{control}: {_own_effect(start, own)}; {_left(model, rest)}")
    if against[False]:
        lines.append(
            f"the claim does not stand against {', '.join(against[False])}: what {model} gained is also had that way"
        )
    if against[True]:
        lines.append(f"the claim stands against {', '.join(against[True])}")
    return lines


def _own_effect(start: str, test: Comparison) -> str:
    if not test.shown:
        return f"no difference shown from {start} ({_figures(test)})"
    return f"{'better' if test.difference > 0 else 'worse'} than {start} by {_figures(test)}"


def _left(model: str, test: Comparison) -> str:
    if not test.shown:
        return f"no difference shown from {model} ({_figures(test)})"
    return f"{model} is {'better' if test.difference > 0 else 'worse'} by {_figures(test)}"


def _figures(test: Comparison) -> str:
    return f"{test.difference:+.3f} [{test.low:+.3f}, {test.high:+.3f}]"
