"""What a running stage shows in Prefect, and how often."""

from pathlib import Path

import pytest

from mathrl.core.files import write_json
from tasks import live
from tasks.live import Live


def test_progress_is_sent_each_second_at_first_and_seldom_after_hours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, sent = [0.0], list[float]()
    monkeypatch.setattr(live.time, "monotonic", lambda: now[0])
    write_json(tmp_path / "progress", {"title": "rl", "done": 1, "total": 9, "seconds_left": None})
    shown = Live("rl", tmp_path / "progress")
    monkeypatch.setattr(shown, "_show", lambda share, text: sent.append(now[0]))
    for second in range(7200):
        now[0] = float(second)
        shown.refresh()
    assert len([at for at in sent if at < 60]) == 60
    assert len([at for at in sent if at >= 3600]) == 240
    assert len(sent) < 700
