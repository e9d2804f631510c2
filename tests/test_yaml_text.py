"""Is YAML that someone else wrote read without harm, wherever a run's config is read?"""

from __future__ import annotations

import shlex
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from segtrain.config import load_config, load_saved, load_yaml
from segtrain.config.paste import shell_word
from segtrain.diagnose.evidence import _config
from segtrain.errors import ConfigError
from segtrain.runs.folder import load
from segtrain.runs.table import read_run

LEVELS = "abcdefghi"
BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n" for before, name in pairwise(LEVELS)
)

REFUSED = {
    "alias bomb": (BOMB, "line 6", "100,000"),
    "alias of itself": ("a: &a [*a]\n", "line 1", "itself"),
    "unknown alias": ("a: *b\n", "line 1", "*b"),
    "deep": ("[" * 200_000, "line 1", "50 deep"),
    "deep blocks": ("- " * 3_000, "line 1", "50 deep"),
    "key twice": ("train:\n  seed: 1\n  lr: 2\n  seed: 3\n", "line 4", "'seed'", "line 2"),
    "key twice in a flow": ("{a: 1, b: [2], a: 3}", "line 1", "'a'"),
    "no date": ("a: 2001-99-99\n", "month"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_and_where(name: str, tmp_path: Path) -> None:
    text, *words = REFUSED[name]
    with pytest.raises(yaml.YAMLError) as caught:
        load_yaml(text)
    path = tmp_path / "config.yaml"
    path.write_text(text)
    (tmp_path / "journal.jsonl").write_text('{"event": "run_start", "ts": 1.0}\n')
    for read in (load_config, load_saved):
        with pytest.raises(ConfigError, match=r"config\.yaml") as told:
            read(path)
        assert "\n" not in str(told.value)
        assert all(word in str(told.value) for word in words), (caught.value, told.value)
    assert _config(tmp_path) == {}  # what tells of runs leaves a gap
    assert read_run(tmp_path)["hash"] is None
    assert load(tmp_path).config == {}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a: {b: [1, 2.5, null, yes], c: 'x'}\n",
        "base: &base {x: 1, y: 2}\nmore:\n  <<: *base\n  <<: {z: 0}\n  y: 3\n",
        "- {a: 1}\n- {a: 1}\n",
        "a: [a, a, b]\nb: {a: 1}\n",
        "? [1, 2]\n: x\n",
    ],
)
def test_what_is_read_as_pyyaml_reads_it(text: str) -> None:
    if text.startswith("?"):
        with pytest.raises(yaml.YAMLError):
            load_yaml(text)
    else:
        assert load_yaml(text) == yaml.safe_load(text)


def test_a_key_is_told_from_a_value() -> None:
    assert load_yaml("{a: {b: a}, b: [a, {c: b}], c: b}") == {"a": {"b": "a"}, "b": ["a", {"c": "b"}], "c": "b"}


SLIPS = {
    "backslash": ('data:\n  split_by: {val: 20%, group: "p(\\d)"}\n', "line 2", "single quotes: split_by: {val: 20%, group: 'p(\\d)'}"),
    "path": ('data:\n  layout: folders\n  root: "C:\\data"\n', "line 3", "root: 'C:\\data'"),
    "no space": ("optim:\n  lr:0.1\n  name: sgd\n", "line 2", "a space is missing after the ':': lr: 0.1"),
    "no space in a flow": ("optim: {lr:0.1, name:sgd}\n", "line 1", "after the ':': optim: {lr: 0.1, name: sgd}"),
    "no space after numbers": ("data:\n  label_map: {0:0,7:1}\n", "line 2", "after the ':': label_map: {0: 0, 7: 1}"),
    "no space in a section": ("optim:\n  lr:0.1\n", "optim='lr:0.1': expected a mapping", "after the ':': lr: 0.1"),
    "no space in a map": ("data:\n  label_map:\n    0:0\n    7:1\n", "data.label_map='0:0 7:1'", "after the ':': {0: 0, 7: 1}"),
    "no space at all": ("name:x\n", "holds a str", "after the ':': name: x"),
    "tab": ("train:\n\tseed: 1\n", "line 2", "use spaces: seed: 1"),
    "both": ('data:\n  split_by: {val:20%, group:"p(\\d)"}\n', "line 2", "{val: 20%, group: 'p(\\d)'}"),
}  # fmt: skip


@pytest.mark.parametrize("name", SLIPS)
def test_a_slip_is_shown_put_right(name: str, tmp_path: Path) -> None:
    text, *words = SLIPS[name]
    (tmp_path / "mine.yaml").write_text(text)
    with pytest.raises(ConfigError, match=r"mine\.yaml") as told:
        load_config(tmp_path / "mine.yaml")
    assert "\n" not in str(told.value)
    assert all(word in str(told.value) for word in words), told.value


ARGUMENTS = {
    'data.split_by={val: 20%, group: "p(\\d)"}': "data.split_by={val: 20%, group: 'p(\\d)'}",
    'data.split_by.group="p(\\d)_(it\'s)"': "data.split_by.group='p(\\d)_(it''s)'",
    "data.split_by={val:20%,seed:3}": "data.split_by={val: 20%, seed: 3}",
    'data.split_by={val:20%, group:"$\\d"}': "data.split_by={val: 20%, group: '$\\d'}",
    "data.label_map={0:0,7:1}": "data.label_map={0: 0, 7: 1}",
    "model.options={stem:8}": "model.options={stem: 8}",
}


@pytest.mark.parametrize("given", ARGUMENTS)
def test_a_slip_on_the_command_line_is_shown_as_a_shell_reads_it(given: str) -> None:
    with pytest.raises(ConfigError) as told:
        load_config(None, [given])
    message = str(told.value)
    assert message.startswith(f"{given}: ")
    before, _, word = message.partition(f": {shell_word(ARGUMENTS[given])}")
    assert before
    assert not word
    assert shlex.split(shell_word(ARGUMENTS[given])) == [ARGUMENTS[given]]
    mine = ["data.layout=folders", "data.root=mine", "data.images=i", "data.masks=m", "data.split_by.val=1"]
    load_config(None, [*mine, ARGUMENTS[given]])


@pytest.mark.parametrize(
    "text", ["a:b", "C:\\data: 1", "{a: 'x:y'}", "{a: b:c}", "a: {b: }", "{'a:b': }", "- a:b\n", "{x:: }"]
)
def test_a_colon_that_is_meant_stays(text: str) -> None:
    assert load_yaml(text) == yaml.safe_load(text)


def test_text_settings_keep_what_looks_like_yaml() -> None:
    base = ["data.layout=folders", "data.root=x"]
    assert load_config(None, [*base, "data.images={split:x}"]).data.images == "{split:x}"
    assert load_config(None, [*base, "data.split=a:b"]).data.split == "a:b"
