"""The page over kept rollouts: what it counts and finds, who may ask, and a person's clicks in a browser."""

import json
import re
import shutil
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mathrl.core.errors import UserError
from mathrl.core.paths import WORKTREE_NOTE
from mathrl.core.records import RunRecord, records_folder
from mathrl.evaluation.audit import stratum_of
from mathrl.reports.audit import read_responses as audited_responses
from mathrl.reports.find_run import find_rollouts
from mathrl.reports.rollout_server import Library, Rollouts, make_server
from mathrl.rollout.rollout_files import WHOLE, RolloutFolder


def row(step: int, number: int, right: bool, **changes: Any) -> dict[str, Any]:
    values: dict[str, Any] = {
        "step": step, "problem": f"p{number % 2}", "question": "2+2=", "answers": ["4"], "source": "chain",
        "level": None, "response": number, "text": f"step {step} <b>No {number}</b>", "correct": right,
        "extracted": "4" if right else None, "rule": "number" if right else "nothing extracted",
        "reward": float(right), "parts": [("accuracy", float(right)), ("format", 0.5)], "length": 3 + number,
        "truncated": False, "repeated": 0.0, "disagrees": None if number else not right,
        "odd": [] if right else ["no answer"], "trained": True, "tokens": [1, 2, 3], "pieces": ["step", " <b>", "No"],
        "logprobs": [-0.5, -1.0, -0.1], "advantages": [1.0 if right else -1.0] * 3, "ratios": [1.1, 1.0, 0.9],
        "calls": [],
    }  # fmt: skip
    return values | changes


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """Steps 1 to 3 of four responses: none, two, four of them right."""
    folder = RolloutFolder(tmp_path / "kept", None)
    for step, right in ((1, 0), (2, 2), (3, 4)):
        folder.write(step, [row(step, number, number < right) for number in range(4)])
    folder.finish(3)
    return tmp_path / "kept"


def test_calls_are_counted_and_kept_with_their_status_and_older_files_have_none(tmp_path: Path) -> None:
    call = {"start": 1, "end": 2, "status": "error", "code": "1/0", "output": "ZeroDivisionError"}
    calls = [[], [call], [call, call | {"status": "ok"}], []]
    folder = RolloutFolder(tmp_path / "kept", None)
    nan = float("nan")
    folder.write(1, [row(1, n, True, calls=each, ratios=[1.0, nan, 0.9]) for n, each in enumerate(calls)])
    folder.finish(1)
    rollouts = Rollouts([tmp_path / "kept" / WHOLE])
    facets = rollouts.summary({})["facets"]
    assert facets["calls"] == [("0", 2), ("1", 1), ("2", 1)]
    assert facets["status of a call"] == [("error", 2), ("ok", 1)]
    assert [found["response"] for found in rollouts.page({"status of a call": ["ok"]})] == [2]
    assert rollouts.row(1)["calls"] == [call] and rollouts.row(1)["ratios"] == [1.0, None, 0.9]
    table = pq.read_table(tmp_path / "kept" / WHOLE).drop_columns("calls")
    pq.write_table(table, tmp_path / "older.parquet")
    older = Rollouts([tmp_path / "older.parquet"])
    assert older.size == 4 and older.row(1)["calls"] == [] and "calls" not in older.summary({})["facets"]


def test_counts_are_of_what_the_other_filters_leave(kept: Path) -> None:
    rollouts = Rollouts([kept / WHOLE])
    all_of_them = rollouts.summary({})
    assert (all_of_them["total"], all_of_them["count"], all_of_them["right"]) == (12, 12, [0, 2, 4])
    facets = all_of_them["facets"]
    assert facets["step"] == [("1", 4), ("2", 4), ("3", 4)] and facets["verdict"] == [("right", 6), ("wrong", 6)]
    assert facets["odd"] == [("no answer", 6)] and facets["rule"] == [("nothing extracted", 6), ("number", 6)]
    assert facets["graders"] == [("agree", 2), ("disagree", 1)], "of the three that were asked"
    assert facets["part accuracy"] == [("0", 6), ("1", 6)] and facets["length"] == [(str(n), 3) for n in (3, 4, 5, 6)]
    assert not {"part format", "source", "level", "end"} & set(facets), "all responses are alike in it"

    wrong = rollouts.summary({"verdict": ["wrong"], "step": ["2"]})
    assert wrong["count"] == 2 and wrong["facets"]["verdict"] == [("right", 2), ("wrong", 2)]
    assert wrong["facets"]["step"] == [("1", 4), ("2", 2), ("3", 0)] and wrong["facets"]["odd"] == [("no answer", 2)]
    assert rollouts.summary({"verdict": ["wrong", "right"]})["count"] == 12, "of one property either"
    assert rollouts.summary({"verdict": ["unheard of"]})["count"] == 0


def test_search_order_and_a_problem(kept: Path) -> None:
    rollouts = Rollouts([kept / WHOLE])
    found = rollouts.page({}, "STEP 2 <B>no 3")
    assert [(each["step"], each["response"]) for each in found] == [(2, 3)]
    assert rollouts.page({}, "step.2") == [], "the query is a text and not a pattern"
    assert len(rollouts.page({}, "", "p1")) == 6 and rollouts.summary({}, problem="p1")["count"] == 6
    longest = rollouts.page({}, sort="-length", first=1, most=3)
    assert [(each["length"], each["step"]) for each in longest] == [(6, 2), (6, 3), (5, 1)]
    last = rollouts.row(11)
    assert (last["step"], last["response"], last["parts"], last["ratios"]) == (
        3, 3, {"accuracy": 1.0, "format": 0.5}, [1.1, 1.0, 0.9]
    )  # fmt: skip
    with pytest.raises(IndexError):
        rollouts.row(12)


def test_numbers_of_many_values_are_binned_and_none_is_lost(tmp_path: Path) -> None:
    folder = RolloutFolder(tmp_path, None)
    folder.write(1, [row(1, 0, True, reward=n / 100 - 0.0999958, length=n) for n in range(100)])
    folder.write(2, [row(2, 0, True, reward=float("nan"), level=3), row(2, 1, True, level=5)])
    rollouts = Rollouts(folder.steps())
    facets = rollouts.summary({})["facets"]
    assert sum(count for _, count in facets["reward"]) == 101 and len(facets["reward"]) == 8
    assert sum(count for _, count in facets["length"]) == 102 and facets["level"] == [("3", 1), ("5", 1)]
    assert rollouts.row(100)["reward"] is None
    assert facets["length"][0][0] == "0 to 12" and facets["reward"][0][0] == "-0.1 to 0.02"


def test_rewards_that_differ_by_rounding_are_one_value(tmp_path: Path) -> None:
    folder = RolloutFolder(tmp_path, None)
    folder.write(1, [row(1, n, True, reward=reward) for n, reward in enumerate((0.1 + 0.2, 0.3, 1.0))])
    rollouts = Rollouts(folder.steps())
    assert rollouts.summary({})["facets"]["reward"] == [("0.3", 2), ("1", 1)]
    assert len(rollouts.page({"reward": ["0.3"]})) == 2


def test_a_search_has_its_own_result_whatever_another_thread_searches(kept: Path) -> None:
    class Interrupted(Rollouts):
        def __setattr__(self, name: str, value: Any) -> None:
            super().__setattr__(name, value)
            if name == "_found" and value[0] == "step 1":
                self._search("no such text")

    assert len(Interrupted([kept / WHOLE]).page({}, "step 1")) == 4


def ask(server: Any, path: str, host: str | None = None) -> tuple[int, str, Any]:
    request = urllib.request.Request(f"http://127.0.0.1:{server.server_address[1]}{path}")
    if host:
        request.add_header("Host", host)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read().decode(), answer.headers
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode(), error.headers


@pytest.fixture
def server(kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Serves `kept` as "mine" and a stopped run of this machine's records."""
    monkeypatch.setenv("MATHRL_HOME", str(tmp_path / "home"))
    record = RunRecord(tmp_path / "home" / "records" / "rl-77-1", stage="rl", status="stopped")
    record.rollouts.mkdir(parents=True)
    record.update(key="77")
    RolloutFolder(record.rollouts, None).write(1, [row(1, 0, True)])
    (tmp_path / "home" / "secret").mkdir()
    shutil.copy(kept / WHOLE, tmp_path / "home" / "secret")
    running = make_server(Library({"mine": kept}))
    threading.Thread(target=running.serve_forever, daemon=True).start()
    yield running
    running.shutdown()
    running.server_close()


def test_the_server_shows_the_report_of_a_record_and_lets_it_run_no_script(server: Any, tmp_path: Path) -> None:
    folder = records_folder() / "register-1" / "artifacts"
    folder.mkdir(parents=True)
    (folder / "report.html").write_text("<b>All figures</b>")
    status, text, headers = ask(server, "/register-1/report.html")
    assert (status, text) == (200, "<b>All figures</b>") and "script-src" not in headers["Content-Security-Policy"]
    assert headers["Content-Security-Policy"].startswith("default-src 'none'")
    assert ask(server, "/%2e%2e%2fregister-1/other.html")[0] == 404


def test_the_server_answers_this_machine_alone_and_no_other_folder(server: Any, tmp_path: Path) -> None:
    assert server.server_address[0] == "127.0.0.1"
    status, page, headers = ask(server, "/")
    assert status == 200 and "rl-77-1" in page and "mine" in page
    assert ask(server, "/", host="rebound.example:80")[0] == 403
    status, page, headers = ask(server, "/mine/")
    nonce = re.search(r"nonce-([\w-]+)", headers["Content-Security-Policy"])
    assert nonce and f'<script nonce="{nonce[1]}">' in page and "unsafe-eval" not in headers["Content-Security-Policy"]
    for path in ("/nothing/", "/..%2Fsecret/", "/../secret/", "/.%2E/", "/mine/other"):
        assert ask(server, path)[0] == 404, path
    for path in ("/mine/row?n=12", "/mine/row?n=x", "/mine/row", "/mine/summary?first=x"):
        assert ask(server, path)[0] == 400, path
    # A run that trains: its next step is there when it is asked for again.
    assert json.loads(ask(server, "/rl-77-1/summary")[1])["count"] == 1
    RolloutFolder(tmp_path / "home" / "records" / "rl-77-1" / "rollouts", 1).write(2, [row(2, 0, False)])
    assert json.loads(ask(server, "/rl-77-1/summary?verdict=wrong")[1])["count"] == 1


def test_what_run_names(server: Any, kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_rollouts("rl-77-1") == ("rl-77-1", {})
    (tmp_path / "reports" / "rl").mkdir(parents=True)
    with pytest.raises(UserError, match=r"rl: the run kept no rollouts; .* rl\.keep_rollouts\.which=all"):
        find_rollouts("rl")
    run = tmp_path / "runs" / "rl-steps"
    (run / "reports" / "rl").mkdir(parents=True)
    (run / WORKTREE_NOTE).write_text(json.dumps({"overrides": ["preset gsm8k", "rl.advantage={type: rloo}"]}))
    with pytest.raises(
        UserError, match=r"mathrl run rl --preset gsm8k --set 'rl\.advantage=.*' --set rl\.keep_rollouts"
    ):
        find_rollouts("rl-steps")
    shutil.copy(kept / WHOLE, tmp_path / "reports" / "rl")
    assert find_rollouts("rl") == ("rl", {"rl": Path("reports/rl")})
    other = tmp_path / "from a colleague.parquet"
    shutil.copy(kept / WHOLE, other)
    name, files = find_rollouts(str(other))
    assert list(files.values()) == [other] and re.fullmatch(r"[\w.-]+", name)
    pq.write_table(pa.table({"step": [1]}), tmp_path / "wrong.parquet")
    with pytest.raises(UserError, match=r"wrong.parquet: no kept rollouts: the columns problem, .* are missing"):
        Rollouts([tmp_path / "wrong.parquet"])
    (tmp_path / "text.parquet").write_text("no")
    with pytest.raises(UserError, match="not a parquet file"):
        Rollouts([tmp_path / "text.parquet"])


def test_an_audit_reads_kept_rollouts(kept: Path) -> None:
    rows = audited_responses(kept / WHOLE, None)
    assert len(rows) == 12 and rows[0]["truths"] == ["4"] and rows[0]["response"] == "step 1 <b>No 0</b>"
    assert [row["correct"] for row in rows].count(True) == 6
    assert stratum_of(rows[0]) == "refused / rule / nothing extracted / chain", "steps are too many for strata"
    with pytest.raises(UserError, match="no response of the model 'rl'"):
        audited_responses(kept / WHOLE, "rl")


@pytest.mark.browser
def test_a_person_finds_wrong_verdicts_of_a_step_in_two_clicks(server: Any) -> None:
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("chromium is not installed: apt-get install chromium")
    from playwright.sync_api import expect, sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, timeout=300_000)
        page = browser.new_page()
        page.set_default_timeout(120_000)
        expect.set_options(timeout=120_000)
        errors: list[str] = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(f"http://127.0.0.1:{server.server_address[1]}/mine/")
        expect(page.locator("#count")).to_have_text("12 of 12 responses")
        bar, label = page.locator("#steps button").last.bounding_box(), page.locator("#high").bounding_box()
        assert bar and label
        ends = [box["x"] + box["width"] for box in (bar, label)]
        assert abs(ends[0] - ends[1]) < 2, "the last step's name is below its bar, also of a run of few steps"
        page.click("[data-facet=verdict][data-label=wrong]")
        expect(page.locator("#count")).to_have_text("6 of 12 responses")
        page.click("[aria-label='step 2']")
        expect(page.locator("#count")).to_have_text("2 of 12 responses")
        expect(page.locator("#rows tr")).to_have_count(2)
        # One of them in full, beside the same problem at another step, with its tokens coloured.
        page.click("#rows tr:first-child")
        sides = page.locator(".side")
        expect(sides).to_have_count(2)
        assert sides.nth(0).locator("h2").inner_text() == "step 2, response 2"
        assert sides.nth(1).locator("h2").inner_text().startswith(("step 1", "step 3"))
        tokens = sides.nth(0).locator(".tokens span")
        assert tokens.all_inner_texts() == ["step", " <b>", "No"], "a response is text, not markup"
        assert "213, 94, 0" in str(tokens.nth(0).get_attribute("style")).replace(",", ", ")
        page.click("#detail button:text-is('ratio')")
        style = [str(tokens.nth(n).get_attribute("style")) for n in range(3)]
        assert "0,114,178" in style[0] and style[1].endswith(",0.000)") and "213,94,0" in style[2]
        page.reload()
        expect(page.locator("#count")).to_have_text("2 of 12 responses")  # the address holds the view
        page.click("#clear")
        page.fill("#search", "no 3")
        expect(page.locator("#count")).to_have_text("3 of 12 responses")
        assert errors == []
        browser.close()


def test_a_stage_that_has_not_run_is_named_with_its_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not answered by its own name: "rl: no such run (did you mean rl?)"."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MATHRL_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with pytest.raises(UserError, match=r"^rl: no such run \(it has not run here: mathrl run rl\); give rl, "):
        find_rollouts("rl")
