"""A rung's source for one case of types and one tile, which the simulator then compiles alone."""

from __future__ import annotations

from pathlib import Path


def source_of(folder: Path, name: str, **values: int) -> Path:
    """A file of these macros and the rung ``name``.

    The macros that are named in it are those by which it is built: a case is a build of its own.
    """
    lines = [f"#define TCGEMM_{key} {value}" for key, value in values.items()]
    lines += ["// for one case: TCGEMM_IN, TCGEMM_OUT, TCGEMM_PLAIN, TCGEMM_FUSES"]
    source = folder / f"{name}_built.cu"
    source.write_text("\n".join([*lines, f'#include "{name}.cu"']) + "\n")
    return source
