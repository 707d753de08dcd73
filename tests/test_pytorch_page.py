"""What docs/pytorch.md shows runs, block after block, as a reader would."""

from __future__ import annotations

import re
from pathlib import Path

import tcgemm

PAGE = Path(__file__).parent.parent / "docs/pytorch.md"


def test_its_blocks_run(capsys):
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.M | re.S)
    assert len(blocks) >= 6
    names = {}
    tcgemm.stats(reset=True)  # what other tests counted
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)
    assert capsys.readouterr().out.startswith("mm cublas/")
    assert names["x"].grad is not None
    assert names["low"].dtype == names["torch"].bfloat16
    assert type(names["c"]).__module__ == "numpy"
