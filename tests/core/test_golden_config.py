"""Recorded configs: what settings are refused with, what they change, and the facts of each key."""

from __future__ import annotations

import json
from pathlib import Path
from typing import get_args

import golden
import pytest
import transcript

from segtrain.config import Config, load_config, local_paths
from segtrain.config.facts import Fact
from segtrain.config.limits import dollars_of, seconds_of
from segtrain.config.mistakes import OTHER_TRAINERS, fields, in_words
from segtrain.config.networks import is_file_name, refuse_arch
from segtrain.config.origin import Origin
from segtrain.config.paste import command, in_yaml, words
from segtrain.config.run import _changed, keys_with
from segtrain.config.section import (
    blocks,
    duration_in_steps,
    interval_in_steps,
    outlasts,
    sections_of,
)
from segtrain.config.split_by import SplitBy
from segtrain.errors import ConfigError

# The words of PyYAML and of Python's regular expressions differ among versions.
OTHERS = {
    r"is not valid YAML \(.*\)": "is not valid YAML (...)",
    r"(regular expression) \(.*\)": r"\1 (...)",
}


def answer(settings: list[str]) -> str:
    """The error in full, whose advice makes a config; or the hash, and what differs from the
    defaults. A first word ``@TEXT`` is the text of a config file.
    """
    file = None
    if settings[:1] and settings[0].startswith("@"):
        file = Path("mine.yaml")
        file.write_text(settings[0][1:].replace("\\n", "\n").replace("\\t", "\t"), encoding="utf-8")
        settings = settings[1:]
    try:
        config = load_config(file, settings)
        refuse_arch(config.model)
    except ConfigError as error:
        values = {
            name: value for name, value in error.values.items() if value != "the command line"
        }
        lines = [f"{error.code}: {error}", f"    {values}"]
        if error.settings:
            load_config(file, [*settings, *words(error.settings)])
            lines.append(f"    advice: {command(error.settings)}")
        return golden.masked("\n".join(lines), OTHERS)
    assert load_config(None, words(config_words(config))) == config
    changes = json.dumps(_changed(config, ()), ensure_ascii=False)
    return f"{config.hash} {config.title} {changes} {local_paths(config) or ''}".rstrip()


def config_words(config: Config) -> dict[str, object]:
    """Every setting of a config as text would set it."""
    content = json.loads(config.model_dump_json())
    return {"out": content.pop("out"), "name": content.pop("name")} | {
        f"{section}.{key}": value
        for section, values in content.items()
        for key, value in values.items()
    }


@pytest.mark.parametrize("name", ["values", "keys", "conflicts", "files", "right"])
def test_settings(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/me")
    transcript.check(f"config/{name}.txt", answer)


def test_the_table_of_settings():
    """Of each key: its facts, its default, and the values that it takes."""
    known = {fact: keys_with(fact) for fact in get_args(Fact)}
    lines = []
    for key, field in fields().items():
        if sections_of(field.annotation):
            continue
        facts = [
            fact
            for fact, keys in known.items()
            if key in keys or ".".join(key.split(".")[:2]) in keys
        ]
        default = field.get_default(call_default_factory=True)
        bounds = [str(bound) for bound in field.metadata if "Validator" not in type(bound).__name__]
        lines.append(
            f"{key} = {default!r}: {in_words(field.annotation)} {' '.join(bounds)}".rstrip()
        )
        lines.append(f"    {', '.join(facts)}")
    for name, term in blocks(fields()["loss.terms"].annotation).items():
        lines += [
            f"{name}.{key} = {field.default!r} {field.metadata}"
            for key, field in term.model_fields.items()
        ]
    lines += [f"{name} -> {here}" for name, here in OTHER_TRAINERS.items()]
    golden.check("config/settings.txt", "\n".join(lines))


def test_durations_limits_and_words():
    """What plain functions of settings return, at values where a wrong formula differs."""
    lines = []
    for text in ("3ep", "2.5ep", "0.1ep", "7st", "2.5st", "15%", "0.4%", "100%"):
        steps = [duration_in_steps(text, 10, 4, 33), duration_in_steps(text, 367, 16, 1001)]
        lines.append(
            f"{text}: {steps}, outlasts "
            + str([outlasts(text, whole) for whole in ("2.5ep", "8st", "15%", "auto")])
        )
    for samples, batch, steps in (
        (367, 8, 920),
        (30, 8, 113),
        (30, 8, 40),
        (4, 2, 2),
        (1000, 16, 6250),
        (26, 1, 99),
    ):
        lines.append(
            f"auto {samples, batch, steps}: {interval_in_steps('auto', samples, batch, steps)}"
        )
    lines += [
        f"{text} {seconds_of(text)} {dollars_of(text)}"
        for text in ("90m", "1.5h", "2d", "7s", "20$", "0.25$", "20", "1.5", "m")
    ]
    lines += [
        f"{name} {is_file_name(name)}"
        for name in ("imagenet", "a/b", "x.bin", "x.ckpt", "x.pt", "x.pth", "x.safetensors", None)
    ]
    splits = [
        SplitBy(),
        SplitBy(val=0.2),
        SplitBy(val="12.5%", test=30, seed=3, group="(a)_", of="train"),
    ]
    lines += [f"{split.on} {split.text()}" for split in splits]
    origin = Origin.read({"input": {"mean": [0.5, 0.25, 0.123456]}, "license": "cc-by-nc-4.0"})
    lines += [
        f"{part} {part.images()} {part.terms()}"
        for part in (Origin(), Origin(license="mit"), origin)
    ]
    settings = {
        "data.root": "it's",
        "data.classes": {"a b": [1, 2, 3]},
        "out": "$HOME",
        "optim.lr": 0.5,
        "optim.ema": 0.25,
    }
    lines += [command(settings), in_yaml(settings)]
    golden.check("config/functions.txt", "\n".join(lines))
