"""Three steps of every method log what they logged before: the wiring of the RL loop, setting by setting."""

import pytest

from tests.trainers.golden_traces import CASES, ROWS, WITH_CRITIC, differences, read, trace

GOLDEN = read()


def test_the_file_has_every_case_and_no_two_methods_train_alike() -> None:
    """A method is its settings: each row of docs/reference/methods.md moves the weights in its own way."""
    assert len(ROWS) == 34 and list(GOLDEN) == list(CASES), "python -m tests.trainers.golden_traces --write"
    for name in ROWS:
        rows = GOLDEN[name]
        assert all(norm is not None and norm > 0 for norm in rows["grad_norm"]), name
        assert rows["skipped_updates"] == [0, 0, 0]
        assert ("critic_loss" in rows) == (name in WITH_CRITIC)
        assert ("kl" in rows) == any("rl.kl" in setting for setting in ROWS[name])
        for other in ROWS:
            assert name == other or differences(name, rows, GOLDEN[other])


@pytest.mark.parametrize("name", CASES)
def test_the_trace_is_the_files(name: str) -> None:
    found = differences(name, trace(name), GOLDEN[name])
    assert not found, "\n".join([*found, "If it is meant: python -m tests.trainers.golden_traces --write"])


@pytest.mark.parametrize("name", ["dropout in GPT-2", "dropout in attention, packed", "dropout in attention, padded"])
def test_dropout_is_off_so_the_first_update_is_on_the_samplers_policy(name: str) -> None:
    for metric in ("ratio/max", "rollout/logprob_alignment"):
        assert GOLDEN[name][metric] == pytest.approx([1.0] * 3, abs=1e-4)
    packed, padded = (GOLDEN[f"dropout in attention, {way}"] for way in ("packed", "padded"))
    assert not differences(name, {**padded, "trained_tokens": packed["trained_tokens"]}, packed)


def test_a_wrong_figure_is_noticed() -> None:
    rows = GOLDEN["GRPO"]
    assert not differences("GRPO", rows, rows)
    for metric in ("grad_norm", "kl", "result/weights_norm", "rollout/logprob_alignment"):
        wrong = rows | {metric: [value and value * 1.002 for value in rows[metric]]}
        assert differences("GRPO", wrong, rows), metric
    assert differences("GRPO", {metric: values for metric, values in rows.items() if metric != "entropy"}, rows)
