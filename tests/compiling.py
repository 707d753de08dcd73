"""Programs for which Triton compiles, since it interprets its kernels where tests run.

``run`` is ``subprocess.run`` of a Python program with TRITON_INTERPRET=0. One process of each that
runs tests has imported torch and Triton, and forks the programs from itself: that import is most of
what a short one costs.
"""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
import tempfile
import traceback
from functools import cache
from pathlib import Path
from typing import Any, NoReturn


def run(*command: str, given: str = "") -> subprocess.CompletedProcess[str]:
    """Runs ``-c PROGRAM`` or a file, with its arguments; ``given`` is what it reads."""
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder, name) for name in ("in", "out", "err")]
        for file, text in zip(files, (given, "", ""), strict=True):
            file.write_text(text)
        asked = {
            "command": command,
            "files": list(map(str, files)),
            "folder": os.getcwd(),
            "environment": {**os.environ, "TRITON_INTERPRET": "0"},
        }
        server = _server()
        assert server.stdin is not None
        assert server.stdout is not None
        print(json.dumps(asked), file=server.stdin, flush=True)
        answer = server.stdout.readline()
        if not answer:
            raise RuntimeError("the process that starts programs for Triton's compiler has ended")
        _, out, err = (file.read_text() for file in files)
        return subprocess.CompletedProcess(command, int(answer), out, err)


@cache
def _server() -> subprocess.Popen[str]:
    """It ends with its standard input, which is this process's end."""
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    return subprocess.Popen(
        [sys.executable, __file__],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
    )  # fmt: skip


def serve() -> None:
    import torch  # noqa: F401
    import triton  # noqa: F401

    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            become(json.loads(line))
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def become(asked: dict[str, Any]) -> NoReturn:
    """The program, until its end."""
    code: Any = 1
    try:
        for number, name in enumerate(asked["files"]):
            os.dup2(os.open(name, os.O_RDWR), number)
        sys.stdin = os.fdopen(0, closefd=False)
        os.environ.clear()
        os.environ.update(asked["environment"])
        os.chdir(asked["folder"])
        first, *sys.argv = asked["command"]
        if first == "-c":
            program, sys.argv[0], sys.path[0] = sys.argv[0], first, ""
            exec(compile(program, "<string>", "exec"), {"__name__": "__main__"})
        else:
            sys.argv, sys.path[0] = [first, *sys.argv], str(Path(first).parent)
            runpy.run_path(first, run_name="__main__")
        code = 0
    except SystemExit as end:
        code = end.code or 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 1)


if __name__ == "__main__":
    serve()
