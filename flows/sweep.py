"""Search for better parameters of RL runs, judged on the dev problems."""

from prefect import flow

from flows.form import Preset, SweepForm
from tasks.sweep import run_sweep


@flow(
    name="sweep",
    description="Search for better parameters of RL runs, judged on the dev problems.",
    validate_parameters=True,
)
def sweep(
    preset: Preset = None,
    sweep: SweepForm = None,
    overrides: list[str] = [],  # noqa: B006 - Prefect's form shows the default
    compare: bool = False,
    allow_dirty: bool = False,
) -> str:
    """Search for better parameters of RL runs, judged on the dev problems.

    A study of this name that was begun before goes on where it was.

    Args:
        preset: A file of params/presets that goes over params/: a sweep in its worktree under runs/.
        overrides: Any other parameter of every trial as section.key=value, such as rl.group_size=8.
        compare: No new trials: run winner and present parameters on fresh seeds, and compare them on test.
        allow_dirty: A preset from the last commit although code or parameters have uncommitted changes.
    """
    return run_sweep(preset, sweep, overrides, compare=compare, allow_dirty=allow_dirty)
