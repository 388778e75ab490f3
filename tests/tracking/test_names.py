"""Any text as a name that MLflow takes."""

from hypothesis import example, given, settings
from hypothesis import strategies as st

from mathrl.tracking.batches import LONGEST, escape, unescape

TRICKY = st.lists(st.sampled_from([*"/.: _-a2b\n%'`\x00é請", "..", "//", ":2b:", "::", "\ud83d"]), max_size=12)
NAMES = st.text(st.characters(), max_size=40) | TRICKY.map("".join)


def mlflow_takes(name: str) -> bool:
    from mlflow.exceptions import MlflowException
    from mlflow.utils.validation import _validate_metric, _validate_tag

    try:
        _validate_metric(name, 0.5, 1, 1)
        _validate_tag(f"name.{name}", "")
    except MlflowException:
        return False
    return True


@settings(max_examples=200)
@given(NAMES)
@example("")
@example("../x")
@example("...")
@example("/")
@example("a/")
@example("a/./b")
@example("gsm8k+math")
def test_mlflow_takes_every_name_and_the_name_as_written_comes_back(name: str) -> None:
    assert mlflow_takes(escape(name)), escape(name)
    if len(escape(name)) <= 200:
        assert unescape(escape(name)) == name


@settings(max_examples=200)
@given(st.sets(NAMES | st.text(min_size=LONGEST, max_size=2 * LONGEST), max_size=6))
@example({"a+b", "a:2b:b", "a::b", "a:3a:2b:3a:b"})
def test_different_names_stay_different(names: set[str]) -> None:
    assert len({escape(name) for name in names}) == len(names)


def test_names_that_mlflow_takes_stay_and_long_ones_that_begin_alike_stay_different() -> None:
    for name in ("rl/dev/accuracy", "by source.x-1/größe 2", "時間/loss"):
        assert mlflow_takes(name) and escape(name) == name
    names = ["x" * 300 + end for end in ("1", "2")] + ["<" * 120]
    assert len({escape(name) for name in names}) == 3 and all(mlflow_takes(escape(name)) for name in names)
    assert not any(mlflow_takes(name) for name in names)
