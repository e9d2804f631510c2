"""What does each verb do? It calls its room, which it imports then, and prints what comes back. No logic.

``known``: the arguments that cli.py describes; ``overrides``: settings, section.key=value; ``arguments``: all words of the command line.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from shlex import quote

from segtrain.errors import EXIT_ERROR, ConfigError
from segtrain.terminal import printable, say


def train(known: argparse.Namespace, overrides: list[str], arguments: list[str]) -> int:
    from segtrain.config import load_config
    from segtrain.parallel import spawn
    from segtrain.parallel.cluster import discover
    from segtrain.train import early

    config = load_config(known.config, overrides)
    if known.print_config:
        print(config.to_yaml(), end="")
        return 0
    cluster = discover()
    alone = cluster.source == "none"
    ranks = spawn.ranks_here(config, lambda text: print(text, file=sys.stderr)) if alone else cluster.world_size
    early.refuse(config, ranks, ranks if alone else cluster.local_world_size, alone)
    if alone and ranks > 1:
        with spawn.children(ranks, arguments) as place:
            return _train_loop(config, place)
    return _train_loop(config, cluster)


def _train_loop(config, cluster) -> int:  # type: ignore[no-untyped-def]
    from segtrain.train.loop import train

    return train(config, cluster)


def score(known: argparse.Namespace, overrides: list[str], arguments: list[str]) -> int:
    from segtrain.parallel.cluster import discover
    from segtrain.train.score import score

    result = score(
        known.run, overrides, known.which, discover(), quiet=known.json, images=known.images, confusion=known.confusion
    )
    if result is not None and known.json:
        print(json.dumps(result))
    return 0


def predict(known: argparse.Namespace, overrides: list[str], arguments: list[str]) -> int:
    from segtrain.infer.predict import predict

    settings = [word for word in known.images if re.match(r"(--)?[a-z_]+\.[a-z_.]+=", word) and not Path(word).exists()]
    images = [word for word in known.images if word not in settings]
    done = predict(
        known.run,
        images,
        known.out,
        which=known.which,
        overlay=not known.no_overlay,
        probabilities=known.probabilities,
        device=known.device,
        overrides=[*settings, *overrides],
        say=say,
    )
    more = [*([] if known.no_overlay else ["overlays"]), *(["probabilities"] if known.probabilities else [])]
    say(", ".join([f"{len(done)} masks in {known.out}/masks", *(f"{kind} in {known.out}/{kind}" for kind in more)]))
    return 0


def export(known: argparse.Namespace, overrides: list[str], arguments: list[str]) -> int:
    from segtrain.infer.export import export

    done = export(known.run, known.out or known.run / "export", tuple(known.formats.split(",")), which=known.which)
    say("\n".join(map(str, done.files)))
    if done.onnx:
        print(f"onnxruntime against torch: {json.dumps(done.onnx)}")
    return 0


def data_pack(known: argparse.Namespace, overrides: list[str], arguments: list[str]) -> int:
    from segtrain.data.shards.pack_folder import pack_folder

    done = pack_folder(
        known.dir,
        known.folder,
        known.split,
        overrides,
        image=known.image,
        quality=known.quality,
        cap=known.cap,
        shard_mb=known.shard_mb,
        workers=known.workers,
        skip_faults=known.skip_faults,
        only_estimate=known.estimate,
        say=(lambda text: print(printable(text), file=sys.stderr)) if known.json else say,
    )
    if known.json:
        print(json.dumps(done))
    return 0


def data_convert(known: argparse.Namespace, overrides: list[str], arguments: list[str]) -> int:
    from segtrain.data.convert import convert_folder

    convert_folder(known.dir, known.folder, known.split, overrides, say)
    return 0


def data_check(known: argparse.Namespace, overrides: list[str], arguments: list[str]) -> int:
    from segtrain.data.audit.check import check_folder

    checked = check_folder(known.dir, known.split, overrides)
    if known.json:
        print(json.dumps({report.split: report.to_dict() for report in checked.reports}))
    else:
        say(checked.text())
    return EXIT_ERROR if any(report.failed for report in checked.reports) else 0


def runs(known: argparse.Namespace, overrides: list[str], arguments: list[str]) -> int:
    from segtrain.runs.remote import rows
    from segtrain.runs.table import table

    found = rows(known.dir)
    say("\n".join(json.dumps(row) for row in found) if known.json else table(found))
    return 0


def report(known: argparse.Namespace, overrides: list[str], arguments: list[str]) -> int:
    from segtrain.report.page import report
    from segtrain.runs.remote import local

    run = local(known.run)
    out = Path(f"{run.stem}-report.html") if run.stem else None
    say(report(run.folder, known.open, out=out, shown=run.shown))
    return 0


def diff(known: argparse.Namespace, overrides: list[str], arguments: list[str]) -> int:
    from segtrain.report.diff import diff
    from segtrain.runs.remote import local

    say(diff(local(known.a).folder, local(known.b).folder, known.out))
    return 0


def diagnose(known: argparse.Namespace, overrides: list[str], arguments: list[str]) -> int:
    from segtrain.diagnose import diagnose, verify, verify_words, words
    from segtrain.diagnose.earlier_prediction import earlier_prediction
    from segtrain.runs.remote import local

    run = local(known.run)
    if known.against is not None:
        other = local(known.against)
        both = verify.verify(run.folder, other.folder, shown=(run.shown, other.shown))
        say(verify.as_json(both) if known.json else verify_words.page(both))
        return 0
    found = diagnose(run.folder)
    if known.json:
        print(words.as_json(found))
    elif run.stem:
        say(words.page(run.folder, found, shown=run.shown))
    else:
        say(words.page(run.folder, found, earlier_prediction(run.folder)))
    return 0


def profile(known: argparse.Namespace, overrides: list[str], arguments: list[str]) -> int:
    from segtrain.config import make_config
    from segtrain.observe.profile import profile

    if known.ms is not None:
        make_config({"log": {"profile_ms": known.ms}}, source="--ms")  # the same range, the same words
        if not known.ms:
            raise ConfigError(
                f"--ms 0 is no distance between samples: `segtrain profile off {quote(str(known.run))}` ends the profile"
            )
    if known.profile_verb == "stacks":
        from segtrain.observe.stacks import stacks

        text, obeyed = stacks(known.run, known.seconds, known.hz)
    elif known.profile_verb == "trace":
        from segtrain.observe.trace import trace

        text, obeyed = trace(known.run, known.steps)
    else:
        text, obeyed = profile(known.profile_verb, known.run, known.ms)
    say(text)
    return 0 if obeyed else EXIT_ERROR


def launch(known: argparse.Namespace, overrides: list[str], arguments: list[str]) -> int:
    from segtrain.launch import fsx, sagemaker

    main = {"sagemaker": sagemaker.main, "fsx": fsx.main}[known.platform]
    return int(main(arguments[2:], f"segtrain launch {known.platform}"))


def prove(known: argparse.Namespace, overrides: list[str], arguments: list[str]) -> int:
    from segtrain.prove import parse_ranks, prove

    return prove(known.config, overrides, parse_ranks(known.ranks))


def bench_data(known: argparse.Namespace, overrides: list[str], arguments: list[str]) -> int:
    from segtrain.bench.data import bench_data

    bench_data(
        known.config,
        overrides,
        samples=known.samples,
        seconds=known.seconds,
        device_ms=known.device_ms,
        rate=known.rate,
        as_json=known.json,
    )
    return 0


def doctor(known: argparse.Namespace, overrides: list[str], arguments: list[str]) -> int:
    from segtrain.doctor import doctor

    return doctor(as_json=known.json)
