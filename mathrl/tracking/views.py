"""Saved views of an experiment, in MLflow's menu Views: the list of results, and the curves of RL, rewards first.

MLflow keeps a view as a tag of the experiment, `mlflow.sharedViewState.<id>`, of at most 5,000 characters:

    {"name": "Results", "createdAt": 0, "updatedAt": 0, "state": "{\\"selectedColumns\\": […], …}"}
"""

import json
from collections.abc import Sequence
from typing import Any

from mathrl.core.mirroring import CURVES_VIEW, RESULTS_VIEW

TAG, NOTE = "mlflow.sharedViewState.", "mlflow.note.content"
COLUMNS = (
    "metrics.`rl/pass_at_1`",
    "tags.`interval`",
    "metrics.`sft/pass_at_1`",
    "metrics.`dev/best`",
    "params.`rl.optimizer.lr`",
    "params.`rl.steps`",
    "params.`rl.kl.coef`",
    "params.`changed`",
    "params.`data`",
    "tags.`health`",
)
CHARTS = ("reward/accuracy", "dev/accuracy", "response_length", "rollout/truncated_share", "entropy", "kl")
FIRST = "mathrl-first"  # the section of these charts


def description(question: str) -> str:
    """What MLflow's list of experiments says of the experiment of a question (`tracking.client.experiment`)."""
    subject = f"Runs of {question}" if question else "Runs of the pipeline"
    return f"{subject}: each holds the runs of its stages. Menu Views: Results (best first), Curves of RL."


def views(question: str) -> dict[str, str]:
    """The tags of the two views, and the description."""
    results = {
        "searchFilter": "tags.`mathrl.role` LIKE '%'",
        "orderByKey": "metrics.`rl/pass_at_1`",
        "orderByAsc": False,
        "selectedColumns": list(COLUMNS),
    }
    curves = {
        "searchFilter": "tags.`mlflow.source.name` = 'mathrl.stages.rl'",
        "orderByKey": "metrics.`final/dev/accuracy`",
        "orderByAsc": False,
        "isAccordionReordered": True,
        "compareRunCharts": [_chart(name) for name in CHARTS],
        "compareRunSections": [{"uuid": FIRST, "name": "Rewards and accuracy", "display": True, "isReordered": True}],
    }
    tags = {TAG + RESULTS_VIEW: _view("Results", results), TAG + CURVES_VIEW: _view("Curves of RL", curves)}
    return {NOTE: description(question)} | tags


def keep_views(client: Any, experiment: Any) -> None:
    """Give the experiment the views that it lacks, or has from an older version; a person's description stays."""
    for key, text in views(experiment.name.partition("/")[2]).items():
        if experiment.tags.get(key) != text and not (key == NOTE and key in experiment.tags):
            client.set_experiment_tag(experiment.experiment_id, key, text)


def _view(name: str, state: dict[str, Any]) -> str:
    return json.dumps({"name": name, "createdAt": 0, "updatedAt": 0, "state": json.dumps(state)})


def _chart(metric: str) -> dict[str, Any]:
    nothing: Sequence[str] = []
    return {
        "type": "LINE",
        "uuid": f"mathrl-{metric}",
        "metricSectionId": FIRST,
        "metricKey": metric,
        "runsCountToCompare": 10,
        "lineSmoothness": 0,
        "scaleType": "linear",
        "xAxisScaleType": "linear",
        "xAxisKey": "step",
        "yAxisKey": "metric",
        "yAxisExpressions": nothing,
        "range": {},
        "useGlobalXaxisKey": True,
        "useGlobalLineSmoothing": True,
    }
