"""Makes a rank fail on purpose. Python imports this file at startup. SEGTRAIN_PLANT="RANK PROGRAM
FLAG" names the rank and its program, which fails when the file FLAG appears.
"""

import os
import sys


class PlantedFailure(RuntimeError):
    """Raised in the main thread, at whatever it is running, as an error of the training would
    be.
    """

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
        ctypes.pythonapi.PyThreadState_SetAsyncExc(
            ctypes.c_ulong(main or 0), ctypes.py_object(PlantedFailure)
        )

    threading.Thread(target=wait, daemon=True).start()


if os.environ.get("SEGTRAIN_PLANT"):
    _rank, _program, _flag = os.environ["SEGTRAIN_PLANT"].split(" ", 2)
    # Only the rank itself, not torchrun (which has the program later in its arguments), AWS's
    # toolkit, or a helper process of a rank.
    _own = os.environ.get("RANK", os.environ.get("OMPI_COMM_WORLD_RANK", "0"))
    if _program in sys.orig_argv[1:4] and _own == _rank:
        _watch(_flag)
