"""The thread of a pool that follows which helpers there are, says what happens to them, and notices
late samples.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from segtrain.base.terminal import Say
from segtrain.errors import one_line
from segtrain.platforms.ray.helpers.need import cores_of, lost
from segtrain.platforms.ray.helpers.protocols import HelperSlot
from segtrain.platforms.ray.helpers.remote_helper import RemoteHelper, Serving

if TYPE_CHECKING:
    from segtrain.platforms.ray.helpers.pool import HelpedPool

LOOK_S = 2.0  # seconds between two looks at the slots
TICK_S = 0.1
END_S = 3.0  # for the threads of the helpers to end


class Manager:
    """Starts a thread for each slot of ``pool``. ``say`` gets lines, ``note`` the same as fields
    for the journal.
    """

    def __init__(self, pool: HelpedPool, say: Say, note: Callable[..., None]) -> None:
        self._pool, self._say, self._note = pool, say, note
        self.helping: dict[HelperSlot, RemoteHelper] = {}
        self._lock = threading.Lock()
        self._told, self._lost = set[str](), list[tuple[str, str, int, bool]]()
        self._threads: list[threading.Thread] = []
        self._ended = threading.Event()
        self._own = threading.Thread(target=self._run, daemon=True, name="segtrain-helpers")
        self._own.start()

    def cores(self) -> Counter[str]:
        """Helpers that work now, by host."""
        return Counter(helper.slot.host for helper in list(self.helping.values()) if helper.working)

    def lost(self, helper: RemoteHelper, reason: str, samples: int) -> None:
        """A helper is lost, with ``samples`` to make again, or refused. Said once for all helpers
        of a host.
        """
        with self._lock:
            self._lost.append((helper.slot.host, reason, samples, bool(helper.refused)))

    def tell_once(self, text: str) -> None:
        with self._lock:
            new = text not in self._told
            self._told.add(text)
        if new:
            self._tell(what="told", text=text)

    def _tell(self, **event: Any) -> None:
        self._say(f"helpers   {event['text']}")
        self._note(**event)

    def wants(self, helper: RemoteHelper) -> bool:
        """Whether the thread of a slot should go on."""
        return not self._ended.is_set() and self.helping.get(helper.slot) is helper

    def pause(self, seconds: float) -> None:
        self._ended.wait(seconds)

    def close(self) -> None:
        """End all threads, and wait a little for them."""
        self._ended.set()
        for helper in list(self.helping.values()):
            helper.disconnect()
        until = time.monotonic() + END_S
        for thread in (self._own, *self._threads):
            thread.join(max(0.0, until - time.monotonic()))

    def _run(self) -> None:
        next_check, shown, before = 0.0, Counter[str](), Counter[str]()
        while not self._ended.is_set():
            now = time.monotonic()
            if now >= next_check:
                next_check = now + LOOK_S
                self._weigh()
                self._look()
                working = self.cores()
                if working == before and working != shown:  # unchanged for a while
                    shown, hosts = working, ", ".join(sorted(working)) or "none"
                    self._tell(
                        what="working",
                        cores=dict(working),
                        text=f"{cores_of(working)} help now: {hosts}",
                    )
                before = working
            self._pool.make_late_ones_here(now, list(self.helping.values()))
            with self._lock:
                losses, self._lost = self._lost, []
            for event in lost(losses):
                self._tell(**event)
            self._ended.wait(TICK_S)

    def _weigh(self) -> None:
        """Say it if helpers are given up because they do not pay, or asked again."""
        working = self.cores()
        if self._pool.worth_changed():
            balance = self._pool.balance
            costs = {
                "receive_ms": round(balance.receive_ms, 3),
                "make_ms": round(balance.make_ms, 3),
            }
            what = "given_up" if balance.given_up else "asked_again"
            self._tell(what=what, **costs, text=balance.line(cores_of(working)))

    def _look(self) -> None:
        """Start a thread for each new slot; the threads of slots that are gone end."""
        given_up = self._pool.balance.given_up
        try:
            slots = [] if given_up else self._pool.engine.slots()
        except Exception as error:
            reason = one_line(error)[:200]
            self.tell_once(
                f"the cluster does not answer ({reason}): no other helpers are hired meanwhile"
            )
            return
        if not slots and not self.helping and not given_up:
            self.tell_once(
                "no host of the cluster helps yet: until one joins, all samples are made here"
            )
        gone = [self.helping.pop(slot) for slot in list(self.helping) if slot not in slots]
        for helper in gone:
            helper.disconnect()
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        for slot in slots:
            if slot not in self.helping and not self._ended.is_set():
                helper = self.helping[slot] = RemoteHelper(slot)
                name = f"segtrain-helper-{slot.number}"
                thread = threading.Thread(
                    target=Serving(self._pool, self, helper).run, daemon=True, name=name
                )
                self._threads.append(thread)
                thread.start()
