"""The clusters that a kernel declares by ``__cluster_dims__``, for a launch that names none."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from ..build.toolchain import text_of

_EXTENTS = re.compile(r"__cluster_dims__\(([^()]*)\)")


def in_clusters(source: Path, headers: Sequence[Path], scratch: Path) -> Path:
    """What is to be compiled of a .cu file: itself, or where it or one of its headers declares
    clusters, a file in ``scratch`` that is the source and tells the runtime of their extents.

    Raises RuntimeError where it declares several: a launch does not say whose it is.
    """
    found = {extents for file in (source, *headers) for extents in _EXTENTS.findall(text_of(file))}
    if len(found) > 1:
        raise RuntimeError(
            f"{source.name} declares clusters of {' and of '.join(sorted(found))} blocks, and the "
            "simulator takes one kind to a file: start the others by launch_clusters"
        )
    if not found:
        return source
    told = scratch / "in_clusters.cu"
    told.write_text(
        f'#include "{source}"\n'
        'extern "C" __attribute__((visibility("hidden"))) const unsigned\n'
        f"    tcgemm_declared_cluster = tcgemm::simulator::cluster_of({found.pop()});\n"
    )
    return told
