"""What orchestration and tracking cost: the demo's stages bare, under DVC, under Prefect + DVC + MLflow.

    python benchmarks/overhead.py [--ways bare dvc first later small] [--set rl.steps=5]

Each way computes every stage again, in a separate clone of this checkout's HEAD:

    bare    the stages' commands one after another, no tracking
    dvc     `dvc repro`, no tracking
    first   `mathrl run pipeline` from nothing: Prefect's and MLflow's databases are created
    later   `mathrl run pipeline` again, in another clone, with the databases of `first`
    small   commands with nothing to compute: `dvc repro`, `mathrl run pipeline`, `mathrl --help`, best of three

"outside" is the wall time in which no stage was running (by its record: after its imports, until its outputs are
digested), so it does not depend on how fast the stages happened to compute. The stages' own seconds differ between
ways by chance, and by what the mirror and the server take from them; "tools" is the processor time of all processes
that are not stages. While RL trains they take a share of a core, which falls after the first minute. An hour's run is
longer by the fixed part and, if it uses all cores, by at most 3600 times that share over their number.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
WAYS = ("bare", "dvc", "first", "later", "small")
# The kind of a process by its command line; the first match counts.
KINDS = (
    ("mirror", "mathrl.tracking.mirror"),
    ("stages", "mathrl.stages."),
    ("stages", "mathrl.rewards."),
    ("prefect server", "mathrl.tasks.prefect_server"),
    ("dvc", "dvc repro"),
    ("guard", "mathrl.core.guard"),
)
EVERY, FIRST = 1.0, 60.0


class Meter(threading.Thread):
    """Processor seconds of a process and its descendants, by kind, sampled: [(time, {kind: seconds})]."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.pid, self.seen, self.samples = pid, {}, []  # type: ignore[var-annotated]

    def run(self) -> None:
        while psutil.pid_exists(self.pid):
            try:
                root = psutil.Process(self.pid)
                for process in [root, *root.children(recursive=True)]:
                    self._look(process)
            except psutil.NoSuchProcess:
                return
            sums: dict[str, float] = {}
            for kind, seconds in self.seen.values():
                sums[kind] = sums.get(kind, 0.0) + seconds
            self.samples.append((time.time(), sums))
            time.sleep(EVERY)

    def _look(self, process: psutil.Process) -> None:
        try:
            words, used = " ".join(process.cmdline()), process.cpu_times()
            born = process.create_time()
        except (psutil.NoSuchProcess, psutil.ZombieProcess):
            return
        kind = next((name for name, part in KINDS if part in words), "flow")
        self.seen[process.pid, born] = (kind, used.user + used.system)

    def tools(self, first: float | None = None, last: float | None = None) -> dict[str, float]:
        """Seconds by kind between two times, without the stages'."""
        inside = [sums for at, sums in self.samples if (first or 0) <= at <= (last or 1e12)]
        before = {} if first is None or not inside else inside[0]
        end = inside[-1] if inside else {}
        return {kind: used - before.get(kind, 0.0) for kind, used in end.items() if kind != "stages"}


def clone(folder: Path, overrides: list[str]) -> Path:
    subprocess.run(["git", "clone", "-q", str(ROOT), str(folder)], check=True)
    if overrides:
        code = (
            "import sys; from pathlib import Path; from mathrl.compose import load_params, "
            "write_params; write_params(load_params(), load_params(overrides=sys.argv[1:]), "
            "Path('params'))"
        )
        subprocess.run([sys.executable, "-c", code, *overrides], cwd=folder, check=True, env=surroundings(folder))
    return folder


def surroundings(home: Path, **more: str) -> dict[str, str]:
    """The environment of a person's shell: no servers, no settings of another run, the clone's code first."""
    dropped = ("MATHRL_", "PREFECT_", "MLFLOW_", "DVC_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
    kept.pop("PYTHONPATH", None)
    path = f"{Path(sys.executable).parent}{os.pathsep}{kept['PATH']}"
    return kept | {"PATH": path, "MATHRL_HOME": str(home), **more}


def commands(folder: Path) -> list[list[str]]:
    from mathrl.params.load import read_yaml

    return [stage["cmd"].split() for stage in read_yaml(folder / "dvc.yaml")["stages"].values()]


MATHRL = [
    sys.executable,
    "-c",
    "import os, sys; sys.path.insert(0, os.getcwd()); sys.argv[0] = 'mathrl'; from mathrl.cli import main; main()",
]


def timed(todo: list[list[str]], folder: Path, env: dict[str, str]) -> dict[str, Any]:
    """Run the commands in turn: wall seconds, seconds within stages, processor seconds of the tools."""
    began, metered = time.time(), []
    for command in todo:
        with tempfile.TemporaryFile() as output:
            child = subprocess.Popen(command, cwd=folder, env=env, stdout=output, stderr=output)
            meter = Meter(child.pid)
            meter.start()
            if child.wait():
                output.seek(0)
                raise SystemExit(f"{' '.join(command)} failed:\n{output.read().decode()[-3000:]}")
            metered.append(meter)
    wall = time.time() - began
    records = [json.loads(file.read_text()) for file in Path(env["MATHRL_HOME"]).glob("records/*/run.json")]
    records = [record for record in records if record["started"] >= began]
    stages = {record["stage"]: record["ended"] - record["started"] for record in records}
    rl = next((record for record in records if record["stage"] == "rl"), None)
    tools: dict[str, float] = {}
    while_rl: dict[str, float] = {}
    later_rl: dict[str, float] = {}
    for meter in metered:
        parts = [(tools, meter.tools())]
        if rl:
            parts += [
                (while_rl, meter.tools(rl["started"], rl["ended"])),
                (later_rl, meter.tools(rl["started"] + FIRST, rl["ended"])),
            ]
        for out, part in parts:
            for kind, used in part.items():
                out[kind] = out.get(kind, 0.0) + used
    return {
        "wall": wall,
        "stages": stages,
        "outside": wall - sum(stages.values()),
        "tools": tools,
        "while_rl": while_rl,
        "later_rl": later_rl,
        "load": os.getloadavg()[0],
    }


def quickest(command: list[str], folder: Path, env: dict[str, str]) -> float:
    taken = []
    for _ in range(3):
        began = time.perf_counter()
        subprocess.run(command, cwd=folder, env=env, check=True, capture_output=True)
        taken.append(time.perf_counter() - began)
    return min(taken)


def show(results: dict[str, dict[str, Any]]) -> None:
    print(f"\n{'way':<7}{'wall s':>8}{'stages':>8}{'outside':>9}{'tools, processor s':>20}{'load':>6}")
    for way, result in results.items():
        print(
            f"{way:<7}{result['wall']:>8.1f}{sum(result['stages'].values()):>8.1f}{result['outside']:>9.1f}"
            f"{sum(result['tools'].values()):>20.1f}{result['load']:>6.1f}"
        )
    names = list(next(iter(results.values()))["stages"])
    print(f"\n{'stage':<12}" + "".join(f"{way:>8}" for way in results))
    for name in names:
        print(f"{name:<12}" + "".join(f"{result['stages'].get(name, 0.0):>8.1f}" for result in results.values()))
    bare = results.get("bare")
    for way, result in results.items():
        kinds = ", ".join(f"{kind} {used:.1f}" for kind, used in result["tools"].items() if used > 0.05)
        print(f"\n{way}: tools' processor seconds: {kinds or 'none'}")
        if bare is not None and way != "bare":
            more = result["outside"] - bare["outside"]
            rl = result["stages"].get("rl", 0.0)
            share = sum(result["while_rl"].values()) / rl if rl else 0.0
            later, addition = share, ""
            if rl > 1.5 * FIRST:
                later = sum(result["later_rl"].values()) / (rl - FIRST)
                addition = f", {later:.2%} after its first minute"
            cores = os.cpu_count() or 1
            hour = (more + 3600 * later / cores) / 3600
            print(
                f"{way}: {more:+.1f} s outside the stages against bare, {result['wall'] - bare['wall']:+.1f} "
                f"s in all; {share:.2%} of a core while rl trains{addition}; "
                f"of an hour's run on {cores} cores at most {hour:.2%}"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    parser.add_argument("--set", action="append", default=[], help="Overrides of params/, for a shorter run.")
    parser.add_argument("--folder", type=Path, help="Folder to keep, with the figures; a later call adds ways to it.")
    options = parser.parse_args()
    folder = (options.folder or Path(tempfile.mkdtemp(prefix="mathrl-overhead-"))).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    kept = folder / "figures.json"
    results: dict[str, dict[str, Any]] = json.loads(kept.read_text()) if kept.exists() else {}
    try:
        for way in (name for name in WAYS if name in options.ways and name != "small"):
            place = folder / way
            shutil.rmtree(place, ignore_errors=True)
            checkout = clone(place, options.set)
            home = folder / ("home" if way in ("first", "later") else f"home-{way}")
            if way != "later":
                shutil.rmtree(home, ignore_errors=True)
            env = surroundings(home, **({"MATHRL_MIRROR": "none"} if way in ("bare", "dvc") else {}))
            todo = {"bare": commands(checkout), "dvc": [[sys.executable, "-m", "dvc", "repro"]]}
            results[way] = timed(todo.get(way, [[*MATHRL, "run", "pipeline"]]), checkout, env)
            kept.write_text(json.dumps(results))
        show(results)
        if "small" in options.ways:
            done, env = folder / "later", surroundings(folder / "home")
            nothing = {
                "dvc repro": quickest([sys.executable, "-m", "dvc", "repro"], done, env),
                "mathrl run pipeline": quickest([*MATHRL, "run", "pipeline"], done, env),
                "mathrl --help": quickest([*MATHRL, "--help"], done, env),
            }
            print("\nnothing to compute: " + ", ".join(f"{name} {s:.2f} s" for name, s in nothing.items()))
    finally:
        if options.folder is None:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
