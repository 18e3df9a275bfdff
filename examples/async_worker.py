"""An asynchronous handler: 100 requests to a slow service at once, in one thread, and a clean end on SIGTERM.

A request that fails is retried after a second; a message that failed does not block the others.

    python examples/async_worker.py localhost:9092 orders localhost 8080
"""

import asyncio
import signal
import sys

from confluent_kafka import Message

from wakeroll import Consumer, Retry, origin_of

TIMEOUT_S = 10


async def post(host: str, port: int, body: bytes) -> None:
    """Send a line to a service, and wait for its answer.

    Raises:
        OSError: the service is not reachable, or refuses the line.
    """
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(body + b"\n")
        answer = await reader.readline()
    finally:
        writer.close()
    if answer != b"ok\n":
        raise OSError(f"the service answers {answer!r}")


async def handle(host: str, port: int, messages: list[Message]) -> Retry | None:
    """Send one message."""
    [message] = messages
    try:
        async with asyncio.timeout(TIMEOUT_S):
            await post(host, port, message.value() or b"")
    except (OSError, TimeoutError) as problem:
        print(f"attempt {origin_of(message).attempt} failed: {problem}", flush=True)
        return Retry(level=1, reason=str(problem))
    return None


def main(bootstrap: str, topic: str, host: str, port: str) -> None:
    """Run until SIGTERM."""

    async def send(messages: list[Message]) -> Retry | None:
        return await handle(host, int(port), messages)

    with Consumer("mail", [topic], bootstrap, consume_from="first") as consumer:
        signal.signal(signal.SIGTERM, lambda *_: consumer.stop())
        consumer.run(send, workers=100, batch_size=1)
    print("left the group", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
