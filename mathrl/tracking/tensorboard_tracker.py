"""TensorBoard: one event file per record in home()/tensorboard, written without TensorFlow or torch.

    .mathrl/tensorboard/rl gsm8k lr=2e-06 3f2a1b/events.out.tfevents.1780000000.mathrl

A kill leaves at most a tail that the record's state does not count; the next session cuts it off and sends it again.
"""

import re
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mathrl.core.files import encodable
from mathrl.core.mirroring import import_optional
from mathrl.core.paths import home
from mathrl.core.records import RunRecord, TrackerState, record_name
from mathrl.tracking.upload import flatten

UNFIT = re.compile(r"[^\w.=+-]+")  # for a folder of TensorBoard's, which shows it as the run's name
LONGEST_TEXT = 100_000  # characters


class TensorboardTracker:
    """An event file that is open for appending; `state.size` is the length up to which it is whole."""

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
