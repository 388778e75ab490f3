"""The trackers beside MLflow: Weights & Biases, with the reader of its offline files, and TensorBoard.

.mathrl/wandb/offline-run-20261127_063057-5b1ce0a1f3d2/run-5b1ce0a1f3d2.wandb
.mathrl/tensorboard/rl gsm8k lr=2e-06 3f2a1b/events.out.tfevents.1780000000.mathrl
"""

import os
import re
import struct
import threading
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mathrl.core.errors import UserError
from mathrl.core.files import encodable
from mathrl.core.mirroring import import_optional
from mathrl.core.paths import home
from mathrl.core.records import RunRecord, TrackerState, record_name
from mathrl.tracking.upload import flatten

ANSWER_SECONDS = 10.0  # for the server to open a run
UPLOAD_SECONDS = 30.0  # to take the rest of a run
QUIET = {
    "WANDB_SILENT": "true",  # its errors are reported
    "WANDB_ERROR_REPORTING": "false",  # figures of its own use, which it sends to the server and to Sentry
}
WIDEST = 100  # columns that W&B shows of a table


class WandbTracker:
    """A session of a run with W&B, online or offline as WANDB_MODE says; it goes on where it has to be ended before.

    WANDB_PROJECT (default mathrl), WANDB_ENTITY and the login are W&B's own settings. A session that goes on with a run
    asks what of it was kept, the server or the files of earlier sessions, since a kill loses what waits in memory.
    """

    def __init__(self, state: TrackerState) -> None:
        self.end: threading.Thread | None = None
        self.failure: Exception | None = None  # of the session's end
        self.state, self.last, self.at = state, -1, state.at  # of the last row

    def open(self, record: RunRecord) -> int | None:
        self.wandb = _import("wandb", "W&B")
        folder = home()
        folder.mkdir(parents=True, exist_ok=True)
        # Nothing of this process or machine: no console, code, git, arguments or packages.
        settings = self.wandb.Settings(
            console="off", silent=True, disable_git=True, disable_code=True, disable_job_creation=True, host="",
            x_disable_meta=True, x_disable_machine_info=True, x_save_requirements=False, init_timeout=ANSWER_SECONDS,
            x_disable_stats=record.status != "running", x_stats_pid=record.pid,
        )  # fmt: skip
        config = record.params | {"git": {"commit": record.commit, "dirty": record.dirty}, "record": record.folder.name}
        self.run = self.wandb.init(
            id=self.state.run,
            project=os.environ.get("WANDB_PROJECT") or "mathrl",
            name=record_name(record, record.name),
            group=record.sweep or record.pipeline or None,
            job_type=record.stage,
            config=config,
            dir=folder,
            resume="allow",
            reinit="create_new",
            settings=settings,
        )
        self.state.links = {}  # sent by each session, since a kill may have lost them
        place = Path(self.run.settings.sync_dir).relative_to(folder)
        self.state.address = str(place) if self.run.offline else self.run.settings.run_url
        self.last = last_step(folder, self.state.run) if self.run.offline else self.run.step - 1
        return None if self.last < 0 else self.last

    def metrics(self, step: int, at: float, values: Mapping[str, Any]) -> None:
        if step <= self.last and at != self.at:
            return  # its steps only grow: a step that is done again after a resume keeps its first values
        self.run.log(dict(values), step=step, commit=False)
        self.last, self.at = step, at

    def table(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        columns = [*rows[0]][:WIDEST]
        data = [[str(row.get(column, "")) for column in columns] for row in rows]
        self.run.summary[name] = self.wandb.Table(columns=columns, data=data)

    def report(self, file: Path) -> None:
        if file.suffix == ".png":
            shown = self.wandb.Image(str(file))
        elif file.suffix == ".md":
            shown = self.wandb.Table(columns=["report"], data=[[file.read_text(encoding="utf-8")]])
        else:
            shown = self.wandb.Html(str(file), inject=False)
        self.run.summary[f"report/{file.stem}"] = shown

    def links(self, links: Mapping[str, str]) -> None:
        self.run.config.update({"links": dict(links)}, allow_val_change=True)
        pages = [f"[{name}]({text})" for name, text in links.items() if "://" in text]
        if pages:
            self.run.notes = " · ".join(pages)

    def flush(self) -> None:
        if self.last >= self.run.step:
            self.run.log({}, step=self.last, commit=True)

    def close(self, status: str, summary: Mapping[str, Any]) -> None:
        if self.end is None:
            self.run.summary.update(dict(summary))
            exit_code = 0 if status in ("finished", "running") else 1
            self.end = threading.Thread(target=self._finish, args=(exit_code,), daemon=True)
            self.end.start()
        self.end.join(UPLOAD_SECONDS)
        if self.end.is_alive():
            raise TimeoutError(f"not everything was uploaded in {UPLOAD_SECONDS:.0f} seconds")
        if self.failure is not None:
            raise self.failure

    def _finish(self, exit_code: int) -> None:
        try:
            self.run.finish(exit_code)
        except Exception as error:  # of W&B, of any kind
            self.failure = error


def _import(name: str, purpose: str) -> Any:
    os.environ.update({name: value for name, value in QUIET.items() if name not in os.environ})
    return import_optional(name, purpose)


def last_step(folder: Path, run: str) -> int:
    """The last step that the offline files of a run have; -1 without one.

    W&B adds "-1" to the folder of a second session that starts within the same second: the file's name decides.
    """
    files = folder.glob(f"wandb/offline-run-*/run-{run}.wandb")
    steps = (item.history.step.num for file in files for item in wandb_records(file) if item.HasField("history"))
    return max(steps, default=-1)


WANDB_HEADER, WANDB_BLOCK, WANDB_RECORD = b":W&B", 32768, struct.Struct("<IHB")  # checksum, length, kind
WHOLE, FIRST, LAST = 1, 2, 4  # kinds of pieces of a record; 3 is a middle one


def wandb_records(file: Path) -> Iterator[Any]:
    """The records of an offline run of Weights & Biases; a last one that is not yet whole is left out.

    The file is a log in LevelDB's format of records, which wandb has no reader for in Python since it is written in Go.

    Raises:
        UserError: the file is damaged, or wandb is not installed.
    """
    record_type = _import("wandb.proto.wandb_internal_pb2", f"{file}: reading it").Record
    with file.open("rb") as stream:
        if not (header := stream.read(7)).startswith(WANDB_HEADER):
            if len(header) < len(WANDB_HEADER):
                return  # about to be written
            raise UserError(f"{file}: not an offline run of Weights & Biases")
        whole, position = b"", 7
        while True:
            left = WANDB_BLOCK - position % WANDB_BLOCK
            if left < WANDB_RECORD.size:
                stream.seek(left, os.SEEK_CUR)
                position += left
                continue
            head = stream.read(WANDB_RECORD.size)
            if len(head) < WANDB_RECORD.size:
                return
            checksum, length, kind = WANDB_RECORD.unpack(head)
            data = stream.read(length)
            if len(data) < length:
                return
            position += WANDB_RECORD.size + length
            if zlib.crc32(bytes([kind]) + data) != checksum:
                raise UserError(f"{file}: damaged at byte {position - length:,}")
            whole = data if kind in (WHOLE, FIRST) else whole + data
            if kind in (WHOLE, LAST):
                yield record_type.FromString(whole)


UNFIT = re.compile(r"[^\w.=+-]+")  # for a folder of TensorBoard's, which shows it as the run's name
LONGEST_TEXT = 100_000  # characters


class TensorboardTracker:
    """An event file per record, written without TensorFlow or torch; up to the length `state.size` it is whole.

    A kill leaves at most a tail that the state does not count; the next session cuts it off and sends it again.
    """

    def __init__(self, state: TrackerState) -> None:
        self.state = state
        self.step, self.at, self.last = 0, 0.0, -1  # of texts and pictures; the last row's

    def open(self, record: RunRecord) -> int | None:
        self.event_type = import_optional("tensorboard.compat.proto.event_pb2", "TensorBoard")
        self.summary_type = import_optional("tensorboard.compat.proto.summary_pb2", "TensorBoard")
        writer = import_optional("tensorboard.summary.writer.record_writer", "TensorBoard").RecordWriter
        folders, short = home() / "tensorboard", self.state.run[:6]
        title = UNFIT.sub(" ", record_name(record, record.name))
        folder = next(folders.glob(f"* {short}"), folders / f"{title} {short}")
        folder.mkdir(parents=True, exist_ok=True)
        file = next(folder.glob("events.out.tfevents.*"), folder / f"events.out.tfevents.{int(record.started)}.mathrl")
        file.touch()
        self.state.address = str(folder.relative_to(home()))
        kept = self.state.size if file.stat().st_size >= self.state.size else 0
        self.stream = file.open("r+b", buffering=0)  # what a failed session holds must not come after the next one's
        self.stream.truncate(kept)
        self.stream.seek(kept)
        self.writer = writer(self.stream)
        if kept:
            self.at, self.last = self.state.at, -1 if self.state.step is None else self.state.step
            self.step = max(0, self.last)
            return self.state.step
        self.at = record.started
        self._write(file_version="brain.Event:2")
        params = flatten(record.params)
        self._text("parameters", _table([{"parameter": name, "value": value} for name, value in params.items()]))
        return None

    def metrics(self, step: int, at: float, values: Mapping[str, Any]) -> None:
        value_type = self.summary_type.Summary.Value
        summary = [value_type(tag=name, simple_value=float(value)) for name, value in values.items()]
        if step <= self.last and at > self.at:  # done again after a resume: what it has from this step on is dropped
            start = self.event_type.SessionLog(status=self.event_type.SessionLog.START)
            self._write(session_log=start, step=step, wall_time=at)
        self.step = self.last = step
        self.at = at
        self._summary(summary)

    def table(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        self._text(name, _table(rows))

    def report(self, file: Path) -> None:
        if file.suffix == ".png":
            picture = file.read_bytes()
            width, height = struct.unpack(">II", picture[16:24])
            image = self.summary_type.Summary.Image(width=width, height=height, encoded_image_string=picture)
            self._summary([self.summary_type.Summary.Value(tag=f"report/{file.stem}", image=image)])
        elif file.suffix == ".md":
            self._text(f"report/{file.stem}", file.read_text(encoding="utf-8"))

    def links(self, links: Mapping[str, str]) -> None:
        lines = (
            f"- {name}: [{text}]({text})" if "://" in text else f"- {name}: {text}" for name, text in links.items()
        )
        self._text("links", "\n".join(lines))

    def flush(self) -> None:
        self.writer.flush()
        self.state.size = self.stream.tell()

    def close(self, status: str, summary: Mapping[str, Any]) -> None:
        if status != "running":
            self._text("result", _table([{"": name, status: value} for name, value in summary.items()]) or status)
        self.flush()
        self.stream.close()

    def _text(self, tag: str, text: str) -> None:
        """A text, which TensorBoard lays out as Markdown."""
        if not text:
            return
        pb2 = self.summary_type
        metadata = pb2.SummaryMetadata(plugin_data=pb2.SummaryMetadata.PluginData(plugin_name="text"))
        value = pb2.Summary.Value(tag=tag, metadata=metadata)
        value.tensor.dtype = 7  # DT_STRING
        value.tensor.tensor_shape.dim.add(size=1)
        value.tensor.string_val.append(encodable(text[:LONGEST_TEXT]).encode())
        self._summary([value])

    def _summary(self, values: Sequence[Any]) -> None:
        self._write(summary=self.summary_type.Summary(value=values), step=self.step)

    def _write(self, **event: Any) -> None:
        self.writer.write(self.event_type.Event(**{"wall_time": self.at, **event}).SerializeToString())


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as a table of Markdown."""
    if not rows:
        return ""
    cells = [[*rows[0]], ["---"] * len(rows[0]), *([row.get(name, "") for name in rows[0]] for row in rows)]
    lines = (" | ".join(str(cell).replace("|", "\\|").replace("\n", "<br>") for cell in line) for line in cells)
    return "\n".join(f"| {line} |" for line in lines)
