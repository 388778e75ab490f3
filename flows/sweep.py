"""Search for better parameters of RL runs, scored on the dev problems."""

from mathrl.flows.factory import form_flow, option
from mathrl.tasks.sweep import run_sweep

sweep = form_flow(
    "sweep",
    __doc__,
    ["sweep"],
    run_sweep,
    compare=option(
        bool,
        "No new trials: rerun the winner and the present parameters on fresh seeds and compare them on test.",
        False,
    ),
)
