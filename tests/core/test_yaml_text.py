"""Tests of the safe YAML reader."""

from __future__ import annotations

from itertools import pairwise

import pytest
import yaml
from conftest import refused

from segtrain.config import load_config, load_saved, load_yaml
from segtrain.insight.runs.folder import load, settings_of
from segtrain.insight.runs.table import read_run

LEVELS = "abcdefghi"
BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n" for before, name in pairwise(LEVELS)
)

REFUSED = {
    "alias bomb": (BOMB, "line 4", "20 aliases"),
    "deep": ("[" * 200_000, "line 1", "50 deep"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_and_where(name, tmp_path):
    text, *words = REFUSED[name]
    with pytest.raises(yaml.YAMLError) as caught:
        load_yaml(text)
    path = tmp_path / "config.yaml"
    path.write_text(text)
    (tmp_path / "journal.jsonl").write_text('{"event": "run_start", "ts": 1.0}\n')
    for read in (load_config, load_saved):
        with refused("refused-yaml", file=str(path), reason=str(caught.value)) as told:
            read(path)
        assert "\n" not in str(told.value)
    assert all(word in str(caught.value) for word in words), caught.value
    assert settings_of(tmp_path) == {}  # commands that read runs go on without the config
    assert read_run(tmp_path)["hash"] is None
    assert load(tmp_path).config == {}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a: {b: [1, 2.5, null, yes], c: 'x'}\n",
        "base: &base {x: 1, y: 2}\nmore:\n  <<: *base\n  <<: {z: 0}\n  y: 3\n",
        "? [1, 2]\n: x\n",
    ],
)
def test_what_is_read_as_pyyaml_reads_it(text):
    if text.startswith("?"):
        with pytest.raises(yaml.YAMLError):
            load_yaml(text)
    else:
        assert load_yaml(text) == yaml.safe_load(text)


def test_a_value_may_equal_a_key():
    assert load_yaml("{a: {b: a}, b: [a, {c: b}], c: b}") == {
        "a": {"b": "a"},
        "b": ["a", {"c": "b"}],
        "c": "b",
    }


TYPOS = {
    "escape": ('data:\n  split_by: {val: 20%, group: "p(\\d)"}\n', "line 2, column 34"),
    "tab": ("train:\n\tseed: 1\n", "line 2, column 1"),
    "unknown alias": ("a: 1\nb: *c\n", "line 2, column 4"),
}


@pytest.mark.parametrize("name", TYPOS)
def test_a_typo_is_shown_with_its_line_and_column(name, tmp_path):
    text, place = TYPOS[name]
    (tmp_path / "mine.yaml").write_text(text)
    with refused("invalid-yaml", file=f"{tmp_path}/mine.yaml") as told:
        load_config(tmp_path / "mine.yaml")
    assert place in str(told.value)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    "text",
    ["a:b", "C:\\data: 1", "{a: 'x:y'}", "{a: b:c}", "a: {b: }", "{'a:b': }", "- a:b\n", "{x:: }"],
)
def test_a_colon_that_is_meant_stays(text):
    assert load_yaml(text) == yaml.safe_load(text)
