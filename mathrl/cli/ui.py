"""`mathrl ui`: servers of Prefect and MLflow on loopback, with the flows deployed and a worker for them."""

import importlib.util
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import psutil
import typer
from filelock import FileLock
from pydantic import ValidationError

from mathrl.compose import load_params
from mathrl.core.environment import Variable
from mathrl.core.errors import EXIT_TERMINATED, UserError
from mathrl.core.files import write_json
from mathrl.core.mirroring import TRAINING, results_address
from mathrl.core.paths import home, is_loopback, main_checkout, state_root, tracking_uri
from mathrl.params.load import read_yaml
from mathrl.tasks.prefect_server import ORIGINS, SLOTS
from mathrl.tracking.client import EXPERIMENT, KIND, follow_move, keep_views

HOST, EVERYWHERE = "127.0.0.1", ("0.0.0.0", "::")
POOL = "mathrl"
DEPLOYMENTS = "prefect.yaml"
START_SECONDS = 120.0
SERVERS = "servers.json"
DEFAULT_SLOTS = 2
# Prefect's own template lets whoever starts a flow run choose its command, environment and folder: here nothing.
JOB_TEMPLATE = {
    "job_configuration": {"stream_output": True},
    "variables": {"type": "object", "properties": {}, "additionalProperties": False},
}


def ui(
    prefect_port: Annotated[int, typer.Option(help="Port of Prefect's server.")] = 4200,
    mlflow_port: Annotated[int, typer.Option(help="Port of MLflow's server.")] = 5000,
    rollouts_port: Annotated[int, typer.Option(help="Port of the page over kept rollouts, on loopback.")] = 5001,
    host: Annotated[str, typer.Option(help="Address to listen on; any but loopback needs --open.")] = HOST,
    open_host: Annotated[
        bool, typer.Option("--open", help="Accept connections of other machines; both servers need a login.")
    ] = False,
    slots: Annotated[
        int | None, typer.Option(min=1, help="Maximum number of flows that compute at a time (initially 2).")
    ] = None,
) -> None:
    """Start Prefect and MLflow on this machine with the flows deployed; Ctrl-C ends them."""
    check_host(host, open_host, os.environ)
    root = main_checkout()
    os.chdir(root)
    load_params()  # the forms show them: an error in params/ is one sentence before anything is started
    ports = ("Prefect", prefect_port, "prefect"), ("MLflow", mlflow_port, "mlflow")
    for name, port, option in (*ports, ("the rollouts' page", rollouts_port, "rollouts")):
        if listens(port):
            raise UserError(
                f"port {port} of {name} is in use: is it another mathrl ui? Then open http://{HOST}:{port}; else stop "
                f"that program, or choose another --{option}-port"
            )
    env = _environment(root, prefect_port, mlflow_port, host) | {Variable.ROLLOUTS: f"http://{HOST}:{rollouts_port}"}
    logs = home() / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    follow_move()
    children: list[subprocess.Popen[bytes]] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) != signal.SIG_IGN:  # a command in the background ignores it
            signal.signal(number, _stop_once)

    def start(name: str, *command: str) -> None:
        log = (logs / f"{name}.log").open("wb")
        children.append(
            subprocess.Popen([sys.executable, "-m", *command], env=env, stdout=log, stderr=log, start_new_session=True)
        )

    try:
        start("mlflow", *_mlflow(mlflow_port, host))
        start("prefect", *_prefect_server(prefect_port, host))
        began = time.monotonic()

        def report(what: str) -> None:
            print(f"{time.monotonic() - began:3.0f} s: {what}", flush=True)

        report("starting Prefect and MLflow; the first start makes their databases and takes longest ...")
        os.environ["PREFECT_HOME"] = env["PREFECT_HOME"]  # read by the import, which takes a second while both start
        importlib.import_module("prefect.client.orchestration")
        _wait(f"{env['PREFECT_API_URL']}/health", "prefect", logs, children)
        report("Prefect answers")
        _wait(f"{env['MLFLOW_TRACKING_URI']}/health", "mlflow", logs, children)
        report("MLflow answers; deploying the flows ...")
        with _prefect_client(env) as client:
            _make_pool(client)
            _make_slots(client, slots)
            _make_automations(client)
        start("worker", "prefect", "worker", "start", "--pool", POOL)
        _deploy(env)
        results = _results_page(env["MLFLOW_TRACKING_URI"], env["MLFLOW_BACKEND_STORE_URI"], host)
        start("rollouts", "mathrl.reports.rollout_server", "--port", str(rollouts_port))
        report("the flows are deployed, and their worker has started")
        urls = {name: env[name] for name in ("PREFECT_API_URL", "MLFLOW_TRACKING_URI", Variable.ROLLOUTS)}
        write_json(home() / SERVERS, urls)
        print(f"Prefect  {env['PREFECT_API_URL'].removesuffix('/api')}/deployments   start a flow here")
        print(f"MLflow   {results}   look at runs and models here")
        print(f"rollouts {env[Variable.ROLLOUTS]}   look at kept rollouts here")
        print(f"logs in {logs}; Ctrl-C ends all", flush=True)
        while all(child.poll() is None for child in children):
            time.sleep(0.5)
        raise UserError(f"a server ended unexpectedly; see {logs}")
    except KeyboardInterrupt:
        print("ending ...")
    finally:
        (home() / SERVERS).unlink(missing_ok=True)
        _end(children)


def _results_page(server: str, store: str, host: str) -> str:
    """MLflow's page of the pipeline's runs, best first: its first page is one about traces of applications.

    Its experiment is made with a folder of this machine, so that runs with and without a server write to it. Other
    machines could not: with --open the first run makes it, and until then the address is that of all experiments.
    """
    from mlflow import MlflowClient  # for this command alone

    client = MlflowClient(store)
    with FileLock(home() / "tracking.lock"):
        experiment = client.get_experiment_by_name(EXPERIMENT)
        if experiment is None and not is_loopback(host):
            return f"{server}/#/experiments{TRAINING}"
        if experiment is None:
            number = client.create_experiment(EXPERIMENT, (home() / "artifacts").as_uri(), KIND)
            experiment = client.get_experiment(number)
    keep_views(client, experiment)
    return results_address(server, experiment.experiment_id)


def running_servers() -> dict[str, str]:
    """The addresses of the servers that `mathrl ui` started and that answer now, by environment variable."""
    try:
        urls: dict[str, str] = json.loads((home() / SERVERS).read_text())
    except (FileNotFoundError, json.JSONDecodeError, UserError):
        return {}
    return {name: url for name, url in urls.items() if _answers(f"{url}/health")}


def check_host(host: str, open_host: bool, environment: Mapping[str, str]) -> None:
    """Refuse to open the servers to other machines without a login, since a flow runs code.

    Raises:
        UserError: `host` is not loopback, and --open or a login is missing.
    """
    if is_loopback(host):
        return
    remedy = (
        "keep 127.0.0.1 and connect by `ssh -L 4200:127.0.0.1:4200 -L 5000:127.0.0.1:5000`, or give --open "
        "and set PREFECT_SERVER_API_AUTH_STRING=USER:PASSWORD (clients: PREFECT_API_AUTH_STRING) and "
        "MLFLOW_AUTH_CONFIG_PATH to a basic_auth.ini with an administrator's password of your own (clients: "
        "MLFLOW_TRACKING_USERNAME, MLFLOW_TRACKING_PASSWORD)"
    )
    if not open_host:
        raise UserError(f"--host {host} lets everyone who reaches it start flows and change runs: {remedy}")
    if ":" not in environment.get("PREFECT_SERVER_API_AUTH_STRING", ""):
        raise UserError(f"--open: PREFECT_SERVER_API_AUTH_STRING is not set, so Prefect asks for no login: {remedy}")
    if not Path(environment.get("MLFLOW_AUTH_CONFIG_PATH") or "-").is_file():
        raise UserError(f"--open: MLFLOW_AUTH_CONFIG_PATH names no file, so MLflow asks for no login: {remedy}")
    for name in ("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD"):
        if not environment.get(name):
            raise UserError(f"--open: {name} is not set, so flows could not write to MLflow: {remedy}")
    if importlib.util.find_spec("flask_wtf") is None:
        raise UserError("--open: MLflow's login needs a package: pip install -c constraints.txt 'mlflow[auth]'")


def _environment(root: Path, prefect_port: int, mlflow_port: int, host: str) -> dict[str, str]:
    address = HOST if host in EVERYWHERE else host
    login = os.environ.get("PREFECT_SERVER_API_AUTH_STRING")
    return (
        os.environ
        | {
            "PATH": str(Path(sys.executable).parent) + os.pathsep + os.environ.get("PATH", ""),
            "PREFECT_HOME": str(home() / "prefect"),
            # Set before the server starts, because its pages call this address.
            "PREFECT_API_URL": f"http://{address}:{prefect_port}/api",
            ORIGINS: _prefect_origins(prefect_port, host),
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "PREFECT_WORKER_QUERY_SECONDS": "2",  # a run that was submitted starts soon: the default is 10
            "PREFECT_CLOUD_ENABLE_ORCHESTRATION_TELEMETRY": "false",
            "DO_NOT_TRACK": "1",
            "MLFLOW_DISABLE_TELEMETRY": "true",
            # Judges of GenAI traces: eight processes of 245 MB each, without work here.
            "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
            "MLFLOW_TRACKING_URI": f"http://{address}:{mlflow_port}",
            Variable.WORKSPACE: str(root),
            Variable.HOME: str(home()),
            Variable.STATE: str(state_root()),
            # In the environment and not as an option, because every user can read command lines.
            "MLFLOW_BACKEND_STORE_URI": _store(),
        }
        | ({"PREFECT_API_AUTH_STRING": login} if login else {})
        | ({} if is_loopback(host) else _open_environment(prefect_port, mlflow_port, host))
    )


def _open_environment(prefect_port: int, mlflow_port: int, host: str) -> dict[str, str]:
    """Variables with the servers' host names: they answer only to these, and Prefect's pages call the first.

    Variables that are set already, for a proxy or an alias, stay.
    """
    names = _names(host)
    variables = {
        "PREFECT_UI_API_URL": f"http://{names[0]}:{prefect_port}/api",
        "MLFLOW_SERVER_ALLOWED_HOSTS": ",".join(f"{name}:{mlflow_port}" for name in names),
        "MLFLOW_SERVER_CORS_ALLOWED_ORIGINS": ",".join(f"http://{name}:{mlflow_port}" for name in names),
        # Signs the forms of this server; MLflow's login does not start without it.
        "MLFLOW_FLASK_SERVER_SECRET_KEY": secrets.token_hex(32),
    }
    return {name: os.environ.get(name) or value for name, value in variables.items()}


def _prefect_origins(port: int, host: str) -> str:
    """The addresses of Prefect's pages; other pages and host names are refused. A person's own are added to them."""
    page = urllib.parse.urlsplit(os.environ.get("PREFECT_UI_API_URL", ""))
    own = [f"{page.scheme}://{page.netloc}"] if page.netloc else []
    own += [origin for origin in os.environ.get(ORIGINS, "").split(",") if origin]
    return ",".join([*(f"http://{name}:{port}" for name in _names(host)), *own])


def _names(host: str) -> list[str]:
    """The names under which a server that listens at `host` is reached."""
    names = [host]
    if host in EVERYWHERE:
        addresses = [address for card in psutil.net_if_addrs().values() for address in card]
        names = [socket.gethostname(), socket.getfqdn()]
        names += [address.address for address in addresses if address.family == socket.AF_INET]
    return list(dict.fromkeys([*names, HOST, "localhost"]))


def _store() -> str:
    """The local store, which runs without a server write to as well."""
    uri = tracking_uri()
    return uri if uri.startswith(("sqlite", "postgresql")) else f"sqlite:///{home() / 'mlflow.db'}"


def _prefect_server(port: int, host: str) -> list[str]:
    words = ["uvicorn", "--factory", "mathrl.tasks.prefect_server:app", "--host", host, "--port", str(port)]
    return [*words, "--log-level", "warning"]


def _mlflow(port: int, host: str) -> list[str]:
    artifacts = (home() / "artifacts").as_uri()
    home().mkdir(parents=True, exist_ok=True)
    login = ["--app-name", "basic-auth"] if host != HOST and os.environ.get("MLFLOW_AUTH_CONFIG_PATH") else []
    return [
        "mlflow",
        "server",
        "--host",
        host,
        "--port",
        str(port),
        "--workers",
        "1",
        "--artifacts-destination",
        artifacts,
        *login,
    ]


def _wait(url: str, name: str, logs: Path, children: list[subprocess.Popen[bytes]]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not _answers(url):
        if any(child.poll() is not None for child in children) or time.monotonic() > deadline:
            raise UserError(f"{name} did not start; see {logs / f'{name}.log'}")
        time.sleep(0.3)


def _deploy(env: dict[str, str]) -> None:
    words = [sys.executable, "-m", "prefect", "--no-prompt", "deploy", "--all"]
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise UserError(f"prefect deploy --all failed: {(done.stderr or done.stdout).strip()[-500:]}")


@contextmanager
def _prefect_client(env: Mapping[str, str]) -> Iterator[Any]:
    """A client of the server that `env` names.

    Raises:
        UserError: the server refuses a request, or an automation of prefect.yaml is none.
    """
    from httpx import HTTPError
    from prefect.client.orchestration import get_client
    from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings

    login = env.get("PREFECT_API_AUTH_STRING")
    settings = {PREFECT_API_URL: env["PREFECT_API_URL"]} | ({PREFECT_API_AUTH_STRING: login} if login else {})
    with temporary_settings(settings), get_client(sync_client=True) as client:
        try:
            yield client
        except (HTTPError, ValidationError) as error:
            raise UserError(f"Prefect refused the work pool, slots or automations of {DEPLOYMENTS}: {error}") from None


def _make_pool(client: Any) -> None:
    """Create the work pool, or give an existing one the template `JOB_TEMPLATE`."""
    from prefect.client.schemas.actions import WorkPoolCreate

    client.create_work_pool(WorkPoolCreate(name=POOL, type="process", base_job_template=JOB_TEMPLATE), overwrite=True)


def _make_slots(client: Any, limit: int | None) -> None:
    """Set the limit `mathrl-slots`; without a number it stays as it is, initially two."""
    from prefect.exceptions import ObjectNotFound

    if limit is None:
        try:
            client.read_global_concurrency_limit_by_name(SLOTS)
            return
        except ObjectNotFound:
            limit = DEFAULT_SLOTS
    client.upsert_global_concurrency_limit_by_name(SLOTS, limit)


def _make_automations(client: Any) -> None:
    """Create the automations of prefect.yaml that are not there; switched off ones stay off."""
    from prefect.events.schemas.automations import AutomationCore

    for automation in read_yaml(Path(DEPLOYMENTS)).get("automations", ()):
        if not client.read_automations_by_name(automation["name"]):
            client.create_automation(AutomationCore.model_validate(automation))


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(0.5)
        return probe.connect_ex((HOST, port)) == 0


def _stop_once(number: int, _: object) -> None:
    """The first signal ends the servers; a second one must not interrupt their end."""
    for ignored in (signal.SIGINT, signal.SIGTERM):
        signal.signal(ignored, signal.SIG_IGN)
    raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(EXIT_TERMINATED)


def _end(children: list[subprocess.Popen[bytes]]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        for child in reversed(children):
            if child.poll() is None:
                os.killpg(child.pid, number)
        deadline = time.monotonic() + 15
        while time.monotonic() < deadline and any(child.poll() is None for child in children):
            time.sleep(0.1)
