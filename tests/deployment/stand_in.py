"""A server of batches that leaves the CPU alone: it sleeps 20 ms and 5 ms for each image.

python stand_in.py PORT '{"POOL": [BATCH, WAIT_S]}' [refuse]
"""

import asyncio
import json
import sys
import time
from typing import Any

FIXED_S, EACH_S = 0.020, 0.005


async def work(queue: "asyncio.Queue[Any]", batch: int, wait_s: float) -> None:
    """Answer what is in a queue, as many at once as are there."""
    while True:
        came, first = await queue.get()
        taken, left_s = [first], came + wait_s - time.monotonic()
        if queue.qsize() + 1 < batch and left_s > 0:
            await asyncio.sleep(left_s)
        while len(taken) < batch and not queue.empty():
            taken.append(queue.get_nowait()[1])
        await asyncio.sleep(FIXED_S + EACH_S * len(taken))
        for done in taken:
            done.set_result(None)


async def main() -> None:
    queues: dict[str, asyncio.Queue[Any]] = {}
    status = "500 No" if sys.argv[3:] else "200 OK"

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            _, _, size = head.partition("Content-Length: ")
            await reader.readexactly(int(size.split("\r\n")[0]))
            done = asyncio.get_running_loop().create_future()
            queues[head.split()[1].strip("/")].put_nowait((time.monotonic(), done))
            await done
            writer.write(f"HTTP/1.1 {status}\r\nContent-Length: 2\r\n\r\nok".encode())

    jobs = []
    for name, (batch, wait_s) in json.loads(sys.argv[2]).items():
        queues[name] = asyncio.Queue()
        jobs.append(asyncio.create_task(work(queues[name], batch, wait_s)))
    async with await asyncio.start_server(serve, "127.0.0.1", int(sys.argv[1])) as server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
