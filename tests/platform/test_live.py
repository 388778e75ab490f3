"""What a running stage shows in Prefect, and how often."""

from pathlib import Path

import pytest

from mathrl.core.environment import Variable
from mathrl.core.files import write_json
from mathrl.core.progress import progress
from tasks import live_progress as live
from tasks.live_progress import LiveProgress


def test_progress_is_sent_each_second_at_first_and_seldom_after_hours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, sent = [0.0], list[float]()
    monkeypatch.setattr(live.time, "monotonic", lambda: now[0])
    write_json(tmp_path / "progress", {"title": "rl", "done": 1, "total": 9, "seconds_left": None})
    shown = LiveProgress("rl", tmp_path / "progress")
    monkeypatch.setattr(shown, "_show", lambda share, text: sent.append(now[0]))
    for second in range(7200):
        now[0] = float(second)
        shown.refresh()
    assert len([at for at in sent if at < 60]) == 60
    assert len([at for at in sent if at >= 3600]) == 240
    assert len(sent) < 700


def test_a_stage_that_was_over_before_anybody_looked_shows_its_health(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its progress file is the next stage's by then."""
    monkeypatch.setenv("MATHRL_HOME", str(tmp_path))
    monkeypatch.setenv("PREFECT__RUNTIME__FLOW_RUN__ID", "this flow")
    for stage, colour in (("rl", "yellow"), ("evaluate", "green")):
        facts = {"name": f"demo/{stage}", "prefect_flow_run": "this flow"}
        write_json(
            tmp_path / "records" / stage / "run.json",
            facts | {"health": {"colour": colour, "steps": 3, "findings": []}},
        )
    record = str(tmp_path / "records" / "evaluate")
    write_json(tmp_path / "progress", {"title": "evaluate", "done": 1, "total": 9, "record": record})
    sent = dict[str, str]()
    monkeypatch.setattr(live, "create_markdown_artifact", lambda text, *, key, **_: sent.update({key: text}))
    LiveProgress("rl", tmp_path / "progress").finish()
    assert list(sent) == ["rl-health"] and "yellow" in sent["rl-health"]
    assert (tmp_path / "progress").exists(), "the next stage's is left to it"


def test_the_figures_beside_the_bar_reach_prefect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(Variable.PROGRESS, str(tmp_path / "progress"))
    sent = list[str]()
    shown = LiveProgress("rl", tmp_path / "progress")
    monkeypatch.setattr(live, "create_progress_artifact", lambda _, *, description, **__: sent.append(description))
    monkeypatch.setattr(live, "update_progress_artifact", lambda _, __, *, description: sent.append(description))
    with progress("rl", total=4) as bar:
        bar.advance(accuracy=0.6123, response_length=22.0)
        shown.refresh()
        shown.artifact = "the artifact"
    shown.finish()
    assert sent[0].startswith("rl: 1 of 4") and sent[0].endswith("; accuracy 0.612, response length 22")
    assert sent[1] == "rl: done; accuracy 0.612, response length 22"
