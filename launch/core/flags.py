"""The command-line parser of all launchers, made from the fields of a job, and checks of the flags
that it finds. No flag has a default, so that the job file decides.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from types import UnionType
from typing import Any, Literal, NoReturn, get_origin, get_type_hints

from launch.core.job import Job, flag_of
from segtrain.errors import ConfigError

OF_A_REHEARSAL = ("procs", "sample", "plant", "folder")  # flags that only a rehearsal reads
ACTIONS = {
    "dry_run": "print the request or the script, and its problems; submit nothing",
    "rehearse": "run the same request on this machine, on CPU ranks",
    "interactive": "salloc and srun: train in this terminal",
    "attach": (
        "follow a submitted job, and fetch its model where it is not in a bucket or a "
        "folder of yours"
    ),
    "stop": "stop a job; its newest checkpoint stays",
    "update": "change a submitted job: --profile-ms MS (0: off), --remote-debug, --warm-pool TIME",
    "yes": "submit without asking",
    "no_follow": "submit, print how to attach, and exit",
    "no_probe": "do not start a short srun to examine free nodes",
}
OF_A_SENT_JOB = ("attach", "stop", "update")
SWITCHES = ("yes", "no_follow", "no_probe")


def path(text: str) -> Path:
    """The type of each argument that is a path of this machine: ``~`` is replaced."""
    from segtrain.bucket import typed_place

    try:
        return Path(typed_place(text))
    except ValueError as problem:
        raise argparse.ArgumentTypeError(f"{text!r}: {problem}") from None


class FlagParser(argparse.ArgumentParser):
    """A parser of the flags of a job and of ``actions``. For an unknown flag of the platform's own
    tools, it names this command's equivalent.

    ``called_here``: the other tools' flag -> ours. ``without``: fields that have no flag here. A
    flag that is not given leaves no attribute.
    """

    def __init__(
        self,
        command: str,
        job: type[Job],
        actions: Sequence[str],
        description: str,
        epilog: str,
        called_here: Mapping[str, str],
        without: Sequence[str] = (),
    ) -> None:
        shown = [
            f"{name} JOB" if name in OF_A_SENT_JOB else name
            for name in actions
            if name not in SWITCHES
        ]
        super().__init__(
            prog=command,
            usage=f"%(prog)s [--{' | --'.join(shown).replace('_', '-')}] [flags] [KEY=VALUE ...]",
            description=description,
            epilog=epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            argument_default=argparse.SUPPRESS,
            allow_abbrev=False,
        )
        self._called_here = called_here
        self.add_argument(
            "overrides",
            nargs="*",
            metavar="section.key=value",
            help="settings of the training config",
        )
        self._add_actions(actions)
        groups: dict[str, argparse._ArgumentGroup] = {}
        hints = get_type_hints(job)
        for item in fields(job):
            about = item.metadata
            if not about.get("text") or item.name in without:
                continue
            if about["group"] not in groups:
                groups[about["group"]] = self.add_argument_group(about["group"])
            kind: dict[str, Any] = {"metavar": about["metavar"]}
            if hints[item.name] is bool:
                kind = {"action": "store_true"}
            elif get_origin(hints[item.name]) not in (None, Literal, UnionType):
                kind["action"] = "append"
            groups[about["group"]].add_argument(
                flag_of(item), dest=item.name, help=about["text"], **kind
            )
        self.add_argument(
            "--job",
            metavar="FILE",
            type=path,
            help="YAML file with all of these, as in configs/jobs/",
        )

    def _add_actions(self, names: Sequence[str]) -> None:
        steps = "check, ask, submit, and follow" if "yes" in names else "check, submit, and follow"
        usual = steps if "attach" in names else "check and train"
        group = self.add_argument_group(f"action (default: {usual})")
        for name in names:
            kind: dict[str, Any] = (
                {"metavar": "JOB"} if name in OF_A_SENT_JOB else {"action": "store_true"}
            )
            group.add_argument(f"--{name.replace('_', '-')}", help=ACTIONS[name], **kind)

    def error(self, message: str) -> NoReturn:
        typed = [
            word.partition("=")[0].replace("_", "-")
            for word in message.split()
            if word.startswith("--")
        ]
        hints = [
            f"{word} is {self._called_here[word]} here"
            for word in typed
            if word in self._called_here
        ]
        super().error("; ".join([message, *dict.fromkeys(hints)]))


def add_rehearsal(
    parser: argparse.ArgumentParser, sample: str, plants: Sequence[str]
) -> argparse._ArgumentGroup:
    """Add the flags of a rehearsal, except the number of hosts. ``sample``: what that folder is
    used for.
    """
    group = parser.add_argument_group("rehearsal")
    faults = f"{', '.join(plants[:-1])}, or {plants[-1]}"
    group.add_argument("--procs", type=int, metavar="N", help="ranks per host (default: 1)")
    group.add_argument("--sample", type=path, metavar="DIR", help=f"local folder that {sample}")
    group.add_argument(
        "--plant", metavar="WHAT", help=f"{faults}: inject this fault and show the cloud's response"
    )
    group.add_argument(
        "--folder", type=path, metavar="DIR", help="working folder (default: a new folder in /tmp)"
    )
    return group


def refuse_flags(flags: Mapping[str, object], rehearsal: Iterable[str] = OF_A_REHEARSAL) -> None:
    """Raises ConfigError for actions that exclude each other, and for rehearsal flags without
    --rehearse.
    """
    actions = [
        f"--{name.replace('_', '-')}" for name in ACTIONS if name in flags and name not in SWITCHES
    ]
    if len(actions) > 1 and set(actions) != {"--dry-run", "--interactive"}:
        raise ConfigError(
            f"{' and '.join(actions)} exclude each other: give one of them",
            code="flags-together",
            found=actions,
        )
    alone = [f"--{word}" for word in rehearsal if word in flags]
    # --plant ... --yes must not send a real job, which costs money
    if alone and "rehearse" not in flags:
        raise ConfigError(
            f"{', '.join(alone)} without --rehearse: add --rehearse, or leave it out",
            code="flags-of-a-rehearsal",
            found=alone,
        )
