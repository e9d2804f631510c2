"""Tests that a system profile has the Debugger's format, is true, and can be switched while a run
trains.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import refused

from segtrain.base.json_text import write_json
from segtrain.observe import system
from segtrain.observe.counters import Counters, _physical, open_counters
from segtrain.observe.gpus import open_gpus, read_with, visible
from segtrain.observe.profile import _whose_gpus, hosts, node_name, profile, sampling, switch
from segtrain.observe.profile_format import ProfileWriter, Series, Value, file_of, read_profile
from segtrain.parallel.cluster import Cluster

MINUTE = 1591748100  # 2020-06-10 00:15:00 UTC
# Lines that AWS published, of a trace without folders of the hour.
PUBLISHED = {
    "job/profiler-output/system/incremental/1591748100.algo-1.json": b"""\
{"Type":"cpu","Name":"cpu5","Dimension":"CPUUtilization","Value":1.36,"NodeId":"algo-1","Timestamp":1591748109.2321954}
{"Type":"cpu","Name":"cpu6","Dimension":"CPUUtilization","Value":1.95,"NodeId":"algo-1","Timestamp":1591748109.2321954}
""",
    "job/profiler-output/system/incremental/1591160699.algo-1.json": b"""\
{"Type": "gpu", "Name":"gpu0", "Dimension": "GPUUtilization", "Value":8.00,"NodeId":"algo-1","Timestamp":1591160899.7570894}
""",
    "job/profiler-output/framework/pevents/2020060500/1591160699_algo-1.json": b"no metric",
}
needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sampler answers within seconds where a core is free for it."""
    monkeypatch.setattr("segtrain.observe.profile.ANSWER_S", 300.0)


def silent(text: str) -> None:
    pass


def wait_until(true: Callable[[], Any], what: str) -> None:
    for _ in range(1800):
        if true():
            return
        time.sleep(0.1)
    pytest.fail(f"never: {what}")


def profile_bytes(run: Path) -> int:
    return sum(path.stat().st_size for path in run.glob("profile/system/incremental/*/*.json"))


@pytest.fixture
def tokyo(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A host whose own time is not UTC."""
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def test_the_age_of_a_sample_is_told_by_the_clock_that_stamps_files(tmp_path, monkeypatch):
    """This machine's clock is a day ahead of it."""
    writer, clock = ProfileWriter(tmp_path / "profile", "algo-1"), time.time
    writer.write(1_795_000_000.0, [Value("cpu", "cpu0", "CPUUtilization", 1.0)])
    writer.close()
    state = {"node": "algo-1", "host": "another", "pid": 1, "on": True, "ms": 500}
    write_json(system.state_file(tmp_path / "profile", "algo-1"), state)
    monkeypatch.setattr(time, "time", lambda: clock() + 86_400)
    text, _ = profile("status", tmp_path, None)
    assert text.partition("last sample ")[2].partition(" ago")[0].endswith("s"), text  # not 1d 00h


def test_files_and_lines_are_the_debuggers(tmp_path, tokyo):
    writer = ProfileWriter(tmp_path, "algo-3")
    writer.write(
        MINUTE + 9.23219,
        [Value("cpu", "cpu5", "CPUUtilization", 1.3571), Value("i/o", "IOPS", "", float("nan"))],
    )
    writer.write(MINUTE + 60.0, [Value("memory", "MemoryUsedPercent", "", 8.0)])
    folder = tmp_path / "system/incremental/2020061000"
    assert sorted(path.name for path in folder.iterdir()) == [
        "1591748100.algo-3.json",
        "1591748160.algo-3.json",
    ]
    assert (folder / "1591748100.algo-3.json").read_text() == (
        '{"Type":"cpu","Name":"cpu5","Dimension":"CPUUtilization","Value":1.36,"NodeId":"algo-3","Timestamp":1591748109.2322}\n'
    )
    assert (
        file_of(MINUTE + 3599.9, "algo-1") == "system/incremental/2020061001/1591751640.algo-1.json"
    )


def test_what_is_written_is_read(tmp_path):
    for node in ("algo-1", "algo-2"):
        writer = ProfileWriter(tmp_path / "profile", node)
        for second in range(0, 180, 20):
            writer.write(
                MINUTE + second,
                [
                    Value("cpu", "cpu0", "I/OWaitPercentage", second / 2),
                    Value("gpu", "gpu0", "x", 1),
                ],
            )
    tracks = read_profile(tmp_path)
    assert len(tracks) == 4
    track = tracks[Series("algo-2", "cpu", "cpu0", "I/OWaitPercentage")]
    assert list(track.times) == [MINUTE + second for second in range(0, 180, 20)]
    assert list(track.values) == [second / 2 for second in range(0, 180, 20)]
    part = read_profile(tmp_path, MINUTE + 40, MINUTE + 100)
    assert list(part[Series("algo-2", "gpu", "gpu0", "x")].times) == [
        MINUTE + second for second in (40, 60, 80, 100)
    ]


def test_published_lines_are_read(tmp_path):
    for name, lines in PUBLISHED.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(lines)
    tracks = read_profile(tmp_path, say=pytest.fail)
    assert {
        series: (list(track.times), list(track.values)) for series, track in tracks.items()
    } == {
        ("algo-1", "gpu", "gpu0", "GPUUtilization"): ([1591160899.7570894], [8.0]),
        ("algo-1", "cpu", "cpu5", "CPUUtilization"): ([1591748109.2321954], [1.36]),
        ("algo-1", "cpu", "cpu6", "CPUUtilization"): ([1591748109.2321954], [1.95]),
    }
    assert len(read_profile(tmp_path, start=1591748000.0)) == 2
    # A name that is no full minute says nothing of when its lines are from.
    assert len(read_profile(tmp_path, start=1591160899.0, end=1591160900.0)) == 1


def test_a_torn_line_is_cut_away_before_going_on_and_skipped_by_the_reader(tmp_path):
    def write(second: int) -> None:
        ProfileWriter(tmp_path, "algo-1").write(
            MINUTE + second, [Value("cpu", "cpu0", "CPUUtilization", second)]
        )

    write(1)
    path = tmp_path / file_of(MINUTE, "algo-1")
    with path.open("ab") as file:
        file.write(b'{"Type":"cpu","Name":"cp')  # a power cut
    write(2)
    assert [json.loads(line)["Value"] for line in path.read_bytes().splitlines()] == [1, 2]

    with path.open("ab") as file:
        file.write(b'{"Type":"cpu"}\n{"Type":"cp')
    said: list[str] = []
    (track,) = read_profile(tmp_path, say=said.append).values()
    assert list(track.values) == [1, 2]
    assert len(said) == 1
    assert "2 lines" in said[0]


def test_readings_come_in_the_order_of_time(tmp_path):
    for second in (5, 3, 4):  # the clock was set back
        ProfileWriter(tmp_path, "algo-1").write(
            MINUTE + second, [Value("cpu", "cpu0", "CPUUtilization", second)]
        )
    (track,) = read_profile(tmp_path).values()
    assert list(track.values) == [3, 4, 5]


def test_a_full_disk_leaves_whole_lines(tmp_path):
    code = f"""
import resource
from segtrain.observe.profile_format import *
writer = ProfileWriter({str(tmp_path)!r}, "algo-1")
writer.write({MINUTE}, [Value("cpu", "cpu0", "CPUUtilization", 1)])
resource.setrlimit(resource.RLIMIT_FSIZE, (150, 150))
for _ in range(2):
    try:
        writer.write({MINUTE}, [Value("cpu", "cpu0", "CPUUtilization", 2)])
    except OSError:
        print("full")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "full\nfull\n", done.stderr
    assert [
        json.loads(line)["Value"]
        for line in (tmp_path / file_of(MINUTE, "algo-1")).read_bytes().splitlines()
    ] == [1]


def test_a_folder_without_a_profile_is_an_error(tmp_path):
    (tmp_path / "1591748100.algo-1.json").write_text("{}")
    with refused("no-profile", file=str(tmp_path)):
        read_profile(tmp_path)


def test_counters_are_of_cores_and_physical_devices(monkeypatch, tmp_path):
    (tmp_path / "eth0/device").mkdir(parents=True)
    assert _physical(["lo", "eth0", "br0"], str(tmp_path), ("lo",)) == {"eth0"}
    assert _physical(["lo", "br0"], str(tmp_path), ("lo",)) == {"br0"}
    (tmp_path / "nbd0").mkdir()
    assert _physical(["nbd0", "nbd0p1"], str(tmp_path), ()) == {"nbd0"}  # a disk with a partition
    core = SimpleNamespace(
        user=10, nice=1, system=20, idle=300, iowait=5, irq=2, softirq=3, steal=4, guest=7
    )
    disk = SimpleNamespace(read_count=3, write_count=4, read_bytes=500, write_bytes=60)
    link = SimpleNamespace(bytes_recv=7, bytes_sent=8)
    monkeypatch.setattr("psutil.cpu_times", lambda percpu: [core, core])
    monkeypatch.setattr(
        "psutil.disk_io_counters", lambda **how: dict.fromkeys(("none0", "none1", "loop0"), disk)
    )
    monkeypatch.setattr(
        "psutil.net_io_counters", lambda **how: dict.fromkeys(("none0", "lo"), link)
    )
    counters = open_counters()()
    assert counters.cores == {"cpu0": (40, 5, 345), "cpu1": (40, 5, 345)}
    assert (counters.disk, counters.network) == ((14, 1000, 120), (7, 8))


def test_gpus_are_read_and_what_they_lack_is_said_once(capsys):
    class NVMLError(Exception):
        pass

    def clock(handle: str, kind: int) -> int:
        if handle == "slice":
            raise NVMLError("Not Supported")
        return 1000 + kind

    nvml = SimpleNamespace(
        NVMLError=NVMLError,
        NVML_CLOCK_SM=1,
        NVML_CLOCK_MEM=2,
        nvmlDeviceGetClockInfo=clock,
        nvmlDeviceGetUtilizationRates=lambda handle: SimpleNamespace(gpu=97, memory=3),
        nvmlDeviceGetMemoryInfo=lambda handle: SimpleNamespace(total=200, used=50),
        nvmlDeviceGetPowerUsage=lambda handle: 250_500,
    )
    read = read_with(nvml, ["whole", "slice"])
    first, second = read(), read()
    assert first == second
    assert {(v.name, v.dimension): v.value for v in first} == {
        ("gpu0", "GPUUtilization"): 97.0,
        ("gpu0", "GPUMemoryUtilization"): 25.0,
        ("gpu0", "PowerInWatts"): 250.5,
        ("gpu0", "SMClockInMHz"): 1001.0,
        ("gpu0", "MemoryClockInMHz"): 1002.0,
        ("gpu1", "GPUUtilization"): 97.0,
        ("gpu1", "GPUMemoryUtilization"): 25.0,
        ("gpu1", "PowerInWatts"): 250.5,
    }
    assert [text.split(" from")[0] for text in capsys.readouterr().err.splitlines()] == [
        "the system profile lacks SMClockInMHz of gpu1",
        "the system profile lacks MemoryClockInMHz of gpu1",
    ]
    if importlib.util.find_spec("pynvml"):  # the names are those of the library
        import pynvml

        assert [name for name in vars(nvml) if not hasattr(pynvml, name)] == []


@pytest.mark.parametrize(
    ("environ", "kinds", "places"),
    [
        ({}, "aaaa", "0123"),
        ({"CUDA_VISIBLE_DEVICES": "2,0"}, "aaaa", "20"),
        ({"CUDA_VISIBLE_DEVICES": "GPU-3, GPU-1bcd"}, "aaaa", "31"),
        ({"CUDA_VISIBLE_DEVICES": "1,9,2"}, "aaaa", "1"),  # CUDA stops at what it does not know
        ({"CUDA_VISIBLE_DEVICES": ""}, "aaaa", ""),
        ({"CUDA_VISIBLE_DEVICES": "MIG-x"}, "aaaa", "x"),
        # the fastest first: which is unknown, and said
        ({"CUDA_VISIBLE_DEVICES": "1"}, "abaa", "0123"),
        ({"CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, "abaa", "1"),
    ],
)
def test_the_gpus_of_the_job_are_read_and_no_others(environ, kinds, places, capsys):
    nvml = SimpleNamespace(
        nvmlDeviceGetCount=lambda: 4,
        nvmlDeviceGetHandleByIndex=str,
        nvmlDeviceGetUUID=lambda handle: f"GPU-{handle}bcd-ef",
        nvmlDeviceGetName=lambda handle: f"NVIDIA {kinds[int(handle)]}",
        nvmlDeviceGetHandleByUUID=lambda uuid: uuid.removeprefix("MIG-"),
    )
    assert visible(nvml, environ) == list(places)
    assert bool(capsys.readouterr().err) == (places == "0123" and bool(environ))


def test_gpus_that_cannot_be_read_are_said_and_leave_a_gap(monkeypatch, capsys):
    class Broken(SimpleNamespace):
        NVMLError = RuntimeError

        def nvmlInit(self) -> None:
            raise self.NVMLError("driver and library differ")

    monkeypatch.setattr(Path, "glob", lambda *_: iter(["/dev/nvidia0"]))
    for module in (None, Broken()):
        monkeypatch.setitem(sys.modules, "pynvml", module)
        assert open_gpus()() == []
    assert len(capsys.readouterr().err.splitlines()) == 2


def test_a_list_of_one_rank_does_not_hide_the_gpus_of_the_others():
    one, four = (
        {"CUDA_VISIBLE_DEVICES": "1", "HOME": "/"},
        {"CUDA_VISIBLE_DEVICES": "0,1,2,3", "HOME": "/"},
    )
    assert _whose_gpus(one, 4) == {"HOME": "/"}
    assert _whose_gpus(one, 1) == one
    assert _whose_gpus(four, 4) == four
    for hidden in ("", "-1"):  # a run on CPUs
        none = {"CUDA_VISIBLE_DEVICES": hidden, "HOME": "/"}
        assert _whose_gpus(none, 4) == none


def test_hosts_are_named_as_sagemaker_does_or_counted():
    assert (
        node_name(
            Cluster(rank=9, world_size=16, local_rank=1, local_world_size=4, hosts=4, host=2), {}
        )
        == "algo-3"
    )
    assert node_name(Cluster(), {"SM_CURRENT_HOST": "algo-12"}) == "algo-12"
    assert node_name(Cluster(), {"SM_CURRENT_HOST": "localhost"}) == "algo-1"


def test_a_sampler_ends_with_the_process_that_started_it(tmp_path, zygote):
    code = f"""
import os, signal, time
from pathlib import Path
from segtrain.observe.profile import sampling
from segtrain.parallel.cluster import Cluster
with sampling(Path({str(tmp_path)!r}), 100, Cluster()):
    while not Path({str(tmp_path)!r}, "profile/algo-1.state.json").exists():
        time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGKILL)
"""
    zygote.start(code=code).wait()
    wait_until(lambda: not hosts(tmp_path)[0].alive, "the sampler of a killed process has ended")
    with refused("run-ended"):
        switch(tmp_path, True)


def test_off_at_the_start_waits_for_a_request_and_an_old_one_does_not_count(tmp_path):
    (tmp_path / "profile").mkdir()
    (tmp_path / "profile/control.json").write_text('{"on": true, "ms": 100}')  # of the run before
    with sampling(tmp_path, 0, Cluster()):
        wait_until(lambda: list(tmp_path.glob("profile/*.state.json")), "the sampler speaks")
        assert [host.on for host in hosts(tmp_path)] == [False]
        (answer,) = switch(tmp_path, True, 200)
        assert (answer.on, answer.ms) == (True, 200)
        wait_until(lambda: profile_bytes(tmp_path), "it writes")
    # as another host sees it
    assert (hosts(tmp_path)[0].pid, hosts(tmp_path)[0].alive) == (0, False)
    assert {series.type for series in read_profile(tmp_path)} >= {"cpu", "memory", "network"}


def test_a_long_profile_gets_rarer_until_a_distance_is_asked_for(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(system, "WIDEN_BYTES", 4000)
    moments = iter(range(10_000))

    def look() -> Counters:
        t = float(next(moments))
        return Counters(
            t, {f"cpu{k}": (t, 0.0, 2 * t) for k in range(8)}, 5.0, 0.0, (0, 0), (t, t, t), (t, t)
        )

    monkeypatch.setattr(system, "open_counters", lambda: look)
    told: list[system.SamplerRequest] = []

    def tell(order: system.SamplerRequest) -> None:
        told.append(order)
        if order == system.SamplerRequest(True, 200):
            (tmp_path / system.CONTROL).write_text('{"on": true, "ms": 100, "asked": 5.0}')
        elif order == system.SamplerRequest(True, 200, 5.0):
            os.kill(os.getpid(), signal.SIGTERM)

    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR2)}
    try:
        requests = system.ControlRequests(tmp_path / system.CONTROL)
        sampler = system.HostSampler(ProfileWriter(tmp_path, "algo-1"))
        system.keep_sampling(
            sampler, system.SamplerRequest(True, 100), requests, tell, os.getppid()
        )
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert [(order.ms, order.number) for order in told] == [
        (100, 0.0),
        (200, 0.0),
        (100, 5.0),
        (200, 5.0),
    ]
    assert capsys.readouterr().err.count("a sample every 200 ms") == 1
    (size,) = {len(list(track.times)) for track in read_profile(tmp_path).values()}
    assert size >= 4  # 4 kB are two moments or three, twice


def test_a_run_that_goes_on_goes_on_as_far_apart(tmp_path):
    folder = tmp_path / "profile/system/incremental/2020061000"
    folder.mkdir(parents=True)
    for name, size in (
        (f"{MINUTE}.algo-1.json", 2 * system.WIDEN_BYTES),
        (f"{MINUTE}.algo-2.json", 10**9),
    ):
        with (folder / name).open("wb") as file:
            file.truncate(size)
    with sampling(tmp_path, 500, Cluster()):
        wait_until(lambda: list(tmp_path.glob("profile/*.state.json")), "the sampler speaks")
        assert [host.ms for host in hosts(tmp_path)] == [2000]


def test_other_ranks_of_a_host_start_none_and_survive_its_signal(tmp_path):
    before = signal.getsignal(signal.SIGUSR2)
    with sampling(tmp_path, 100, Cluster(rank=1, world_size=2, local_rank=1, local_world_size=2)):
        os.kill(os.getpid(), signal.SIGUSR2)
    assert signal.getsignal(signal.SIGUSR2) == before
    assert not (tmp_path / "profile").exists()


def test_a_profile_that_cannot_be_written_stops_nothing(tmp_path, capfd):
    (tmp_path / "profile").write_text("in the way")
    said = ""
    with sampling(tmp_path, 100, Cluster()):
        for _ in range(1200):
            said += capfd.readouterr().err
            if said.endswith("\n"):
                break
            time.sleep(0.1)
    assert "no system profile" in said
    assert "training continues" in said


@needs_linux
def test_a_run_writes_its_profile_and_obeys(tmp_path, zygote):
    tiny = "data.scenes=9 data.scene_size=[48,64] data.crop=[32,48] train.batch_size=4 parallel.procs=1 parallel.threads=1"
    run = tmp_path / "run"

    def profile(*words: str) -> str:
        patient = "from segtrain.cli import main\nfrom segtrain.observe import profile\nprofile.ANSWER_S = 300.0\n"
        process = zygote.start(
            code=f"{patient}raise SystemExit(main({['profile', *words, str(run)]!r}))"
        )
        assert process.wait() == 0, process.output
        return str(process.output)

    training = zygote.start(
        "train",
        *tiny.split(),
        f"out={run}",
        "train.duration=100000st",
        "eval.every=100000st",
        "log.profile_ms=100",
    )
    wait_until(lambda: profile_bytes(run) > 10_000, "the run has a profile")
    assert "on, every 100 ms" in profile("status")
    assert "off" in profile("off")
    size = profile_bytes(run)
    time.sleep(0.5)
    assert profile_bytes(run) == size
    assert "on, every 200 ms" in profile("on", "--ms", "200")
    wait_until(lambda: profile_bytes(run) > size, "it goes on")
    training.signal(signal.SIGUSR2)
    wait_until(lambda: not hosts(run)[0].on, "the signal reached it through the rank")
    training.signal(signal.SIGTERM)
    assert training.wait() == 75, training.output
    assert "ended" in profile("status")
    assert zygote.start("profile", "on", run).wait() == 2

    cores = [
        track
        for series, track in read_profile(run, say=pytest.fail).items()
        if series.dimension == "CPUUtilization"
    ]
    assert (
        len(cores)
        == len([name for name in Path("/proc/stat").read_text().split() if name.startswith("cpu")])
        - 1
    )
    assert max(max(track.values) for track in cores) > 20  # one core at least was at work
