"""Writes docs/sagemaker-images.md, the page of SageMaker's types and images, from launch/platforms/sagemaker:   python docs/make_images_page.py"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # launch/ is not installed

from launch.platforms.sagemaker.images import IMAGES, IMAGES_DATED, OLD_AFTER_DAYS, Image, runs_on
from launch.platforms.sagemaker.instances import INSTANCES, PRICES_DATED, UNFIT
from segtrain.machines import Machine, gpus, sources

FROM = sources("gpus")

PAGE = Path(__file__).with_name("sagemaker-images.md")

INTRO = """# SageMaker instance types and images

Which container image the launcher chooses for an instance type, and why:

```python
from launch.platforms.sagemaker.images import choose
from launch.core.findings import show

choice = choose("ml.p3.16xlarge", "ddp", "us-east-1")
print(choice.uri, "-", choice.why)
print(show(choice.findings))
```

It takes the newest image whose torch has code for the GPU: for the same major compute capability, and the same or a lower minor
one (code for sm_80 also runs on sm_86 and sm_89). `--image` chooses another one,
which must be in a private ECR registry of the job's region; the findings then list its problems.

`python docs/make_images_page.py` writes this page from `launch/platforms/sagemaker/` and `segtrain/machines/`. Sizes and prices of
each type are in [sagemaker.csv](../segtrain/machines/sagemaker.csv), and the dry run shows those of your job.
"""


def page() -> str:
    """The whole page, Markdown."""
    types = list(INSTANCES.values())
    parts = [
        INTRO,
        "## GPUs and images\n",
        FIT,
        _fit(),
        "## Images\n",
        DATED,
        _images(),
        IMAGE_NOTES,
    ]
    parts += ["## Types\n", TYPES, _families([machine for machine in types if machine.gpus])]
    parts += [CPU_TYPES]
    parts += [_families([machine for machine in types if not machine.gpus]), _left_out(), SOURCES]
    return "\n".join(parts)


DATED = (
    f"Compared with AWS's list on {IMAGES_DATED}; after {OLD_AFTER_DAYS} days, dry runs warn that the table is old. Code for: "
    "the compute capabilities that torch was compiled for (75 is sm_75). SMDDP: the version in the image. For CPU types, images since "
    "2.11 exist with `cpu` in place of the version of CUDA.\n"
)
IMAGE_NOTES = """- SMDDP, AWS's all-reduce library, is only in images with torch 2.5.1 and earlier; its import fails on all but a few types.
- Images with torch 2.9 and later use CUDA 13, which needs an NVIDIA driver of branch 580 or later. SageMaker chooses the driver.
- Images since 2.11 are based on Amazon Linux (`dnf`, Python in `/opt/venv`), earlier ones on Ubuntu (`apt-get`). AWS keeps them in
  registries of each region, under the accounts in `launch/platforms/sagemaker/regions.py`.
"""
FIT = (
    "In parentheses: the compute capability, and the training throughput of one GPU relative to a V100, from data sheets. With "
    "SMDDP: the newest image that has it, where SMDDP supports the type.\n"
)
TYPES = (
    "You can use every training type that botocore's model of SageMaker lists. If a type is newer than this page, a note says that "
    "its size, price, and speed are unknown; if botocore does not know it either, add `--unknown-type-ok`. `ml.p3.*` is retired: "
    "a warning names similar types, and the job is submitted.\n\n"
    f"Dollars: per hour on demand in us-east-1, {PRICES_DATED} (p3: the last known price). From the smallest size to the largest.\n"
)
CPU_TYPES = "segtrain trains on these, too, or makes samples on them for a group with GPUs ([helpers](helpers.md)).\n"
SOURCES = f"""The source of each size, price, and speed is named in `segtrain/machines/` (the speeds: {FROM["sheet"]}), that of each image,
registry, and region in `launch/platforms/sagemaker/`.
"""


def _left_out() -> str:
    rows = [(f"`{start}*`", why) for start, why in UNFIT.items()]
    return "## Types that segtrain does not run on\n\n" + _table(("type", "why"), rows)


def _images() -> str:
    rows = [
        (
            f"`{one.repository}:{one.tag}`",
            one.torch,
            one.python,
            one.cuda,
            _arches(one),
            one.smddp or "",
            one.patched_until,
        )
        for one in IMAGES
        if one.cuda
    ]
    return _table(("image", "torch", "Python", "CUDA", "code for", "SMDDP", "patched until"), rows)


def _arches(image: Image) -> str:
    return " ".join(arch.removeprefix("sm_") for arch in image.arches)


def _fit() -> str:
    """The GPUs that get the same images in one row."""
    rows: dict[tuple[str, str], list[str]] = {}
    for gpu in gpus().values():
        machine = next((machine for machine in INSTANCES.values() if machine.gpu == gpu.name), None)
        if machine is None:
            continue
        fit = [image for image in IMAGES if runs_on(image, machine)]
        smddp = (
            next((f"`{image.tag}`" for image in fit if image.smddp), "") if machine.smddp else ""
        )
        rows.setdefault((f"`{fit[0].tag}`", smddp), []).append(
            f"{gpu.name} ({gpu.arch}, {gpu.speed:.2f})"
        )
    return _table(
        ("newest image", "with SMDDP", "GPUs"),
        [(*tags, ", ".join(names)) for tags, names in rows.items()],
    )


def _families(machines: list[Machine]) -> str:
    """One row per family of types: its GPU, its sizes, and from how much to how much they have."""
    families: dict[str, list[Machine]] = {}
    for machine in machines:
        families.setdefault(machine.name.rpartition(".")[0], []).append(machine)
    names = (
        "family",
        "GPU",
        "sizes",
        "GPUs",
        "vCPUs",
        "memory GiB",
        "disk GB",
        "Gbit/s",
        "dollars",
        "",
    )
    rows = [_family(name, members) for name, members in families.items()]
    of_gpu_types = ("GPU", "GPUs", "disk GB")
    columns = [
        column for column, name in enumerate(names) if name not in of_gpu_types or machines[0].gpus
    ]
    return _table(
        tuple(names[column] for column in columns),
        [[row[column] for column in columns] for row in rows],
    )


def _family(name: str, members: list[Machine]) -> tuple[str, ...]:
    first = members[0]
    disk = _range([machine.nvme_gb for machine in members])
    gpu = f"{first.gpu}, {first.gpu_memory_gb:g} GiB" if first.gpus else ""
    sizes = [machine.name.rpartition(".")[2] for machine in (first, members[-1])]
    notes = [
        _some("EFA", [machine for machine in members if machine.efa], members),
        _some("SMDDP", [machine for machine in members if machine.smddp], members),
        "retired" if first.retired else "",
        f"disk of {disk} GB" if first.nvme_gb and not first.gpus else "",
    ]
    prices = [machine.price for machine in members if machine.price is not None]
    return (
        f"`{name}`",
        gpu,
        "-".join(dict.fromkeys(sizes)),
        _range([machine.gpus for machine in members]) if first.gpus else "",
        _range([machine.vcpus for machine in members]),
        _range([machine.memory_gb for machine in members]),
        disk,
        _range([machine.network_gbit for machine in members]),
        _range([round(price, 2) for price in prices]),
        ", ".join(note for note in notes if note),
    )


def _some(what: str, having: list[Machine], members: list[Machine]) -> str:
    """``what``, with the smallest size that has it if others lack it."""
    if not having or len(having) == len(members):
        return what if having else ""
    least = min(having, key=lambda machine: machine.vcpus)
    return f"{what} from {least.name.rpartition('.')[2]}"


def _range(values: Sequence[float]) -> str:
    if not values:
        return ""
    least, most = min(values), max(values)
    return f"{least:g}" if least == most else f"{least:g}-{most:g}"


def _table(names: tuple[str, ...], rows: Iterable[Sequence[object]]) -> str:
    lines = [names, ["---"] * len(names), *rows]
    return "\n".join("| " + " | ".join(map(str, cells)) + " |" for cells in lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
