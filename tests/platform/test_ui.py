"""`mathrl ui` and a person in a browser: forms, runs, cancelling, MLflow's pages; nothing is simulated."""

import http.server
import json
import random
import re
import shutil
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from mathrl.cli import ui
from mathrl.compose import load_params
from mathrl.core.guard import is_alive
from mathrl.params.train import Rl
from tests.conftest import wait_for
from tests.foreign_requests import FOREIGN, ask, check_refused
from tests.platform.ui_servers import Servers

Checkout = Any
pytestmark = pytest.mark.timeout(1800)
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def pids(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pids") / "pid"


@pytest.fixture(scope="module")
def servers(checkout: Checkout, pids: Path) -> Iterator[Servers]:
    started = Servers(checkout, pids)
    yield started
    started.process.send_signal(signal.SIGINT)
    try:
        started.process.wait(timeout=200)
    except subprocess.TimeoutExpired:
        started.process.kill()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("chromium is not installed: apt-get install chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=chromium)
        yield opened
        opened.close()


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    opened = browser.new_page(viewport={"width": 1400, "height": 1600})
    opened.set_default_timeout(180_000)
    yield opened
    opened.close()


def test_every_flow_is_deployed_and_a_port_in_use_is_one_sentence(servers: Servers) -> None:
    flows = {"pipeline", "curate", "pages", "sft", "rl", "evaluate", "recipe", "controls", "sweep"}
    assert set(servers.deployments()) == flows
    named = {each["name"]: each["parameters"] for each in servers.post("/deployments/filter", {})}
    assert set(named) == {*flows, "study"}, "the list tells them apart"
    assert named["study"] == {"recipe": "study"}
    deployments = servers.post("/deployments/filter", {})
    assert all(each["description"] and each["tags"] for each in deployments)
    assert len({each["description"] for each in deployments}) == len(deployments)
    schedules = [each["schedules"] for each in servers.post("/deployments/filter", {}) if each["schedules"]]
    assert [[(s["slug"], s["schedule"]["cron"], s["active"]) for s in each] for each in schedules] == [
        [("nightly", "0 2 * * *", False)]
    ]
    done = servers.checkout.mathrl(*servers.words, ok=False)
    assert done.returncode == 2
    assert done.stderr.strip() == (
        f"error: port {servers.prefect_port} of Prefect is in use: is it another mathrl ui? "
        f"Then open {servers.prefect}; else stop that program, or choose another --prefect-port"
    )


def test_the_server_refuses_wrong_parameters_before_any_work(servers: Servers) -> None:
    address = f"/deployments/{servers.deployments()['rl']}/create_flow_run"
    for parameters, reason in (
        ({"params": {"rl": {"optimizer": {"type": "adamw", "lr": 2}}}}, "not valid under any of the given schemas"),
        ({"preset": "none such"}, "none such"),
    ):
        with pytest.raises(urllib.error.HTTPError) as caught:
            servers.post(address, {"parameters": parameters})
        assert caught.value.code in (409, 422) and reason in caught.value.read().decode()


def test_other_pages_and_host_names_are_refused_at_every_port(servers: Servers) -> None:
    """What each server shows, changes and runs, asked as a page of the web can ask."""
    curate, pages = servers.deployments()["curate"], f"http://127.0.0.1:{servers.rollouts_port}"
    check_refused(f"{servers.prefect}/api/flow_runs/filter", {})
    check_refused(f"{servers.prefect}/api/deployments/filter", {})
    check_refused(f"{servers.prefect}/api/deployments/{curate}", {"paused": False}, method="PATCH")
    check_refused(f"{servers.prefect}/")
    check_refused(f"{servers.prefect}/ui-settings")
    for api in ("api", "ajax-api"):
        address = f"{servers.mlflow}/{api}/2.0/mlflow/experiments/search"
        check_refused(address, {"max_results": 1}, trusts_loopback=True)
    for path in ("/", "/health"):
        check_refused(f"{pages}{path}")
    for origin in (servers.prefect, servers.prefect.replace("127.0.0.1", "localhost")):  # its page has two names
        headers = {"Host": f"127.0.0.1:{servers.prefect_port}", "Origin": origin, "Content-Type": "application/json"}
        status, reply, _ = ask(f"{servers.prefect}/api/deployments/filter", "POST", headers, b"{}")
        assert (status, reply["access-control-allow-origin"]) == (200, origin)
    for path in ("/api/events/in", "/api/events/out", "/api/logs/out"):
        for changes in {"Origin": FOREIGN}, {"Host": f"evil.example:{servers.prefect_port}"}:
            assert open_websocket(f"{servers.prefect}{path}", changes) == 403, (path, changes)
        assert open_websocket(f"{servers.prefect}{path}", {}) == 101


def open_websocket(url: str, changes: dict[str, str]) -> int:
    """The status with which a server replies to the first request of a websocket; 101 opens it."""
    upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
    upgrade |= {"Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==", "Sec-WebSocket-Protocol": "prefect"}
    return ask(url, "GET", {"Host": urllib.parse.urlsplit(url).netloc} | upgrade | changes)[0]


def test_a_run_cannot_choose_its_command_environment_or_folder(servers: Servers, tmp_path: Path) -> None:
    """Nor in a pool that an older mathrl made, once `mathrl ui` has started again."""
    address, folder = f"/deployments/{servers.deployments()['curate']}/create_flow_run", str(tmp_path)

    def refused() -> None:
        for variables in {"command": f"touch {folder}/file"}, {"env": {"PYTHONPATH": folder}}, {"working_dir": folder}:
            with pytest.raises(urllib.error.HTTPError) as caught:
                servers.post(address, {"job_variables": variables})
            assert caught.value.code == 422 and "was unexpected" in caught.value.read().decode()

    refused()
    free = {"job_configuration": {"command": "{{ command }}"}, "variables": {"properties": {"command": {}}}}
    servers.post("/work_pools/mathrl", {"base_job_template": free}, "PATCH")
    with ui._prefect_client({"PREFECT_API_URL": f"{servers.prefect}/api"}) as client:
        ui._make_pool(client)
    refused()
    assert not list(tmp_path.iterdir())


@pytest.mark.browser
def test_a_person_fills_in_the_form_and_the_run_happens_apart(servers: Servers, page: Any) -> None:
    deployment = servers.deployments()["rl"]
    page.goto(f"{servers.prefect}/deployments/deployment/{deployment}/run")
    field = page.get_by_text("rl.optimizer.lr: Peak learning rate").locator("xpath=following::input[1]")
    field.wait_for()
    page.wait_for_function("field => field.value", arg=field.element_handle())
    assert float(field.input_value()) == load_params(ROOT / "params").rl.optimizer.lr, "it shows the present value"
    assert not page.get_by_text("Property is type").count() and not page.get_by_text(str(Rl.__doc__)).count()
    page.get_by_text("change", exact=True).click()
    page.get_by_text(str(Rl.__doc__), exact=True).wait_for()
    page.get_by_text("change", exact=True).last.wait_for()
    assert not page.get_by_text("Property is type").count()
    field.fill("2")
    page.get_by_role("button", name="Submit").click()
    page.get_by_text("2 is greater than the maximum of 1").first.wait_for()
    field.fill("0.0002")
    field.blur()
    refusal = page.get_by_text("2 is greater than the maximum of 1")
    refusal.first.wait_for(state="hidden")  # the form has seen the new value
    for _ in range(10):  # 503 means that the database is locked for the moment; a person clicks again
        with page.expect_response("**/create_flow_run") as answer:
            page.get_by_role("button", name="Submit").click()
        if answer.value.status != 503:
            break
        page.wait_for_timeout(1000)
    run = answer.value.json()
    page.goto("about:blank")  # the page of a run draws it again and again as it goes on
    servers.wait_for(run["id"], "COMPLETED")
    (folder,) = (servers.checkout.folder / "runs").glob("rl-*")
    assert "lr: 0.0002" in (folder / "params" / "rl.yaml").read_text()
    assert not (servers.checkout.folder / "models").exists(), "the workspace is untouched"
    artifacts = servers.artifacts(run["id"])
    page.goto(f"{servers.prefect}/runs/flow-run/{run['id']}")
    page.get_by_text("Artifacts", exact=True).first.click()
    page.get_by_text(re.compile("^(" + "|".join(artifacts) + ")$")).first.wait_for()
    listed = servers.post("/artifacts/filter", {"artifacts": {"flow_run_id": {"any_": [run["id"]]}}})
    assert sum(each["key"] == "rl-health" for each in listed) == 1, "the findings of a run are one card"
    of_run = sorted(each["key"] for each in listed if each["task_run_id"] is None)  # Prefect's order, before the tasks'
    assert of_run[0] == "results" and "rl-progress" in of_run
    first = min(listed, key=lambda each: str(each["created"]))
    assert first["key"] == "rl-progress", "the list is not empty while the stages before it run"
    assert {"rl-curve", "curate-report", "rl-health"} <= artifacts.keys()
    page.goto(f"{servers.prefect}/artifacts/key/rl-curve")
    page.get_by_text("rl-curve", exact=True).first.wait_for()


@pytest.mark.browser
def test_the_address_of_mlflow_that_is_printed_shows_the_results(servers: Servers, page: Any) -> None:
    (address,) = re.findall(r"MLflow +(http\S+)", servers.output.read_text())
    page.goto(address)
    page.get_by_text("You're viewing a shared view").first.wait_for()  # the saved view Results, not a page about traces
    page.goto(f"{servers.mlflow}/#/experiments?workflowType=machine_learning")
    page.get_by_text("Runs of the pipeline").first.wait_for()


@pytest.mark.browser
def test_mlflow_shows_the_pipeline_with_its_stages(servers: Servers, page: Any) -> None:
    def ask(path: str, body: dict[str, Any] | None = None) -> Any:
        request = urllib.request.Request(
            f"{servers.mlflow}/api/2.0/mlflow/{path}",
            data=json.dumps(body).encode() if body else None,
            headers={"content-type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=120) as answer:
            return json.load(answer)

    experiment = ask("experiments/get-by-name?experiment_name=mathrl")["experiment"]["experiment_id"]
    runs = ask("runs/search", {"experiment_ids": [experiment]})["runs"]
    ids = {run["info"]["run_name"].split()[0]: run["info"]["run_id"] for run in runs}
    pages = f"{servers.mlflow}/#/experiments/{experiment}/runs"
    page.goto(pages)
    page.get_by_text("pipeline ").first.wait_for()
    page.goto(f"{pages}/{ids['pipeline']}")
    page.get_by_text("Child runs", exact=True).wait_for()
    page.get_by_text("Stages, made now or found:").wait_for()
    page.goto(f"{pages}/{ids['rl']}")
    page.get_by_text("Parent run", exact=True).wait_for()
    page.get_by_text("reward/accuracy").first.wait_for()
    (compare, *_) = servers.post("/artifacts/filter", {"artifacts": {"key": {"any_": ["results-curves"]}}})
    page.goto(compare["data"].partition("](")[2].rstrip(")"))
    page.locator(".js-plotly-plot .main-svg").first.wait_for()  # none where runs hide under their parents


def pages_given(folder: Path) -> dict[str, Any]:
    """The parameters of the flow pages, with files of 90 pages, a third of which are about mathematics."""
    words = {True: "equation triangle integer theorem prime sum", False: "garden river winter story bread road"}

    def write(name: str, kinds: list[bool]) -> str:
        rng = random.Random(name)
        rows = [
            {
                "text": " ".join(rng.choices(words[kind].split(), k=20)),
                "math": kind,
                "url": f"https://{'maths' if kind else 'prose'}.example/{i}",
            }
            for i, kind in enumerate(kinds)
        ]
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
        return str(folder / name)

    return {
        "files": [write("pages.jsonl", [i % 3 == 0 for i in range(90)])],
        "label_key": "math",
        "top_share": 0.33,
        "decontaminate": {"benchmarks": []},
        "positives": {"files": [write("positives.jsonl", [True] * 10)]},
        "negatives": {"files": [write("negatives.jsonl", [False] * 20)]},
    }


@pytest.fixture
def webhook() -> Iterator[tuple[str, list[str]]]:
    """A web server of this test's own, and what it was sent."""
    sent: list[str] = []

    class Taker(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            sent.append(self.rfile.read(int(self.headers["content-length"])).decode())
            self.send_response(200)
            self.end_headers()

        def log_message(self, *args: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Taker) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", sent
        server.shutdown()


def test_automations_evaluate_a_new_model_and_say_a_failure_while_another_run_goes_on(
    servers: Servers, webhook: tuple[str, list[str]]
) -> None:
    url, sent = webhook
    made = f"Webhook(name='here', url={url!r}, json_data={{'said': '{{{{subject}}}}: {{{{body}}}}'}})"
    block = servers.checkout.python(
        f"from prefect.blocks.notifications import CustomWebhookNotificationBlock as Webhook\n"
        f"print({made}.save('here'))",
        PREFECT_API_URL=f"{servers.prefect}/api",
    ).strip()
    notify = YAML(typ="safe").load(ROOT / "docs" / "automations" / "notify-when-a-flow-fails.yaml")
    notify["actions"][0]["block_document_id"] = block
    servers.post("/automations/", notify)
    (new_model,) = [
        each for each in servers.post("/automations/filter", {}) if each["name"] == "evaluate each new model of rl"
    ]
    assert not new_model["enabled"], "an example is off until somebody wants it"
    (crashed,) = [each for each in servers.post("/automations/filter", {}) if "heartbeats" in each["name"]]
    assert crashed["enabled"] and crashed["actions"][0]["state"] == "CRASHED"
    servers.post(f"/automations/{new_model['id']}", {"enabled": True}, "PATCH")
    wrong = servers.start("rl", overrides=["rl.nothing=1"])
    run = servers.start("rl", seed=3, overrides=["rl.optimizer.lr=1e-4"])
    found = servers.wait_for(run, "COMPLETED")
    assert set(found["tags"]) == {"training", "stage:rl", "seed:3"}
    link = servers.artifacts(run)["rl-mlflow"]
    mlflow_run = link.partition("](")[2].partition("?")[0].rpartition("/")[2]
    tried = {each["id"]: each for each in servers.checkout.mlflow_runs()}[mlflow_run]
    assert float(tried["params"]["rl.optimizer.lr"]) == 1e-4
    assert found["name"] == tried["name"] == "rl lr=0.0001 seed 3", "one run has one name"
    assert tried["tags"]["git.dirty"] == "false", "the worktree has the commit's code"
    with pytest.raises(AssertionError, match="nothing"):
        servers.wait_for(wrong, "COMPLETED")

    def started() -> list[Any]:
        every = servers.post("/flow_runs/filter", {"flows": {"name": {"any_": ["evaluate"]}}})
        return [each for each in every if each["created_by"]["type"] == "AUTOMATION"]

    (evaluation,) = wait_for(started, "an evaluation", 300)
    servers.wait_for(evaluation["id"], "COMPLETED")
    assert "results" in servers.artifacts(evaluation["id"])
    (model,) = (servers.checkout.folder / "runs").glob("rl-seed_3-lr_*/models/rl/summary.json")
    (evaluated,) = (servers.checkout.folder / "runs").glob("evaluate-*/models/rl/summary.json")
    assert evaluated.read_bytes() == model.read_bytes(), "from DVC's cache"
    wait_for(lambda: sent, "the failure", 300)
    assert "nothing" in sent[0] and "failed" in sent[0]


def test_cancelling_in_the_ui_ends_a_silent_trainer_in_seconds_and_pages_have_its_slot(
    servers: Servers, pids: Path, tmp_path: Path
) -> None:
    servers.post("/v2/concurrency_limits/mathrl-slots", {"limit": 1}, "PATCH")
    servers.silent.write_text("evaluate")
    run = servers.start("evaluate")
    wait_for(pids.exists, "the trainer", 300)
    trainer = int(pids.read_text())
    assert is_alive(trainer)
    servers.silent.unlink()  # the second run's programs are forks again
    waiting = servers.start("pages", params={"pages": pages_given(tmp_path)})
    servers.wait_for(waiting, "RUNNING")
    time.sleep(3.0)
    tasks = servers.post("/task_runs/filter", {"flow_runs": {"id": {"any_": [waiting]}}})
    assert tasks == [], "it waits for the slot"
    # What the button does.
    servers.post(f"/flow_runs/{run}/set_state", {"state": {"type": "CANCELLING"}})
    wait_for(lambda: not is_alive(trainer), "the trainer's end", 200)
    servers.wait_for(run, "CANCELLED", seconds=200)
    assert list((servers.checkout.home / "state").glob("evaluate-*/checkpoint")), "it can go on"
    servers.wait_for(waiting, "COMPLETED")
    (folder,) = (servers.checkout.folder / "runs").glob("pages-*")
    kept = (folder / "pipelines" / "recipes" / "pages" / "pages" / "kept.jsonl").read_text().splitlines()
    assert len(kept) == 29 and all(json.loads(row)["math"] for row in kept)
    assert "pages-report" in servers.artifacts(waiting)
    finished = [each for each in servers.checkout.mlflow_runs("mathrl/pages") if each["status"] == "FINISHED"]
    assert "pages/pages" in {each["tags"].get("dvc.stage") for each in finished}


def test_ctrl_c_ends_every_server(servers: Servers) -> None:
    servers.process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    servers.process.send_signal(signal.SIGTERM)  # as by somebody impatient
    assert servers.process.wait(timeout=200) == 0
    ports = (servers.prefect_port, servers.mlflow_port, servers.rollouts_port)
    wait_for(lambda: not any(map(ui.listens, ports)), "the servers' end", 60)
