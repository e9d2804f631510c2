"""The command `segtrain plan`: a plan of a config or of a past run, as text or JSON."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from math import inf
from typing import TYPE_CHECKING

from segtrain.base.terminal import say
from segtrain.config import limits
from segtrain.errors import ConfigError
from segtrain.insight.plan.candidates import machines_of

if TYPE_CHECKING:
    from segtrain.insight.plan.offers import Offers
    from segtrain.insight.plan.spot import Market
    from segtrain.insight.runs.remote import Services


def seconds_of(text: str) -> float:
    """Seconds of a time such as "90m", "2h", or "1d"; 0 for "". Raises ConfigError for anything
    else.
    """
    seconds = limits.seconds_of(text)
    if text and seconds is None:
        raise ConfigError(
            f"--deadline={text}: not a time: write 90m, 2h, or 1d", code="bad-time", found=text
        )
    return seconds or 0.0


def budget_of(dollars: float | None) -> float:
    """Dollars; None: no budget, which is 0 here. Raises ConfigError for other numbers that are no
    amount.
    """
    if dollars is None:
        return 0.0
    if not 0 < dollars < inf:
        raise ConfigError(
            f"--budget={dollars:g}: not an amount of dollars: write a positive number, such as 80",
            code="bad-budget",
            found=dollars,
        )
    return dollars


def described_of(images: int, size: str) -> tuple[int, tuple[int, int]] | None:
    """Number and (height, width) of the images of a data set that is not here; None: it is. Raises
    ConfigError.
    """
    sides = [int(side) for side in size.lower().split("x") if side.isdecimal()]
    if images > 0 and len(sides) == 2 and all(sides):
        return images, (sides[0], sides[1])
    if images or size:
        raise ConfigError(
            f"--images={images} --image-size={size}: write both, such as --images 2975 "
            "--image-size 1024x2048",
            code="bad-description",
            images=images,
            size=size,
        )
    return None


def hosts_of(text: str) -> tuple[int, ...]:
    """Numbers of machines such as "1,2,4", each at least 1. Raises ConfigError for anything
    else.
    """
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() and int(word) for word in words):
        raise ConfigError(
            f"--hosts={text}: not a list of numbers of machines: write 1,2,4",
            code="bad-hosts",
            found=text,
        )
    return tuple(sorted({int(word) for word in words}))


def plan(args: Namespace, services: Services = ()) -> None:
    """Print the plan that the arguments ask for. Raises SegtrainError."""
    if args.record is not None:
        _record(args, services)
    elif args.like:
        _like(args, services)
    elif args.config or args.overrides:
        _config(args)
    else:
        raise ConfigError(
            "nothing to plan: name a config file, or write --like=RUN", code="plan-of-nothing"
        )


def _like(args: Namespace, services: Services) -> None:
    if args.config or args.overrides or args.probe:
        what = args.config or " ".join(args.overrides) or "--probe"
        raise ConfigError(
            f"--like={args.like} takes all of its figures from the run: remove {what}, or "
            "remove --like",
            code="plan-of-two",
            found=what,
        )
    from segtrain.insight.plan import offers, words
    from segtrain.insight.plan.saved import save
    from segtrain.insight.plan.spot import market_of
    from segtrain.insight.plan.terms import terms_like
    from segtrain.insight.runs.folder import run_home, settings_of
    from segtrain.insight.runs.remote import local

    limits = (seconds_of(args.deadline), budget_of(args.budget))
    hosts = hosts_of(args.hosts)
    where = machines_of(args.where)
    run = local(args.like, services=services)
    if not run.folder.is_dir():
        raise ConfigError(
            f"--like={args.like}: there is no such folder: name the folder of a run, such as "
            "runs/NAME",
            code="folder-missing",
            found=args.like,
        )
    terms, own = terms_like(run.folder, args.on)
    planned = offers.plan(terms, hosts, where, own)
    market = market_of(args.spot, args.preemptions, run.folder)
    if args.save:
        settings = settings_of(run_home(run.folder))
        _note(f"kept in {save(planned, settings, args.save, planned.terms.machine)}")
    shown = run.shown or str(run.folder)
    if args.json:
        print(json.dumps({**words.as_dict(planned, *limits, market), "terms": vars(planned.terms)}))
    else:
        _show(args, planned, words.about_run(planned, shown), shown, limits, market)


def _config(args: Namespace) -> None:
    from segtrain.config import load_config
    from segtrain.insight.plan import words
    from segtrain.insight.plan.config_words import about_config, about_job
    from segtrain.insight.plan.probe import plan as plan_of
    from segtrain.insight.plan.saved import save
    from segtrain.insight.plan.spot import market_of

    limits = (seconds_of(args.deadline), budget_of(args.budget))
    hosts = hosts_of(args.hosts)
    market = market_of(args.spot, args.preemptions)
    config = load_config(args.config, args.overrides)
    described = described_of(args.images, args.image_size)
    planned = plan_of(
        config, where=args.where, hosts=hosts, probe=args.probe, described=described, say=_note
    )
    if args.save:
        _note(f"kept in {save(planned, config.model_dump(mode='json'), args.save)}")
    offer = planned.best(*limits) or next(iter(planned.offers), None)
    if args.json:
        print(json.dumps({**words.as_dict(planned, *limits, market), **about_job(planned, offer)}))
    else:
        _show(
            args,
            planned,
            about_config(planned, offer),
            config.name or "the defaults",
            limits,
            market,
        )


def _show(
    args: Namespace,
    planned: Offers,
    about: tuple[str, list[str]],
    subject: str,
    limits: tuple[float, float],
    market: Market | None,
) -> None:
    from segtrain.insight.plan import words

    text = words.page(planned, about, *limits, args.all, market)
    say(text)
    if args.page:
        from segtrain.insight.plan import page

        _note(f"page: {page.write(args.page, planned, text, subject, *limits)}")


def _record(args: Namespace, services: Services) -> None:
    other = args.config or " ".join(args.overrides) or args.like
    if other:
        raise ConfigError(
            f"--record takes folders of runs alone: remove {other}", code="plan-of-two", found=other
        )
    from segtrain.insight.plan import record

    records = record.record(args.record or ["runs"], args.on, services)
    if args.json:
        print(json.dumps({**vars(records), "errors": record.errors(records.rows)}))
    else:
        say(record.text(records))


def _note(text: str) -> None:
    print(f"plan: {text}", file=sys.stderr)
