"""Workers of a study that are killed: mathrl's claims and Optuna's heartbeat, `python benchmarks/trial_claims.py`.

A trial takes a second and reports five values. `--workers` processes run `--trials` trials; every three seconds one of
them, drawn by chance, is killed (SIGKILL), or stopped for eight seconds (SIGSTOP, in a share `--stops` of all cases),
and a new one starts in the place of a killed one. The sides:

- mathrl: `claim` and `while_holding` with a journal file, and with PostgreSQL (where initdb is on PATH and can run);
- optuna: `Study.optimize` with RDBStorage(heartbeat_interval=1, grace_period=2), RetryHeartbeatStaleTrialCallback and
  MaxTrialsCallback over complete trials, with sqlite (made before the workers start), and with PostgreSQL.

Printed for each: complete trials, and how many different ones ended; those that ended twice (a trial and its retry);
those that were started and never ended (lost), or that the study has as running although no worker lives; starts of a
trial while another living worker ran it (twice at once); median and longest time from a worker's death to the next
start of its trial; exceptions of workers; processor seconds of all workers.
"""

import argparse
import json
import os
import random
import resource
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
from statistics import median
from typing import Any

import optuna
from optuna.storages import RDBStorage, RetryHeartbeatStaleTrialCallback
from optuna.study import MaxTrialsCallback
from optuna.trial import Trial, TrialState

from mathrl.params.sweep import Sweep
from mathrl.sweeps.study import OpenStudy, TrialLost, claim, storage_of, study_lock, while_holding

STEPS, STEP_SECONDS, EVERY_SECONDS, STOP_SECONDS = 5, 0.2, 3.0, 8.0
LIMIT_SECONDS = 240.0
Log = Callable[..., None]


def log_to(file: Path) -> Log:
    def log(event: str, number: int) -> None:
        with file.open("a") as stream:
            stream.write(json.dumps([event, os.getpid(), number, time.monotonic()]) + "\n")

    return log


def mathrl_worker(sweep: Sweep, file: Path) -> None:
    log = log_to(file)
    opened = open_small(sweep)
    while (claimed := claim(opened)) is not None:
        trial = claimed.trial
        log("start", trial.number)
        try:
            for step in range(STEPS):
                time.sleep(STEP_SECONDS)
                with while_holding(claimed):
                    trial.report(0.1 * step, step)
            with while_holding(claimed):
                opened.study.tell(trial, trial.params["rl.optimizer.lr"])
        except TrialLost:
            log("lost", trial.number)
        else:
            log("end", trial.number)
        claimed.lock.close()


def open_small(sweep: Sweep) -> OpenStudy:
    with study_lock(sweep):
        study = optuna.create_study(
            storage=storage_of(sweep), study_name=sweep.study, direction="maximize", load_if_exists=True
        )
    return OpenStudy(study, sweep, Path(), {}, STEPS, sweep.study)


def heartbeat_storage(url: str) -> RDBStorage:
    return RDBStorage(
        url,
        heartbeat_interval=1,
        grace_period=2,
        heartbeat_stale_trial_callback=RetryHeartbeatStaleTrialCallback(),
        engine_kwargs={"connect_args": {"timeout": 60}} if url.startswith("sqlite") else {},
    )


def optuna_worker(url: str, trials: int, file: Path) -> None:
    log = log_to(file)
    study = optuna.load_study(study_name="s", storage=heartbeat_storage(url))
    study.sampler = optuna.samplers.TPESampler(seed=os.getpid(), constant_liar=True)

    def objective(trial: Trial) -> float:
        first = RetryHeartbeatStaleTrialCallback.retried_trial_number(study._storage.get_trial(trial._trial_id))
        number = trial.number if first is None else first
        log("start", number)
        value = trial.suggest_float("lr", 1e-4, 1e-2, log=True)
        for step in range(STEPS):
            time.sleep(STEP_SECONDS)
            trial.report(0.1 * step, step)
        log("end", number)
        return value

    if sum(trial.state == TrialState.COMPLETE for trial in study.trials) < trials:
        study.optimize(objective, callbacks=[MaxTrialsCallback(trials, states=(TrialState.COMPLETE,))])


def attempt(target: Callable[..., None], file: Path, *given: Any) -> None:
    warnings.simplefilter("ignore")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        target(*given, file)
    except Exception as error:
        log_to(file)("error", -1)
        with file.with_suffix(".errors").open("a") as stream:
            stream.write(f"{type(error).__name__}: {str(error).splitlines()[0][:150]}\n")
            stream.write(traceback.format_exc())
        raise SystemExit(1) from None


def harass(
    target: Callable[..., None], given: tuple[Any, ...], file: Path, workers: int, seed: int, stops: float
) -> float:
    """Run the workers to the end of the study among kills and stops; processor seconds of all of them."""
    chance, fork, log = random.Random(seed), get_context("fork"), log_to(file)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)

    def start() -> BaseProcess:
        process = fork.Process(target=attempt, args=(target, file, *given))
        process.start()
        return process

    running = [start() for _ in range(workers)]
    stopped: dict[BaseProcess, float] = {}
    deadline = time.monotonic() + LIMIT_SECONDS
    while running and time.monotonic() < deadline:
        time.sleep(EVERY_SECONDS)
        for process in [p for p, until in stopped.items() if time.monotonic() > until]:
            os.kill(process.pid or 0, signal.SIGCONT)
            del stopped[process]
        for process in [p for p in running if not p.is_alive()]:
            running.remove(process)
            if process.exitcode == 1:  # an exception: a person or a supervisor would start it again
                running.append(start())
        free = [p for p in running if p not in stopped]
        if len(free) < 2:
            continue
        victim = chance.choice(free)
        if chance.random() < stops:
            os.kill(victim.pid or 0, signal.SIGSTOP)
            stopped[victim] = time.monotonic() + STOP_SECONDS
        else:
            victim.kill()
            victim.join()
            with file.open("a") as stream:
                stream.write(json.dumps(["killed", victim.pid, -1, time.monotonic()]) + "\n")
            running[running.index(victim)] = start()
    for process in running:
        process.kill()
        process.join()
    log("over", -1)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def account(file: Path, study: optuna.Study, seconds: float, asked: int) -> dict[str, Any]:
    events = sorted((json.loads(line) for line in file.read_text().splitlines()), key=lambda event: event[3])
    holder: dict[int, int] = {}  # the worker that runs a trial
    waits, died, twice = list[float](), dict[int, float](), 0
    for event, pid, number, at in events:
        if event == "start":
            twice += number in holder
            holder[number] = pid
            if number in died:
                waits.append(at - died.pop(number))
        elif event in ("end", "lost") and holder.get(number) == pid:
            del holder[number]
        elif event in ("killed", "error"):
            for trial in [trial for trial, of in holder.items() if of == pid]:
                del holder[trial]
                died[trial] = at
    begun = {number for event, _, number, _ in events if event == "start"}
    ends = Counter(number for event, _, number, _ in events if event == "end")
    states = Counter(trial.state.name for trial in study.trials)
    return {
        "asked": asked, "complete": states["COMPLETE"], "different": len(ends),
        "twice complete": sum(n > 1 for n in ends.values()), "lost": len(begun - ends.keys()),
        "left running": states["RUNNING"],        "failed in the study": states["FAIL"], "twice at once": twice,
        "seconds to the next start": [round(x, 1) for x in (median(waits), max(waits))] if waits else [],
        "kills": sum(event[0] == "killed" for event in events), "errors": sum(event[0] == "error" for event in events),
        "wall": round(events[-1][3] - events[0][3]), "processor seconds": round(seconds, 1),
    }  # fmt: skip


@contextmanager
def postgres(folder: Path) -> Iterator[str | None]:
    as_user = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
    if not shutil.which("initdb"):
        yield None
        return
    if as_user:
        folder.chmod(0o755)
        (folder / "pg").mkdir()
        shutil.chown(folder / "pg", "postgres")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    data = str(folder / "pg" / "data")

    def run(*words: str) -> None:
        subprocess.run([*as_user, *words], cwd="/", check=True, stdout=subprocess.DEVNULL)

    run("initdb", "-D", data, "-U", "mathrl", "--auth=trust", "--no-sync")
    options = f"-p {port} -h 127.0.0.1 -k {folder / 'pg'} -F"
    run("pg_ctl", "-D", data, "-o", options, "-l", f"{folder}/pg/log", "-w", "start")
    try:
        yield f"postgresql+psycopg2://mathrl:x@127.0.0.1:{port}/postgres"
    finally:
        run("pg_ctl", "-D", data, "-m", "immediate", "-w", "stop")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--trials", type=int, default=24)
    parser.add_argument("--stops", type=float, default=0.25, help="Share of SIGSTOP among the signals.")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    optuna.create_study().optimize(
        lambda trial: trial.suggest_float("x", 0, 1), 12
    )  # what it imports late, before forks
    space = {"rl.optimizer.lr": {"kind": "log", "low": 1e-4, "high": 1e-2}}
    for seed in arguments.seeds:
        with tempfile.TemporaryDirectory() as name, postgres(Path(name)) as server:
            folder = Path(name)
            os.environ["MATHRL_HOME"] = str(folder / "home")
            os.environ["MATHRL_SWEEP_STORAGE"] = (server or "").replace("+psycopg2", "")
            for storage in ("journal", "environment")[: 1 + bool(server)]:
                section = {"study": "s" if storage == "journal" else "p", "storage": storage, "space": space}
                sweep = Sweep.model_validate(section | {"trials": arguments.trials})
                open_small(sweep)
                file = folder / f"mathrl-{storage}"
                seconds = harass(mathrl_worker, (sweep,), file, arguments.workers, seed, arguments.stops)
                show("mathrl", storage, seed, account(file, open_small(sweep).study, seconds, arguments.trials), file)
            for url in (f"sqlite:///{folder}/optuna.db", server):
                if url is None:
                    continue
                optuna.create_study(study_name="s", storage=heartbeat_storage(url), direction="maximize")
                kind = url.partition(":")[0].partition("+")[0]
                file = folder / f"optuna-{kind}"
                seconds = harass(optuna_worker, (url, arguments.trials), file, arguments.workers, seed, arguments.stops)
                study = optuna.load_study(study_name="s", storage=heartbeat_storage(url))
                show("optuna", kind, seed, account(file, study, seconds, arguments.trials), file)


def show(side: str, storage: str, seed: int, figures: dict[str, Any], file: Path) -> None:
    print(json.dumps({"side": side, "storage": storage, "seed": seed, **figures}), flush=True)
    errors = file.with_suffix(".errors")
    if errors.exists():
        lines = [line for line in errors.read_text().splitlines() if line and not line.startswith((" ", "Traceback"))]
        for line, count in Counter(lines).most_common(4):
            print(f"  {count} x {line[:160]}")


if __name__ == "__main__":
    main()
