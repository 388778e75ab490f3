"""Groups, presets and files of a small project: who wins, who said so, and what is refused."""

import os
from pathlib import Path

import pytest

from mathrl.compose import load_params
from mathrl.compose.experiment import Composition, preset_names, read_composition, split_choices
from mathrl.compose.load import Layers, read_layers, write_experiment, write_resolved
from mathrl.compose.names import KINDS, MAY_SET, PRESETS, file_names, help_of
from mathrl.core.code_values import RESOLVED, read_code, write_code
from mathrl.core.errors import UserError
from mathrl.params.load import read_yaml
from mathrl.params.run import PretrainedModel
from mathrl.recipes.recipe import recipe_names

FILES = {
    "data/sums.yaml": """
help: sums
curate:
  sources: [{type: generated, name: sums, generator: chain, counts: {sft: 8, rl: 8, dev: 8, test: 8}}]
mix: {components: [{source: sums, weight: 1.0}]}
evaluate: {max_tokens: 200}
fresh: {evaluate: {max_tokens: 40}}
""",
    "data/products.yaml": """
help: products
curate:
  sources: [{type: generated, name: products, generator: product, counts: {sft: 8, rl: 8, dev: 8, test: 8}}]
mix: {components: [{source: products, weight: 1.0}]}
evaluate: {max_tokens: 300, benchmarks: [test, gsm8k]}
""",
    "model/small.yaml": "help: small\nmodel: {base: {type: fresh, layers: 1}}\n",
    "method/short.yaml": "help: short\nrl: {steps: 7, group_size: 4}\n",
    "method/long.yaml": "help: long\nrl: {steps: 70}\n",
    "presets/mine.yaml": "help: mine\ndata: sums\nmodel: small\nmethod: short\nrl: {group_size: 6}\n",
    "presets/other.yaml": "help: other\nmethod: long\nrl: {prompts_per_step: 3}\nfresh: {rl: {epochs: 2}}\n",
}


@pytest.fixture
def params(tmp_path: Path) -> Path:
    folder = tmp_path / "params"
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / "experiment.yaml").write_text("presets: [mine]\n")
    return folder


def said(layers: Layers, key: str, *settings: str) -> str:
    return layers.said_by(settings)[key]


def test_the_order_is_composition_files_choices_presets_and_set(params: Path) -> None:
    """COMPOSE: defaults < project's groups < its presets < section files < chosen groups < chosen presets < --set."""
    assert load_params(params).rl.group_size == 6 and load_params(params).rl.steps == 7
    assert said(read_layers(params), "rl.group_size") == "preset mine"
    assert said(read_layers(params), "rl.steps") == "method=short"
    (params / "rl.yaml").write_text("group_size: 8\nsteps: 9\n")
    assert (load_params(params).rl.group_size, load_params(params).rl.steps) == (8, 9)
    assert said(read_layers(params), "rl.steps") == f"{params}/rl.yaml"
    chosen = load_params(params, overrides=["method=long"])
    assert (chosen.rl.group_size, chosen.rl.steps) == (8, 70), "a chosen group wins over a file"
    chosen = load_params(params, overrides=["method=long", "rl.steps=5"], preset="other")
    assert (chosen.rl.steps, chosen.rl.prompts_per_step, chosen.rl.epochs) == (5, 3, 2)
    layers = read_layers(params, "other", None, split_choices(["method=long"])[0])
    assert said(layers, "rl.steps", "rl.steps=5") == "--set"
    assert said(layers, "rl.epochs") == "preset other"


def test_a_chosen_group_replaces_that_of_the_project_wholly(params: Path) -> None:
    layers = read_layers(params, None, None, Composition({"method": "long"}))
    assert [layer.source for layer in layers.layers] == ["data=sums", "model=small", "preset mine", "method=long"]
    assert layers.experiment_values() == {"data": "sums", "model": "small", "method": "long", "presets": ["mine"]}
    other = load_params(params, overrides=["data=products"])
    assert [source.name for source in other.curate.sources] == ["products"]


def test_of_two_presets_with_a_group_the_later_counts_and_a_line_says_so(params: Path) -> None:
    layers = read_layers(params, "mine+other")
    assert layers.groups["method"] == "long" and layers.params().rl.steps == 70
    assert "presets: other replaces method=short by method=long: the later one counts" in layers.notes
    typed = read_layers(params, "other", None, Composition({"method": "short"}))
    assert typed.groups["method"] == "short", "what is named by itself counts more than a preset's"


def test_groups_that_set_one_field_are_named_with_both_values(params: Path) -> None:
    (params / "model/small.yaml").write_text("help: small\nmodel: {base: {type: fresh}}\nrl: {ema: 0.5}\n")
    (params / "method/short.yaml").write_text("help: short\nrl: {ema: 0.6}\n")
    assert "groups: method=short replaces values of model=small: rl.ema 0.5 by 0.6" in read_layers(params).notes


def test_what_is_for_random_weights_depends_on_the_final_model(params: Path) -> None:
    assert load_params(params).evaluate.max_tokens == 40
    pretrained = "model.base={type: pretrained, path: some/where}"
    assert load_params(params, overrides=[pretrained]).evaluate.max_tokens == 200
    assert load_params(params, overrides=["model=Qwen/Qwen2.5-0.5B"]).evaluate.max_tokens == 200
    assert load_params(params, overrides=[pretrained], preset="other").rl.epochs == 1
    (params / "model.yaml").write_text("base: {type: pretrained, path: here}\n")
    assert load_params(params).evaluate.max_tokens == 200


@pytest.mark.parametrize(
    ("kind", "text", "words"),
    [
        ("method", "model: {precision: float32}", "model.precision: a method group may not set this"),
        ("method", "curate: {sources: []}", "curate.sources: a method group may not set this"),
        ("method", "run: {seed: 1}", "run.seed: a method group may not set this"),
        ("data", "rl: {steps: 3}", "rl.steps: a data group may not set this"),
        ("hardware", "run: {seed: 1}", "run.seed: a hardware group may not set this"),
        ("model", "run: {device: cpu}", "run.device: a model group may not set this"),
        ("data", "fresh: {rl: {steps: 3}}", "rl.steps: a data group may not set this"),
        ("data", "currate: {}", r"unknown section currate \(did you mean curate\?\)"),
        ("data", "curate: 3", "curate: expected a mapping of keys to values, found 3"),
    ],
)
def test_what_a_group_may_not_set_is_refused_with_its_file(params: Path, kind: str, text: str, words: str) -> None:
    file = params / kind / "wrong.yaml"
    file.parent.mkdir(exist_ok=True)
    file.write_text(f"help: wrong\n{text}\n")
    with pytest.raises(UserError, match=f"{file}: {words}"):
        load_params(params, overrides=[f"{kind}=wrong"])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "dta: gsm8k",
            r"experiment.yaml: dta: unknown \(did you mean data\?\); write data, model, method, hardware or",
        ),
        ("data: 3", "experiment.yaml: data: write a name, such as data: gsm8k, found 3"),
        ("presets: mine", r"presets: write a list of names, such as presets: \[demo\], found 'mine'"),
        ("presets: [mne]", r"no preset 'mne' \(did you mean mine\?\)"),
        ("method: grpoo", r"method=grpoo: no such method \(did you mean grpo\?\); methods: "),
        ("data: sms", r"data=sms: no such data \(did you mean sums\?\); write one of "),
        ("model: Qwen", r"model=Qwen: no such model"),
        (
            "hardware: laptp",
            r"hardware=laptp: no such hardware \(did you mean laptop\?\); write laptop, or GPUs x memory",
        ),
        ("hardware: 0x80GB", "hardware=0x80GB: no such hardware"),
        ("data: 'sums:x+products'", r"'sums:x': write NAME or NAME:WEIGHT"),
    ],
)
def test_a_wrong_choice_is_one_sentence_with_the_nearest_name(params: Path, text: str, words: str) -> None:
    (params / "experiment.yaml").write_text(f"{text}\n")
    with pytest.raises(UserError, match=words) as raised:
        load_params(params)
    assert "\n" not in str(raised.value)


def test_a_preset_or_group_without_help_is_refused(params: Path) -> None:
    (params / "presets/mine.yaml").write_text("data: sums\n")
    with pytest.raises(UserError, match=r"mine\.yaml: help: missing; begin with a line such as"):
        load_params(params)


def test_an_editors_lock_and_a_group_without_values_cost_nobody_the_others(params: Path) -> None:
    for kind in ("presets", "model", "recipes"):
        (params / kind).mkdir(exist_ok=True)
        (params / kind / ".#open.yaml").symlink_to("me@host.1234")
    (params / "model/open.yaml").write_text("help: not yet\nmodel:\n")
    base = load_params(params, overrides=["model=a/b"]).model.base
    assert isinstance(base, PretrainedModel) and base.path == "a/b"
    assert not any("#" in name for name in (*preset_names(params), *recipe_names(params)))


def test_several_data_sets_are_one_mixture(params: Path) -> None:
    both = load_params(params, overrides=["data=sums:0.7+products:0.3"])
    assert [source.name for source in both.curate.sources] == ["sums", "products"]
    assert [(c.source, c.weight) for c in both.mix.components] == [("sums", 0.7), ("products", 0.3)]
    assert both.evaluate.benchmarks == ("test", "gsm8k") and both.evaluate.max_tokens == 300, "the larger, of the toy"
    assert load_params(params, overrides=["data=sums+products", "model=a/b"]).evaluate.max_tokens == 300, "the larger"
    (params / "data/open.yaml").write_text(FILES["data/products.yaml"].replace("max_tokens: 300, ", ""))
    one_open = load_params(params, overrides=["data=sums+open", "model=a/b"])
    assert one_open.evaluate.max_tokens == 1024, "what a set leaves open is the default"


def test_a_file_of_the_project_wins_over_the_packages(params: Path) -> None:
    (params / "method/grpo.yaml").write_text("help: mine\nrl: {steps: 3}\n")
    assert load_params(params, overrides=["method=grpo"]).rl.steps == 3


def test_a_missing_experiment_and_missing_sections_are_the_defaults(tmp_path: Path) -> None:
    assert read_composition(tmp_path) == Composition()
    params = load_params(tmp_path, overrides=["data=gsm8k"])
    assert params.run.seed == 0
    with pytest.raises(UserError, match=r"curate.*sources"):
        load_params(tmp_path)


def test_a_run_of_its_own_has_the_composition_and_what_differs(params: Path) -> None:
    """What `mathrl run data=… --set …` writes into its worktree gives the same parameters, and no more files."""
    (params / "rl.yaml").write_text("steps: 9\n")
    wanted = load_params(params, preset="other", overrides=["data=products", "rl.temperature=0.9"])
    assert write_experiment(params, "other", ["data=products", "rl.temperature=0.9"]) == wanted
    assert read_yaml(params / "experiment.yaml") == {
        "data": "products", "model": "small", "method": "long", "presets": ["mine", "other"],
    }  # fmt: skip
    assert load_params(params) == wanted
    assert read_yaml(params / "rl.yaml") == {"steps": 70, "temperature": 0.9}, "the chosen method wins over the file"
    assert sorted(file.name for file in params.glob("*.yaml")) == ["experiment.yaml", "rl.yaml"]


def test_every_group_and_preset_has_its_line_of_help(tmp_path: Path) -> None:
    for kind in (*KINDS, PRESETS):
        for name, file in file_names(tmp_path, kind).items():
            assert 10 < len(help_of(file)) <= 110, name
    assert set(MAY_SET) == set(KINDS)


def test_a_model_folder_counts_by_its_files(params: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """New weights in the same folder rerun what reads the model; a folder that is not here has not changed."""
    monkeypatch.setenv("MATHRL_HOME", str(tmp_path / "home"))
    weights, more = tmp_path / "own" / "model.safetensors", tmp_path / "own" / "README.md"
    weights.parent.mkdir()
    (params / "model.yaml").write_text("base: {type: pretrained, path: own}\n")
    writes: list[int] = []

    def written(content: bytes) -> str:
        weights.write_bytes(content)
        writes.append(1)
        os.utime(weights, ns=(len(writes), len(writes)))  # a file system's clock may stand still between two writes
        write_resolved(tmp_path)
        return str(read_yaml(tmp_path / RESOLVED)["model"]["base"]["files"])

    first, again, trained = written(b"0" * 9), written(b"0" * 9), written(b"0" * 8 + b"1")
    assert first == again != trained
    more.write_text("words")
    assert written(b"0" * 8 + b"1") == trained
    write_code(tmp_path)  # as DVC does before each run
    weights.unlink()
    more.unlink()
    weights.parent.rmdir()
    write_resolved(tmp_path)
    assert read_yaml(tmp_path / RESOLVED)["model"]["base"]["files"] == trained
    write_code(tmp_path)
    assert read_code(tmp_path / "code.yaml")["model"] == trained
    (params / "model.yaml").write_text("base: {type: pretrained, path: Qwen/Qwen2.5-0.5B}\n")
    write_resolved(tmp_path)
    assert "files" not in read_yaml(tmp_path / RESOLVED)["model"]["base"]
