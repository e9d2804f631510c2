"""Which network NCCL will use between hosts: EFA, InfiniBand, RoCE, or TCP, and the variables that
decide it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from segtrain.base.terminal import counted

# Variables whose values are shown. NCCL and libfabric read many more.
_SHOWN = (
    "NCCL_SOCKET_IFNAME",
    "NCCL_IB_DISABLE",
    "NCCL_IB_HCA",
    "NCCL_IB_GID_INDEX",
    "NCCL_NET",
    "NCCL_NET_PLUGIN",
    "NCCL_P2P_DISABLE",
    "NCCL_NVLS_ENABLE",
    "FI_PROVIDER",
    "FI_EFA_USE_DEVICE_RDMA",
)
# Folders, besides those in LD_LIBRARY_PATH, in which AWS's images and its installer put NCCL's
# plugin for EFA.
_PLUGIN_FOLDERS = (
    "opt/amazon/ofi-nccl/lib",
    "opt/aws-ofi-nccl/lib",
    "opt/amazon/ofi-nccl/lib/x86_64-linux-gnu",
)
_PLUGINS = "libnccl-net*.so*"


def describe_network(environ: Mapping[str, str] = os.environ, root: Path = Path("/")) -> str:
    """``4 EFA devices; FI_PROVIDER=efa``: the devices of this host, what is wrong with them, and
    the variables set.
    """
    devices = sorted((root / "sys/class/infiniband").glob("*"))
    efa = [device for device in devices if _is_efa(device)]
    words = []
    if efa:
        words.append(counted(len(efa), "EFA device"))
        if not _has_plugin(environ, root):
            words.append(
                "NCCL's plugin for EFA (aws-ofi-nccl) was not found, and without it NCCL uses TCP: "
                "install it, or add its folder to LD_LIBRARY_PATH"
            )
    elif devices and environ.get("NCCL_IB_DISABLE") == "1":
        words.append(
            f"{counted(len(devices), 'RDMA device')}, which NCCL_IB_DISABLE=1 turns off: TCP"
        )
    elif devices:
        words.append(counted(len(devices), "InfiniBand or RoCE device"))
    else:
        words.append("TCP: no EFA, InfiniBand, or RoCE device is visible")
    return "; ".join([*words, *(f"{name}={environ[name]}" for name in _SHOWN if name in environ)])


def _is_efa(device: Path) -> bool:
    driver = device / "device/driver"
    return device.name.startswith("efa") or (driver.exists() and driver.resolve().name == "efa")


def _has_plugin(environ: Mapping[str, str], root: Path) -> bool:
    listed = [Path(part) for part in environ.get("LD_LIBRARY_PATH", "").split(":") if part]
    return any(
        any(folder.glob(_PLUGINS))
        for folder in [*listed, *(root / part for part in _PLUGIN_FOLDERS)]
    )
