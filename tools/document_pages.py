"""docs/reference/presets/<name>.md of the presets that reproduce a document: every value beside the document's own.

tests/compose/documents.yaml has the documents' values; what mathrl has is resolved from the preset, or from the steps
of the recipe. tests/compose/test_documents.py fails where a value is not what the table says.
"""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from mathrl.compose.load import read_layers
from mathrl.params.load import read_yaml
from mathrl.params.paths import leaves
from mathrl.recipes.recipe import load_recipe, step_params

ROOT = Path(__file__).parents[1]
TABLE = ROOT / "tests" / "compose" / "documents.yaml"
PAGES = ROOT / "docs" / "reference" / "presets"
STEP = "/"
GENERATED = "<!-- written by tools/document_pages.py from tests/compose/documents.yaml -->"
# Values of a preset that belong to no document: where the run happens and is filed, and what watches it.
OWN = ("register", "health", "rollout.vllm.sleep", "run", "sft.steps")
Entry = dict[str, Any]


@cache
def documents() -> dict[str, Entry]:
    """The table's entries by name, with the values that they take from another entry.

    Raises:
        ValueError: an entry takes values from one that does not come before it.
    """
    entries: dict[str, Entry] = {}
    for name, written in read_yaml(TABLE).items():
        below = entries.get(written.get("like", name), {})
        if "like" in written and not below:
            raise ValueError(f"{TABLE}: {name}: like: {written['like']} does not come before it")
        entry = {**below, **written}
        entry["values"] = {k: v for k, v in {**below.get("values", {}), **written["values"]}.items() if v is not None}
        entry["preset"] = written.get("preset", name)
        entries[name] = entry
    return entries


def command(entry: Entry) -> str:
    """The one command that runs the document's experiment."""
    recipe = entry.get("recipe")
    return (
        f"mathrl recipe {recipe} --preset {entry['preset']}"
        if recipe
        else f"mathrl run pipeline --preset {entry['preset']}"
    )


def resolved(entry: Entry) -> dict[str, Any]:
    """The resolved parameters by step, as JSON has them; of the pipeline the one without a name.

    Example: {"": {"rl": {"steps": 1035, …}, …}} or {"cold_start": {…}, "rl_1": {…}, "": {…}}.
    """
    layers = read_layers(ROOT / "params", entry["preset"])
    found = {"": layers.params()}
    if entry.get("recipe"):
        recipe = load_recipe(entry["recipe"], ROOT / "params", preset=entry["preset"])
        found |= {step: step_params(recipe, step, layers) for step in recipe.steps}
    return {step: params.model_dump(mode="json", by_alias=True) for step, params in found.items()}


def value_at(values: Mapping[str, Any], key: str) -> Any:
    """The value of "rl.optimizer.lr" or "rl_1/rl.optimizer.lr" in what `resolved` returns; of a choice asked for by its
    name, its type.

    Raises:
        KeyError: no such step, field or item.
    """
    step, _, path = key.rpartition(STEP)
    value: Any = values[step]
    for part in path.split("."):
        if isinstance(value, list):
            value = value[int(part)] if part.isdigit() and int(part) < len(value) else _missing(key, part)
        elif isinstance(value, Mapping) and part in value:
            value = value[part]
        else:
            _missing(key, part)
    return value


def _missing(key: str, part: str) -> Any:
    raise KeyError(f"{key}: there is no {part}")


def expected(row: Entry) -> Any:
    """What the parameter is to be, as the table says."""
    return row["here"] if "here" in row else row.get("as", row["document"])


def agrees(value: Any, row: Entry) -> bool:
    """Whether a resolved value is the table's; a choice may be named by its type alone."""
    wanted = expected(row)
    if isinstance(value, Mapping) and isinstance(wanted, str):
        return bool(value.get("type") == wanted)
    return bool(value == wanted)


def stated(values: Mapping[str, Any]) -> set[str]:
    """The parameters of an entry's values, without steps: {"rl_1/rl.steps": …} -> {"rl.steps"}."""
    return {key.rpartition(STEP)[2] for key in values}


def chosen(entry: Entry) -> dict[str, Any]:
    """What the preset's own file sets, and the document does not state."""
    table = stated(entry["values"])
    file = ROOT / "mathrl" / "compose" / "presets" / f"{entry['preset']}.yaml"
    values = dict(leaves(read_yaml(file)))
    return {
        key: value
        for key, value in values.items()
        if "." in key
        and not any(key == own or key.startswith(f"{own}.") for own in OWN)
        and not any(key == other or other.startswith(f"{key}.") for other in table)
        and not (key.endswith(".type") and key.removesuffix(".type") in table)
    }


def shown(value: Any) -> str:
    """A value as a person writes it in YAML: 1e-06, null, `[1, 8]`."""
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {shown(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(shown, value)) + "]"
    if isinstance(value, float) and value and (abs(value) < 0.001 or abs(value) >= 1e6):
        return f"{value:.12g}".replace("e-0", "e-")
    return json.dumps(value, ensure_ascii=False)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("\n", "\\n")


def page(name: str) -> str:
    """The page of a document."""
    entry = documents()[name]
    values = resolved(entry)
    gpus, memory = entry["hardware"]["gpus"], entry["hardware"]["memory"]
    hardware = (
        f"{gpus} GPUs of {memory.replace('GB', ' GB')}" if gpus > 1 else f"one GPU of {memory.replace('GB', ' GB')}"
    )
    lines = [
        f"# {entry['title']}",
        "",
        GENERATED,
        "",
        f"`{command(entry)}`",
        "",
        "| | |",
        "|---|---|",
        f"| Reproduces | {_cell(entry['reproduces'])} |",
        f"| Hardware | {hardware}; memory by part: `mathrl plan --preset {entry['preset']} --gpu-memory {memory}` |",
        f"| Expected | {_cell(entry['expected'])} |",
        *([f"| Watch | {_cell(entry['watch'])} |"] if "watch" in entry else []),
        "",
        *[line for note in entry.get("notes", ()) for line in (note.replace("{preset}", entry["preset"]), "")],
        "## What differs, and why",
        "",
        *_differences(entry, values),
        "",
        "## Equal to the document",
        "",
        *_equal(entry, values),
        "",
        "## Sources",
        "",
    ]
    lines += [f"{number}. {_cell(source)}" for number, source in enumerate(entry["sources"].values(), start=1)]
    lines += ["", "## Set here, not stated in the document", ""]
    own: dict[str, list[str]] = {}
    for key, value in chosen(entry).items():
        section, _, field = key.partition(".")
        own.setdefault(section, []).append(f"`{field}` {_cell(_short(value))}")
    lines += [f"- **{section}**: {'; '.join(fields)}" for section, fields in own.items()] or ["Nothing."]
    return "\n".join(lines) + "\n"


def _differences(entry: Entry, values: Mapping[str, Any]) -> list[str]:
    """The table of what is not the document's; the number before a place is that of its source."""
    rows = [
        (f"`{key}`", row, shown(_name(value_at(values, key), row)))
        for key, row in entry["values"].items()
        if "why" in row
    ]
    rows += [(row["what"], row, row["here"]) for row in entry.get("beside", ())]
    return [
        "| parameter | document | here | why | place in the document |",
        "|---|---|---|---|---|",
        *(
            f"| {what} | {_cell(shown(row['document']))} | {_cell(here)} | {row.get('why', '')} | "
            f"{_place(entry, row)} |"
            for what, row, here in rows
        ),
    ]


def _equal(entry: Entry, values: Mapping[str, Any]) -> list[str]:
    """A line per section of what is equal, with the document's spelling where it has another, and its place."""
    sections: dict[str, list[str]] = {}
    for key, row in entry["values"].items():
        if "why" not in row:
            here, document = _cell(shown(_name(value_at(values, key), row))), _cell(shown(row["document"]))
            spelled = here if _same(here, document) else f"{here}, there {document}"
            section, _, field = key.partition(".")
            sections.setdefault(section, []).append(f"`{field}` {spelled} ({_place(entry, row)})")
    return [f"- **{section}**: {'; '.join(fields)}" for section, fields in sections.items()]


def _name(value: Any, row: Entry) -> Any:
    """The type of a choice that the table names by its type; any other value as it is."""
    return value["type"] if isinstance(value, Mapping) and isinstance(expected(row), str) else value


def _same(here: str, document: str) -> bool:
    """Whether two cells say the same value: 1.0 and 1, 0.0001 and 1e-4."""
    try:
        return float(here) == float(document)
    except ValueError:
        return here == document


def _place(entry: Entry, row: Entry) -> str:
    """Where the document has it, after the number of its source where the entry has several."""
    names = list(entry["sources"])
    number = f"{names.index(row.get('from', names[0])) + 1}: " if len(names) > 1 else ""
    return f"{number}{_cell(row['where'])}"


def _short(value: Any) -> str:
    """A list of sources or components by their names; any other value as it is."""
    if isinstance(value, list) and value and all(isinstance(item, Mapping) for item in value):
        return ", ".join(str(item.get("name") or item.get("source") or item.get("type")) for item in value)
    return shown(value)


def main() -> None:
    for name in documents():
        (PAGES / f"{name}.md").write_text(page(name), encoding="utf-8")


if __name__ == "__main__":
    main()
