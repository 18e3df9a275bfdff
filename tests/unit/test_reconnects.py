"""A broker that comes back is not held up by those who wait for it."""

import contextlib
import socket
import threading
import time

from wakeroll.connection import Connection


def test_a_consumer_gives_a_dead_broker_time_to_start():
    """With Kafka's defaults, a hundred consumers connected 1,800 times per second, and the broker did not come up."""
    came: list[float] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def refuse() -> None:
            with contextlib.suppress(OSError):  # the server was closed
                while len(came) < 6:
                    server.accept()[0].close()
                    came.append(time.monotonic())

        thread = threading.Thread(target=refuse)
        thread.start()
        consumer = Connection(f"127.0.0.1:{server.getsockname()[1]}").consumer(log_level=0, error_cb=lambda _: None)
        while thread.is_alive():
            consumer.poll(0.05)
        consumer.close()

    # The first two attempts follow each other at once. Each later one waits for at least half a second.
    assert came[-1] - came[1] > 1.0
