"""Tests of EC2's spot notice: it becomes a signal to one rank of each host."""

from __future__ import annotations

import signal

import pytest
from imds import NOTICE, imds
from refusals import finish

from segtrain.parallel.cluster import free_port
from segtrain.platforms import spot


def test_the_notice_of_ec2():
    with imds() as server:
        notice = spot.SpotNotice(server.address)
        assert notice.poll() == ""
        assert notice.poll() == ""
        assert server.tokens == 1
        server.tokens += 1  # the service has forgotten the token
        with pytest.raises(OSError, match="401"):
            notice.poll()
        server.notice = NOTICE
        assert notice.poll() == "terminate at 2026-11-23T08:22:00Z"
        assert notice.poll() == ""  # another machine's


def test_the_notice_is_a_signal_to_one_rank_of_each_host(zygote, tmp_path):
    code = (
        "import signal, sys, time\n"
        "from segtrain.parallel.cluster import Cluster\n"
        "from segtrain.platforms import spot\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))\n"
        "spot.watch(Cluster(world_size=2, local_world_size=2, rank={rank}, local_rank={rank}))\n"
        "time.sleep({pause})\n"
    )
    with imds() as server:
        server.notice = NOTICE
        variables = {"SEGTRAIN_SPOT_S": "0.05", "AWS_EC2_METADATA_SERVICE_ENDPOINT": server.address}
        second = zygote.start(code=code.format(rank=1, pause=0.5), cwd=tmp_path, **variables)
        assert finish([second]) == [0]
        first = zygote.start(code=code.format(rank=0, pause=600), cwd=tmp_path, **variables)
        assert finish([first]) == [7], first.output
    assert "EC2 takes this machine away" in first.output


def test_without_a_metadata_service_the_training_goes_on(monkeypatch, capsys):
    """Its outage ends at some time, and the notice is seen then."""
    sent, looks, silence = list[int](), [0], 3 * spot.MOST_SILENT

    class Late(spot.SpotNotice):
        def poll(self) -> str:
            looks[0] += 1
            return "terminate at noon" if looks[0] > silence else super().poll()

    monkeypatch.setattr(spot.os, "kill", lambda pid, number: sent.append(number))
    for address in (f"http://127.0.0.1:{free_port()}", "no-url"):
        looks[0] = 0
        spot._watch(Late(address), 0.0)
        assert capsys.readouterr().err.count("no spot notice can be seen") == 1
    assert sent == [signal.SIGTERM] * 2
