"""What another training engine cannot do is refused by name, all at once, and no parameter is missing in its table."""

from pathlib import Path

import pytest

from mathrl.compose import load_params
from mathrl.core.errors import UserError
from mathrl.params.engines import TRL_RL, TRL_SFT, VERL_RL, engine_problem
from mathrl.params.messages import parameters
from mathrl.params.schema import READS, SECTIONS, Params
from mathrl.params.section import Section, annotation, tags_of
from mathrl.params.training import Meaning, yaml_value
from tests.test_house import load_tool

ROOT = Path(__file__).parents[2]
PARAMS = ROOT / "params"
TRL = ["rl.engine=trl", "rl.ema=null", "rl.optimizer.type=adamw", "rl.optimizer.lr=5e-4", "rl.advantage.eps=1e-4"]
VERL = [
    "rl.engine=verl",
    "rl.ema=null",
    "rl.optimizer.type=adamw",
    "rl.optimizer.lr=5e-4",
    "rl.optimizer.schedule=constant",
]
# Sections that one entry of the table stands for.
WHOLE = ("lora", "rl.importance", "rl.kl.controller", "rl.dynamic_sampling", "rl.asynchronous", "rl.imitation")


def settings(stage: str, table: tuple[Meaning, ...], engine: str) -> set[str]:
    """The parameters of the section that the engine can have: of a union those of the types that it takes."""
    types = {meaning.setting: meaning.only for meaning in table if meaning.setting.endswith(".type")}
    types[f"{stage}.engine.type"] = (engine,)
    found, sections = set(), [(stage, SECTIONS[stage])]
    while sections:
        path, section = sections.pop()
        for name, info in section.model_fields.items():
            key, tags = f"{path}.{name}", tags_of(annotation(info))
            if key.endswith(WHOLE):
                found.add(key)
            elif tags is not None:
                chosen = types.get(f"{key}.type") or tuple(tags.members)
                sections += [(key, tags.members[tag]) for tag in chosen]
            elif isinstance(info.default, Section):
                sections.append((key, type(info.default)))
            else:
                found.add(key)
    return found


@pytest.mark.parametrize(
    ("stage", "table", "engine"), [("sft", TRL_SFT, "trl"), ("rl", TRL_RL, "trl"), ("rl", VERL_RL, "verl")]
)
def test_the_table_has_every_parameter_of_the_section(stage: str, table: tuple[Meaning, ...], engine: str) -> None:
    named = [meaning.setting for meaning in table]
    assert len(named) == len(set(named))
    assert settings(stage, table, engine) - {*named} == {f"{stage}.engine.type"}
    assert {name.split(".")[0] for name in named} <= {*READS[stage]}
    assert {*named} <= {*parameters(Params)}


def test_what_trl_cannot_do_is_named_all_at_once_with_what_to_write_instead() -> None:
    with pytest.raises(UserError) as raised:
        load_params(
            PARAMS, overrides=["rl.engine=trl", "rl.dynamic_sampling={rounds: 4}", "training.backend=deepspeed"]
        )
    message = str(raised.value)
    instead = ("rl.optimizer.type=adamw", "rl.advantage.eps=0.0001", "rl.ema=null", "rl.dynamic_sampling=null",
               "training.backend=torch", "or rl.engine=mathrl")  # fmt: skip
    assert all(words in message for words in instead) and "preset demo + rl.engine=trl" in message
    assert "rl.asynchronous" not in message


def test_what_it_says_to_write_is_taken() -> None:
    assert engine_problem(load_params(PARAMS, overrides=TRL), "rl") == ""
    assert engine_problem(load_params(PARAMS), "rl") == ""


def test_what_verl_cannot_do_is_named_all_at_once_with_what_to_write_instead() -> None:
    with pytest.raises(UserError) as raised:
        load_params(PARAMS, overrides=["rl.engine=verl", "run.device=cpu", "rollout.engine=torch"])
    message = str(raised.value)
    instead = ("rl.optimizer.type=adamw", "rl.optimizer.schedule=constant", "rl.ema=null", "run.device=auto",
               "rollout.engine=vllm", "or rl.engine=mathrl")  # fmt: skip
    assert all(words in message for words in instead) and "preset demo + rl.engine=verl: engine verl" in message
    assert engine_problem(load_params(PARAMS, overrides=VERL), "rl") == ""


BEYOND_TRL: list[tuple[str, list[str], str]] = [
    ("rl.advantage=rloo", [], "rl.advantage.type=grpo"),
    ("rl.loss=cispo", [], "rl.loss.low=1"),
    ("rl.loss=sapo", [], "rl.loss.aggregation=sequence_mean"),
    ("rl.loss.log_ratio_penalty=0.001", [], "rl.loss.log_ratio_penalty=0"),
    ("rl.advantage.whiten=true", [], "rl.advantage.whiten=false"),
    ("rl.kl=probe", [], "rl.kl.type=loss"),
    ("rl.kl.estimator=k2", ["rl.kl.coef=0.1"], "rl.kl.estimator=k3"),
    ("rl.kl.controller={}", ["rl.kl.coef=0.1"], "rl.kl.controller=null"),
    ("rl.asynchronous={}", [], "rl.asynchronous=null"),
    ("rl.ema=0.9", [], "rl.ema=null"),
    ("rl.dev.export=best", [], "rl.dev.export=last"),
    ("reward.judge.continuations=2", [], "reward.judge.continuations=0"),
    ("rollout.engine=vllm", [], "rollout.engine=torch"),
    ("rollout.tool.kind=bubblewrap", [], "rollout.tool.kind=none"),
    ("training.on_out_of_memory=halve", [], "training.on_out_of_memory=stop"),
]
BEYOND_VERL: list[tuple[str, list[str], str]] = [
    ("rl.advantage=max_rl", [], "rl.advantage.type=grpo"),
    ("rl.advantage.eps=1e-4", [], "rl.advantage.eps=1e-06"),
    ("rl.lora={}", [], "rl.lora=null"),
    ("rl.loss=sapo", [], "rl.loss.aggregation=sequence_mean"),
    ("rl.loss={type: gspo, dual: 3}", [], "rl.loss.dual=null"),
    ("rl.loss=dppo_tv", [], "rl.loss.cap=20"),
    ("rl.truncated=mask", [], "rl.truncated=keep"),
    ("rl.dynamic_sampling={rounds: 4}", [], "rl.dynamic_sampling=null"),
    ("rl.keep_rollouts.which=all", [], "rl.keep_rollouts.which=none"),
    ("reward.parts=[{type: majority}]", [], "reward.parts without type majority"),
    ("training.backend=deepspeed", [], "training.backend=torch"),
]


@pytest.mark.parametrize(
    ("engine", "override", "others", "instead"),
    [*((TRL, *row) for row in BEYOND_TRL), *((VERL, *row) for row in BEYOND_VERL)],
)
def test_each_setting_beyond_an_engine_is_refused(
    engine: list[str], override: str, others: list[str], instead: str
) -> None:
    with pytest.raises(UserError) as raised:
        load_params(PARAMS, overrides=[*engine, *others, override])
    assert instead in str(raised.value)
    load_params(PARAMS, overrides=[*others, override])  # mathrl's own loop can do it


def test_the_ray_that_verl_starts_itself_has_one_machine() -> None:
    with pytest.raises(UserError, match=r"rl\.engine\.ray_address=auto"):
        load_params(PARAMS, overrides=[*VERL, "rl.engine.nodes=2"])
    load_params(PARAMS, overrides=[*VERL, "rl.engine.nodes=2", "rl.engine.ray_address=auto"])


@pytest.mark.parametrize("override", ["actor.lr", "=1", "a b=1"])
def test_an_override_of_verl_is_a_key_and_a_value(override: str) -> None:
    with pytest.raises(UserError, match=r"engine.overrides"):
        load_params(PARAMS, overrides=[*VERL, f"rl.engine.overrides=['{override}']"])


def test_sft_by_trl_is_refused_what_it_cannot_do() -> None:
    trl = ["sft.engine=trl", "sft.optimizer.type=adamw", "sft.optimizer.lr=0.003"]
    assert engine_problem(load_params(PARAMS, overrides=trl), "sft") == ""
    with pytest.raises(UserError) as raised:
        load_params(PARAMS, overrides=["sft.engine=trl", "training.backend=deepspeed"])
    message = str(raised.value)
    assert "preset demo + sft.engine=trl: engine trl cannot do what is set; set sft.optimizer.type=adamw" in message
    assert "training.backend=torch (" in message and "or sft.engine=mathrl" in message and "rl.engine" not in message
    load_params(PARAMS, overrides=["sft.engine=trl", "sft.steps=0"])  # nothing is trained


def test_what_a_type_lacks_is_not_refused() -> None:
    load_params(PARAMS, overrides=[*TRL, "rl.advantage=dr_grpo", "rl.kl=null"])


def test_the_page_has_the_tables_of_the_code() -> None:
    page = (ROOT / "docs/reference/engines.md").read_text(encoding="utf-8")
    assert load_tool("engine_tables").up_to_date(page) == page, "run: python tools/engine_tables.py"
    assert "| `rl.ema` | refused | `null`: it keeps no moving average of the weights |" in page


def test_values_are_written_as_overrides_have_them() -> None:
    assert [yaml_value(value) for value in (None, False, 1e-4, 0, "torch")] == ["null", "false", "0.0001", "0", "torch"]
    assert isinstance(load_params(PARAMS), Params)
