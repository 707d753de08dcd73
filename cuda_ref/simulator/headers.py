"""The headers of ours that a .cu file or a file of the runtime is compiled with."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ..build.store import Status, key_of, status_of
from ..build.toolchain import CSRC, source_folders, text_of

INCLUDE = Path(__file__).parent / "include"
RUNTIME = Path(__file__).parent / "src"


def _bytes_of(files: Iterable[Path]) -> bytes:
    return b"\0".join(f.name.encode() + b"\0" + f.read_bytes() for f in files)


def _headers_beside(*folders: Path) -> list[Path]:
    return sorted(f for folder in folders for f in folder.iterdir() if f.suffix in _TEXT)


_INCLUDE = re.compile(r"^[ \t]*#[ \t]*include[ \t]*(\S+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class _Headers:
    """What a file includes of ours, and what that was found from."""

    files: list[Path] | None
    digest: str
    seen: Mapping[str, Status | None]
    """Of each file that was read and each folder that was looked into: it has not changed since."""


_headers: dict[Path, _Headers] = {}
_SETTLED_NS = 10**9
"""What has changed so lately may change again and have the same times: it is looked at again."""


def _headers_in(source: Path) -> _Headers:
    """Of the file as it is now. To ask for a hundred files' times takes a twentieth of looking
    through the headers again, which was most of what a call of a built kernel cost."""
    known = _headers.get(source)
    if known is None or any(status_of(path) != status for path, status in known.seen.items()):
        now, seen = time.time_ns(), dict[str, Status | None]()
        files = _find(source, seen)
        known = _Headers(files, key_of(_bytes_of(files or ())), seen)
        if all(status is None or max(status[2:]) < now - _SETTLED_NS for status in seen.values()):
            _headers[source] = known
    return known


def _find(source: Path, seen: dict[str, Status | None]) -> list[Path] | None:
    def note(path: Path) -> None:
        # Before it is looked at: what changes in between is another status the next time.
        if (name := str(path)) not in seen:
            seen[name] = status_of(name)

    found = [source]
    for file in found:
        note(file)
        for written in _INCLUDE.findall(text_of(file)):
            if written[0] not in '<"':
                return None
            name = written.strip('<">')
            header = None
            for folder in (file.parent, INCLUDE, RUNTIME, *source_folders()):
                note((folder / name).parent)
                if (folder / name).is_file():
                    header = folder / name
                    break
            if header is None and written[0] == '"':
                return None
            if header is not None and header not in found:
                found.append(header)
    return found[1:]


def included(source: Path) -> list[Path] | None:
    """The headers of ours that a file includes, directly or not, by whatever condition.

    None where the text does not say: an include by a macro, or of a file that lies elsewhere.
    """
    return _headers_in(source).files


def digest_of(source: Path) -> str:
    """A digest of the headers that a file is compiled with; of all of ours where it is not said."""
    found = _headers_in(source)
    if found.files is not None:
        return found.digest
    beside = _headers_beside(INCLUDE, RUNTIME, *_header_folders(), source.parent)
    return key_of(_bytes_of(beside))


def _header_folders() -> list[Path]:
    """The folders of all headers that a rung may include."""
    return [*source_folders(), *(f for f in sorted(CSRC.iterdir()) if f.is_dir())]


_TEXT = {".hpp", ".h", ".cpp", ".cuh"}
