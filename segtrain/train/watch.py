"""What does the watchdog of a rank's loop look at, and who is told when it finds a hang?"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import asdict

from segtrain.observe.clock import Clock
from segtrain.observe.hang import Notice, RankPosition, Watchdog
from segtrain.parallel.board import open_board
from segtrain.train.session import Session


@contextlib.contextmanager
def watching(session: Session, clock: Clock) -> Iterator[None]:
    """A watchdog beside this rank while the context lasts; none with log.hang_s=0."""
    config, strategy, state = session.config, session.strategy, session.state
    limit = config.parallel.timeout_s
    hang_s = limit / 2 if config.log.hang_s == "auto" else float(config.log.hang_s)
    if not hang_s:
        yield
        return
    begun = state.step

    def place() -> RankPosition:
        return RankPosition(
            state.step + 1, clock.pending[0], clock.turns + strategy.begun + strategy.ended, strategy.summing
        )

    def found(notices: list[Notice], sentence: str) -> None:
        session.screen.say(sentence)
        session.journal.write("hang", text=sentence, ranks=[asdict(notice) for notice in notices])

    watchdog = Watchdog(
        place,
        lambda: list(clock.recent),
        config.run_dir,
        rank=strategy.rank,
        world_size=strategy.world_size,
        hang_s=hang_s,
        limit_s=limit,
        board=open_board(strategy.cluster),
        found=found,
        patient=lambda: config.train.compile and state.step == begun,  # the first step compiles
    )
    try:
        yield
    finally:
        watchdog.close()
