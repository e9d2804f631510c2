"""Fault of a rank on purpose. Python imports this file at its start; SEGTRAIN_PLANT="RANK PROGRAM FLAG" says which."""

import os
import sys


class PlantedFailure(RuntimeError):
    """Raised in the main thread, wherever that is: as an error of the training would be."""

    def __init__(self) -> None:
        super().__init__("planted by the rehearsal (--plant fail)")


def _watch(flag: str) -> None:
    import ctypes
    import threading
    import time

    main = threading.main_thread().ident

    def wait() -> None:
        while not os.path.exists(flag):
            time.sleep(0.05)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(main or 0), ctypes.py_object(PlantedFailure))

    threading.Thread(target=wait, daemon=True).start()


if os.environ.get("SEGTRAIN_PLANT"):
    _rank, _program, _flag = os.environ["SEGTRAIN_PLANT"].split(" ", 2)
    # Not torchrun, which names the program further behind, nor AWS's toolkit, nor a helper process of a rank.
    if _program in sys.orig_argv[1:3] and os.environ.get("RANK", "0") == _rank:
        _watch(_flag)
