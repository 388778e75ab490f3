"""What the pages name exists: commands, options, parameters, presets, recipes, targets, files, terms."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from typer.main import get_command

import mathrl
from mathrl.cli.main import app
from mathrl.compose import load_params
from mathrl.compose.experiment import preset_names
from mathrl.core import errors
from mathrl.core.errors import UserError
from mathrl.core.paths import is_group
from mathrl.params.load import SECTIONS
from mathrl.params.schema import Params
from mathrl.params.section import Section
from mathrl.recipes.recipe import recipe_names

ROOT = Path(__file__).parents[2]
TOP = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "AGENTS.md", "llms.txt", "mlflow/README.md")]
PAGES = {
    file.relative_to(ROOT).as_posix(): file.read_text(encoding="utf-8")
    for file in (*TOP, *sorted((ROOT / "docs").rglob("*.md")))
}
FENCED = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^ *```", re.M | re.S)
INDENTED = re.compile(r"(?<=\n\n)(?: {4}[^\n]*\n)+")
SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
PARAMETER = re.compile(rf"(?<![\w./-])(?:{'|'.join(SECTIONS)})\.[a-z_0-9]+(?:\.[a-z_0-9]+)*(?![\w/(])")
FILES = ("py", "sh", "yaml", "json", "jsonl", "md", "png", "svg", "txt", "html", "log")
PLACE = re.compile(r"(?<![\w./-])(?:mathrl|tests|benchmarks|params|flows|tasks|mlflow|docs|tools)(?:/[\w.-]+)+\.[a-z]+")


def blocks(text: str) -> Iterator[str]:
    """The code of a page: fenced (but for python, yaml and what a run printed) and indented."""
    for _, language, code in FENCED.findall(text):
        if language in ("", "sh", "bash"):
            yield code
    for code in INDENTED.findall(FENCED.sub("\n", text)):
        yield code


def commands(code: str) -> Iterator[list[str]]:
    """The words after `mathrl` of each command in a block."""
    for line in code.replace("\\\n", " ").splitlines():
        if not re.search(r"(?:^|[\s;&(])mathrl [a-z-]", line):
            continue
        lexed = shlex.shlex(line.strip().removeprefix("$ "), posix=True, punctuation_chars="|;&()<>")
        lexed.whitespace_split = True
        words: list[str] | None = None
        for word in [*lexed, ";"]:
            if set(word) <= set("|;&()<>"):
                if words is not None:
                    yield words
                words = None
            elif words is not None:
                words.append(word)
            elif word == "mathrl":
                words = []


def spoken(text: str) -> list[list[str]]:
    """Commands named in running text: `mathrl plan --simulate`; their arguments may be missing."""
    return [span.split()[1:] for span in SPAN.findall(FENCED.sub("\n", text)) if re.match(r"mathrl [a-z]", span)]


def resolve(words: list[str]) -> tuple[Any, list[str]]:
    command: Any = get_command(app)
    rest = list(words)
    while rest and hasattr(command, "commands"):
        name = rest.pop(0)
        if command.invoke_without_command and (name.startswith("-") or is_group(name)):  # mathrl plan data=gsm8k
            return command, [name, *rest]
        assert name in command.list_commands(None), f"no command mathrl {' '.join(words)}"
        command = command.get_command(None, name)
    return command, rest


@pytest.mark.parametrize("page", PAGES)
def test_commands_in_blocks_parse(page: str) -> None:
    for block in blocks(PAGES[page]):
        for words in commands(block):
            command, rest = resolve(words)
            if hasattr(command, "commands") and not command.invoke_without_command:
                continue
            values = command.make_context(command.name, list(rest)).params
            overrides = values.get("overrides") or []
            presets = [name for names in values.get("presets") or [] for name in names.split("+")]
            assert set(presets) - {"PRESET"} <= set(preset_names(ROOT / "params")), words
            if command.name == "recipe" and values["name"] is not None:
                assert values["name"] in (*recipe_names(ROOT / "params"), "NAME"), words
            if command.name != "recipe" and "PRESET" not in presets:
                try:
                    load_params(ROOT / "params", preset="+".join(presets) or None, overrides=overrides)
                except UserError as error:
                    if re.search(rf"no module '({'|'.join(made_by(PAGES[page]))})'", str(error)):
                        continue  # a function that the page writes into a file first
                    pytest.fail(f"mathrl {' '.join(words)}: {error}")


def made_by(page: str) -> list[str]:
    """The modules whose code stands on a page."""
    titles = re.findall(r'^```python title="([^"]+)\.py"$', page, re.M)
    return [title.replace("/", ".") for title in titles] or ["-"]


@pytest.mark.parametrize("page", PAGES)
def test_commands_in_running_text_exist(page: str) -> None:
    for words in spoken(PAGES[page]):
        command, rest = resolve(words)
        options = {name for parameter in command.params for name in parameter.opts}
        assert {word for word in rest if word.startswith("--")} <= options | {"--help"}, f"mathrl {words}"


@pytest.mark.parametrize("page", PAGES)
def test_parameters_that_are_named_exist(page: str) -> None:
    text = re.sub("<!-- verl .*?<!-- end -->", "", PAGES[page], flags=re.S)  # that table has verl's own names
    code = [*SPAN.findall(text), *(code for _, _, code in FENCED.findall(text)), *blocks(text)]
    for named in {name for text in code for name in PARAMETER.findall(text)}:
        leaf = named.split(".")[-1]
        added = f"\n+    {leaf}: " in PAGES[page]  # by the page itself
        other = named.startswith(("run.params.", "reward.custom_reward_function."))  # of a StageRun, of verl
        module = ROOT.joinpath("mathrl", *named.split(".")).with_suffix(".py").exists()
        if leaf not in FILES and not added and not other and not module:
            assert exists(named), f"{page}: no parameter {named}"


@pytest.mark.parametrize("page", PAGES)
def test_files_and_make_targets_that_are_named_exist(page: str) -> None:
    text = PAGES[page]
    code = [*SPAN.findall(text), *(code for _, _, code in FENCED.findall(text)), *blocks(text)]
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    for block in code:
        assert set(re.findall(r"(?:^|&& |; )make ([a-z-]+)", block, re.M)) <= targets, f"{page}: {block}"
    for named in {place for span in SPAN.findall(text) for place in PLACE.findall(span)}:
        assert (ROOT / named).exists() or "NAME" in named, f"{page}: no file {named}"


@pytest.mark.parametrize("name", ["AGENTS.md", "llms.txt"])
def test_a_page_for_programs_is_short_and_its_links_and_python_are_right(name: str) -> None:
    assert len(PAGES[name].splitlines()) <= 70
    for link in re.findall(r"\]\(([^)#]+)\)", PAGES[name]):
        assert (ROOT / link).exists(), link
    for _, language, code in FENCED.findall(PAGES[name]):
        if language == "python":
            assert set(re.findall(r"mathrl\.(\w+)", code)) <= set(mathrl.__all__), code


def test_the_table_of_exit_statuses_has_those_of_the_code() -> None:
    named = {value for name, value in vars(errors).items() if name.startswith("EXIT_")}
    rows = re.findall(r"^\| ([\d, ]+) \|", PAGES["docs/reference/programs.md"], re.M)
    assert {int(status) for row in rows for status in row.split(",")} == named | {0}


def test_the_checks_see_what_is_wrong() -> None:
    page = (
        "x\n\n```sh\nA=1 mathrl run rl --set rl.optimizer.lr=1e-3 && mathrl sweep show  # why\n```\n\n"
        "    mathrl plan \\\n      --gpus 2\n\nand `mathrl models lineage --dataset`\n"
    )
    assert [words for block in blocks(page) for words in commands(block)] == [
        ["run", "rl", "--set", "rl.optimizer.lr=1e-3"],
        ["sweep", "show"],
        ["plan", "--gpus", "2"],
    ]
    assert spoken(page) == [["models", "lineage", "--dataset"]]
    assert (
        exists("rl.advantage.critic.optimizer.adamw_scale")
        and exists("curate.sources.0.path")
        and exists("mix.components")
    )
    assert exists("register.name") and not exists("rl.learning_rate") and not exists("sft.optimizer.rate")
    with pytest.raises(AssertionError):
        resolve(["runn", "rl"])


def exists(dotted: str) -> bool:
    """Whether the schema has this parameter: in a section, within lists, mappings and choices of sections."""
    first, *rest = dotted.split(".")
    kinds: list[Any] = [info.annotation for name, info in Params.model_fields.items() if (info.alias or name) == first]
    for name in rest:
        if not name.isdigit():
            inner = [section for kind in kinds for section in _sections(kind)]
            if not inner:
                return any("dict" in str(kind) for kind in kinds)  # options, whose keys are free
            kinds = [section.model_fields[name].annotation for section in inner if name in section.model_fields]
    return bool(kinds)


def _sections(kind: Any) -> list[type[Section]]:
    if isinstance(kind, type) and issubclass(kind, Section):
        return [kind]
    return [section for inner in get_args(kind) for section in _sections(inner)]


def inner_commands(group: Any) -> Iterator[str]:
    for name in group.list_commands(None):
        if hasattr(command := group.get_command(None, name), "commands"):
            yield from command.list_commands(None)
            yield from inner_commands(command)


def test_help_texts_and_messages_name_a_command_with_its_group() -> None:
    """`mathrl data decide`, never `mathrl decide`."""
    top: Any = get_command(app)
    inner = re.compile(rf"\bmathrl ({'|'.join({*inner_commands(top)} - {*top.list_commands(None)})})\b")
    texts = {file: file.read_text(encoding="utf-8") for file in (ROOT / "mathrl").rglob("*.py")}
    assert not {(file.name, match[0]) for file, text in texts.items() for match in inner.finditer(text)}


ENTRY = re.compile(r"^- \*\*([^*]+)\*\*: (.+)$", re.M)
# The field's own words in help texts: whoever writes one of these means what the glossary says.
TERMS = (
    *("advantage", "benchmark", "checkpoint", "critic", "epoch", "greedy", "group", "log-prob", "micro-batch"),
    *(
        "mini-batch",
        "mixture",
        "optimizer step",
        "pass rate",
        "pass@k",
        "policy",
        "prompt",
        "rank",
        "ratio",
        "reference",
    ),
    *("response", "reward", "rollout", "seed", "split", "trial", "weight sync", "zero-variance group"),
)


def entries() -> dict[str, str]:
    return dict(ENTRY.findall((ROOT / "docs" / "reference" / "glossary.md").read_text(encoding="utf-8")))


def descriptions(section: type[Section], seen: set[type[Section]]) -> Iterator[str]:
    if section in seen:
        return
    seen.add(section)
    for info in section.model_fields.values():
        yield info.description or ""
        for inner in sections(info.annotation):
            yield from descriptions(inner, seen)


def sections(kind: Any) -> list[type[Section]]:
    if isinstance(kind, type) and issubclass(kind, Section):
        return [kind]
    return [section for inner in get_args(kind) for section in sections(inner)]


def test_terms_are_alphabetical_and_short() -> None:
    terms = list(entries())
    assert terms == sorted(terms, key=str.lower) and len(terms) >= 40
    assert all(len(text) <= 200 and text.endswith(".") for text in entries().values())


def test_the_terms_of_help_texts_are_defined() -> None:
    text = " ".join(descriptions(Params, set())).lower()
    for term in TERMS:
        assert term in entries(), term
        assert term in text, f"{term}: no help text says it any more"
