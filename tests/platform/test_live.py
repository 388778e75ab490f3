"""What a running stage shows in Prefect, and how often."""

import json
from pathlib import Path

import pytest
from prefect.utilities.names import generate_slug

from mathrl.core.environment import Variable
from mathrl.core.files import write_json
from mathrl.core.metrics import progress
from mathrl.core.records import read_record
from mathrl.servers.protocol import ServerState, write_states
from mathrl.tasks import live_progress as live
from mathrl.tasks.live_progress import LiveProgress, was_generated


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


def test_a_dev_evaluation_renews_the_forecast_and_nothing_else_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, sent = tmp_path / "records" / "rl-1", dict[str, list[str]]()
    write_json(folder / "run.json", {"stage": "rl", "params": {"rl": {"steps": 100, "dev": {"samples": 4}}}})
    write_json(tmp_path / "progress", {"title": "rl", "done": 1, "total": 9, "record": str(folder)})
    monkeypatch.setattr(
        live, "create_markdown_artifact", lambda text, *, key, **_: sent.setdefault(key, []).append(text)
    )
    shown = LiveProgress("rl", tmp_path / "progress")
    shown.record = read_record(folder)
    for step in range(1, 61):
        row = {"step": step, "dev/accuracy": 0.4 + step / 200} if step % 10 == 0 else {"step": step}
        with (folder / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(row) + "\n")
        shown._show_forecast()
    fifth, sixth = sent["rl-forecast"]
    assert (
        "up to step 50: if the curve keeps its shape 0." in fifth
        and "at step 100, [0." in fifth
        and "another 50 steps give" in fifth
    )
    assert "up to step 60" in sixth


def test_the_figures_beside_the_bar_reach_prefect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(Variable.PROGRESS, str(tmp_path / "progress"))
    monkeypatch.delenv(Variable.RECORD, raising=False)
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


def test_the_progress_says_how_many_servers_are_live(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, sent = tmp_path / "records" / "rl-1", list[str]()
    write_json(folder / "run.json", {"stage": "rl"})
    write_json(
        tmp_path / "progress", {"title": "rl", "done": 3, "total": 9, "seconds_left": None, "record": str(folder)}
    )
    monkeypatch.setattr(live, "pause", lambda _: 0.0)
    shown = LiveProgress("rl", tmp_path / "progress")
    monkeypatch.setattr(shown, "_show", lambda share, text: sent.append(text))
    for name in ("_show_health", "_show_forecast", "_show_link"):
        monkeypatch.setattr(shown, name, lambda: None)
    shown.refresh()
    monkeypatch.setenv(Variable.RECORD, str(folder))
    write_states([ServerState(f"http://a:{port}", port == 1, 5, "9f86", "") for port in (1, 2)])
    shown.refresh()
    assert sent == ["rl: 3 of 9", "rl: 3 of 9; 1 of 2 servers live"]


def test_names_that_prefect_generates_are_replaced_and_a_persons_stay() -> None:
    assert all(was_generated(generate_slug(2)) for _ in range(2000)), "of its server"
    assert all(map(was_generated, ("kappa2-ledos-x", "alpha93-canis-majoris-nebula", "psi-vega"))), "of its form"
    given = ("lower-lr", "ablation-kl-a", "beta-sweep", "alpha-high", "mu-test", "rl", "my run", "delta-rule-v")
    assert not any(map(was_generated, given))
