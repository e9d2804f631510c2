"""The commands. Each imports and calls one function of the package, prints the result, and returns
its exit code.

``args``: the arguments that arguments.py describes, with ``overrides``, the ``section.key=value``
settings, and ``argv``, all words of the command line. A command that returns None exits with code
0.
"""

from __future__ import annotations

import importlib
import json
import re
import time
from argparse import Namespace
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from shlex import quote

from segtrain.base.files import write_atomically
from segtrain.base.terminal import counted, say
from segtrain.errors import EXIT_ERROR, ConfigError, SegtrainError
from segtrain.installed import discover, provided, run_services, watch_for_notices

FOLLOW_S = 30  # seconds after which `segtrain report --follow` rewrites the page


def train(args: Namespace) -> int:
    from segtrain.training.start.first_signal import ending_at_first_signal

    with ending_at_first_signal() as on_connected:
        return _train(args, on_connected)


def _train(args: Namespace, on_connected: Callable[[], None]) -> int:
    from segtrain.config import load_config
    from segtrain.observe.journal import say_on_stderr
    from segtrain.parallel import spawn
    from segtrain.training.start import early_checks as early
    from segtrain.training.start.automatic import settled

    config = load_config(args.config, args.overrides)
    if args.print_config:
        print(settled(config, download=False, quiet=True).to_yaml(), end="")
        return 0
    cluster = discover()
    config = settled(config, quiet=cluster.rank > 0)
    ranks = spawn.ranks_to_start(config, say_on_stderr) if cluster.alone else cluster.world_size
    early.refuse(config, cluster, ranks)
    with (
        spawn.children(cluster, ranks, args.argv)
        if cluster.alone and ranks > 1
        else nullcontext(cluster) as cluster
    ):
        watch_for_notices(cluster)
        # This imports torch. It is done here so that all ranks import it at the same time.
        from segtrain.training.rank import train

        return train(config, cluster, on_connected=on_connected, provided=provided())


def score(args: Namespace) -> None:
    from segtrain.insight.runs.weights import with_weights
    from segtrain.observe.journal import say_on_stderr
    from segtrain.training.evaluate_run import score

    cluster = discover()
    run = with_weights(
        args.run,
        args.which,
        lambda text: None if cluster.local_rank else say_on_stderr(text),
        services=run_services(),
    )
    result = score(
        run,
        args.overrides,
        args.which,
        cluster,
        quiet=args.json,
        images=args.images,
        confusion=args.confusion,
    )
    if args.json and not cluster.rank:
        print(json.dumps(result))


def predict(args: Namespace) -> None:
    from segtrain.bucket import is_bucket
    from segtrain.infer.predict import predict
    from segtrain.insight.runs.weights import with_weights

    if is_bucket(args.out):
        fix = f"choose a local folder, and copy it to {args.out} afterwards"
        raise ConfigError(
            f"--out={args.out}: a bucket cannot hold predictions: {fix}", code="output-in-bucket"
        )
    settings = [
        word
        for word in args.images
        if re.match(r"(--)?[a-z_]+\.[a-z_.]+=", word) and not Path(word).exists()
    ]
    images = [word for word in args.images if word not in settings]
    for place in filter(is_bucket, images):
        says = f"{place}: predict reads images from the disk: copy them to a local folder first"
        raise ConfigError(says, code="images-in-bucket", found=place)
    done = predict(
        with_weights(args.run, args.which, services=run_services()),
        images,
        args.out,
        which=args.which,
        overlay=not args.no_overlay,
        probabilities=args.probabilities,
        ids=args.ids,
        polygons=args.polygons,
        device=args.device,
        overrides=[*settings, *args.overrides],
        batch_size=args.batch_size,
        say=say,
    )
    kinds = ["masks"] + ["overlays"] * (not args.no_overlay)
    kinds += ["probabilities"] * args.probabilities + ["polygons"] * bool(args.polygons)
    folders = ", ".join(f"{kind} in {args.out}/{kind}" for kind in kinds)
    say(f"{counted(len(done), 'image')}: {folders}")


def export(args: Namespace) -> None:
    from segtrain.infer.export import export
    from segtrain.insight.runs.weights import with_weights

    run = with_weights(args.run, args.which, services=run_services())
    # The default is a folder in the run folder; for a run in a bucket, a folder in the working
    # directory.
    home = args.run.rstrip("/")
    folder = (
        f"{home}/export" if str(run) == str(Path(args.run)) else f"{home.rpartition('/')[2]}-export"
    )
    done = export(
        run,
        args.out or folder,
        tuple(args.formats.split(",")),
        which=args.which,
        size=args.size,
        opset=args.opset,
        batch=args.batch,
        input=args.input,
    )
    say("\n".join(map(str, done.urls or done.files)))
    if done.onnx:
        print(f"onnxruntime compared with torch: {json.dumps(done.onnx)}")


def data_pack(args: Namespace) -> None:
    from segtrain.data.shards.pack import pack_folder
    from segtrain.observe.journal import say_on_stderr

    done = pack_folder(
        args.dir,
        args.folder,
        args.split,
        args.overrides,
        image=args.image,
        quality=args.quality,
        cap=args.cap,
        shard_mb=args.shard_mb,
        workers=args.workers,
        skip_faults=args.skip_faults,
        only_estimate=args.estimate,
        say=say_on_stderr if args.json else say,
    )
    if args.json:
        print(json.dumps(done))


def data_fetch(args: Namespace) -> None:
    from segtrain.data.bucket.fetch import fetch_folder
    from segtrain.observe.journal import say_on_stderr

    done = fetch_folder(args.place, args.split, args.overrides, say_on_stderr if args.json else say)
    if args.json:
        print(json.dumps(done))


def data_convert(args: Namespace) -> None:
    from segtrain.data.convert import convert_folder

    convert_folder(
        args.dir,
        args.folder,
        args.split,
        args.overrides,
        say,
        args.nearest,
        args.merge,
        args.annotator,
        args.side_by_side,
    )


def data_check(args: Namespace) -> int:
    from segtrain.data.audit.check import check_folder
    from segtrain.data.audit.written import refuse_existing
    from segtrain.observe.journal import say_on_stderr

    refuse_existing(write=args.write, page=args.page)
    try:
        line = ("segtrain", *args.argv)
        checked = check_folder(args.dir, args.split, args.overrides, args.sample, args.seed, line)
    except SegtrainError:
        if args.write:
            say_on_stderr(f"{args.write} was not written: see the error below")
        raise
    if args.write and not checked.failed:
        write_atomically(args.write, checked.config().encode(), "FILE for --write")
    if args.page:
        from segtrain.insight.report.data_check import render
        from segtrain.insight.report.page import write

        say_on_stderr(f"page: {write(args.page, render(checked))}")
    if args.json:
        print(json.dumps({report.split: report.to_dict() for report in checked.reports}))
    else:
        say(checked.text(args.write))
    return EXIT_ERROR if checked.failed or checked.unnamed else 0


def runs(args: Namespace) -> None:
    from segtrain.insight.runs.remote import rows
    from segtrain.insight.runs.table import by_seed, table

    listed = rows(args.dir, services=run_services())
    listed = by_seed(listed) if args.seeds else listed
    say("\n".join(json.dumps(row) for row in listed) if args.json else table(listed))


def sweep(args: Namespace) -> int:
    from segtrain.runs.sweep import sweep

    return sweep(args.file)


def report(args: Namespace) -> None:
    from segtrain.insight.report.page import report
    from segtrain.insight.runs.folder import run_home
    from segtrain.insight.runs.remote import local
    from segtrain.insight.runs.table import read_run

    open_it, running = args.open, True
    while running:
        run = local(args.run, services=run_services())
        out = Path(f"{run.stem}-report.html") if run.stem else None
        status = read_run(run_home(run.folder))["status"]
        running = args.follow and status in ("new", "running")
        wait_s = FOLLOW_S * running
        say(report(run.folder, open_it, out=out, shown=run.shown, refresh_s=wait_s))
        open_it = False
        time.sleep(wait_s)


def diff(args: Namespace) -> None:
    from segtrain.insight.report.diff_page import diff
    from segtrain.insight.runs.remote import local

    runs = [local(run, services=run_services()).folder for run in (args.a, *args.others)]
    say(diff(runs, args.page))


def diagnose(args: Namespace) -> None:
    from segtrain.insight.diagnose import verify, verify_words, words
    from segtrain.insight.diagnose.judge import diagnose
    from segtrain.insight.runs.remote import local

    run = local(args.run, services=run_services())
    if args.against is not None:
        other = local(args.against, services=run_services())
        both = verify.verify(run.folder, other.folder, shown=(run.shown, other.shown))
        say(json.dumps(both.to_dict(), indent=1) if args.json else verify_words.page(both))
        return
    found = diagnose(run.folder, args.on)
    if args.json:
        print(json.dumps(found.to_dict(), indent=1))
    elif run.stem:
        say(words.page(run.folder, found, shown=run.shown))
    else:
        say(words.page(run.folder, found, verify.earlier_prediction(run.folder)))


def plan(args: Namespace) -> None:
    from segtrain.insight.plan.command import plan

    plan(args, run_services())


def profile(args: Namespace) -> int:
    from segtrain.config import make_config
    from segtrain.observe.profile import profile

    if args.ms is not None:
        # The setting log.profile_ms has the same range, so its error message also fits --ms.
        make_config({"log": {"profile_ms": args.ms}}, source="--ms")
        if not args.ms:
            fix = f"to stop the profile: segtrain profile off {quote(str(args.run))}"
            raise ConfigError(
                f"--ms=0 is not an interval; {fix}", code="interval-is-zero", key="--ms"
            )
    if args.action == "stacks":
        from segtrain.observe.trace import stacks

        text, done = stacks(args.run, args.seconds, args.hz)
    elif args.action == "trace":
        from segtrain.observe.trace import trace

        text, done = trace(args.run, args.steps)
    else:
        text, done = profile(args.action, args.run, args.ms)
    say(text)
    return 0 if done else EXIT_ERROR


def launch(args: Namespace) -> int:
    import segtrain.launch  # noqa: F401 (makes `launch` importable)

    main = importlib.import_module(f"launch.{args.platform}").main
    return int(main(args.argv[2:], f"segtrain launch {args.platform}"))


def prove(args: Namespace) -> int:
    from segtrain.prove import parse_ranks, prove

    ranks = parse_ranks(args.ranks)
    return prove(args.config, args.overrides, ranks, args.device, exact=args.exact)


def bench_data(args: Namespace) -> None:
    from segtrain.insight.bench.data import bench_data

    bench_data(
        args.config,
        args.overrides,
        samples=args.samples,
        seconds=args.seconds,
        device_ms=args.device_ms,
        rate=args.rate,
        as_json=args.json,
    )


def doctor(args: Namespace) -> int:
    from segtrain.insight.doctor import doctor

    return doctor(as_json=args.json)
