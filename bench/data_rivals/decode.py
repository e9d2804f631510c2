"""The reference: decoding image and mask, and nothing else.

Threads; simplejpeg for JPEG, the faster of OpenCV and Pillow for PNG.
"""

from __future__ import annotations

import io
import itertools
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import cv2
import numpy as np
import simplejpeg
from common import arguments, many_pairs
from measure import measure
from PIL import Image

Decoder = Callable[[bytes], np.ndarray]


def with_cv2(content: bytes) -> np.ndarray:
    # BGR: its quickest form
    return cv2.imdecode(np.frombuffer(content, np.uint8), cv2.IMREAD_UNCHANGED)


def with_pillow(content: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(content)))


def fastest(path: str) -> Decoder:
    """The kept decoder that takes the least CPU time for this file, best of five."""
    content = Path(path).read_bytes()

    def cost(decoder: Decoder) -> float:
        times = []
        for _ in range(5):
            start = time.process_time()
            decoder(content)
            times.append(time.process_time() - start)
        return min(times)

    choices: list[Decoder] = [with_cv2, with_pillow]
    if path.endswith(".jpg"):
        choices.append(simplejpeg.decode_jpeg)
    return min(choices, key=cost)


def batches(
    pairs: list[tuple[str, str]], workers: int, batch: int, decoders: tuple[Decoder, Decoder]
) -> Iterator[list]:
    def both(pair: tuple[str, str]) -> tuple[np.ndarray, np.ndarray]:
        image, mask = (decoder(Path(path).read_bytes()) for decoder, path in zip(decoders, pair))
        return image, mask

    source = iter(pairs)
    with ThreadPoolExecutor(workers) as pool:
        waiting = deque(pool.submit(both, pair) for pair in itertools.islice(source, 2 * batch))
        while waiting:
            done = []
            for _ in range(batch):
                done.append(waiting.popleft().result())
                waiting.extend(pool.submit(both, pair) for pair in itertools.islice(source, 1))
            yield done


def main() -> None:
    args = arguments()
    cv2.setNumThreads(1)
    pairs = many_pairs(args)
    decoders = fastest(pairs[0][0]), fastest(pairs[0][1])

    def look(batch: list) -> tuple[np.ndarray, np.ndarray]:
        return np.stack([image[..., :3] for image, _ in batch]), np.stack(
            [mask for _, mask in batch]
        )

    names = ", ".join(
        f"{what} by {d.__name__.removeprefix('with_')}"
        for what, d in zip(("image", "mask"), decoders)
    )
    measure(args, batches(pairs, args.workers, args.batch, decoders), look, decoders=names)


if __name__ == "__main__":
    main()
