"""What the stages of bench/gpu.py share: their rows, runs of segtrain, and networks."""

from __future__ import annotations

import importlib.util
import json
import platform
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

LATE = "no time is left"
CLASSES = 19  # of the networks of the stages
GOOD = {True: "ok", False: "WRONG", None: ""}
# Module -> its name on the package index. segtrain cannot train without them; all others are
# optional here.
NEEDED = {
    "torch": "torch",
    "numpy": "numpy",
    "cv2": "opencv-python-headless",
    "PIL": "pillow",
    "pydantic": "pydantic",
    "yaml": "pyyaml",
    "safetensors": "safetensors",
    "psutil": "psutil",
}
OPTIONAL = {
    "segmentation_models_pytorch": "segmentation-models-pytorch",
    "pynvml": "nvidia-ml-py",
    "pytest": "pytest",
    "torchvision": "torchvision",
    "triton": "triton",
}


def needs() -> str:
    """One error that names everything that this Python lacks, and how to bring it; "" if it can
    run.
    """
    lacking = [name for module, name in NEEDED.items() if importlib.util.find_spec(module) is None]
    here = f"{sys.executable} (Python {sys.version_info.major}.{sys.version_info.minor})"
    if not lacking:
        return ""
    names = " ".join(lacking)
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    kind = platform.machine()
    platforms = " ".join(f"--platform manylinux_2_{minor}_{kind}" for minor in (28, 27, 17))
    return (
        f"error: {here} lacks {names}: {sys.executable} -m pip install {names}\n"
        f"Without a network, fetch wheels elsewhere: pip download --only-binary=:all: --python-version {version} "
        f"{platforms} --platform manylinux2014_{kind} -d wheels {names}\n"
        f"and here: {sys.executable} -m pip install --no-index --find-links wheels {names}"
    )


@dataclass(frozen=True)
class Stage:
    name: str
    title: str
    limit_s: float
    correctness: bool


class NoTime(Exception):
    """A case does not fit into the time of its stage, which says nothing about whether it is
    right.
    """


@dataclass
class Rig:
    """``end``: when a stage should start nothing more, in seconds of time.monotonic(). ``earlier``:
    results of the rows that an earlier call has measured.
    """

    device: str
    tiny: bool
    folder: Path
    end: float
    file: Path = field(default=Path())
    earlier: dict[str, str] = field(default_factory=dict)

    @property
    def left_s(self) -> float:
        return self.end - time.monotonic()

    @property
    def on_gpu(self) -> bool:
        return self.device == "cuda"

    def note(self, what: str, result: Any, ok: bool | None = None, bound: str = "") -> None:
        """A row of the result; ``ok``: None for a measurement that can be neither right nor
        wrong.
        """
        with self.file.open("a", encoding="utf-8") as file:
            file.write(
                json.dumps({"what": what, "result": str(result), "ok": ok, "bound": bound}) + "\n"
            )

    def below(self, what: str, value: float, most: float, where: str = "") -> None:
        """A row that is good if ``value`` is at most ``most``. ``where``: what the value belongs
        to.
        """
        self.note(what, f"{value:.1e} {where}".strip(), bool(value <= most), f"{most:.0e}")

    def require(self, seconds: float) -> None:
        """Raise NoTime if the stage has less time."""
        if self.left_s < (1 if self.tiny else seconds):
            raise NoTime(LATE)

    def left_out(self, what: str, why: str) -> None:
        self.note(what, f"left out: {why}")

    def pictures(self) -> str:
        """What the JPEG files of ``folder/pictures`` are. Waits until bench/gpu.py, or this call,
        has made them.
        """
        from rivals import pictures

        folder, begun, done = (
            self.folder / "pictures",
            self.folder / "pictures.begun",
            self.folder / "pictures.txt",
        )
        try:
            begun.touch(exist_ok=False)
        except FileExistsError:
            while not done.exists() and self.left_s > 0:
                time.sleep(0.1)
            return done.read_text()
        count, size = (4, (64, 96)) if self.tiny else (96, (1024, 2048))
        text = pictures.make(folder, "", CLASSES, count=count, size=size)
        part = self.folder / "pictures.part"
        part.write_text(text)
        part.replace(done)
        return text

    def networks(self) -> dict[str, dict[str, Any]]:
        """Settings of ``model`` of the networks of the stages, by name. Only pico if SMP is not
        installed.
        """
        if self.tiny:
            return {"pico": {"arch": "pico", "options": TINY}}
        if importlib.util.find_spec("segmentation_models_pytorch") is None:
            self.left_out(
                "DeepLabV3+, U-Net, SegFormer", "segmentation-models-pytorch is not installed"
            )
            return {"pico": {"arch": "pico"}}
        return {
            "DeepLabV3+ R50": {"arch": "deeplabv3plus", "encoder": "resnet50"},
            "DeepLabV3+ R101": {"arch": "deeplabv3plus", "encoder": "resnet101"},
            "U-Net R34": {"arch": "unet", "encoder": "resnet34"},
            "SegFormer-B2": {"arch": "segformer", "encoder": "mit_b2"},
            "pico": {"arch": "pico"},
        }


TINY = {"stem": 8, "widths": [8, 8, 16, 16], "depths": [0, 1, 0, 0], "decoder": 8, "bins": [1, 2]}


def config(rig: Rig, out: str, *overrides: str) -> Any:
    """A short run on generated scenes, with SGD and without trackers."""
    from segtrain.config import Config

    settings = [
        f"out={rig.folder / out}",
        f"train.device={rig.device}",
        "train.seed=1",
        "data.workers=1",
        "data.check=off",
        "log.tensorboard=false",
        "log.pictures=0",
        "log.every=1",
        "log.profile_ms=0",
        "log.spans=false",
        "optim.name=sgd",
        "optim.lr=0.01",
        "checkpoint.background=false",
        "parallel.procs=1",
    ]
    if rig.tiny:
        settings += [
            "data.scenes=4",
            "data.scene_size=[40,48]",
            "data.crop=[32,32]",
            "train.batch_size=4",
            "parallel.threads=1",
            f"model.options={json.dumps(TINY)}",
        ]
    else:
        settings += [
            "data.scenes=32",
            "data.scene_size=[128,192]",
            "data.crop=[96,96]",
            "train.batch_size=8",
        ]
    return Config.load(None, *settings, *overrides)
