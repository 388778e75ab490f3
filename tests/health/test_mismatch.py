"""Sampler against trainer: the gate on their log-probs, and how far apart they are as a histogram."""

import math

import pytest

from mathrl.core.errors import UserError
from mathrl.health.mismatch import check_mismatch
from mathrl.params.rollout import Rollout

STOP = Rollout(on_mismatch="stop")


def test_the_gate_is_at_the_limit(capsys: pytest.CaptureFixture[str]) -> None:
    check_mismatch({"rollout/logprob_alignment": 1.05}, STOP, 1)
    check_mismatch({}, STOP, 1)  # no update, nothing measured
    assert capsys.readouterr().err == ""
    with pytest.raises(UserError, match=r"step 3: rollout/logprob_alignment is 1.0510, above .* 1.05"):
        check_mismatch({"rollout/logprob_alignment": 1.051}, STOP, 3)
    check_mismatch({"rollout/logprob_alignment": 1.051}, Rollout(), 3)
    assert "warning: step 3" in capsys.readouterr().err
    check_mismatch({"rollout/logprob_alignment": 1.3}, Rollout(mismatch_limit=1.4, on_mismatch="stop"), 3)


def test_a_warning_is_said_once_until_it_changes(capsys: pytest.CaptureFixture[str]) -> None:
    said, lines = 1.0, []
    for step, value in enumerate((1.06, 1.07, 1.04, 1.06, 1.13, 1.2, 1.03, 1.02, 1.06, 1.0), start=1):
        said = check_mismatch({"rollout/logprob_alignment": value}, Rollout(), step, said)
        lines += [(step, line) for line in capsys.readouterr().err.splitlines()]
    # 4 flickers; 5 is more than twice as far from 1 as 1; 8 is back by half the limit; 9 is a new warning.
    assert [(step, "warning" in line) for step, line in lines] == [
        (1, True),
        (5, True),
        (8, False),
        (9, True),
        (10, False),
    ]
    assert "is back within the limit (1.0200)" in lines[2][1]
    said = check_mismatch({"rollout/logprob_alignment": math.nan}, Rollout(), 1)
    check_mismatch({"rollout/logprob_alignment": math.nan}, Rollout(), 2, said)
    assert capsys.readouterr().err.count("is nan") == 1


def test_rollouts_of_older_weights_are_judged_by_the_probe() -> None:
    row = {"rollout/lag": 1.0, "rollout/logprob_alignment": 1.4, "rollout/canary_alignment": 1.01}
    check_mismatch(row, STOP, 2)
    with pytest.raises(UserError, match=r"rollout/canary_alignment is 1\.2000"):
        check_mismatch(row | {"rollout/canary_alignment": 1.2}, STOP, 2)


def test_where_no_response_was_trained_on_the_probe_judges() -> None:
    # Uniform groups, or the critic's warm-up: no forward pass, so no alignment of the rollouts.
    check_mismatch({"rollout/canary_alignment": 1.04}, STOP, 1)
    with pytest.raises(UserError, match=r"step 1: rollout/canary_alignment is 1\.0600"):
        check_mismatch({"rollout/canary_alignment": 1.06}, STOP, 1)
    check_mismatch({"rollout/logprob_alignment": 1.0, "rollout/canary_alignment": 1.06}, STOP, 1)
