"""Choices that are no files: a model by id or folder, a person's own rows, GPUs by their memory."""

import json
from pathlib import Path

import pytest

from mathrl.compose import load_params
from mathrl.compose.names import hardware_of, prompt_of
from mathrl.core.errors import UserError
from mathrl.params.data import FileSource
from mathrl.params.run import PretrainedModel

NONE = Path("no/params")


@pytest.mark.parametrize(
    ("name", "template"),
    [
        ("Qwen/Qwen2.5-1.5B-Instruct", "chat"),
        ("google/gemma-3-1b-it", "chat"),
        ("deepseek-ai/deepseek-llm-7b-chat", "chat"),
        ("Qwen/Qwen2.5-0.5B", "boxed"),
        ("bitext/orbit-7b", "boxed"),
    ],
)
def test_the_name_of_a_hub_model_tells_its_template(name: str, template: str) -> None:
    params = load_params(NONE, overrides=["data=gsm8k", f"model={name}"])
    assert params.model.base == PretrainedModel(path=name) and params.prompt.template == template


def test_a_hub_id_that_a_group_has_takes_the_group() -> None:
    by_id = load_params(NONE, overrides=["data=gsm8k", "model=Qwen/Qwen2.5-0.5B-Instruct"])
    assert by_id == load_params(NONE, overrides=["data=gsm8k", "model=qwen2.5-0.5b"])
    assert isinstance(by_id.model.base, PretrainedModel) and by_id.model.base.released == "2024-09"


@pytest.mark.parametrize(
    ("written", "template", "place"),
    [
        ({"chat_template": "{{ messages }}"}, "chat", "system"),
        ({"chat_template": "{{ raise_exception('System role not supported') }}"}, "chat", "instruction"),
        ({"chat_template": [{"name": "default", "template": "{{ messages }}"}]}, "chat", "system"),
        ({}, "boxed", None),
    ],
)
def test_the_tokenizer_of_a_folder_tells_its_template(
    tmp_path: Path, written: object, template: str, place: str | None
) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(written))
    prompt = prompt_of(str(tmp_path))
    assert prompt["template"] == template and (place is None or "boxed" in prompt[place])
    params = load_params(NONE, overrides=["data=gsm8k", f"model={tmp_path}"])
    assert isinstance(params.model.base, PretrainedModel) and params.model.base.path == str(tmp_path)


def test_a_chat_template_of_its_own_file_counts(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text("{{ messages }}")
    assert prompt_of(str(tmp_path))["template"] == "chat"


def test_hardware_is_machines_times_gpus_times_memory() -> None:
    two = hardware_of("2x8x80GB")
    assert two is not None and (two.count, two.memory, two.is_gpu) == (16, 80 * 10**9, True)
    assert hardware_of("laptop") is None and hardware_of("80GB") is None
    params = load_params(NONE, overrides=["data=gsm8k", "hardware=8x80GB"])
    assert params.run.processes == 8 and params.rollout.vllm.sleep


def test_the_fields_of_a_persons_own_rows_are_guessed(tmp_path: Path) -> None:
    rows = [{"problem": f"What is {n} + 1?", "gold": str(n + 1), "steps": f"{n} + 1 is {n + 1}."} for n in range(40)]
    file = tmp_path / "my rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    params = load_params(NONE, overrides=[f"data={file}", "model=Qwen/Qwen2.5-0.5B"])
    (source,) = params.curate.sources
    assert isinstance(source, FileSource) and (source.name, source.path) == ("my_rows", str(file))
    assert (source.prompt_key, source.answer_key, source.solution_key) == ("problem", "gold", "steps")
    assert params.curate.test_share and params.curate.dev_share and params.evaluate.benchmarks == ("test",)


def test_files_and_sets_are_joined_in_any_order_and_each_has_its_own_problems(tmp_path: Path) -> None:
    files = [tmp_path / "mine.jsonl", tmp_path / "more.jsonl"]
    for file in files:
        file.write_text('{"question": "1+1?", "answer": "2"}\n')
    for choices, weights in (
        (["gsm8k", str(files[0])], [1.0, 1.0]),
        ([str(files[0]), "gsm8k"], [1.0, 1.0]),
        ([f"{files[0]}:0.7", "gsm8k:0.3"], [0.7, 0.3]),
        (["gsm8k:0.3", f"{files[0]}:0.7"], [0.3, 0.7]),
        ([*map(str, files)], [1.0, 1.0]),
    ):
        mixture = load_params(NONE, overrides=[f"data={'+'.join(choices)}"]).mix.components
        assert [part.source for part in mixture] == [Path(choice.partition(":")[0]).stem for choice in choices]
        assert [part.weight for part in mixture] == weights
    with pytest.raises(UserError, match=r"mine\+more.jsonl: no such file or folder"):
        load_params(NONE, overrides=[f"data={tmp_path}/mine+more.jsonl"])


def test_a_file_that_is_not_there_names_the_nearest(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"question": "1+1?", "answer": "2"}\n')
    with pytest.raises(UserError, match=r"rows.jsnl.*did you mean .*rows.jsonl"):
        load_params(NONE, overrides=[f"data={tmp_path / 'rows.jsnl'}"])
    empty = tmp_path / "empty.jsonl"
    empty.write_text("")
    with pytest.raises(UserError, match="no row that can be read"):
        load_params(NONE, overrides=[f"data={empty}"])
