"""Search for better parameters of RL runs, judged on the dev problems."""

from prefect import flow

from flows.form import SweepForm
from tasks.sweep import run_sweep


@flow(
    name="sweep",
    description="Search for better parameters of RL runs, judged on the dev problems.",
    validate_parameters=True,
)
def sweep(
    sweep: SweepForm = None,
    overrides: list[str] = [],  # noqa: B006 - Prefect's form shows the default
    compare: bool = False,
) -> str:
    """Search for better parameters of RL runs, judged on the dev problems.

    A study of this name that was begun before goes on where it was.

    Args:
        overrides: Any other parameter of every trial as section.key=value, such as rl.group_size=8.
        compare: No new trials: run winner and present parameters on fresh seeds, and compare them on test.
    """
    return run_sweep(sweep, overrides, compare=compare)
