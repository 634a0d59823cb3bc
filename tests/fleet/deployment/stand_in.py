"""A batching server that does not load the CPU: it sleeps 20 ms plus 5 ms per image.

It reports batch statistics like Triton: ``GET /v2/models/POOL/stats``.

python stand_in.py PORT '{"POOL": [BATCH, WAIT_S]}' [refuse]
"""

import asyncio
import json
import sys
import time
from typing import Any

FIXED_S, EACH_S = 0.020, 0.005


async def work(
    queue: "asyncio.Queue[Any]", batch: int, wait_s: float, durations: dict[int, list[float]]
) -> None:
    """Answer the requests of a queue in batches."""
    while True:
        arrival, first = await queue.get()
        requests, remaining_s = [first], arrival + wait_s - time.monotonic()
        if queue.qsize() + 1 < batch and remaining_s > 0:
            await asyncio.sleep(remaining_s)
        while len(requests) < batch and not queue.empty():
            requests.append(queue.get_nowait()[1])
        start = time.monotonic()
        await asyncio.sleep(FIXED_S + EACH_S * len(requests))
        durations.setdefault(len(requests), []).append(time.monotonic() - start)
        for request in requests:
            request.set_result(None)


def stats(durations: dict[int, list[float]]) -> bytes:
    """Return the statistics of a model in Triton's format."""
    rows = []
    for size, times_s in durations.items():
        computed = {"count": len(times_s), "ns": round(1e9 * sum(times_s))}
        transfers = {f"compute_{part}": {**computed, "ns": 0} for part in ("input", "output")}
        rows.append({"batch_size": size, "compute_infer": computed, **transfers})
    return json.dumps({"model_stats": [{"batch_stats": rows}]}).encode()


async def main() -> None:
    queues: dict[str, asyncio.Queue[Any]] = {}
    durations: dict[str, dict[int, list[float]]] = {}
    status = "500 No" if sys.argv[3:] else "200 OK"

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            if head.startswith("GET"):
                body = stats(durations[head.split("/")[3]])
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
                continue
            _, _, size = head.partition("Content-Length: ")
            await reader.readexactly(int(size.split("\r\n")[0]))
            done = asyncio.get_running_loop().create_future()
            queues[head.split()[1].strip("/")].put_nowait((time.monotonic(), done))
            await done
            writer.write(f"HTTP/1.1 {status}\r\nContent-Length: 2\r\n\r\nok".encode())

    jobs = []
    for name, (batch, wait_s) in json.loads(sys.argv[2]).items():
        queues[name], durations[name] = asyncio.Queue(), {}
        jobs.append(asyncio.create_task(work(queues[name], batch, wait_s, durations[name])))
    async with await asyncio.start_server(serve, "127.0.0.1", int(sys.argv[1])) as server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
