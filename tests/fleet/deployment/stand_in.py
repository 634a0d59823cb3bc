"""A server of batches that leaves the CPU alone: it sleeps 20 ms and 5 ms for each image.

It counts batches as Triton does: ``GET /v2/models/POOL/stats``.

python stand_in.py PORT '{"POOL": [BATCH, WAIT_S]}' [refuse]
"""

import asyncio
import json
import sys
import time
from typing import Any

FIXED_S, EACH_S = 0.020, 0.005


async def work(
    queue: "asyncio.Queue[Any]", batch: int, wait_s: float, counted: dict[int, list[float]]
) -> None:
    """Answer what is in a queue, as many at once as are there."""
    while True:
        came, first = await queue.get()
        taken, left_s = [first], came + wait_s - time.monotonic()
        if queue.qsize() + 1 < batch and left_s > 0:
            await asyncio.sleep(left_s)
        while len(taken) < batch and not queue.empty():
            taken.append(queue.get_nowait()[1])
        begun = time.monotonic()
        await asyncio.sleep(FIXED_S + EACH_S * len(taken))
        counted.setdefault(len(taken), []).append(time.monotonic() - begun)
        for done in taken:
            done.set_result(None)


def stats(counted: dict[int, list[float]]) -> bytes:
    """Return what Triton says of a model."""
    rows = []
    for size, times_s in counted.items():
        computed = {"count": len(times_s), "ns": round(1e9 * sum(times_s))}
        beside = {f"compute_{part}": {**computed, "ns": 0} for part in ("input", "output")}
        rows.append({"batch_size": size, "compute_infer": computed, **beside})
    return json.dumps({"model_stats": [{"batch_stats": rows}]}).encode()


async def main() -> None:
    queues: dict[str, asyncio.Queue[Any]] = {}
    counted: dict[str, dict[int, list[float]]] = {}
    status = "500 No" if sys.argv[3:] else "200 OK"

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            if head.startswith("GET"):
                said = stats(counted[head.split("/")[3]])
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(said) + said)
                continue
            _, _, size = head.partition("Content-Length: ")
            await reader.readexactly(int(size.split("\r\n")[0]))
            done = asyncio.get_running_loop().create_future()
            queues[head.split()[1].strip("/")].put_nowait((time.monotonic(), done))
            await done
            writer.write(f"HTTP/1.1 {status}\r\nContent-Length: 2\r\n\r\nok".encode())

    jobs = []
    for name, (batch, wait_s) in json.loads(sys.argv[2]).items():
        queues[name], counted[name] = asyncio.Queue(), {}
        jobs.append(asyncio.create_task(work(queues[name], batch, wait_s, counted[name])))
    async with await asyncio.start_server(serve, "127.0.0.1", int(sys.argv[1])) as server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
