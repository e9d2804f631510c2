"""The command-line parser and the flags that launchers share. No flag has a default, so that the job file decides."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from segtrain.errors import ConfigError


class FlagParser(argparse.ArgumentParser):
    """A parser that, for an unknown flag of the platform's own tools, names this command's equivalent.

    ``actions``: the part of the usage line between the command and the flags. ``called_here``: the other tools' flag ->
    ours. A flag that is not given leaves no attribute.
    """

    def __init__(
        self, command: str, actions: str, description: str, epilog: str, called_here: Mapping[str, str]
    ) -> None:
        super().__init__(
            prog=command,
            usage=f"%(prog)s [{actions}] [flags] [KEY=VALUE ...]",
            description=description,
            epilog=epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            argument_default=argparse.SUPPRESS,
            allow_abbrev=False,
        )
        self._called_here = called_here
        self.add_argument("settings", nargs="*", metavar="section.key=value", help="settings of the training config")

    def error(self, message: str) -> NoReturn:
        typed = [word.partition("=")[0].replace("_", "-") for word in message.split() if word.startswith("--")]
        hints = [f"{word} is {self._called_here[word]} here" for word in typed if word in self._called_here]
        super().error("; ".join([message, *dict.fromkeys(hints)]))


def add_rehearsal(group: argparse._ArgumentGroup, sample: str, plants: Sequence[str]) -> None:
    """Add the flags of a rehearsal, except the number of hosts. ``sample``: what that folder is used for."""
    faults = f"{', '.join(plants[:-1])}, or {plants[-1]}"
    group.add_argument("--procs", type=int, metavar="N", help="ranks per host (default: 1)")
    group.add_argument("--sample", type=Path, metavar="DIR", help=f"local folder that {sample}")
    group.add_argument("--plant", metavar="WHAT", help=f"{faults}: inject this fault and show the cloud's response")
    group.add_argument("--folder", type=Path, metavar="DIR", help="working folder (default: a new folder in /tmp)")


def refuse_flags(
    known: Mapping[str, object], exclusive: Iterable[Sequence[str]], of_a_rehearsal: Iterable[str] = ()
) -> None:
    """Raises ConfigError for flags that exclude each other, and for rehearsal flags without --rehearse."""
    for together in exclusive:
        given = [f"--{word.replace('_', '-')}" for word in together if word in known]
        if len(given) > 1:
            raise ConfigError(
                f"{' and '.join(given)} exclude each other: give one of them", code="flags-together", found=given
            )
    alone = [f"--{word}" for word in of_a_rehearsal if word in known]
    if alone and "rehearse" not in known:  # --plant ... --yes must not send a real job, which costs money
        raise ConfigError(
            f"{', '.join(alone)} without --rehearse: add --rehearse, or leave it out",
            code="flags-of-a-rehearsal", found=alone,
        )  # fmt: skip
