"""`mathrl init`: a project of one's own from a file of problems and a model."""

import json
import re
import shlex
import subprocess
import sys
import sysconfig
import unicodedata
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from glob import has_magic
from importlib.machinery import PathFinder
from importlib.metadata import PackageNotFoundError, distribution
from keyword import kwlist
from pathlib import Path
from typing import Annotated, Any

import typer

import mathrl
from mathrl.cli.inspect import given_keys, prompting_of, show, unread_advice
from mathrl.cli.output import AsJson, print_document, print_result
from mathrl.compose import load_params
from mathrl.compose.load import read_layers
from mathrl.core.environment import Variable
from mathrl.core.errors import UserError
from mathrl.core.files import remove_leftovers, write_text, written_aside
from mathrl.core.gpus import CPU, Hardware, gpu_count
from mathrl.curation.inspection import inspect_rows
from mathrl.models.shapes import check_weights
from mathrl.params.load import dump_yaml
from mathrl.params.messages import near_path
from mathrl.params.run import PretrainedModel
from mathrl.params.schema import TARGETS
from mathrl.planning.final_values import check_final_values

EXPERIMENT = (
    "# What the project is made of; the other files have what it changes besides (docs/how_to/experiments.md).\n"
)
TEMPLATE = Path(mathrl.__file__).with_name("template")
# What a project begins with, by its file in the template. Most are links to this repository's own.
FILES = {
    "dvc.yaml": "pipeline.yaml",
    "prefect.yaml": "prefect.yaml",
    ".dvc/config": "dvc_config",
    ".dvc/plots.html": "plots.html",
    ".dvcignore": "dvcignore",
    ".gitignore": "gitignore",
    "data/inputs/curate/.gitignore": "inputs_gitignore",
    "data/inputs/evaluate/.gitignore": "inputs_gitignore",
    "pyproject.toml": "project.toml",
    "README.md": "README.md",
}
ASIDE = ".new"  # holds the files of a project in an existing folder until they are complete
FILLED = ("project.toml", "README.md")
RESERVED = (
    "data", "models", "reports", "params", "pipelines", "test", "tests", "runs", "mathrl", "prefect", "mlflow", "dvc"
)  # fmt: skip
FEW = 20  # test problems, of which one more or less is a difference of five points
HEADINGS = {
    "curate": "Your problems. Each row is trained on or tested on, never both.",
    "model": "The model that training starts from.",
    "prompt": "How a problem becomes the model's input. Longer prompts are left out and counted.",
    "sft": "Supervised fine-tuning on your solutions; steps: 0 leaves it out (chat models, or no solutions).",
    "difficulty": "Pass rates of the model on a choice of your problems.",
    "mix": "RL trains on problems that the model solves sometimes, but not always.",
    "reward": "1 for a right answer, else 0.",
    "rl": "GRPO. Responses of all stages have at most max_tokens; the rate goes by the model and the adapters.",
    "evaluate": "Evaluation on the held-out problems.",
    "sample": "Sampling for recipes: responses to imitate, preference pairs, labels of steps.",
    "dpo": "DPO in recipes.",
    "reward_model": "Reward models in recipes.",
    "controls": "`mathrl runs controls`: runs to compare RL with.",
    "sweep": "`mathrl sweep run`: a search around the project's own learning rate, scored on dev.",
}


def init(
    folder: Annotated[Path, typer.Argument(help="Folder of the new project.")],
    data: Annotated[
        Path | None, typer.Option(help="Your problems: a file, a folder of files, or a quoted pattern.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Hugging Face model folder or hub id.")] = None,
    test: Annotated[
        Path | None, typer.Option(help="File of test problems; default: a share of the rows is held out.")
    ] = None,
    field: Annotated[
        list[str] | None, typer.Option(help="A field by name instead of a guess, e.g. answer_key=gold; repeatable.")
    ] = None,
    demo: Annotated[
        bool, typer.Option("--demo", help="The demo instead: a small model of random weights on generated sums.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Make a project of your own problems and model: look at both, choose the parameters, and say what comes next.

    The project is a git repository of at most 30 files: parameters, the pipeline, the flows, and Python of your own.
    Nothing is trained yet.
    """
    remove_leftovers(folder.resolve() / ASIDE if folder.exists() else folder.resolve())
    if (folder / ASIDE).is_dir():
        _move_up(folder)
        raise UserError(f"{folder}: has the project of a `mathrl init` that was killed as it ended; it is complete now")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder}: exists and is not empty; name a new folder")
    if demo:
        if data or model or test or field:
            raise UserError("--demo has data and a model of its own: leave --data, --model, --test and --field out")
        _make_demo(folder, as_json)
        return
    if data is None or model is None:
        raise UserError(
            "name your problems and a model: mathrl init FOLDER --data rows.jsonl --model MODEL; or --demo for neither"
        )
    for option, path in (("data", data), ("test", test)):
        if path is not None and not (path.expanduser().exists() or has_magic(str(path))):
            raise UserError(f"--{option} {path}: no such file or folder{near_path(path)}")
    local = Path(model).expanduser().resolve()
    if local.is_dir():
        check_weights(local)
        model = str(local)
    project = folder.resolve().name  # of the folder "." too
    sections, advice = _sections(project, data, model, test, given_keys(field or ()))
    with _new_project(folder.resolve()) as aside:
        _write_template(aside, project, f"{Path(model).name} on {data.name}")
        write_text(aside / "params" / "experiment.yaml", EXPERIMENT + dump_yaml({"model": model, "method": "grpo"}))
        for name, values in differences(sections, aside / "params").items():
            heading = f"# {HEADINGS[name]}\n" if name in HEADINGS else ""
            write_text(aside / "params" / f"{name}.yaml", heading + dump_yaml(values))
        params = load_params(aside / "params")
        check_final_values(params, TARGETS)
        _commit(aside, f"Project {project}: {data.name}, {Path(model).name}")
    next_command = f"cd {shlex.quote(str(folder))} && mathrl run mix"
    if as_json:
        print_document(
            {"project": str(folder.absolute()), "sections": sections, "warning": advice, "next": next_command}
        )
        return
    _print_choices(sections)
    print(f"\nproject: {folder}; its parameters are in {folder / 'params'} and in its first commit")
    if advice:
        print(f"warning: {advice}")
    print(f"next: {next_command}    (curates the problems, then measures the model's pass rates)")


@contextmanager
def _new_project(folder: Path) -> Iterator[Path]:
    """A folder to fill, whose files are the project's once the context has ended without an error.

    An empty folder that is there stays the same one: a shell may be in it, or it is a mount.
    """
    if not folder.exists():
        with written_aside(folder) as aside:
            yield aside
        return
    with written_aside(folder / ASIDE) as aside:
        yield aside
    _move_up(folder)


def _move_up(folder: Path) -> None:
    """Move the files of a complete project into its folder; what a kill leaves is moved by the next `mathrl init`."""
    for path in (folder / ASIDE).iterdir():
        path.rename(folder / path.name)
    (folder / ASIDE).rmdir()


def _make_demo(folder: Path, as_json: bool) -> None:
    """The project of `make demo`: this repository's own composition."""
    project = folder.resolve().name
    with _new_project(folder.resolve()) as aside:
        _write_template(aside, project, "the demo, a small model that learns to reason on generated sums")
        write_text(aside / "params" / "experiment.yaml", (TEMPLATE / "demo.yaml").read_text(encoding="utf-8"))
        _commit(aside, f"Project {project}: the demo")
    next_command = f"cd {shlex.quote(str(folder))} && mathrl run pipeline"
    document = {"project": str(folder.absolute()), "sections": {}, "warning": "", "next": next_command}
    print_result(as_json, document, f"project: {folder}", f"next: {next_command}    (a few minutes)")


def differences(sections: Mapping[str, dict[str, Any]], params: Path) -> dict[str, dict[str, Any]]:
    """What of the sections is not as the composition of the project `params` has it, the defaults, and what follows
    from them: a rate that nobody wrote goes by the model, the optimizer and the adapters of each run, and responses of
    all stages are as long as those of rl."""
    curate, mix, longest = sections["curate"]["sources"], sections["mix"]["components"], sections["rl"]["max_tokens"]
    least = [f"curate.sources={json.dumps(curate)}", f"mix.components={json.dumps(mix)}", f"rl.max_tokens={longest}"]
    beneath = read_layers(params).params(least).model_dump(mode="json", by_alias=True)
    differ = {name: _without_repeated(values, beneath[name]) for name, values in sections.items()}
    differ["curate"]["sources"], differ["mix"]["components"], differ["rl"]["max_tokens"] = curate, mix, longest
    return {name: values for name, values in differ.items() if values}


def _without_repeated(values: Mapping[str, Any], beneath: Mapping[str, Any]) -> dict[str, Any]:
    """
    >>> _without_repeated({"steps": 1, "optimizer": {"lr": 1}}, {"steps": 1, "optimizer": {"lr": 3, "eps": 2}})
    {'optimizer': {'lr': 1}}
    """
    kept: dict[str, Any] = {}
    for key, value in values.items():
        below = beneath.get(key)
        if isinstance(value, Mapping) and isinstance(below, Mapping) and value.get("type") in (None, below.get("type")):
            if inner := _without_repeated(value, below):
                kept[key] = inner
        elif value != below:
            kept[key] = value
    return kept


def _sections(
    project: str, data: Path, model: str, test: Path | None, keys: Mapping[str, str]
) -> tuple[dict[str, dict[str, Any]], str]:
    """The parameters that a project sets, by section, and what is wrong with its rows; empty: nothing."""
    from mathrl.models.load import load_tokenizer  # torch: --help answers without it
    from mathrl.models.model_shape import config_of, shape_of
    from mathrl.planning.project import project_sections, test_source

    config = config_of(PretrainedModel(path=model))
    shape = shape_of(config)
    prompting = prompting_of(model, None)
    benchmarks = str(Path(data_folder).expanduser().absolute()) if (data_folder := Variable.DATA.get()) else None
    name = _plain(project)
    inspection = inspect_rows(data.expanduser().resolve(), keys, prompting, name=name, data_folder=benchmarks)
    show(inspection, model)
    source = None
    if test is not None:
        path = test.expanduser().resolve()
        held_out = inspect_rows(path, keys, prompting, name=f"{name}_test", data_folder=benchmarks)
        source = test_source(path, f"{name}_test", held_out)
    gpus = gpu_count()
    hardware = Hardware("cuda", count=gpus) if gpus else CPU
    positions = getattr(config.get_text_config(), "max_position_embeddings", None) or 1 << 15
    print(f"\nmodel: {shape.parameters / 1e6:,.1f} million parameters, {positions:,} positions, {config.model_type}")
    sections = project_sections(
        inspection,
        name=name,
        model=model,
        shape=shape,
        positions=positions,
        tokenizer=load_tokenizer(model),
        hardware=hardware,
        test=source,
    )
    share = sections["curate"].get("test_share")  # none: the test problems are a file's
    few = few_advice(round(share * inspection.rows)) if share is not None else ""
    return sections, "; ".join(filter(None, (unread_advice(inspection), few)))


def few_advice(problems: int) -> str:
    """What to do where a share of the rows holds out few test problems; empty where it holds out enough.

    >>> few_advice(2)
    'about 2 problems are held out for the test, which tells models hardly apart: give more rows, or a file with --test'
    """
    if problems >= FEW:
        return ""
    return (
        f"about {problems} problems are held out for the test, which tells models hardly apart: give more rows, or a "
        "file with --test"
    )


def _print_choices(sections: Mapping[str, Mapping[str, Any]]) -> None:
    """The parameters that were chosen, in the order in which a run meets them."""
    curate, prompt, sft, rl = (sections[name] for name in ("curate", "prompt", "sft", "rl"))
    held_out = f"{curate['test_share']:.1%} of the rows" if "test_share" in curate else "your file"
    print(f"  test problems: {held_out}; dev problems: {curate['dev_share']:.1%}; bad rows: {curate['on_bad_row']}")
    print(f"  prompts: template {prompt['template']}, at most {prompt['max_tokens']} tokens")
    print(f"  responses: at most {rl['max_tokens']} tokens")
    print(
        f"  SFT: {sft['steps']} steps"
        + (f" at lr {sft['optimizer']['lr']:g}" if sft["steps"] else " (the model as it is)")
    )
    step = f"{rl['prompts_per_step']} prompts with {rl['group_size']} responses"
    print(f"  RL: {rl['steps']} steps of {step} at lr {rl['optimizer']['lr']:g}")


def _write_template(folder: Path, name: str, what: str) -> None:
    """The files that every project begins with."""
    package = re.sub(r"\W+", "_", name.lower()).strip("_") or "project"
    # A folder called random, math or torch would be imported in the place of that module, or not at all.
    installed = PathFinder.find_spec(package, [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")])
    taken = installed or package in {*RESERVED, *sys.stdlib_module_names, *kwlist}
    package = f"project_{package}" if taken or package[0].isdigit() else package
    words = {
        "@NAME@": _plain(name),
        "@DISTRIBUTION@": _distribution(name),
        "@PACKAGE@": package,
        "@VERSION@": mathrl.__version__,
    }
    lock = "constraints-gpu.txt" if gpu_count() else "constraints.txt"
    own = {"rewards.py": package, "samplers.py": package, "test_own_code.py": "tests"}
    files = FILES | {"constraints.txt": lock} | {f"{place}/{file}": f"own/{file}.txt" for file, place in own.items()}
    for target, source in files.items():
        text = (TEMPLATE / source).read_text(encoding="utf-8")
        if source in FILLED or source.startswith("own/"):
            for word, value in (words | {"@WHAT@": what}).items():
                text = text.replace(word, value)
        write_text(folder / target, text)
    write_text(folder / package / "__init__.py", f'"""Python of the project {name}."""\n')


def _plain(name: str) -> str:
    """The name with a hyphen for what sources, registered models and titles may not have.

    >>> _plain("Ann's 2 sums")
    'Ann-s-2-sums'
    """
    return re.sub(r"[^\w.-]+", "-", name)


def _distribution(name: str) -> str:
    """The name as pip and uv take it, and not that of a package which the project needs.

    >>> _distribution("_Übung"), _distribution("mathrl")
    ('Ubung', 'project-mathrl')
    """
    ascii_name = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    plain = re.sub(r"[^a-zA-Z0-9._-]+", "-", ascii_name).strip("-._")
    try:
        distribution(plain)
    except (PackageNotFoundError, ValueError):  # the latter of an empty name
        return plain or "project"
    return f"project-{plain}"


def _git(*arguments: str) -> None:
    done = subprocess.run(["git", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise UserError(f"git {arguments[0]} failed: {' '.join(done.stderr.split())[:300]}")


def _commit(folder: Path, message: str) -> None:
    """Make the folder a git repository with one commit, by the person's own identity where git knows one there."""
    _git("init", "--quiet", "--initial-branch", "main", str(folder))
    identified = subprocess.run(["git", "-C", str(folder), "config", "user.email"], capture_output=True, check=False)
    identity = [] if identified.returncode == 0 else ["-c", "user.name=mathrl", "-c", "user.email=mathrl@localhost"]
    _git("-C", str(folder), "add", "--all")
    _git("-C", str(folder), *identity, "commit", "--quiet", "--message", message)
