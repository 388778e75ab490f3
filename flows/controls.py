"""Run the controls of an RL run: rewards at random, for form, by vote and inverted, more SFT, a start made to think."""

from mathrl.flows.factory import JOBS, form_flow, option
from mathrl.params.recipe_steps import STEP_STAGES
from mathrl.params.schema import sections_read
from mathrl.tasks.runs import run_controls

controls = form_flow(
    "controls",
    __doc__,
    sections_read(STEP_STAGES),
    run_controls,
    rl_run=option(
        str, "RL run: rl (the pipeline's), NAME of a folder under runs/, or a recipe's RECIPE/STEP or NAME/STEP.", "rl"
    ),
    seeds=option(int, "Number of seeds: the run's own and those that follow it.", 3),
    only=option(list[str], "Controls to run; empty: all that this run can have.", []),
    jobs=JOBS,
)
