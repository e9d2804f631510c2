"""Recorded runs: all that small runs, and the commands that read them, print and write."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import golden
import numpy as np
import pytest
import torch
from PIL import Image

from segtrain.cli import main
from segtrain.data.pixels import native
from segtrain.observe.journal import read_journal

SETTINGS = [
    "data.scenes=13",
    "data.scene_size=[40,48]",
    "data.crop=[64,64]",
    "data.workers=1",
    "data.prefetch=2",
    "model.options={stem: 8, widths: [8, 8, 16, 16], decoder: 8, bins: [1]}",
    "loss.terms=[ce, {name: dice, weight: 0.3}]",
    "loss.class_weights=auto",
    "train.batch_size=4",
    "train.accumulate=2",
    "train.duration=7st",
    "train.progressive=[[0.4, 0.5]]",
    "train.channels_last=true",
    "optim.name=sgd",
    "optim.lr=0.5",
    "optim.warmup=2st",
    "optim.clip=1.5",
    "optim.ema=0.8",
    "eval.every=3st",
    "eval.overlap=0.25",
    "eval.tile=[32,40]",
    "checkpoint.every=2st",
    "checkpoint.keep=2",
    "log.every=2",
    "log.pictures=3",
    "log.sentinel=3",
    "log.tensorboard=false",
    "log.profile_ms=0",
    "parallel.procs=1",
    "parallel.threads=1",
]
# What is measured, or differs among machines
MEASURED = {
    r" +[0-9.]+ img/s": "  N img/s",
    r"wait +[0-9]+%": "wait N%",
    r"ETA +\S+( \S+)?": "ETA T",
    r"\([0-9.]+ s, ": "(T, ",
    r"[0-9.]+ ms a sample": "T a sample",
    r"[0-9.]+ s of training, [0-9.e+]+ s per epoch, [0-9.]+ CPU-s": "T of training, T per epoch, T of CPU",
    r"host [^ )]+": "host HOST",
    r"native \(.*\)|no native decoder.*": "DECODER",
    r"[0-9hms]+( [0-9]+[ms])? for this process, \$[0-9.]+ at": "T for this process, $N at",
    r"about \S+( \S+)? and \$[0-9.]+ more": "about T and $N more",
    r"[0-9hms]+( [0-9]+[ms])? were taken before": "T were taken before",
}
FIELDS = [
    "ts",
    "version",
    "versions",
    "host",
    "pid",
    "begun",
    "seconds",
    "cpu_s",
    "images_per_s",
    "dollars",
    "spans",
    "workers",
]


class Screen:
    """Runs commands as a user does, and records what they print."""

    def __init__(self, capfd: pytest.CaptureFixture[str]) -> None:
        self._capfd, self.lines = capfd, list[str]()

    def run(self, *words: str) -> str:
        code = main([*words])
        out, errors = self._capfd.readouterr()
        shown = [word for word in words if word not in SETTINGS]
        self.lines += [f"$ segtrain {' '.join(shown)}", golden.masked(out, MEASURED)]
        if errors:
            self.lines += ["stderr:", golden.masked(errors, MEASURED)]
        self.lines += [f"exit code {code}", ""]
        return out


def plain(event: dict[str, Any]) -> dict[str, Any]:
    """An event without what is measured; numbers that computers may round differently rounded."""
    event = {name: "measured" if name in FIELDS else value for name, value in event.items()}
    if "derived" in event:
        event["derived"]["decoder"] = "DECODER"
    if "confusion" in event:
        event["confusion"] = np.sum(event["confusion"], axis=1).tolist()
    if "ready" in event:
        event["ready"] = len(event["ready"])
    if "scores" in event:
        event["scores"]["predicted"] = sum(event["scores"]["predicted"])
    if "text" in event:
        event["text"] = golden.masked(event["text"], MEASURED)
    return event


def files_of(folder: Path) -> dict[str, Any]:
    """Each file with its content, as far as it is the same everywhere."""
    found: dict[str, Any] = {}
    for path in sorted(file for file in folder.rglob("*") if file.is_file()):
        name, content = str(path.relative_to(folder)), None
        if path.suffix == ".json":
            content = json.loads(path.read_text())
            content = {k: v for k, v in content.items() if k not in ("host", "pid", "since")}
        elif path.suffix == ".gz":
            content = gzip.decompress(path.read_bytes()).decode().splitlines()[:3]
        elif path.suffix in (".csv", ".yaml"):
            head, *lines = path.read_text().splitlines()
            content = [head, *(line.partition(",")[0] for line in lines)]
        elif path.suffix == ".png":  # a font sets the height of some
            with Image.open(path) as image:
                content = [image.width, image.mode]
        elif path.suffix == ".pt":
            saved = torch.load(path, weights_only=False)
            content = {
                key: len(value) if isinstance(value, dict) and len(value) > 9 else str(value)
                for key, value in saved.items()
                if key not in ("decoder", "data", "state", "scaler")
            }
            content["step"] = [saved["state"]["step"], saved["state"]["best_step"]]
        elif path.parent.name == "spans":
            lines = [json.loads(line) for line in path.read_text().splitlines()]
            content = [sorted(name for name in line if "cpu" not in name) for line in lines[:2]]
        found[name] = content
    return found


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not native.available():
        pytest.skip(f"other pixels than those of the native decoder: {native.describe()}")
    return tmp_path_factory.mktemp("runs")


def test_a_run_that_is_killed_and_resumed(recorded, monkeypatch, capfd):
    monkeypatch.chdir(recorded)
    screen, folder = Screen(capfd), Path("run")
    screen.run("train", *SETTINGS, "out=run")
    golden.check("core/run-files.txt", golden.data(files_of(folder), 2))
    # as if it was killed before the last checkpoint
    (folder / "checkpoints/step-00000007.pt").unlink()
    lines = (folder / "journal.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "journal.jsonl").write_bytes(b"".join(lines[:-3]))
    limits = ["train.deadline=2h", "train.budget=300$", "train.price=3.6"]
    screen.run("train", *SETTINGS, *limits, "out=run")
    screen.run("train", *SETTINGS, "out=run")
    screen.run("train", *SETTINGS, "out=run", "optim.clip=1")
    golden.check("core/run.txt", "\n".join(screen.lines))
    events = [plain(event) for event in read_journal(folder)]
    table = {f"{number} {event.pop('event')}": event for number, event in enumerate(events)}
    golden.check("core/run-journal.txt", golden.data(table, 3))


def pictures(folder: Path) -> None:
    """Two images of one size, one of another, and a file that is not one."""
    folder.mkdir()
    for number, size in enumerate(((50, 60), (50, 60), (33, 41))):
        pixels = np.arange(size[0] * size[1] * 3).reshape(*size, 3) * (7 + number) % 253
        Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{number}.png")
    (folder / "torn.png").write_bytes((folder / "0.png").read_bytes()[:300])
    (folder / "notes.txt").write_text("not an image")


def test_what_reads_a_run(recorded, monkeypatch, capfd):
    monkeypatch.chdir(recorded)
    screen = Screen(capfd)
    more = ["model.init=run", "model.freeze=encoder", "train.duration=3st", "train.progressive=[]"]
    screen.run("train", *SETTINGS, *more, "log.spans=false", "checkpoint.every=3st", "out=tuned")
    begun = next(event for event in read_journal(Path("tuned")) if event["event"] == "init")
    found: dict[str, Any] = {"init": {**begun, "ts": "measured", "taken": len(begun["taken"])}}
    screen.run("eval", "tuned", "--which", "last", "--images", "seen", "--confusion", "table.csv")
    words = ["eval.flip=true", "eval.scales=[0.5,1]"]
    found["scores"] = json.loads(screen.run("eval", "tuned", "--json", *words)) | {"seconds": "T"}
    del screen.lines[-3]
    screen.run("eval", "tuned", "optim.lr=1")
    pictures(Path("images"))
    screen.run("predict", "tuned", "images", "--out", "made", "--probabilities")
    screen.run("predict", "tuned", "images/2.png", "--out", "images", "eval.tile=[16,24]")
    screen.run("predict", "tuned", "images/2.png", "--out", "other", "train.seed=1")
    screen.run("predict", "tuned", "gs://bucket/images", "--out", "other")
    screen.run("export", "tuned", "--formats", "safetensors", "--out", "exported")
    screen.run("export", "tuned", "--formats", "caffe")
    screen.run("eval", "exported", "--json")
    screen.run("profile", "status", "tuned")
    golden.check("core/commands.txt", "\n".join(screen.lines))
    described = json.loads(Path("exported/model.json").read_text())
    described["source"] |= dict.fromkeys(("segtrain", "torch"), "measured")
    described["weights"]["sha256"] = len(described["weights"]["sha256"])
    with np.load("made/probabilities/2.npz") as arrays:
        found["probabilities"] = {name: str(arrays[name].dtype) for name in arrays.files}
        found["sum"] = arrays["probabilities"].astype(np.float32).sum(0)[::9, ::9]
    with Image.open("made/masks/2.png") as mask, Image.open("made/overlays/2.png") as overlay:
        found["mask"] = [mask.mode, *mask.size, mask.info, mask.getpalette()[:36]]
        found["overlay"] = [overlay.mode, overlay.width, overlay.info]
    found |= {"files": files_of(Path("seen")), "made": files_of(Path("made"))}
    golden.check("core/commands-files.txt", golden.data({**found, "model.json": described}, 2))
