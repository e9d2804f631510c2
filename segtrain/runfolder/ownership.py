"""Who owns a run folder: one process at a time, which renews its claim as long as it runs.

The claim is a small file or object that names its holder and has a counter. A process that finds
one decides by what it can see: if the holder ran on this machine, whether its process still runs;
otherwise, whether the content changes within some time, by its own clock. lock.py claims a folder
on a disk, lease.py one in a bucket.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass

from segtrain.errors import ConfigError, SegtrainError
from segtrain.observe.journal import Say, say_on_stderr
from segtrain.runfolder.holder import Holder, this_process


@dataclass(frozen=True)
class Claim:
    """A claim that was found. ``alive``: whether its holder runs; None: only a change of
    ``content`` can show it.
    """

    holder: Holder
    content: bytes
    alive: bool | None
    copied: bool = False  # from another folder, with that folder's claim


class Ownership(ABC):
    """The claim on ``place``, renewed every ``beat_s`` seconds by a thread. It counts as left after
    ``silent_s``.
    """

    def __init__(self, place: str, beat_s: float, silent_s: float) -> None:
        self.place = place
        self._beat_s = beat_s
        self._silent_s = silent_s
        self._me: Holder | None = None
        self._winner: Holder | None = None  # who has taken over
        self._turn = threading.Lock()  # between the thread and callers
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    @abstractmethod
    def _find(self) -> Claim | None:
        """Read the claim."""

    @abstractmethod
    def _take(self, me: Holder, claim: Claim | None) -> bool:
        """Claim the place, which was free or whose holder is dead. Returns False if another process
        was faster.
        """

    @abstractmethod
    def _renew(self, me: Holder, outage_s: float) -> Holder | None:
        """Raise the counter. Returns the process that has taken over, if any. Makes a claim that
        was deleted again.
        """

    @abstractmethod
    def _remove(self, me: Holder) -> None:
        """Remove the claim if this process still has it."""

    def acquire(self, say: Say = say_on_stderr) -> list[str]:
        """Claim the place, unless this process has it. Returns remarks about a dead holder that it
        was taken from.

        Raises ConfigError that names the holder if there is a live one.
        """
        if self._me is not None:
            return []
        me, remarks = this_process(), list[str]()
        while True:
            claim = self._find()
            if claim is not None:
                if claim.holder.token == me.token:  # the claim succeeded, but the response was lost
                    break
                why = self._why_dead(claim, say)
                if why is None:
                    continue
                remarks = [
                    f"{self.place} was locked by {claim.holder}, {why}: this process has taken over"
                ]
            if self._take(me, claim):
                break
        self._me, self._winner = me, None
        self._stop.clear()
        self._thread = threading.Thread(target=self._beat, name="run-owner", daemon=True)
        self._thread.start()
        return remarks

    def _why_dead(self, claim: Claim, say: Say) -> str | None:
        """Why the holder counts as dead, or None if the claim has changed hands meanwhile. Raises
        ConfigError.
        """
        holder = claim.holder
        if claim.copied:
            return "in another folder, of which this is a copy"
        if claim.alive is False:
            return "which has ended"
        if claim.alive is None:
            say(
                f"{self.place} is locked by {holder}, which cannot be seen from here: waiting up "
                f"to {self._silent_s:g} s for a sign of life"
            )
            begin, now = time.monotonic(), self._find()
            while now is not None and now.content == claim.content:
                if time.monotonic() - begin >= self._silent_s:
                    return f"which gave no sign of life for {self._silent_s:g} s"
                time.sleep(min(1.0, self._silent_s / 10))
                now = self._find()
            if now is None or now.holder.token != holder.token:
                return None
        raise ConfigError(
            f"{holder} is training into {self.place}: wait for its end or stop it, or choose "
            "another folder with out=FOLDER",
            code="run-folder-locked",
            run=self.place,
            pid=holder.pid,
            host=holder.host,
        )

    def _beat(self) -> None:
        while not self._stop.wait(self._beat_s) and not self.lost:
            # After any error, such as an outage, the next beat tries again. ``check`` tells whether
            # the claim is lost.
            with contextlib.suppress(Exception):
                self.renew(self._beat_s)

    def renew(self, outage_s: float) -> None:
        """Renew the claim. Raises SegtrainError as ``check`` does, and for an outage of
        ``outage_s`` seconds.
        """
        with self._turn:
            if self._me is not None and not self._stop.is_set() and not self.lost:
                self._winner = self._renew(self._me, outage_s)
        Ownership.check(self)

    @property
    def lost(self) -> bool:
        """Whether another process is known to have taken over. Reads nothing."""
        return self._winner is not None

    def check(self) -> None:
        """Raise SegtrainError if another process has taken over, or after ``release``: nothing must
        be written then.

        So a checkpoint that is still being written after an interrupted run does not get its final
        name.
        """
        if self._stop.is_set():
            raise SegtrainError(
                f"the lock on {self.place} has already been released, so nothing more is written",
                code="lock-released",
            )
        if self.lost:
            raise SegtrainError(
                f"{self._winner} has taken over {self.place}, because this process did not respond "
                "for too long (was it suspended?): it stops and writes nothing more; the other one "
                "resumes from the newest checkpoint",
                code="lock-lost",
                run=self.place,
            )

    def release(self) -> None:
        """Release the claim if this process has it. In an outage it stays; its holder soon counts
        as dead.
        """
        me = self._me
        if me is None or me.pid != os.getpid():
            return
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=1)
        with self._turn, contextlib.suppress(OSError, SegtrainError):
            self._me = None
            self._remove(me)
