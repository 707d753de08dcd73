"""Where the store of compiled things lies: what is made, what is refused, what takes its place."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from disks import entries, obtain, own_store  # noqa: F401
from tcgemm.cuda_ref.build import store
from tcgemm.cuda_ref.simulator import build as simulator
from tcgemm.triton_kernels.host import warm_up as starting

from tcgemm.tools import doctor

CXX = shutil.which("g++")


@pytest.fixture
def small_disk(cache):
    cache.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=4m,mode=0700", "tcgemm-test", str(cache)]
    if subprocess.run(command, capture_output=True).returncode:
        pytest.skip("a small disk cannot be mounted here")
    yield cache
    subprocess.run(["umount", str(cache)], check=True)


def test_promise_21_a_full_disk_is_named_and_nothing_is_left_on_it(small_disk):
    with pytest.raises(RuntimeError, match=r"has no room for answer\.so .*TCGEMM_CACHE_DIR"):
        obtain(text="x" * (5 << 20))
    assert entries(small_disk) == []
    assert obtain().read_text() == "made"


@pytest.mark.skipif(CXX is None, reason="needs g++")
def test_promise_21_a_compiler_that_fills_the_disk_is_told_in_the_same_sentence(small_disk):
    def make(scratch):
        (scratch / "a.c").write_text("char a[5 << 20] = {1}; int main() { return a[3]; }")
        command = [CXX, "-x", "c", "-c", "-o", str(scratch / "a.o"), str(scratch / "a.c")]
        simulator._run(command, "a.c", scratch)
        return scratch / "a.o"

    with pytest.raises(RuntimeError, match=r"has no room for answer\.o .*TCGEMM_CACHE_DIR"):
        store.obtain(store.SIMULATOR, "answer.o", make, {})
    assert entries(small_disk) == []


@pytest.mark.parametrize("home", ["/proc/nope", "/dev/null"])
def test_promise_21_an_unwritable_home_falls_back_with_one_warning(
    monkeypatch, tmp_path, caplog, home
):
    monkeypatch.delenv(store.VARIABLE)
    monkeypatch.setenv("HOME", home)
    monkeypatch.setattr(store.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(store, "_warned", set())
    expected = tmp_path / f"tcgemm-{os.getuid()}" / store.SIMULATOR
    assert obtain().parent == expected
    assert obtain().parent == expected
    assert expected.parent.stat().st_mode & 0o777 == 0o700
    assert caplog.text.count("cannot write the cache") == 1
    assert store.VARIABLE in caplog.text


def test_a_user_without_a_home_gets_the_temporary_folder(monkeypatch, tmp_path):
    def no_home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv(store.VARIABLE)
    monkeypatch.setattr(store.Path, "home", no_home)
    monkeypatch.setattr(store.tempfile, "gettempdir", lambda: str(tmp_path))
    assert store.folder() == tmp_path / f"tcgemm-{os.getuid()}"


def test_the_cache_is_in_the_home_by_default_and_for_this_user_alone(monkeypatch, tmp_path):
    monkeypatch.delenv(store.VARIABLE)
    monkeypatch.setenv("HOME", str(tmp_path))
    mask = os.umask(0)
    try:
        assert store.folder() == tmp_path / ".cache" / "tcgemm"
    finally:
        os.umask(mask)
    assert store.folder().stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o770, 0o702])
@pytest.mark.parametrize("below", ["", store.SIMULATOR])
def test_promise_21_a_folder_that_others_may_write_is_refused(cache, mode, below):
    path = obtain()
    (cache / below).chmod(mode)
    with pytest.raises(RuntimeError, match=f"others may write.*{mode:04o}.*chmod go-w"):
        obtain()
    assert path.read_text() == "made"
    (cache / below).chmod(mode & ~0o022)
    assert obtain() == path


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")
def test_promise_21_a_folder_of_another_user_is_refused(cache):
    obtain()
    os.chown(cache, 12345, -1)
    with pytest.raises(RuntimeError, match=r"belongs to user 12345.*TCGEMM_CACHE_DIR"):
        obtain()


@pytest.mark.parametrize("kind", ["link", "file", "open"])
def test_promise_21_the_temporary_folder_follows_no_link(monkeypatch, tmp_path, kind):
    instead, elsewhere = tmp_path / f"tcgemm-{os.getuid()}", tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    if kind == "link":
        instead.symlink_to(elsewhere)
    elif kind == "file":
        instead.write_text("")
    else:
        instead.mkdir()
        instead.chmod(0o777)
    monkeypatch.setenv(store.VARIABLE, "/proc/nope")
    monkeypatch.setattr(store.tempfile, "gettempdir", lambda: str(tmp_path))
    words = "others may write" if kind == "open" else "is a link or a file.*TCGEMM_CACHE_DIR"
    with pytest.raises(RuntimeError, match=words):
        obtain()
    assert not list(elsewhere.iterdir())


def test_a_whole_entry_of_a_read_only_folder_is_used(cache, monkeypatch):
    obtain()

    def read_only(path, below):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(store, "_writable", read_only)
    log = []
    assert obtain(log=log).parent == cache / store.SIMULATOR
    assert log == []


def test_doctor_says_why_a_folder_is_refused_and_what_to_set(cache):
    store.folder()
    assert (doctor._cache().state, doctor._cache().found) == ("ok", str(cache))
    cache.chmod(0o777)
    refused = doctor._cache()
    assert refused.state == "missing"
    assert "others may write" in refused.found
    assert store.VARIABLE in refused.cure


def test_triton_gets_a_folder_of_this_process_where_it_cannot_write_its_own(
    monkeypatch, tmp_path, caplog
):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "kept"))
    starting.usable_cache()
    assert os.environ["TRITON_CACHE_DIR"] == str(tmp_path / "kept")
    monkeypatch.delenv("TRITON_CACHE_DIR")
    monkeypatch.setenv("HOME", "/proc/nope")
    monkeypatch.delenv("TRITON_HOME", raising=False)
    starting.usable_cache()
    folder = Path(os.environ["TRITON_CACHE_DIR"])
    assert folder.stat().st_mode & 0o777 == 0o700
    assert "/proc/nope/.triton/cache" in caplog.text
    assert "set TRITON_CACHE_DIR" in caplog.text
    starting._remove(str(folder), os.getpid() + 1)
    assert folder.is_dir(), "a forked child leaves its parent's folder alone"
    starting._remove(str(folder), os.getpid())
    assert not folder.exists()
