"""Tests that every command in the docs and help texts works: its flags exist, its config loads, its
plan fits its ranks.

tests/project/test_docs.py runs the commands of ```bash blocks. This file looks at all of them,
those included that need GPUs, a cluster or an account, with the real configs of the repository.
"""

from __future__ import annotations

import argparse
import ast
import re
import runpy
import shlex
import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pages import PAGES, ROOT, blocks

from segtrain import arguments, cli
from segtrain.config import load_config
from segtrain.parallel.cluster import Cluster
from segtrain.training.start.derived import make_plan

ALL = [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "docker/README.md"]
STARTERS = ("segtrain", "torchrun", "srun", "python")
# of a data set that a page speaks of and this repository lacks; Cityscapes has as many
SAMPLES = 2975


def lines(text: str) -> list[str]:
    """Of a block, with continued lines joined."""
    return [line.strip() for line in text.replace("\\\n", " ").splitlines()]


def commands(text: str) -> list[list[str]]:
    found = []
    for line in lines(text):
        # as the program itself proposes one
        line = re.sub(r"^(?:try|next)\s+(?=segtrain |torchrun )", "", line)
        line = re.sub(r"^sudo \S+/bin/(?=segtrain )", "", line)
        if line.split(" ")[0] in STARTERS and "..." not in line:
            found.append(shlex.split(line, comments=True))
    return found


def of_pages() -> list[tuple[str, list[str]]]:
    found = []
    for page in ALL:
        for language, text in blocks(page):
            if language in ("bash", "text"):
                found += [(page.name, words) for words in commands(text)]
        inline = re.findall(r"`(python bench/[^`]+)`", page.read_text(encoding="utf-8"))
        found += [(page.name, shlex.split(text)) for text in inline]
    found += [
        ("segtrain --help", words) for words in commands(re.sub(r"   +.*", "", arguments.EXAMPLES))
    ]
    return found


COMMANDS = of_pages()


def ranks(words: list[str]) -> tuple[int, list[str]]:
    """How many processes a launcher's line starts, and what each one runs."""
    if words[0] == "segtrain":
        return 1, words[1:]
    values = {
        word: words[place + 1] for place, word in enumerate(words[:-1]) if word.startswith("--")
    }
    if words[0] == "torchrun" and "-m" not in words:
        assert words[-1] == "mine.py", words  # a script of the page's reader
        return 1, ["doctor"]
    if words[0] == "torchrun":
        assert words[words.index("-m") + 1] == "segtrain", words
        count = int(values.get("--nproc-per-node", 1)) * int(values.get("--nnodes", 1))
        return count, words[words.index("-m") + 2 :]
    assert words[0] == "srun", words
    return int(values["--ntasks"]), words[words.index("segtrain") + 1 :]


def parsed(words: list[str]) -> argparse.Namespace:
    """As the command line is parsed. SystemExit for a verb, flag or choice that does not exist."""
    args = cli._parse(words)
    assert all("=" in setting for setting in args.overrides), args.overrides
    return args


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the repository's configs and the YAML files that the pages tell a reader to
    write.
    """
    root = tmp_path_factory.mktemp("shelf")
    (root / "configs").symlink_to(ROOT / "configs")
    (root / "docker").symlink_to(ROOT / "docker")
    (root / "aug.yaml").write_text("{}\n")  # written by a program of transforms.md
    for page in reversed(ALL):  # what a page does not define is the README's
        write_configs(page, root)
    return root


def write_configs(page: Path, root: Path) -> None:
    for language, text in blocks(page):
        name = re.match(r"# (\S+\.yaml)\n", text)
        if language == "yaml" and name:
            (root / name[1]).write_text(text)


@pytest.mark.parametrize(
    ("page", "words"),
    COMMANDS,
    ids=[f"{page}: {shlex.join(words)[:80]}" for page, words in COMMANDS],
)
def test_a_command_can_be_typed(page, words, shelf, monkeypatch):
    monkeypatch.chdir(shelf)
    if words[0] == "python":
        python(words[1:])
        return
    if words[:2] == ["segtrain", "launch"]:
        python([f"launch/{words[2]}.py", *words[3:]])
        return
    for path in ALL:
        if path.name == page:
            write_configs(path, shelf)
    world, own = ranks(words)
    known = parsed(own)
    settings = known.overrides
    if not hasattr(known, "config"):
        return
    file = known.config
    # config.yaml of a run folder: the one that was trained before
    if file is not None and not Path(file).exists():
        assert file.endswith("/config.yaml"), f"{page}: there is no {file}"
        file = None
    config = load_config(file, settings)
    images = config.data.scenes if config.data.layout == "scenes" else SAMPLES
    make_plan(
        config, images, Cluster(world_size=world, local_world_size=min(world, 8)), has_gpu=world > 2
    )


def python(words: list[str]) -> None:
    """``python FILE --flag ...``: the file is there and knows its flags. ``-m`` and ``-c`` are not
    ours to judge.
    """
    if words[0].startswith("-"):
        return
    script = ROOT / words[0]
    assert script.is_file(), f"there is no {words[0]}"
    platform = Path(words[0]).stem
    if (
        words[0].startswith("launch/")
        and (ROOT / "launch/platforms" / platform / "arguments.py").is_file()
    ):
        build_parser = import_module(f"launch.platforms.{platform}.arguments").build_parser
        known, rest = build_parser(f"python {words[0]}").parse_known_args(words[1:])
        assert all("=" in setting for setting in rest), rest
        assert not getattr(known, "job", None) or Path(known.job).is_file(), known.job
        return
    parsers = {"launch/cluster.py": "cluster", "launch/lustre.py": "lustre"}
    if words[0] in parsers:
        import_module(f"launch.{parsers[words[0]]}").build_parser(f"python {words[0]}").parse_args(
            words[1:]
        )
        return
    texts = {
        node.value
        for node in ast.walk(ast.parse(script.read_text()))
        if isinstance(node, ast.Constant)
    }
    for word in words[1:]:
        if word.startswith("--"):
            assert word.partition("=")[0] in texts, f"{words[0]} knows no {word}"


def test_commands_are_found_in_every_kind_of_place():
    assert {"segtrain --help", "README.md", "train.md", "slurm.md"} <= {
        page for page, _ in COMMANDS
    }
    assert {words[0] for _, words in COMMANDS} == set(STARTERS)


@pytest.mark.parametrize(
    "script", sorted(path.name for path in (ROOT / "launch").glob("[a-z]*.py"))
)
def test_each_script_of_launch_starts(script, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [script, "--help"])
    with pytest.raises(SystemExit, match="0"):
        runpy.run_path(str(ROOT / "launch" / script), run_name="__main__")
    assert "usage:" in capsys.readouterr().out


@pytest.mark.parametrize("url", ["gs://bkt/runs/a", "gs://bkt/runs/a/"])
def test_a_run_in_a_bucket_is_exported_to_a_folder_with_its_name(url, monkeypatch, tmp_path):
    asked: list[str] = []

    def export(run: Path, out: str, *_: Any, **__: Any) -> Any:
        asked.append(out)
        return SimpleNamespace(urls=(), files=(), onnx=None)

    monkeypatch.setattr("segtrain.infer.export.export", export)
    monkeypatch.setattr(
        "segtrain.insight.runs.weights.with_weights", lambda run, which, services: tmp_path
    )
    assert cli.main(["export", url]) == 0
    assert asked == ["a-export"]


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("predict run a.png --out", "out"),
        ("export run --out", "out"),
        ("eval run --images", "images"),
        ("eval run --confusion", "confusion"),
        ("diff a b --page", "page"),
        ("plan --page", "page"),
        ("plan --save", "save"),
        ("data pack a", "folder"),
        ("data convert a", "folder"),
    ],
)
def test_an_output_path_is_what_a_shell_would_make_of_it(words, name, monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    parser = arguments.build_parser()
    known, _ = parser.parse_known_args([*words.split(), "~/x"])
    assert str(getattr(known, name)) == "/home/me/x"
    for wrong in ("$(pwd)/x", r"%USERPROFILE%\x", "~nobody-has-this-name/x", "x ", "file:/x"):
        with pytest.raises(SystemExit, match="2"):
            parser.parse_known_args([*words.split(), wrong])
