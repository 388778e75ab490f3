import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from mathrl.compose import load_params, write_params
from mathrl.compose.load import choice_notes
from mathrl.core.errors import UserError
from mathrl.params.load import dump_yaml, merge, parse_yaml, stage_params
from mathrl.params.loss import Cispo
from mathrl.params.run import PretrainedModel
from mathrl.params.schema import READS, STAGES, Params
from mathrl.params.train import Sft
from mathrl.recipes.graph import to_yaml

PARAMS = Path(__file__).parents[2] / "params"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(PARAMS, tmp_path / "params"))


@pytest.mark.parametrize("text", ["2e-4", "2E-4", "0.0002", "2.0e-4"])
def test_an_override_reads_every_way_to_write_a_number(text: str) -> None:
    assert load_params(PARAMS, overrides=[f"rl.optimizer.lr={text}"]).rl.optimizer.lr == 2e-4


def test_overrides_reach_into_lists_and_nested_sections() -> None:
    params = load_params(
        PARAMS,
        overrides=["curate.sources.0.counts.rl=7", "rl.optimizer.beta2=0.99", "mix.components.0.band=[0.2, 0.8]"],
    )
    assert params.curate.sources[0].counts["rl"] == 7  # type: ignore[union-attr]
    assert params.rl.optimizer.beta2 == 0.99
    assert params.mix.components[0].band == (0.2, 0.8)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("rl.optimizer.lrr=1", r"lrr: unknown parameter \(did you mean lr\?\)"),
        ("rl.num_generations=8", r"unknown parameter \(did you mean group_size\?\)"),
        ("rl.max_prompt_length=8", r"unknown parameter \(did you mean prompt\.max_tokens\?\)"),
        ("rl.lora.rank=8", r"lora\.rank: unknown parameter; write one of r, alpha, targets, frozen, keep_adapter"),
        ("rl.processes=2", r"unknown parameter \(did you mean run\.processes\?\)"),
        ("learning_rate=1", "write section.key=value: rl.optimizer.lr=1 or sft.optimizer.lr=1 or dpo.optimizer.lr=1"),
        ("rll.lr=1", r"unknown section 'rll' \(did you mean rl\?\)"),
        ("rl.optimizer.lr=fast", "lr: Input should be a valid number.*'fast'"),
        ("rl.optimizer.lr=2", "lr: Input should be less than or equal to 1"),
        ("rl.optimizer.lr", "write section.key=value"),
        ("rl.optimizer.lr=[1", "not YAML"),
        ("register.description=2024-02-30", "not YAML .day is out of range for month"),
        (f"run.seed={'9' * 5000}", "not YAML .*4300 digits"),
        (f"run.seed={'[' * 900}", "not YAML .*recursion"),
        ("rl.optimizer.lr.x=1", "lr"),
        ("curate.sources.9.name=x", "a list of 1; write an index below it"),
        ("rl.group_size=1", "a group of one has no advantage"),
        ("mix.components.0.count=3", "either weight or count"),
        ("run.seed=.nan", "seed"),
        ("rl.top_p=0.9", r"top_p: unknown parameter: .* softmax\(logits / temperature\) as a whole"),
        ("rl.repetition_penalty=1.1", "repetition_penalty: unknown parameter: .* leave it out"),
        ("rl.temperature=0.005", "temperature: .* greater than or equal to 0.01"),
        ("rl.optimizer.muon_lr=0.02", "optimizer.muon_lr: unknown parameter: write lr for the matrices .*adamw_scale"),
        ("register.alias=champion", "goes through the gate: `mathrl models promote NAME`"),
        ("register.name=a@b", "register.*name: String should match"),
    ],
)
def test_a_bad_override_is_one_sentence_that_names_it(override: str, said: str) -> None:
    with pytest.raises(UserError, match=said) as raised:
        load_params(PARAMS, overrides=[override])
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "override",
    [
        "rollout.servers.urls=[http://127.0.0.1:8001, http://me:pa55@host:8001]",
        "reward.second_grader={type: llm, endpoint: 'http://me:pa55@host/v1', model: judge}",
    ],
)
def test_an_address_with_a_password_is_refused_and_not_repeated(override: str) -> None:
    with pytest.raises(UserError, match=r"without user and password.*MATHRL_SERVE_KEY") as raised:
        load_params(PARAMS, overrides=[override])
    assert "pa55" not in str(raised.value)


def test_all_errors_come_at_once_with_their_files(folder: Path) -> None:
    (folder / "rl.yaml").write_text("steps: none\ngroup_sizes: 4\n")
    (folder / "run.yaml").write_text("seed: -1\n")
    with pytest.raises(UserError) as raised:
        load_params(folder)
    for part in (
        "rl.yaml: steps",
        "rl.yaml: group_sizes: unknown parameter (did you mean group_size?)",
        "run.yaml: seed",
    ):
        assert part in str(raised.value)


def test_one_setting_of_an_optimizer_leaves_its_type(folder: Path) -> None:
    for section in ("dpo", "reward_model"):
        params = load_params(folder, overrides=[f"{section}.optimizer.beta2=0.99"])
        assert getattr(params, section).optimizer.type == "adamw"
    rl = load_params(folder, overrides=["rl.advantage={type: gae, critic: {optimizer: {beta2: 0.99}}}"]).rl
    assert rl.critic is not None
    assert (rl.critic.optimizer.type, rl.critic.optimizer.warmup_steps) == ("adamw", 0)
    assert Sft.model_validate({"optimizer": {"beta2": 0.99}}).optimizer.schedule == "cosine"


def test_the_ppo_preset_takes_the_20_passes_over_gsm8k_of_its_source() -> None:
    rl = load_params(PARAMS, preset="gsm8k-ppo-24gb").rl
    prompts = 20 * 7473  # 580 steps of 256 prompts, which is 0.7 % less; half or twice as many are another run
    assert abs(rl.steps * rl.prompts_per_step - prompts) <= 0.01 * prompts


def test_a_missing_file_and_an_unknown_preset_are_named(folder: Path) -> None:
    with pytest.raises(UserError, match=r"no preset 'gsm8'.*did you mean gsm8k"):
        load_params(folder, preset="gsm8")
    (folder / "experiment.yaml").unlink()
    with pytest.raises(UserError, match=r"curate\.yaml: sources: .*mix\.yaml: components: "):
        load_params(folder)


def test_a_file_that_is_not_utf_8_is_named(folder: Path) -> None:
    (folder / "rl.yaml").write_bytes("# Schrittlänge\nsteps: 3\n".encode("latin-1"))
    with pytest.raises(UserError, match=r"rl\.yaml: not UTF-8 .*; save it as UTF-8"):
        load_params(folder)


def test_a_folder_where_a_file_is_expected_is_named(folder: Path) -> None:
    (folder / "presets").mkdir()
    (folder / "presets" / "mine.yaml").mkdir()
    with pytest.raises(UserError, match=r"mine\.yaml: this is a folder"):
        load_params(folder, preset="mine")


@pytest.mark.parametrize("write", [dump_yaml, to_yaml])
def test_a_text_is_read_as_it_was_written(write: Callable[[object], str]) -> None:
    texts = ["Think first.  " * length + end for length in range(1, 30) for end in ("Answer.", "\x85 Answer.", "\nEnd")]
    for text in texts:
        assert parse_yaml(write({"prompt": {"system": text}}), "here") == {"prompt": {"system": text}}


def test_merge_replaces_a_mapping_of_another_type() -> None:
    below = {"base": {"type": "fresh", "layers": 3}, "precision": "float32"}
    assert merge(below, {"base": {"type": "pretrained", "path": "x"}}) == {
        "base": {"type": "pretrained", "path": "x"},
        "precision": "float32",
    }
    assert merge(below, {"base": {"layers": 4}})["base"] == {"type": "fresh", "layers": 4}


def test_written_parameters_read_back_and_unchanged_files_stay(folder: Path) -> None:
    (folder / "sft.yaml").write_text("eval_every: 50  # often\n")
    before = load_params(folder)
    after = load_params(folder, overrides=["rl.optimizer.lr=2e-06", "run.seed=3"])
    untouched = (folder / "sft.yaml").read_bytes()
    assert write_params(before, after, folder) == ["run", "rl"]
    assert load_params(folder) == after
    assert (folder / "sft.yaml").read_bytes() == untouched


def test_a_stage_sees_only_what_dvc_watches_for_it(folder: Path) -> None:
    params = load_params(folder)
    assert stage_params(params, "rl").rl == params.rl
    assert stage_params(params, "register").register_ == params.register_
    assert isinstance(stage_params(params, "mix"), Params)
    with pytest.raises(AttributeError, match="reads section rl: add it to READS"):
        _ = stage_params(params, "mix").rl
    changed = stage_params(params, "rl").model_copy(update={"run": params.run.model_copy(update={"seed": 7})})
    assert changed.run.seed == 7 and changed.rl == params.rl and not hasattr(changed, "mix")


def test_every_stage_has_a_section_and_reads_it() -> None:
    sections = {field.alias or name for name, field in Params.model_fields.items()}
    assert set(STAGES) <= sections
    for stage, reads in READS.items():
        assert set(reads) <= sections
        assert stage in reads or stage in ("base", "process_reward_model", "summary")


def test_asynchronous_rl_with_an_engine_that_ranks_share_is_refused_before_anything_starts() -> None:
    shared = ["rl.asynchronous={}", "rollout.vllm.tensor_parallel=2"]
    assert load_params(PARAMS, overrides=shared).rl.asynchronous  # the torch engine has no such ranks
    with pytest.raises(UserError, match=r"preset demo .*: asynchronous needs rollout\.vllm\.tensor_parallel 1: ranks "):
        load_params(PARAMS, overrides=[*shared, "rollout.engine=vllm"])


def test_another_type_drops_the_fields_that_only_the_old_one_has() -> None:
    path, kind = "model.base.path=Qwen/Qwen2.5-0.5B", "model.base.type=pretrained"
    for overrides in ([kind, path], [path, kind], ["model.base.hidden_size=64", kind, path]):
        base = load_params(PARAMS, overrides=overrides).model.base
        assert base == PretrainedModel(path="Qwen/Qwen2.5-0.5B"), overrides
    source = load_params(PARAMS, overrides=["curate.sources.0.type=file", "curate.sources.0.path=x.jsonl",
                                            "curate.sources.0.split=rl"]).curate.sources[0]  # fmt: skip
    assert (source.type, source.name) == ("file", "chain"), "a field of both types stays"
    loss = load_params(PARAMS, overrides=["rl.loss.dual=3", "rl.loss.high=0.3", "rl.loss.type=cispo"]).rl.loss
    assert loss == Cispo(low=0.2, high=0.3)
    with pytest.raises(UserError, match=r"base\.path: Field required$"):
        load_params(PARAMS, overrides=[kind])


def test_an_error_of_two_fields_names_their_values_and_not_the_section() -> None:
    with pytest.raises(UserError) as raised:
        load_params(PARAMS, preset="gsm8k-ppo-24gb", overrides=["rl.advantage.critic.warmup_steps=2000"])
    assert str(raised.value).endswith("the policy would never learn, found steps 1160")
    with pytest.raises(UserError, match=r"for advantage rloo: .* found group_size 1, advantage rloo$"):
        load_params(PARAMS, overrides=["rl.group_size=1", "rl.advantage=rloo"])
    with pytest.raises(UserError, match=r"^rl\.steps=many: steps: .*, found 'many'$"):
        load_params(PARAMS, overrides=["rl.steps=many"])


def test_a_list_is_extended() -> None:
    more = "curate.sources+=[{type: hub, name: math500, id: math500, hub_split: test, split: test}]"
    before, after = (load_params(PARAMS, preset="gsm8k", overrides=each).curate.sources for each in ([], [more]))
    assert after[:-1] == before and after[-1].name == "math500"
    for wrong in ("curate.sources+=3", "rl.optimizer.lr+=[1]", "curate.sorces+=[1]"):
        with pytest.raises(UserError, match=r"\+= appends a list"):
            load_params(PARAMS, overrides=[wrong])


def test_an_index_or_more_reaches_into_a_list_that_is_a_default() -> None:
    reward = load_params(PARAMS, overrides=["reward.parts.0.weight=0.5"]).reward
    assert [(part.type, part.weight) for part in reward.parts] == [("accuracy", 0.5)]
    assert load_params(PARAMS, overrides=["evaluate.benchmarks+=[math500]"]).evaluate.benchmarks == ("test", "math500")


def test_presets_compose_from_left_to_right_and_what_one_replaces_is_named() -> None:
    both = load_params(PARAMS, preset="dapo-32b+gsm8k-ppo-24gb", overrides=["rl.steps=7"])
    assert both.rl.optimizer.clip_norm == 1.0 and both.rl.optimizer.weight_decay == 0.1, "of the first alone"
    assert (both.rl.max_tokens, both.rl.steps) == (256, 7)
    lines = choice_notes(PARAMS, "dapo-32b+gsm8k-ppo-24gb")
    assert "presets: gsm8k-ppo-24gb replaces data=dapo by data=gsm8k: the later one counts" in lines
    (line,) = (line for line in lines if "replaces values of dapo-32b: " in line)
    assert "rl.max_tokens 20480 by 256" in line and "rl.loss.high" not in line
    assert choice_notes(PARAMS, "gsm8k") == choice_notes(PARAMS, None) == []
    with pytest.raises(UserError, match=r"no preset 'gsm9k' \(did you mean gsm8k\?\)"):
        load_params(PARAMS, preset="dapo+gsm9k")
