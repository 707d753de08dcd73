"""What g++ says of a kernel that it cannot compile, in words that name the cure where one is known.

A user's own file is CUDA C++, and the simulator compiles it as plain C++ with headers of its own.
"""

from __future__ import annotations

import re
from pathlib import Path

from ..build.toolchain import text_of
from .build import INCLUDE

LAUNCHER = """\
int tcgemm_launch(const tcgemm::Gemm& gemm, cudaStream_t stream) {
  return tcgemm::launch(kernel, grid, block, shared_bytes, stream, arguments...);
}"""

_OF_CUDA = re.compile(
    r"cuda|cublas|cooperative_groups|cub/|thrust/|cutlass/|cute/|curand|cufft|nvtx|nvrtc|nv/"
    r"|device_|vector_|sm_\d|mma|helper_|crt/"
)
_NAME_OF_CUDA = re.compile(
    r"error: .((?:__|cuda|atomic|clock)\w+|cooperative_groups|cg|nvcuda|cuda). "
    r"(?:was not declared|has not been declared|is not a)"
)
_SEE = "docs/simulator.md shows a whole kernel of one's own"


def explained(source: Path, failure: str) -> str:
    """The sentence that names the mistake in ``source`` and its cure, then what the compiler said.

    Where no known mistake is found, ``failure`` as it is.
    """
    sentence = _sentence(source, failure)
    return f"{sentence}; {_SEE}\n{failure}" if sentence else failure


def _sentence(source: Path, failure: str) -> str:
    missing = re.search(r"fatal error: (\S+): No such file", failure)
    if missing and _OF_CUDA.match(missing[1]):
        ours = ", ".join(sorted(path.name for path in INCLUDE.glob("*.h")))
        return (
            f"{source.name} includes CUDA's {missing[1]}, which the simulator does not have: leave "
            f"the include out, or put it and what needs it under #ifndef TCGEMM_SIMULATOR. It has "
            f"host/gemm.cuh and, of CUDA's own, {ours}"
        )
    text = text_of(source)
    code = _without_comments(text)
    launch = re.search(r"<<<", code)
    if launch:
        return (
            f"{source.name}:{_line(code, launch.start())} launches with <<<...>>>, which only nvcc "
            "reads: write tcgemm::launch(kernel, grid, block, shared_bytes, stream, arguments...)"
        )
    assembly = re.search(r"\basm\b|\b__asm__\b", code)
    if assembly and re.search(r"\basm\b|[Ee]rror: .*(instruction|operand|mnemonic)", failure):
        return (
            f"{source.name}:{_line(code, assembly.start())} has inline PTX, which only nvcc reads: "
            "put it in a wrapper that is named after its instruction, under "
            "#ifndef TCGEMM_SIMULATOR"
        )
    if "undefined reference" in failure and "tcgemm_launch" in failure:
        what = (
            "defines a tcgemm_launch of other parameters than the simulator calls"
            if re.search(r"\btcgemm_launch\s*\(", code)
            else "has no launcher, the function that starts its kernel"
        )
        return f"{source.name} {what}: it must end in\n{LAUNCHER}\n"
    if "exception handling disabled" in failure:
        return f"{source.name} throws or catches: there are no exceptions on a GPU, and none here"
    if '#include "host/' not in text and re.search(r"error: .*\btcgemm\b", failure):
        return f'{source.name} uses tcgemm:: and lacks the line #include "host/gemm.cuh"'
    if name := _NAME_OF_CUDA.search(failure):
        return (
            f"{source.name} uses CUDA's {name[1]}, which the simulator does not have: write it in "
            "C++, or put it under #ifndef TCGEMM_SIMULATOR"
        )
    return ""


def _without_comments(code: str) -> str:
    """The code with comments and strings blanked, every line break kept."""
    pattern = r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"'
    return re.sub(pattern, lambda m: re.sub(r"[^\n]", " ", m[0]), code, flags=re.DOTALL)


def _line(code: str, at: int) -> int:
    return code.count("\n", 0, at) + 1
