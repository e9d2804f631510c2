"""Lustre's ``lfs hsm_*`` commands: the state of files in S3 and on the file system, and requests to move their data."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from segtrain.errors import ConfigError, SegtrainError

Verb = Literal["archive", "restore", "release"]
VARIABLE = "SEGTRAIN_LFS"
AT_ONCE = 100  # files in one call of lfs: its arguments stay far below the limit of the kernel
PATIENCE_S = 600.0  # for one call: a metadata server that is away hangs it
_FLAGS = {
    0x01: "exists", 0x02: "dirty", 0x04: "released", 0x08: "archived", 0x10: "never_release", 0x20: "never_archive",
    0x40: "lost_from_hsm",
}  # fmt: skip
_STATE = re.compile(r": \(0x([0-9a-fA-F]{8})\)[^\n]*(?:\n|$)")
_ACTION = re.compile(r": ([A-Z]+)[^\n]*(?:\n|$)")


@dataclass(frozen=True)
class State:
    """What Lustre knows of a file. ``archived``: S3 has it; ``dirty``: an older content; ``released``: S3 alone."""

    flags: int

    def __getattr__(self, name: str) -> bool:
        for bit, word in _FLAGS.items():
            if word == name:
                return bool(self.flags & bit)
        raise AttributeError(name)

    def __str__(self) -> str:
        return " ".join(word for bit, word in _FLAGS.items() if self.flags & bit) or "only on the file system"

    @property
    def safe(self) -> bool:
        """Whether S3 has the present content."""
        return bool(self.archived and not self.dirty)


def words() -> list[str]:
    """How lfs is called: SEGTRAIN_LFS, or lfs as root. Raises ConfigError where it is missing."""
    named = os.environ.get(VARIABLE)
    if named:
        try:
            return shlex.split(named)
        except ValueError as error:
            text = f"{VARIABLE}={named!r} is not a command ({str(error).lower()})"
            raise ConfigError(text, code="lfs-command", found=named) from None
    if shutil.which("lfs") is None:
        raise ConfigError(
            "lfs is not installed here: run this on a node that mounts the Lustre file system (the head node, or a "
            f"login node), or name the program in {VARIABLE}",
            code="lfs-missing",
        )
    return ["lfs"] if os.geteuid() == 0 else ["sudo", "-n", "lfs"]


class Lfs:
    """Calls of lfs. A file that it says something against does not spoil the answers for the others."""

    def __init__(self, command: Sequence[str] | None = None) -> None:
        self._command = list(command) if command is not None else words()

    def states(self, paths: Iterable[str]) -> dict[str, State | str]:
        """The state of each file, or what lfs says against it."""
        found: dict[str, State | str] = {}
        for path, answer in self._each("hsm_state", paths, _STATE):
            found[path] = State(int(answer[1], 16)) if isinstance(answer, re.Match) else answer
        return found

    def actions(self, paths: Iterable[str]) -> dict[str, str]:
        """What Lustre does with each file right now: ARCHIVE, RESTORE, ..., or NOOP."""
        return {
            path: answer[1] if isinstance(answer, re.Match) else answer
            for path, answer in self._each("hsm_action", paths, _ACTION)
        }

    def ask(self, verb: Verb, paths: Sequence[str]) -> dict[str, str]:
        """Requests for all files; the result has only those that lfs refuses, with its words.

        lfs refuses a list as a whole, so the files of a refused one are asked for one by one.
        """
        refused: dict[str, str] = {}
        for part in parts(paths):
            code, _, said = self._call(f"hsm_{verb}", part)
            if code == 0:
                continue
            if len(part) == 1:
                refused[part[0]] = said
                continue
            for path in part:
                code, _, said = self._call(f"hsm_{verb}", [path])
                if code:
                    refused[path] = said
        return refused

    def _each(
        self, verb: str, paths: Iterable[str], line: re.Pattern[str]
    ) -> Iterator[tuple[str, re.Match[str] | str]]:
        """One answer for each file. lfs ends at the first file that it cannot answer for: the rest is asked again."""
        for part in parts(list(paths)):
            while part:
                _, text, said = self._call(verb, part)
                at, answered = 0, 0
                for path in part:
                    match = line.match(text, at + len(path)) if text.startswith(path, at) else None
                    if match is None:
                        break
                    yield path, match
                    at, answered = match.end(), answered + 1
                if answered < len(part):
                    yield part[answered], said or f"lfs {verb} says nothing about it"
                    answered += 1
                part = part[answered:]

    def _call(self, verb: str, paths: Sequence[str]) -> tuple[int, str, str]:
        command = [*self._command, verb, *paths]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, errors="surrogateescape", timeout=PATIENCE_S,
                stdin=subprocess.DEVNULL,
            )  # fmt: skip
        except FileNotFoundError:
            raise ConfigError(f"there is no program {command[0]}: check {VARIABLE}", code="lfs-missing") from None
        except OSError as error:
            text = f"{command[0]} cannot be started ({error.strerror}): check {VARIABLE}"
            raise ConfigError(text, code="lfs-command", found=command[0]) from None
        except subprocess.TimeoutExpired:
            raise SegtrainError(
                f"lfs {verb} gave no answer in {PATIENCE_S:.0f} s: the file system is not reachable; run the same "
                "command again later",
                code="lfs-silent",
            ) from None
        said = " ".join(done.stderr.split())
        if done.returncode and command[0] == "sudo" and "password" in said:
            raise ConfigError(
                "lfs needs root's rights, and sudo asks for a password: run this as root", code="lfs-root"
            )
        if "Inappropriate ioctl" in said or "Operation not supported" in said:
            raise ConfigError(f"{said}: this folder is not on Lustre", code="lfs-not-lustre", said=said)
        if done.returncode and "Operation not permitted" in said and os.geteuid() != 0:
            raise ConfigError(f"{said}: run this as root", code="lfs-root", said=said)
        return done.returncode, done.stdout, said or f"lfs {verb} ended with {done.returncode}"


def parts(paths: Sequence[str]) -> Iterator[list[str]]:
    for start in range(0, len(paths), AT_ONCE):
        yield list(paths[start : start + AT_ONCE])
