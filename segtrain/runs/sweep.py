"""A sweep: trials that Optuna chooses, each a run folder, trained by worker threads that start
`segtrain train`.

Optuna's journal file holds the study, so the same command continues a sweep, also several at the
same time. A trial belongs to the process that has the lock of its folder in ``claims/``. A trial
whose owner has ended goes on with its own settings, from its newest checkpoint.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from segtrain.base.files import alone, write_atomically
from segtrain.base.terminal import say
from segtrain.errors import (
    EXIT_ERROR,
    EXIT_RESUMABLE,
    ConfigError,
    MissingExtra,
    SegtrainError,
)
from segtrain.insight.runs.folder import silent
from segtrain.insight.runs.table import list_runs, table, value_text
from segtrain.observe.journal import FILE, Event, best_evaluation, curve, read_journal
from segtrain.observe.scores import Score, named_score
from segtrain.parallel.spawn import dying_with_parent, visible_gpus
from segtrain.runfolder.lock import RunLock
from segtrain.runs.space import Sweep, optuna_object, read_sweep

if TYPE_CHECKING:
    from optuna import Study, Trial

TRAIN = [sys.executable, "-m", "segtrain", "train"]
POLL_S = 0.5
_TRIES = 3  # of a trial whose processes are killed


def sweep(file: str | Path) -> int:
    """Run the trials that are missing, print their table and the best config, and return the exit
    code.
    """
    try:
        import optuna
    except ImportError:
        raise MissingExtra("optuna", "sweep", "segtrain sweep") from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    plan = read_sweep(file)
    out = Path(plan.out)
    out.mkdir(parents=True, exist_ok=True)
    workers = Workers(plan, out, _study(plan, out))
    with workers.stopped_by_signals():
        workers.run()
    say(results(workers.study, workers.score, out))
    if workers.stop.is_set():
        say(f"stopped: segtrain sweep {file} continues")
        return EXIT_RESUMABLE
    _say_best(plan, workers.study, out)
    return 0


def _study(plan: Sweep, out: Path) -> Study:
    """The study in ``out``. Raises ConfigError if its trials had another config or space."""
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock

    # The usual lock is a symbolic link. If a process that has it is killed, others wait forever
    # where the link leads nowhere.
    journal = str(out / "optuna.journal")
    backend = JournalFileBackend(journal, JournalFileOpenLock(journal))
    study = optuna.create_study(
        study_name="segtrain",
        storage=JournalStorage(backend),
        pruner=optuna_object(optuna.pruners, plan.pruner),
        direction="minimize" if _score(plan).lower else "maximize",
        load_if_exists=True,
    )
    searched = {
        "config": plan.config_of({}).model_dump(mode="json"),
        "space": plan.model_dump(mode="json")["space"],
    }
    if study.user_attrs.get("searched", searched) != searched:
        raise ConfigError(
            f"the trials in {out} have another config or space: choose another out, or delete it",
            code="sweep-differs",
            folder=str(out),
        )
    study.set_user_attr("searched", searched)
    return study


class Workers:
    """Threads that each train one trial at a time, on a share of the cores and GPUs."""

    def __init__(self, plan: Sweep, out: Path, study: Study) -> None:
        self.plan, self.out, self.study = plan, out, study
        self.distributions = plan.distributions()
        self.score = _score(plan)
        self.stop = threading.Event()
        self._turn = threading.Lock()
        self._unfinished = [trial.number for trial in study.trials if not trial.state.is_finished()]

    def run(self) -> None:
        with ThreadPoolExecutor(self.plan.workers) as pool:
            for worker in [pool.submit(self._work, slot) for slot in range(self.plan.workers)]:
                worker.result()

    @contextlib.contextmanager
    def stopped_by_signals(self) -> Iterator[None]:
        before = {
            number: signal.signal(number, lambda *_: self.stop.set())
            for number in (signal.SIGINT, signal.SIGTERM)
        }
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _work(self, slot: int) -> None:
        if hasattr(os, "sched_setaffinity"):  # of this thread, and of the processes that it starts
            cores = sorted(os.sched_getaffinity(0))
            os.sched_setaffinity(0, cores[slot :: self.plan.workers] or cores)
        try:
            while not self.stop.is_set() and (claimed := self._next()) is not None:
                trial, lock = claimed
                with lock:
                    self._train(trial, slot)
        except BaseException:
            self.stop.set()
            raise

    def _next(self) -> tuple[Trial, RunLock] | None:
        """A trial that nobody else works on, with its lock; None if there are enough trials."""
        with self._turn, alone(self.out / "ask"):
            while (trial := self._left_or_new()) is not None:
                with contextlib.suppress(SegtrainError):  # another process works on it
                    lock = self._claim(trial.number)
                    if not self.study.trials[trial.number].state.is_finished():
                        return trial, lock
                    lock.release()
        return None

    def _left_or_new(self) -> Trial | None:
        import optuna

        if self._unfinished:
            left = self.study.trials[self._unfinished.pop(0)]
            return optuna.Trial(self.study, left._trial_id)
        count = len(self.study.trials)
        if count >= self.plan.trials:
            return None
        # A resumed sweep must not draw the same numbers again.
        self.study.sampler = optuna_object(
            optuna.samplers, self.plan.sampler, seed=self.plan.seed + count
        )
        return self.study.ask(self.distributions)

    def _claim(self, number: int) -> RunLock:
        folder = self.out / "claims" / _name(number)
        folder.mkdir(parents=True, exist_ok=True)
        lock = RunLock(folder)
        lock.acquire(silent)
        return lock

    def _train(self, trial: Trial, slot: int) -> None:
        """Train a trial to its end, again from its checkpoint if it is killed, and tell Optuna."""
        from optuna.trial import TrialState

        folder = self.out / _name(trial.number)
        pruned, code = False, 1
        for _ in range(_TRIES):
            pruned, code = self._process(trial, folder, slot)
            if self.stop.is_set() and code == EXIT_RESUMABLE:
                return  # The trial goes on when the sweep does.
            if pruned or code in (0, EXIT_ERROR):
                break
            say(f"{folder.name} ended with exit code {code}: it goes on from its checkpoint")
        best = best_evaluation(self._evals(folder))
        state = "FAIL" if not best else "COMPLETE" if code == 0 else "PRUNED" if pruned else "FAIL"
        value = best["scores"][self.score.key] if state == "COMPLETE" else None
        self.study.tell(trial, value, TrialState[state])
        shown = f", {self.score.text(best['scores'])}" if best else ""
        failed = f" (see {folder}.log)" if state == "FAIL" else ""
        say(f"{folder.name} {state.lower()}{failed}{shown}: {_text(trial.params)}")

    def _process(self, trial: Trial, folder: Path, slot: int) -> tuple[bool, int]:
        """Run `segtrain train`. Returns whether the pruner stopped it, and its exit code."""
        file = folder.with_suffix(".yaml")
        own = f"out={folder}", f"name={self.out.name}-{trial.number}"
        environment = {**os.environ, **_gpus(slot, self.plan.workers)}
        pruned = False
        with open(f"{folder}.log", "ab") as log:
            try:
                file.write_text(self.plan.config_of(trial.params, *own).to_yaml(), encoding="utf-8")
            except ConfigError as error:  # settings of the space that do not go together
                log.write(f"error: {error}\n".encode())
                return False, EXIT_ERROR
            # A session of its own: Ctrl-C reaches the training through this process alone.
            process = subprocess.Popen(
                [*TRAIN, str(file)],
                env=environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=dying_with_parent(),
            )
            while True:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    return pruned, process.wait(POLL_S)
                if not pruned and (self.stop.is_set() or self._is_hopeless(trial, folder)):
                    pruned = not self.stop.is_set()
                    process.terminate()

    def _is_hopeless(self, trial: Trial, folder: Path) -> bool:
        """Report new evaluations, and return whether the pruner would stop the trial."""
        known = self.study.trials[trial.number].intermediate_values
        new = [event for event in self._evals(folder) if event["step"] not in known]
        for event in new:
            trial.report(event["scores"][self.score.key], event["step"])
        return bool(new) and trial.should_prune()

    def _evals(self, folder: Path) -> list[Event]:
        """The evaluations of a run that have the score."""
        events = read_journal(folder, silent) if (folder / FILE).is_file() else []
        return [
            event
            for event in curve(events, "eval")
            if event.get("scores", {}).get(self.score.key) is not None
        ]


def _score(plan: Sweep) -> Score:
    """The score that ``eval.best`` of the trials names."""
    return named_score(plan.config_of({}).eval.best)


def _name(number: int) -> str:
    return f"trial-{number:04d}"


def _text(parameters: Mapping[str, Any]) -> str:
    return " ".join(f"{key}={value_text(value)}" for key, value in parameters.items())


def _gpus(slot: int, workers: int) -> dict[str, str]:
    """The environment variable with a worker's share of the GPUs; empty without GPUs."""
    count = visible_gpus()
    shown = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(count)))
    gpus = shown.split(",")[:count]
    mine = gpus[slot::workers] or gpus[slot % count : slot % count + 1] if count else []
    return {"CUDA_VISIBLE_DEVICES": ",".join(mine)} if mine else {}


def results(study: Study, score: Score, out: Path) -> str:
    """The table of runs, with the state of each trial: the finished ones first, the best before the
    others.
    """
    trials = {_name(trial.number): trial for trial in study.trials}
    rows: list[dict[str, Any]] = []
    for row in list_runs(out):
        trial = trials.get(Path(row["out"]).name)
        rows.append({**row, "status": trial.state.name.lower() if trial else row["status"]})

    def rank(row: Mapping[str, Any]) -> tuple[bool, float]:
        trial = trials.get(Path(row["out"]).name)
        if trial is None or trial.value is None:
            return True, -(row["miou"] or 0.0)
        return False, trial.value if score.lower else -trial.value

    return table(sorted(rows, key=rank))


def _say_best(plan: Sweep, study: Study, out: Path) -> None:
    """Write the config of the best trial, and print how to train it."""
    finished = [trial for trial in study.trials if trial.state.name == "COMPLETE"]
    if not finished:
        raise ConfigError(
            f"no trial in {out} has ended well: see {out}/*.log", code="no-trial", folder=str(out)
        )
    best = study.best_trial
    file = out / "best.yaml"
    write_atomically(file, plan.config_of(best.params).to_yaml().encode())
    trial = f"{_name(best.number)}, {_text(best.params)}"
    say(f"best: {trial}: segtrain train {shlex.quote(str(file))} out=runs/best")
