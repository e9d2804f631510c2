"""Places in Cloud Storage that Vertex AI names for checkpoints, model, and event files of
TensorBoard.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from segtrain.base.repeating import repeating
from segtrain.bucket import is_bucket, split_url
from segtrain.platforms import outcome

if TYPE_CHECKING:
    from segtrain.config import Config

# Environment variables. Each holds a gs://BUCKET/FOLDER/. Vertex AI sets them if the job has a
# base_output_directory.
CHECKPOINTS, MODEL, EVENTS = "AIP_CHECKPOINT_DIR", "AIP_MODEL_DIR", "AIP_TENSORBOARD_LOG_DIR"
MOUNTS = "/gcs/"  # where each bucket that the job may use is mounted
EVERY_S = 30.0
_OUTAGE_S = 120.0


def run_folder(place: str) -> str:
    """The run folder ``place``, with a path in the mount /gcs/BUCKET changed to gs://BUCKET.

    A mounted bucket cannot rename, append, or lock as a disk can. segtrain's own access to buckets
    does what a run folder needs.
    """
    return (
        f"gs://{place.removeprefix(MOUNTS)}".rstrip("/")
        if place.startswith(MOUNTS)
        else place.rstrip("/")
    )


def send(folder: Path, place: str, sent: dict[Path, int] | None = None) -> list[Path]:
    """Copy the files of a folder to ``place``, a bucket or another folder. Returns the files that
    were copied.

    ``sent``: size of each file when it was last copied. A file of the same size is skipped.
    ``send`` updates ``sent``. The model.json of an export is copied last, because a folder with
    this file is a complete export.
    """
    sent = {} if sent is None else sent
    done = []
    files = (path for path in folder.rglob("*") if path.is_file())
    for path in sorted(files, key=lambda path: (path.name == "model.json", path)):
        size, name = path.stat().st_size, path.relative_to(folder).as_posix()
        if sent.get(path) == size:
            continue
        if is_bucket(place):
            from segtrain.bucket.client import client_of

            bucket, prefix = split_url(place)
            client_of(bucket).put(f"{prefix}/{name}".lstrip("/"), path, _OUTAGE_S)
        else:
            target = Path(place, name)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
        sent[path] = size
        done.append(path)
    return done


@contextlib.contextmanager
def event_files(
    config: Config, rank: int, environ: Mapping[str, str] = os.environ
) -> Iterator[None]:
    """Copy the event files of TensorBoard to AIP_TENSORBOARD_LOG_DIR every EVERY_S seconds, and at
    the end.
    """
    place, folder = environ.get(EVENTS, ""), config.run_dir / "tensorboard"
    if rank or not place or not config.log.tensorboard:
        yield
        return
    sent, said = dict[Path, int](), list[str]()

    def copy() -> None:
        try:
            send(folder, place, sent)
        # Whatever it is, training goes on, and the next try may succeed.
        except Exception as error:
            if not said:
                said.append(str(error))
                print(
                    f"warning: no event files in {place}: {error}; training continues", flush=True
                )

    try:
        with repeating(copy, EVERY_S, "event-files"):
            yield
    finally:
        copy()


def keep_model(config: Config, environ: Mapping[str, str] = os.environ) -> None:
    """Export the best weights to AIP_MODEL_DIR, if the job has one. Raises SegtrainError."""
    from segtrain.runfolder import checkpoint

    place = environ.get(MODEL, "")
    if not place or not checkpoint.checkpoints(config.run_dir):
        return
    with tempfile.TemporaryDirectory() as scratch:
        outcome.keep_model(config.run_dir, Path(scratch), onnx=True, say=lambda _: None)
        names = ", ".join(path.name for path in send(Path(scratch), place))
    print(f"model     {names} in {place}", flush=True)
