"""A store of compiled things of a test's own, and a disk that is full."""

import contextlib
import resource

import pytest
from tcgemm.cuda_ref.build import store


@pytest.fixture(autouse=True, name="cache")
def own_store(monkeypatch, tmp_path):
    """An empty store of this test's own."""
    folder = tmp_path / "cache"
    monkeypatch.setenv(store.VARIABLE, str(folder))
    return folder


def obtain(name="answer.so", text="made", log=None):
    def make(scratch):
        if log is not None:
            log.append(name)
        (scratch / "made").write_text(text)
        return scratch / "made"

    return store.obtain(store.SIMULATOR, name, make, {})


def entries(cache):
    return sorted(path.name for path in (cache / store.SIMULATOR).iterdir())


@contextlib.contextmanager
def no_file_may_pass(size):
    """As on a full disk: a write past ``size`` bytes of a file fails."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
