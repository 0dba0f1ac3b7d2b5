"""A Ray cluster that cannot be joined is refused soon, and with the reason."""

import logging
import signal
import socket
import time
from types import SimpleNamespace

import pytest

from tempbalance.lab.executors import ray as cluster_join
from tests.cases import raises

ray = pytest.importorskip("ray")


@pytest.mark.parametrize(
    "address", ["ray://localhost:10001", "localhost", ":6379", "localhost:port", "localhost:99999"]
)
def test_what_is_no_address_is_refused(address):
    with raises(ValueError, "HOST:PORT", address):
        cluster_join.join(address)


def test_a_cluster_that_does_not_answer_is_given_up_soon(monkeypatch):
    monkeypatch.setattr(cluster_join, "_ANSWER", 0.3)
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
        with raises(ConnectionError, address, "0.3 s"):
            cluster_join.join(None)
    assert time.monotonic() - begun < 10


@pytest.fixture
def joined(monkeypatch) -> list[str]:
    """Addresses that Ray is asked to join; nothing is started."""
    asked: list[str] = []
    context = SimpleNamespace(address_info={"session_dir": "/nowhere/session"})
    monkeypatch.setattr(ray, "init", lambda address, **_: asked.append(address) or context)
    monkeypatch.setattr(cluster_join, "_end_with_driver", lambda _: None)
    monkeypatch.setattr(logging.getLogger("ray"), "level", logging.NOTSET)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    return asked


@pytest.mark.parametrize(
    ("problem", "address"),
    [
        ("ConnectionError: no running Ray instance", "local"),
        ("refused", "local"),  # left from a cluster that was killed
        ("AuthenticationError", "auto"),
        ("", "auto"),
    ],
)
def test_the_cluster_of_this_machine_is_joined_or_a_new_one_started(joined, monkeypatch, problem, address):
    monkeypatch.setattr(cluster_join, "_problem", lambda _: problem)
    assert cluster_join.join(None) is (address == "local")
    assert joined == [address]


def test_a_cluster_at_an_address_is_joined_and_a_failure_of_ray_is_told(joined, monkeypatch):
    monkeypatch.setattr(cluster_join, "_problem", lambda _: "")
    assert not cluster_join.join("127.0.0.1:6379")
    assert joined == ["127.0.0.1:6379"]

    def fail(address, **_):
        raise RuntimeError("versions differ")

    monkeypatch.setattr(ray, "init", fail)
    with raises(ConnectionError, "127.0.0.1:6379", "versions differ"):
        cluster_join.join("127.0.0.1:6379")


def test_rays_handler_of_sigterm_is_replaced_by_the_one_before(joined, monkeypatch):
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(cluster_join, "_find", lambda _: "local")
    context = SimpleNamespace(address_info={"session_dir": "/nowhere/session"})
    monkeypatch.setattr(ray, "init", lambda *_, **__: [signal.signal(signal.SIGTERM, lambda *_: None), context][1])
    try:
        cluster_join.join(None)
        assert signal.getsignal(signal.SIGTERM) is before
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize(
    ("code", "said", "problem"), [(0, "", ""), (1, "a\nlast line", "last line"), (1, "", "failed")]
)
def test_the_last_line_of_rays_answer_is_the_problem(monkeypatch, code, said, problem):
    answer = SimpleNamespace(returncode=code, stderr=said)
    monkeypatch.setattr(cluster_join.subprocess, "run", lambda *_, **__: answer)
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        found = cluster_join._problem(f"127.0.0.1:{listening.getsockname()[1]}")
    assert (problem in found, bool(found)) == (True, bool(code))


def test_a_cluster_of_this_machine_that_was_killed_is_given_up_without_asking_ray(monkeypatch, tmp_path):
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "ray_current_cluster").write_text("127.0.0.1:1")
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.setattr(cluster_join.subprocess, "run", None)
    assert "refused" in cluster_join._problem(None)
    assert cluster_join._find("auto") == "local"
