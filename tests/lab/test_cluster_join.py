"""A Ray cluster that cannot be joined is refused soon, and with the reason."""

import socket
import time

import pytest

from tempbalance.lab import cluster_join
from tests.cases import raises

pytest.importorskip("ray")


@pytest.mark.parametrize(
    "address", ["ray://localhost:10001", "localhost", ":6379", "localhost:port", "localhost:99999"]
)
def test_what_is_no_address_is_refused(address):
    with raises(ValueError, "HOST:PORT", address):
        cluster_join.join(address)


def test_a_cluster_that_does_not_answer_is_given_up_soon(monkeypatch):
    monkeypatch.setattr(cluster_join, "_ANSWER", 3.0)
    begun = time.monotonic()
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        address = "127.0.0.1:{1}".format(*silent.getsockname())
        with raises(ConnectionError, address, "refused"):
            cluster_join.join(address)
        silent.close()
    with socket.socket() as silent:
        silent.bind(("", 0))
        silent.listen()
        monkeypatch.setenv("RAY_ADDRESS", address := f"localhost:{silent.getsockname()[1]}")
        with raises(ConnectionError, address, "3 s"):
            cluster_join.join(None)
    assert time.monotonic() - begun < 10
