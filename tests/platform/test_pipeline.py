"""The flow, `dvc repro` and MLflow together, on one checkout; each test goes on from the one before."""

import base64
import contextlib
import http.server
import json
import re
import shutil
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mathrl.compose import load_params
from mathrl.params.schema import STAGES
from mathrl.tasks.workspace import uncommitted_files
from mathrl.tracking.lineage import find_run, way_back, way_forward

Checkout = Any
PLANTED = "pl4nted-s3cret"
PRESETS = ["gsm8k-ppo-24gb", "deepseekmath-7b", "perplexity-math"]
SECRETS = dict.fromkeys(("HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "MLFLOW_TRACKING_PASSWORD", "API_KEY"), PLANTED)


@pytest.fixture(scope="module")
def checkout(new_checkout: Checkout, warm_python: Path) -> Checkout:
    """As after `git clone`: it makes its databases itself."""
    new_checkout.use_python(warm_python)
    return new_checkout


def ran(output: str) -> list[str]:
    return [stage for stage in STAGES if f"Running stage '{stage}'" in output]


def runs_by_name(checkout: Checkout) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for run in checkout.mlflow_runs():
        found.setdefault(run["tags"].get("dvc.stage", "parent"), []).append(run)
    return found


def test_the_flow_runs_every_stage_and_prints_the_results(checkout: Checkout) -> None:
    done = checkout.mathrl("run", "pipeline", **SECRETS)
    assert PLANTED not in done.stdout + done.stderr
    assert ran(done.stdout + done.stderr) == list(STAGES)
    for part in (
        "pass@1",
        "0.400 to 0.600",
        "maj@8",
        "rl is better than sft",
        "mathrl-chain version 1",
        "reports/rl/curve.png",
        "make ui",
    ):
        assert part in done.stdout
    with sqlite3.connect(checkout.home / "prefect" / "prefect.db", timeout=60) as database:
        artifacts = dict(database.execute("select key, data from artifact"))
    assert "rl-health" in artifacts and "10 % &#124; cut off" in artifacts["rl-health"]
    link = re.search(r"http://127.0.0.1:5001/register-[^/]+/report.html", artifacts["results-report"])
    assert link, "browsers open no file:// from a page"
    assert [line.split("│")[1].strip() for line in done.stdout.splitlines() if line[:1] == "│"] == ["base", "sft", "rl"]


def test_a_secret_of_the_environment_is_written_nowhere(checkout: Checkout) -> None:
    """MLflow's and Prefect's databases, records, artifacts, logs, reports, lock files."""
    files = [file for file in checkout.folder.rglob("*") if file.is_file() and not file.is_symlink()]
    names = {str(file.relative_to(checkout.folder)) for file in files}
    assert {".mathrl/mlflow.db", "dvc.lock"} <= names and any("run.json" in name for name in names)
    assert any("prefect" in name for name in names) and any("report.html" in name for name in names)
    found = []
    for file in files:
        with contextlib.suppress(FileNotFoundError):  # a server's database still tidies up beside itself
            if PLANTED.encode() in file.read_bytes():
                found.append(str(file))
    assert found == []


@pytest.fixture
def broken_mlflow() -> Iterator[tuple[int, list[str | None]]]:
    """The port of a server that knows the experiment and says nothing to any other question; the logins that
    it was shown."""
    logins: list[str | None] = []

    class Broken(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            logins.append(self.headers["authorization"])
            if "/experiments/get-by-name" not in self.path:
                return
            said = json.dumps({"experiment": {"experiment_id": "1", "name": "mathrl"}}).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(said)))
            self.end_headers()
            self.wfile.write(said)

        do_POST = do_GET

        def log_message(self, *args: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Broken) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port, logins
        server.shutdown()


def test_a_password_in_the_address_of_mlflow_stands_in_no_error(
    checkout: Checkout, broken_mlflow: tuple[int, list[str | None]], tmp_path: Path
) -> None:
    port, logins = broken_mlflow
    done = checkout.run(
        checkout.executable,
        "-m",
        "mathrl.stages.register",
        ok=False,
        MATHRL_HOME=str(tmp_path),
        MLFLOW_TRACKING_URI=f"http://me:{PLANTED}%21@127.0.0.1:{port}",
        MLFLOW_HTTP_REQUEST_MAX_RETRIES="0",
    )
    assert done.returncode == 1
    said = f"API request to http://127.0.0.1:{port}/api/2.0/mlflow/"
    assert f"tracking: MlflowException: {said}" in done.stderr, "the mirror's"
    (record,) = tmp_path.glob("records/register-*/run.json")
    facts = json.loads(record.read_text())
    assert facts["status"] == "failed" and facts["error"].startswith(said)
    assert PLANTED not in done.stdout + done.stderr
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert [file for file in files if PLANTED.encode() in file.read_bytes()] == []
    assert set(logins) == {"Basic " + base64.b64encode(f"me:{PLANTED}!".encode()).decode()}


def test_dvc_then_has_nothing_to_do(checkout: Checkout) -> None:
    assert ran(checkout.repro().stdout) == []
    status = checkout.git("status", "--porcelain").splitlines()
    new = {"data/.gitignore", "models/", "reports/", "dvc.lock"}
    assert {line[3:] for line in status} == new


def test_dvc_shows_the_pipeline_and_what_was_asked_for(checkout: Checkout) -> None:
    assert checkout.run("dvc", "status").stdout.split() == ["code:", "always", "changed"], "nothing else has"
    assert len(checkout.run("dvc", "dag").stdout) < 20_000

    def stages() -> list[str]:
        return checkout.run("dvc", "stage", "list", "--all", "--name-only").stdout.split()

    assert stages() == ["code", "resolve", *STAGES]
    checkout.mathrl("recipe", "pages", "--graph")
    assert "pipelines/recipes/pages/dvc.yaml:pages" in stages()
    refused = checkout.mathrl("recipe", "page", "--graph", ok=False)
    assert refused.returncode == 2
    assert "no recipe 'page' (did you mean pages?); recipes: beyond-objectives" in refused.stderr
    # A graph that was written is no change to the code: runs with overrides are still taken.
    assert uncommitted_files(checkout.folder) == []
    shutil.rmtree(checkout.folder / "pipelines" / "recipes" / "pages")


def test_a_run_with_nothing_to_do_starts_no_server_and_no_flow_yet_uploads_and_reports(checkout: Checkout) -> None:
    log = checkout.home / "logs" / "prefect-run.log"  # of the server that a flow would start
    log.unlink()
    (mirror,) = (checkout.home / "records").glob("mix-*/mirror.json")
    complete = json.loads(mirror.read_text())
    mirror.write_text(json.dumps({name: value for name, value in complete.items() if name != "complete"}))
    printed = checkout.mathrl("run", "pipeline").stdout
    assert "nothing to do: curate, sft, difficulty, mix, rl, evaluate, register up to date" in printed
    assert printed.count("0.400 to 0.600") > 2 and printed.count("rl is better than sft") == 1
    assert not log.exists() and json.loads(mirror.read_text()) == complete, "what MLflow lacked was uploaded"


def test_one_parent_has_a_run_of_every_stage_with_all_that_lineage_needs(checkout: Checkout) -> None:
    runs = runs_by_name(checkout)
    (parent,) = runs.pop("parent")
    assert {name: len(each) for name, each in runs.items()} == dict.fromkeys(STAGES, 1)
    commit = checkout.git("rev-parse", "HEAD")
    for stage, (run,) in runs.items():
        assert run["status"] == "FINISHED"
        assert run["tags"]["mlflow.parentRunId"] == parent["id"]
        assert parent["tags"][f"stage.{stage}"] == run["id"]
        assert run["id"] in parent["tags"]["mlflow.note.content"]
        assert run["tags"]["mlflow.source.git.commit"] == commit
        assert run["tags"]["git.dirty"] == "false"
        assert run["tags"]["prefect.flow_run_id"]
        assert run["tags"]["mathrl.pipeline"] == parent["tags"]["mathrl.pipeline"]
    (rl,) = runs["rl"]
    assert rl["params"]["rl.optimizer.lr"] == "0.01" and rl["params"]["run.seed"] == "0"
    assert "curate.on_bad_row" not in rl["params"], "a run has the parameters that its stage reads"
    assert rl["tags"]["mlflow.mathrl.made_by.models/sft"] == runs["sft"][0]["id"]
    datasets = {each.dataset.name: each.dataset.digest for each in rl["run"].inputs.dataset_inputs}
    dev = "data/curated/dev.jsonl"
    assert datasets[dev] == runs["curate"][0]["tags"][f"mlflow.mathrl.output.{dev}"]


def test_the_metrics_of_a_run_are_those_of_its_record_once_each(checkout: Checkout) -> None:
    (rl,) = runs_by_name(checkout)["rl"]
    history = rl["client"].get_metric_history(rl["id"], "reward/accuracy")
    assert [(each.step, each.value) for each in history] == [(step, step / 10) for step in range(1, 7)]
    assert rl["metrics"]["odd:40:name"] == 1.0
    assert rl["tags"]["health"] == "yellow"
    assert rl["tags"]["health.truncated"] == "step 2 to 3: 10 % | cut off; cause: no room"
    files = {file.path for file in rl["client"].list_artifacts(rl["id"])}
    assert {"rl_curve.png", "examples_table.json"} <= files
    table = rl["client"].download_artifacts(rl["id"], "examples_table.json", str(checkout.home))
    with open(table) as stream:  # noqa: PTH123 - a text path
        assert len(json.load(stream)["data"]) == 20


def test_the_model_is_registered_with_its_alias_and_lineage(checkout: Checkout) -> None:
    entry = json.loads((checkout.folder / "reports" / "registered.json").read_text())
    (run,) = runs_by_name(checkout)["register"]
    version = run["client"].get_model_version_by_alias("mathrl-chain", "candidate")
    assert (entry["version"], int(version.version)) == (1, 1)
    assert version.tags["mathrl.digest"] == entry["digest"]
    assert version.tags["dvc.md5"] in (checkout.folder / "dvc.lock").read_text()
    assert version.tags["git.commit"] == checkout.git("rev-parse", "HEAD")
    # Its report is with its run, and shows responses without running them.
    file = run["client"].download_artifacts(run["id"], "report.html", str(checkout.home))
    text = Path(file).read_text(encoding="utf-8")
    assert "<script" not in text and "&lt;script&gt;document.title" in text and "Complete: 6 stages" in text


def test_the_way_back_from_the_registered_model_is_complete(checkout: Checkout) -> None:
    (run,) = runs_by_name(checkout)["register"]
    client = run["client"]
    back = way_back(client, "mathrl-chain@candidate")
    assert sorted(step.stage for step in back.steps) == sorted(STAGES) and back.unexplained == []
    edges = {(maker, reader) for maker, _, reader in back.edges}
    for step in back.steps:  # whoever reads something is joined to its maker
        assert bool(step.inputs) == any(reader == step.run for _, reader in edges)
        assert step.commit == checkout.git("rev-parse", "HEAD") and step.params
    curated = next(step for step in back.steps if step.stage == "curate")
    readers, models = way_forward(client, curated.outputs["data/curated/rl.jsonl"])
    assert [(each.name, each.version, each.made) for each in models] == [("mathrl-chain", "1", True)]
    assert {"difficulty", "mix", "rl"} <= {step.stage for step in readers}
    found = find_run(client, "rl")
    assert found.info.run_id == runs_by_name(checkout)["rl"][0]["id"]
    assert find_run(client, found.info.run_id).info.run_name == f"rl {checkout.git('rev-parse', 'HEAD')[:7]}"
    assert find_run(client, found.info.run_name).info.run_id == found.info.run_id


def test_a_changed_parameter_reruns_what_depends_on_it_and_links_the_rest(checkout: Checkout) -> None:
    before = {run["id"] for run in checkout.mlflow_runs()}
    checkout.git("add", "-f", "dvc.lock", "reports/metrics.json", "reports/summary.json")
    checkout.git("commit", "-q", "-m", "results")
    checkout.set_param("rl.optimizer.lr", 4e-4)
    assert ran(checkout.repro(MATHRL_MIRROR="none").stdout) == ["rl", "evaluate", "register"]
    checkout.mathrl("runs", "sync")
    runs = runs_by_name(checkout)
    new = {name: [r for r in each if r["id"] not in before] for name, each in runs.items()}
    assert {name: len(each) for name, each in new.items() if each} == {
        "parent": 1,
        "rl": 1,
        "evaluate": 1,
        "register": 1,
    }
    (parent,) = new["parent"]
    for stage in ("curate", "sft", "difficulty", "mix"):
        assert parent["tags"][f"stage.{stage}"] == runs[stage][0]["id"], "the run that made it is linked"
    assert new["rl"][0]["tags"]["git.dirty"] == "true"
    assert [new[name][0]["name"] for name in ("parent", "rl")] == ["pipeline lr=0.0004", "rl lr=0.0004"]
    assert parent["params"]["changed"] == "lr=0.0004" and parent["params"]["rl.optimizer.lr"] == "0.0004"
    assert parent["metrics"]["rl/pass_at_1"] == 0.5 and parent["metrics"]["sft/pass_at_1_low"] == 0.4
    table = checkout.mathrl("runs").stdout.partition("pipeline lr=0.0004")[2]
    row = "".join(table.splitlines()[:2])
    assert row.count("0.500") == 2 and "0.400 to 0.600" in row, "it says what MLflow's list does"


def test_dvc_compares_parameters_metrics_and_pictures_with_the_last_commit(checkout: Checkout) -> None:
    """After what the test above changed."""
    params = json.loads(checkout.run("dvc", "params", "diff", "--json").stdout)
    assert params["resolved.yaml"].keys() == {"rl.optimizer.lr"}
    assert params["resolved.yaml"]["rl.optimizer.lr"]["new"] == 0.0004
    metrics = json.loads(checkout.run("dvc", "metrics", "diff", "--json").stdout)
    assert set(metrics) == {"reports/metrics.json"} and metrics["reports/metrics.json"]["rl.response_length"]["diff"]
    for verb in ("show", "diff"):
        checkout.run("dvc", "plots", verb, "--out", f"plots-{verb}")
        page = (checkout.folder / f"plots-{verb}" / "index.html").read_text()
        assert "http" not in page and "<script" not in page, "it loads nothing"
        assert page.count("<img") >= 2, "of sft and rl"
    checkout.restore_params()


def test_dvc_knows_what_a_preset_changes(checkout: Checkout) -> None:
    """A preset's parameters written as for a worktree: DVC reads them, and finds each stage changed that does."""
    code = (
        "from pathlib import Path; from dvc.dependency import ParamsDependency; from dvc.repo import Repo\n"
        "from mathrl.compose import load_params, write_params; from mathrl.params.schema import READS, STAGES\n"
        "from mathrl.compose.load import write_resolved\n"
        "now, stages = load_params(), Repo().index.stages\n"
        f"for name in {PRESETS}:\n"
        "    preset = load_params(preset=name)\n"
        "    changed = set(write_params(now, preset))\n"
        "    write_resolved()\n"
        "    would = {stage.name for stage in stages for dep in stage.deps\n"
        "             if isinstance(dep, ParamsDependency) and dep.status()}\n"
        "    missed = {stage for stage in STAGES if changed & set(READS[stage])} - would\n"
        "    print('MISSED', name, missed) if missed or not changed else print('FINE', name)\n"
        "    write_params(preset, now)\n"
    )
    said = [line for line in checkout.python(code).splitlines() if line.startswith(("MISSED", "FINE"))]
    assert said == [f"FINE {name}" for name in PRESETS]
    checkout.restore_params()


def test_an_experiment_on_the_command_line(checkout: Checkout) -> None:
    """`dvc exp run` in the checkout, with a number that YAML 1.1 would read as text."""
    checkout.set_param("rl.optimizer.lr", 0.01)  # -S edits a file that is there
    done = checkout.run("dvc", "exp", "run", "--name", "slow", "-S", "params/rl.yaml:optimizer.lr=2e-6", "rl")
    assert ran(done.stdout) == ["rl"]
    assert load_params(checkout.folder / "params").rl.optimizer.lr == 2e-6
    tried = {run["params"].get("rl.optimizer.lr") for run in runs_by_name(checkout)["rl"]}
    assert "2e-06" in tried
    assert "slow" in checkout.run("dvc", "exp", "list", "--name-only").stdout
    checkout.restore_params()
    checkout.git("checkout", "-q", "--", "dvc.lock", "reports/metrics.json", "reports/summary.json")


def test_register_keeps_the_version_of_a_model_whose_bytes_it_knows(checkout: Checkout) -> None:
    checkout.repro(MATHRL_MIRROR="none")
    entry = json.loads((checkout.folder / "reports" / "registered.json").read_text())
    assert entry["version"] == 1
    (first, *_) = runs_by_name(checkout)["register"]
    versions = first["client"].search_model_versions("name = 'mathrl-chain'")
    assert sorted(int(version.version) for version in versions) == [1, 2]
    assert int(first["client"].get_model_version_by_alias("mathrl-chain", "candidate").version) == 1


def test_overrides_run_in_a_worktree_where_a_failed_stage_resumes_its_own_run(checkout: Checkout) -> None:
    def bytes_of_workspace() -> dict[str, bytes]:
        folders = ("params", "data", "models", "reports")
        files = [file for name in folders for file in (checkout.folder / name).rglob("*") if file.is_file()]
        return {str(file): file.read_bytes() for file in [*files, checkout.folder / "dvc.lock"]}

    before, words = bytes_of_workspace(), ("run", "rl", "--set", "rl.optimizer.lr=3e-4")
    done = checkout.mathrl(*words, ok=False, STANDIN_FAIL="rl")
    assert done.returncode == 2
    assert done.stderr.strip().splitlines()[-1] == ("error: stage rl failed: rl: made to fail; take STANDIN_FAIL away")
    assert "Traceback" not in done.stderr
    (failed,) = (run for run in runs_by_name(checkout)["rl"] if run["status"] == "FAILED")
    assert "made to fail" in failed["tags"]["mathrl.error"]
    (folder,) = (checkout.folder / "runs").iterdir()
    (folder / ".dvc" / "tmp" / "rwlock").write_text("")  # as a kill in the middle of writing leaves it

    done = checkout.mathrl(*words)
    assert ran(done.stdout + done.stderr) == ["rl"], "what the override does not change comes from the shared cache"
    assert bytes_of_workspace() == before and [*(checkout.folder / "runs").iterdir()] == [folder]
    resumed = next(run for run in runs_by_name(checkout)["rl"] if run["id"] == failed["id"])
    assert resumed["status"] == "FINISHED" and resumed["tags"]["health"] == "yellow"
    assert resumed["params"]["rl.optimizer.lr"] == "0.0003"
    history = resumed["client"].get_metric_history(resumed["id"], "loss")
    assert [each.step for each in history] == [1, 2, 3, 4, 5, 6], "each step once, over both runs"
    assert not list((checkout.home / "state").glob("rl-*/")), "state is removed on success"
    assert folder.name.startswith("rl-lr_3e-4-")
    assert "0.0003" in (folder / "params" / "rl.yaml").read_text()
    new, old = (f / "models" / "rl" / "summary.json" for f in (folder, checkout.folder))
    assert new.read_bytes() != old.read_bytes()
    assert folder.name in checkout.mathrl("runs").stdout
    report = checkout.mathrl("runs", "report", folder.name).stdout.split()[0]
    assert "0.0003" in (checkout.folder / report).read_text(), "its results are reached by its name"
    made = (folder / "models" / "rl" / "summary.json").read_bytes()
    said = checkout.mathrl("runs", "adopt", folder.name).stdout
    assert "+  lr: 0.0003" in said
    assert ran(checkout.repro("rl").stdout) == [], "its results are in DVC's cache"
    assert (checkout.folder / "models" / "rl" / "summary.json").read_bytes() == made
    refused = checkout.mathrl("runs", "adopt", folder.name, ok=False)
    assert refused.returncode == 2 and "params/rl.yaml changed" in refused.stderr
    checkout.git("add", "params")
    checkout.git("reset", "-q", "--hard")
    checkout.mathrl("runs", "remove", folder.name)
    assert not folder.exists() and folder.name not in checkout.git("worktree", "list")


def test_overrides_name_uncommitted_code_and_refuse(checkout: Checkout) -> None:
    file = checkout.folder / "mathrl" / "stages" / "mix.py"
    file.write_text(file.read_text() + "# changed\n")
    done = checkout.mathrl("run", "rl", "--set", "rl.optimizer.lr=3e-4", ok=False)
    assert done.returncode == 2 and "mathrl/stages/mix.py" in done.stderr and "--allow-dirty" in done.stderr
    assert not list((checkout.folder / "runs").iterdir())
    checkout.git("checkout", "-q", "--", "mathrl")
