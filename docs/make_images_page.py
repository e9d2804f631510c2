"""Writes docs/sagemaker-images.md, the page of SageMaker's types and images, from launch/platforms/sagemaker:   python docs/make_images_page.py"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # launch/ is no installed package

from launch.platforms.sagemaker.images import IMAGES, IMAGES_DATED, OLD_AFTER_DAYS, Image, runs_on
from launch.platforms.sagemaker.instances import INSTANCES, PRICES_DATED, SMDDP_TYPES_FROM, UNFIT
from launch.platforms.sagemaker.regions import ACCOUNTS_FROM, OFFERED_FROM
from segtrain.machines import Machine, gpus, sources

FROM = {**sources("sagemaker"), **sources("gpus")}

PAGE = Path(__file__).with_name("sagemaker-images.md")

INTRO = """# SageMaker instance types and images

Which container image runs on which instance type, and what it costs. `python docs/make_images_page.py` writes this page from
`launch/platforms/sagemaker/` and `segtrain/machines/`; a test keeps it current. The launcher chooses the image from these tables and prints the reason:

```python
from launch.platforms.sagemaker.images import choose
from launch.core.findings import show

choice = choose("ml.p3.16xlarge", "ddp", "us-east-1")
print(choice.uri, "-", choice.why)
print(show(choice.findings))
```

`--image` chooses another image; the findings then list its problems. It must be in a private ECR registry of the
job's region, because SageMaker does not pull training images from anywhere else.

You can use every training type that botocore's model of SageMaker lists, except the types
[at the end of this page](#types-that-segtrain-does-not-run-on). If a type is newer than this page, a note says that its size,
price, and speed are unknown. If botocore does not know the type either, add `--unknown-type-ok`.

- An image runs on a GPU if its torch was compiled for the same major compute capability as the GPU has, and for the same or a
  lower minor version. So code for sm_80 also runs on sm_86 and sm_89.
- Of all images that run, the launcher chooses the newest, which AWS also patches for the longest time.
- SMDDP, AWS's all-reduce library, is only in images with torch 2.5.1 and earlier, and its import fails on all but a few
  instance types.
- `ml.p3.*` is retired: the launcher prints a warning with the most similar types, and submits the job.
- Images since 2.11 are based on Amazon Linux (`dnf`, Python in `/opt/venv`), earlier ones on Ubuntu (`apt-get`). Both contain the
  SageMaker training toolkit. AWS's documentation gives addresses in a public registry for the newer ones, but SageMaker needs an
  image in a registry of the job's region. AWS keeps the same images there, under the accounts listed in `launch/platforms/sagemaker/regions.py`.
- Images with torch 2.9 and later use CUDA 13, which needs an NVIDIA driver of branch 580 or later. SageMaker chooses
  the driver of the host; a training job cannot. AWS tests these images in training jobs on ml.g4dn.12xlarge.
- In images since 2.11, AWS's start script compiles a replacement for `gethostname` from `changehostname.c`. It looks for this file in
  `/workspace`, but the file is in `/`, so segtrain's entry script changes to `/` first. The start script also calls `jq`, which the
  Dockerfile does not install. According to its source, the script should still start the training; this has not been tested.
  segtrain takes the host names from `resourceconfig.json`.
"""


def page() -> str:
    """The whole page, Markdown."""
    parts = [INTRO, "## Images\n", DATED, _images(), "## GPUs and images\n", FIT, _fit()]
    parts += ["## GPU types\n", TYPES, _types(one for one in INSTANCES.values() if one.gpus)]
    parts += [
        "## CPU types\n",
        "segtrain can train on these. It does not yet combine them with GPU instances in one job.\n",
    ]
    parts += [_types(one for one in INSTANCES.values() if not one.gpus), _left_out(), SOURCES]
    return "\n".join(parts)


DATED = (
    f"Last compared with AWS's list of images on {IMAGES_DATED}. After {OLD_AFTER_DAYS} days, dry runs warn that the "
    "table is old. Code for: the compute capabilities that the image's torch was compiled for (75 is sm_75). SMDDP: the "
    "version in the image.\n"
)
FIT = (
    "For each GPU: its compute capability (code), the newest image that runs on it, the date until which AWS patches that "
    "image, and the newest image with SMDDP if SMDDP supports the instance type. Speed: training throughput of one GPU, "
    "relative to a V100, from data sheets.\n"
)
TYPES = (
    f"Price: dollars per hour for on-demand training in us-east-1, as of {PRICES_DATED} (p3: the last known price). Speed: "
    "training throughput of all GPUs of the instance, relative to 8 V100 GPUs, from data sheets. Disk: local NVMe; "
    "0 means EBS only.\n"
)
SOURCES = f"""## Sources

- Sizes: {FROM["ec2"]}; p3: {FROM["ec2-2025"]}. Memory is in GiB, disk in GB. Names: botocore 1.44.5. Compute capabilities: {FROM["arch"]}.
- Prices: {FROM["list"]}; p3 and p3dn: {FROM["p3-2021"]}.
- Speeds: derived from arithmetic and memory rates for a convolutional network in mixed precision on one GPU (`segtrain/machines/__init__.py`), multiplied by the number of GPUs. Rates: {FROM["sheet"]}.
- Retirement of p3: {FROM["p3"]}.
- SMDDP: {SMDDP_TYPES_FROM}; versions: the Dockerfiles of aws/deep-learning-containers.
- Images: aws/deep-learning-containers, each with its commit in `launch/platforms/sagemaker/images.py`. Registries: {ACCOUNTS_FROM}.
- Regions: {OFFERED_FROM}.
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
            one.cuda or "CPU",
            _arches(one),
            one.smddp or "",
            one.patched_until,
        )
        for one in IMAGES
    ]
    return _table(("image", "torch", "Python", "CUDA", "code for", "SMDDP", "patched until"), rows)


def _arches(image: Image) -> str:
    return " ".join(arch.removeprefix("sm_") for arch in image.arches)


def _fit() -> str:
    rows = []
    for gpu in gpus().values():
        some = next((one for one in INSTANCES.values() if one.gpu == gpu.name), None)
        if some is None:
            continue
        fit = [one for one in IMAGES if runs_on(one, some)]
        smddp = next((one.tag for one in fit if one.smddp), "") if some.smddp else ""
        rows.append(
            (
                gpu.name,
                gpu.arch,
                f"{gpu.speed:.2f}",
                f"`{fit[0].tag}`",
                fit[0].patched_until,
                f"`{smddp}`" if smddp else "",
            )
        )
    return _table(("GPU", "code", "speed", "newest image", "patched until", "with SMDDP"), rows)


def _types(some: Iterable[Machine]) -> str:
    rows = []
    for one in some:
        gpus = f"{one.gpus} x {one.gpu}" if one.gpus else ""
        notes = [
            *(["EFA"] if one.efa else []),
            *(["SMDDP"] if one.smddp else []),
            *(["retired"] if one.retired else []),
        ]
        price = "" if one.price is None else f"{one.price:.{2 if one.price >= 1 else 3}f}"
        speed = "" if one.speed is None else f"{one.speed:.2f}"
        sizes = (one.vcpus, f"{one.memory_gb:g}", one.nvme_gb, f"{one.network_gbit:g}")
        rows.append((f"`{one.name}`", gpus, one.gpu_memory_gb or "", *sizes, ", ".join(notes), price, speed))
    names = ("type", "GPUs", "GiB per GPU", "vCPUs", "memory GiB", "disk GB", "network Gbit/s", "", "price", "speed")
    if all(not row[1] for row in rows):
        keep = [0, *range(3, 9)]
        names, rows = tuple(names[k] for k in keep), [tuple(row[k] for k in keep) for row in rows]
    return _table(names, rows)


def _table(names: tuple[str, ...], rows: Iterable[tuple[object, ...]]) -> str:
    lines = [names, ["---"] * len(names), *rows]
    return "\n".join("| " + " | ".join(map(str, cells)) + " |" for cells in lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
