"""Hosts that make samples for the hosts that train: they join Ray, and end when the training has
ended.

The first training host starts Ray's head and a Register. Every helping host keeps one connection to
the Register: over it, it learns when Ray can be joined and when the training is over, and a broken
connection tells it that the first training host is gone. So the end of a helping host depends
neither on Ray nor on the exit codes of Ray's commands.
"""

from __future__ import annotations

import contextlib
import queue
import socket
import time
from collections.abc import Iterator

from segtrain.errors import SegtrainError
from segtrain.platforms.json_lines import Line, Message, Say
from segtrain.platforms.ray import node as ray_node
from segtrain.platforms.ray.node import RayNode
from segtrain.platforms.ray.register import PORT, HelpPlan, Register

MOST_STARTS = 3  # of Ray on a host on which it does not come up, or has ended by itself
_PAUSE_S = 0.2


@contextlib.contextmanager
def helped(plan: HelpPlan, received: list[int], say: Say, port: int = PORT) -> Iterator[None]:
    """For one process of each training host: Ray runs inside the context, and the helping hosts end
    after it.

    ``received``: signals; after the first one, nothing is waited for. Raises SegtrainError if Ray
    does not start, or if a required helping host does not join.
    """
    own = ray_node.address(plan.current)
    if plan.current != plan.head:
        head = ray_node.address(plan.head)
        node = RayNode(own, head, "train", plan.token)
        try:
            connection = _connected((head, ray_node.PORT), plan, received)
            if connection is not None:
                connection.close()
                node.start(lambda: bool(received))
            yield
        finally:
            node.end()
        return
    node = RayNode(own, "", "train", plan.token)
    with Register(plan, node, say, port) as register:
        try:
            _start_head(node, received, say)
            register.open()
            if plan.required:
                register.wait(received)
            yield
        finally:
            register.over()
            node.end()


def _start_head(node: RayNode, received: list[int], say: Say) -> None:
    """Start Ray, more than once if needed: on a busy host, it may give itself up after 30 s."""
    for left in range(MOST_STARTS - 1, -1, -1):
        try:
            node.start(lambda: bool(received))
            return
        except SegtrainError as error:
            if not left:
                raise
            say(f"{error.values['found']}: Ray is started again")


def help_out(plan: HelpPlan, received: list[int], say: Say, port: int = PORT) -> int:
    """For a helping host: make samples until the training is over, and return 0.

    Raises SegtrainError if the first training host refuses this host, is lost, or cannot be reached
    and ``required``.
    """
    try:
        connection = _connected((plan.head, port), plan, received)
    except SegtrainError as error:
        if plan.required:
            raise
        say(f"this host does not help: {error}")
        return 0
    if connection is None:
        return 0
    line = Line(connection)
    heard = line.queue()
    line.send(host=plan.current, token=plan.token)
    node = RayNode(ray_node.address(plan.current), ray_node.address(plan.head), "help", plan.token)
    try:
        return _help(plan, node, line, heard, received, say)
    finally:
        node.end()
        line.close()


def _help(
    plan: HelpPlan,
    node: RayNode,
    line: Line,
    heard: queue.Queue[Message],
    received: list[int],
    say: Say,
) -> int:
    wanted, starts = False, 0  # whether Ray is to run on this host, and how often it was started
    while not received:
        try:
            message = heard.get(timeout=_PAUSE_S)
        except queue.Empty:
            message = {}
        if "over" in message:
            say("the training is over: this host is done")
            return 0
        if "refused" in message:
            text = f"{plan.head} refuses this host: {message['refused']}: start the job again"
            raise SegtrainError(text, code="helper-refused", host=plan.current)
        if "closed" in message:
            text = f"the first training host, {plan.head}, is gone: see its log for the cause"
            raise SegtrainError(text, code="head-lost", host=plan.head)
        if "lost" in message:
            say(
                f"Ray has ended on {plan.head}: this host helps no more, and waits for the end "
                "of the training"
            )
            wanted = False
            node.end()
        wanted = wanted or "open" in message
        if wanted and not node.running:
            starts += 1
            wanted = _start(node, line, heard, received, say, last=starts == MOST_STARTS)
    say("stopped by a signal: the training goes on without this host")
    return 0


def _start(
    node: RayNode,
    line: Line,
    heard: queue.Queue[Message],
    received: list[int],
    say: Say,
    last: bool,
) -> bool:
    """Join Ray, and tell the Register. Returns False if this failed, and is not to be tried
    again.
    """
    try:
        if node.start(lambda: bool(received) or not heard.empty()):
            line.send(joined=True)
            say("this host has joined Ray, and makes samples")
        return True
    except SegtrainError as error:
        if last:
            line.send(failed=str(error))
            say(f"this host does not help, and waits for the end of the training: {error}")
        return not last


def _connected(
    address: tuple[str, int], plan: HelpPlan, received: list[int]
) -> socket.socket | None:
    """A connection to a port of the first training host, which may start later; None after a
    signal.
    """
    end = time.monotonic() + plan.join_s
    while not received:
        with contextlib.suppress(OSError):
            return socket.create_connection(address, timeout=5)
        if time.monotonic() >= end:
            raise SegtrainError(
                f"{plan.head} has not opened port {address[1]} within {plan.join_s:g} s: look at "
                "its log, and let the hosts of this job connect to each other on all ports",
                code="head-not-reached",
                host=plan.head,
                port=address[1],
            )
        time.sleep(_PAUSE_S)
    return None
