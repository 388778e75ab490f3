"""Ends trials whose dev curve will not reach the best one: the pruner `forecast`, by mathrl.core.forecast."""

from optuna import Study
from optuna.pruners import BasePruner
from optuna.trial import FrozenTrial, TrialState

from mathrl.core.forecast import forecast


class ForecastPruner(BasePruner):  # type: ignore[misc]
    """Ends a trial during its first run if the forecast for that run's end stays below the best complete trial.

    That is, if the upper end of the 90 % interval does, of the one that allows for a late take-off: such a trial would
    be the best with a chance of 5 % at most.
    `steps` are those of one run, `responses` what a dev evaluation grades; the first `startup` trials run to their end,
    and before `warmup` steps none is ended.
    """

    def __init__(self, steps: int, responses: int, startup: int, warmup: int) -> None:
        self.steps, self.responses, self.startup, self.warmup = steps, responses, startup, warmup

    def prune(self, study: Study, trial: FrozenTrial) -> bool:
        last = trial.last_step
        complete = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        if last is None or last <= self.warmup or last >= self.steps or len(complete) < self.startup:
            return False
        prediction = forecast(sorted(trial.intermediate_values.items()), self.steps, self.responses)
        return prediction is not None and prediction.accuracy.high < max(other.value or 0.0 for other in complete)
