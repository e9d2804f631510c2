"""litdata's streaming data set with samples as in naive.py, in a module that its worker processes
can import.
"""

from __future__ import annotations

from typing import Any

import litdata
from litdata.streaming import downloader
from naive import sample

# Without this, it refuses a server that is not https.
downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True


class Chunks(litdata.StreamingDataset):
    """``request``: the one of naive.py."""

    def __init__(self, request: dict[str, Any], **settings: Any) -> None:
        super().__init__(**settings)
        self.request = request

    def __getitem__(self, index: Any) -> Any:
        item = super().__getitem__(index)
        return sample(item["image"], item["mask"], self.request)
