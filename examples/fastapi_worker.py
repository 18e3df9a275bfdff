"""A web service that consumes while it serves: it adds up orders, and answers requests with the sums.

The consumer runs in the event loop of the service, so both can use the same objects without a lock. It joins when the
service starts, and leaves when it stops. Needs the packages fastapi and uvicorn.

    python examples/fastapi_worker.py localhost:9092 orders 8000
"""

import asyncio
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn
from confluent_kafka import Message
from fastapi import FastAPI, HTTPException

from wakeroll import AsyncConsumer


class Sums:
    """The sum of the orders of each customer."""

    def __init__(self) -> None:
        """Begin without orders."""
        self.by_customer: Counter[str] = Counter()

    async def handle(self, messages: list[Message]) -> None:
        """Add a batch of orders. An error lets the messages be delivered again."""
        amounts = [((message.key() or b"").decode(), int(message.value() or 0)) for message in messages]
        for customer, amount in amounts:
            self.by_customer[customer] += amount


def service(bootstrap: str, topic: str) -> FastAPI:
    """Return the service."""
    sums = Sums()
    running: list[asyncio.Task[None]] = []

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with AsyncConsumer("sums-service", [topic], bootstrap, consume_from="first") as consumer:
            running.append(asyncio.create_task(consumer.run(sums.handle)))
            yield
            consumer.stop()
            await running[0]

    app = FastAPI(lifespan=lifespan)

    @app.get("/sums/{customer}")
    async def sum_of(customer: str) -> int:
        return sums.by_customer[customer]

    @app.get("/health")
    async def health() -> str:
        if running[0].done():
            raise HTTPException(503, f"the consumer has ended: {running[0].exception()}")
        return "consuming"

    return app


def main(bootstrap: str, topic: str, port: str) -> None:
    """Serve until SIGTERM."""
    uvicorn.run(service(bootstrap, topic), host="127.0.0.1", port=int(port), log_level="warning")


if __name__ == "__main__":
    main(*sys.argv[1:])
