"""A model to the hub: by the hub's own client, to a small server that speaks the hub's interface."""

import base64
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from mathrl.cli.models import push
from mathrl.core.environment import ask_hub_once
from mathrl.core.errors import UserError
from mathrl.core.hashing import digest_path
from mathrl.core.paths import home
from mathrl.models.base import make_base
from mathrl.params.run import FreshModel, Model
from mathrl.registry import versions as push_module
from mathrl.registry.versions import _hub_card, describe
from mathrl.tracking.lineage import Back, Step
from tests.cli.test_promote import Registry, made  # noqa: F401  # a fixture


class Hub(ThreadingHTTPServer):
    """Keeps what is committed; every file comes within the commit."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.repositories: dict[str, bool] = {}  # whether each is private
        self.files: dict[str, bytes] = {}
        self.refused = 0
        self.tokens: set[str | None] = set()
        self.url = f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Hub

    def log_message(self, *words: Any) -> None:
        pass

    def answer(self, content: Any, status: int = 200) -> None:
        text = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def do_GET(self) -> None:
        self.answer({"error": "not found"}, 404)

    do_HEAD = do_GET

    def do_POST(self) -> None:
        hub, content = self.server, self.rfile.read(int(self.headers.get("content-length", 0)))
        hub.tokens.add(self.headers.get("authorization"))
        if hub.refused:
            self.answer({"error": "you are not a member of org"}, hub.refused)
        elif self.path == "/api/repos/create":
            asked = json.loads(content)
            name = f"{asked['organization']}/{asked['name']}" if asked.get("organization") else asked["name"]
            status = 409 if name in hub.repositories else 200
            hub.repositories.setdefault(name, asked.get("private", asked.get("visibility") == "private"))
            self.answer({"url": f"{hub.url}/{name}", "error": "it exists"}, status)
        elif self.path == "/api/validate-yaml":  # of the card's block
            self.answer({"errors": [], "warnings": []})
        elif "/preupload/" in self.path:
            files = json.loads(content)["files"]
            modes = [{"path": file["path"], "uploadMode": "regular", "shouldIgnore": False} for file in files]
            self.answer({"files": modes})
        elif "/commit/" in self.path:
            for line in content.splitlines():
                row = json.loads(line)
                if row["key"] == "file":
                    hub.files[row["value"]["path"]] = base64.b64decode(row["value"]["content"])
            self.answer({"commitUrl": f"{hub.url}/org/tiny/commit/9f2", "commitOid": "9f2", "success": True})
        else:
            self.answer({"error": self.path}, 404)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    server = Hub()
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", server.url)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    ask_hub_once.cache_clear()
    yield server
    server.shutdown()
    server.server_close()


def test_a_version_goes_with_its_card_evaluation_lineage_and_certificate(
    made: Registry,  # noqa: F811
    hub: Hub,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    client = made.add(1)
    describe(client, "m", "1", card="# m version 1\n\n**better than before**")
    certificate = home() / "reproduced" / "m-1" / "certificate.json"
    certificate.parent.mkdir(parents=True)
    certificate.write_text('{"verdict": "same"}')
    push("m", "org/tiny")
    assert hub.repositories == {"org/tiny": True} and hub.tokens == {"Bearer hf_secret"}
    shown = capsys.readouterr().out
    assert shown.startswith("org/tiny: ") and "model.safetensors" in shown and shown.endswith("/org/tiny/commit/9f2\n")
    weights = tmp_path / "models" / "1"
    for file in weights.rglob("*"):
        if file.is_file() and file.name != "README.md":
            assert hub.files[str(file.relative_to(weights))] == file.read_bytes()
    card = hub.files["README.md"].decode()
    assert card.startswith('---\nlibrary_name: "transformers"\n') and "**better than before**" in card
    lineage = json.loads(hub.files["mathrl/lineage.json"])
    assert lineage["digest"] == digest_path(weights) and {step["stage"] for step in lineage["steps"]} >= {"sft", "rl"}
    assert json.loads(hub.files["mathrl/evaluation.json"])["figures"]
    assert json.loads(hub.files["mathrl/certificate.json"]) == {"verdict": "same"}
    push("m:1", "org/tiny", as_json=True)  # again, into the repository that is there
    assert json.loads(capsys.readouterr().out)["repository"] == "org/tiny"


@pytest.mark.parametrize(
    ("base", "named"),
    [("Qwen/Qwen3-0.6B", True), ("gpt2", True), ("models/tiny", False), ("a/b/c", False), ("/m", False)],
)
def test_a_card_names_a_base_of_the_hub_and_no_folder(tmp_path: Path, base: str, named: bool) -> None:
    """The hub refuses a card whose base_model is no model id."""
    (tmp_path / "models/tiny").mkdir(parents=True)
    step = Step("4f", "rl", "", False, {"model.base.path": base}, {}, {}, {}, workspace=str(tmp_path))
    card = _hub_card(Back("m", "1", "77", {}, [step], [], []), "")
    assert (f'base_model: "{base}"' in card) == ("base_model" in card) == named


def test_other_bytes_than_the_registrys_are_not_pushed(
    made: Registry,  # noqa: F811
    hub: Hub,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made.add(1)
    monkeypatch.setattr(push_module, "digest_path", lambda folder: "other")
    with pytest.raises(UserError, match="m version 1: its files are not those that were registered"):
        push("m", "org/tiny")
    assert not hub.files


def test_a_folder_goes_as_it_is_and_what_the_hub_refuses_is_a_sentence(hub: Hub, tmp_path: Path) -> None:
    make_base(Model(base=FreshModel(hidden_size=32, layers=1, heads=2, kv_heads=1)), tmp_path / "tiny", 0)
    push(str(tmp_path / "tiny"), "org/tiny", public=True)
    assert hub.repositories == {"org/tiny": False}
    assert hub.files["config.json"] == (tmp_path / "tiny" / "config.json").read_bytes()
    with pytest.raises(UserError, match=r"no model folder, config\.json is missing"):
        push(str(tmp_path), "org/tiny")
    with pytest.raises(UserError, match="write OWNER/NAME"):
        push(str(tmp_path / "tiny"), "org/tiny/small")
    hub.refused = 403
    with pytest.raises(UserError, match=r"refused org/tiny with 403: you are not a member of org; set \$HF_TOKEN"):
        push(str(tmp_path / "tiny"), "org/tiny")
