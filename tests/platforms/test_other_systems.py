"""What launchers say on macOS and Windows, which these tests simulate."""

from __future__ import annotations

import re
import socket
import sys
from typing import Any

import pytest
from conftest import refused

from launch.core.bundle import _PLACE, _escapes
from launch.core.rehearse import network
from launch.platforms.sagemaker.job_parts import DEFAULT_METRICS
from launch.vertex import main


def test_a_rehearsal_on_windows_is_refused_in_one_line(monkeypatch, capsys):
    monkeypatch.setattr(sys, "platform", "win32")
    assert main(["--rehearse"]) == 2
    assert "WSL" in capsys.readouterr().err.splitlines()[-1]


def test_namespaces_need_linux(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    prefix, why = network.namespaces()
    assert prefix is None
    assert "apt-get" not in why


def test_hosts_without_addresses_are_refused(monkeypatch):
    network.refuse_addresses(3)

    class NoAlias(socket.socket):
        def bind(self, address: Any) -> None:
            if address[0] != "127.0.0.1":
                raise OSError(49, "Can't assign requested address")

    monkeypatch.setattr(socket, "socket", NoAlias)
    network.refuse_addresses(1)
    with refused("rehearse-address", found="127.0.0.2"):
        network.refuse_addresses(2)


@pytest.mark.parametrize("name", [r"C:\x\classes.txt", "C:/x/classes.txt", r"d:\my.py"])
def test_a_drive_letter_is_an_absolute_path(name):
    match = _PLACE.match(name)
    assert match is not None
    assert match[0] == name
    assert _escapes(name)
    assert not _escapes("configs/classes.txt")


def test_the_pixel_accuracy_is_found_when_a_class_is_absent():
    [metric] = [one for one in DEFAULT_METRICS if one.name == "val:pixel_accuracy_percent"]
    for few in ("", " (9 of 11 classes)"):
        assert re.findall(
            metric.regex, f"step 40  mIoU 54.10%{few}  pixel accuracy 90.00%  3s"
        ) == ["90.00"]
