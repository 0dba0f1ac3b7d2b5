"""Results that several tests of the lab compare with."""

from pathlib import Path

import pytest

from tempbalance.runlog import take_lock
from tests.lab.campaign import drive


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sweep of `campaign`, never killed. One process trains it; others that test at the same time wait for it."""
    root = tmp_path_factory.getbasetemp()
    root = root.parent if root.name.startswith("popen-") else root
    lock = take_lock(root / "undisturbed.lock", patience=600)
    assert lock is not None, "another process has been training the undisturbed sweep for ten minutes"
    try:
        assert drive(root / "undisturbed") == 0  # runs that are complete are not trained again
    finally:
        lock.release()
    return root / "undisturbed"
