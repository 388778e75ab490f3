"""What an upload to MLflow costs beside a stage and after it: `python benchmarks/mirror_cost.py [SECONDS]`.

In place of a stage, this process writes a row of 40 metrics per second into a record of a home of its own. `beside`
follows it by `mathrl.tracking.mirror`, as stages and flows do; `after` uploads it at the end by one call of `sync`.
Printed: processor seconds of the uploading process, which also creates the database, and how long it goes on after the
stage's end, by the clock.
"""

import json
import os
import resource
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from mathrl.core.records import RunRecord

TURNS, METRICS = 2, 40


def measure(way: str, seconds: int, home: Path) -> None:
    record = RunRecord(home / "records" / "rl-k-1", stage="rl", key="k", pid=os.getpid(), host=socket.gethostname())
    record.artifacts.mkdir(parents=True)
    record.update(started=time.time(), pipeline="p")
    env = {key: value for key, value in os.environ.items() if key != "MLFLOW_TRACKING_URI"} | {"MATHRL_HOME": str(home)}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    words = (
        ["-m", "mathrl.tracking.mirror"]
        if way == "beside"
        else ["-c", "from mathrl.tracking.mirror import sync; sync()"]
    )
    command = [sys.executable, *words]
    beside = subprocess.Popen(command, stdin=subprocess.PIPE, env=env) if way == "beside" else None
    with record.metrics_file.open("a") as stream:
        for step in range(1, seconds + 1):
            row = {"step": step, "at": time.time()} | {f"m{i}": step * i / 7 for i in range(METRICS)}
            stream.write(json.dumps(row) + "\n")
            stream.flush()
            time.sleep(1)
    record.update(status="finished", ended=time.time())
    ended = time.monotonic()
    if beside is not None:
        beside.communicate()
    else:
        subprocess.run(command, env=env, check=True)
    after, waited = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic() - ended
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(f"{way}: {used:.1f} s of processor time, {waited:.1f} s after the stage's end", flush=True)


def main() -> None:
    seconds = int(sys.argv[1]) if len(sys.argv) > 1 else 40
    for way in ("after", "beside") * TURNS:
        with tempfile.TemporaryDirectory() as home:
            measure(way, seconds, Path(home))


if __name__ == "__main__":
    main()
