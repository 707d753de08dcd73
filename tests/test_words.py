"""The code speaks the field's language: words that stood for its standard terms are gone."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

INSTEAD = {
    r"\bask_ahead\b|\basks ahead\b|\bbring_first\b|\bAHEAD\b": "L2 prefetch",
    r"\bEARLY\b|\bearly start\b": "programmatic dependent launch (PDL)",
    r"\brounds of tiles\b|\bwaves and rounds\b": "waves",
    r"\bsums (a|of a) thread\b|\bregisters of sums\b|\b(lane|thread|warpgroup)'s (\d+ )?sums\b": (
        "accumulators"
    ),
    r"\bPINGPONG.*\bturns?\b|\bconsumers (work|take tiles) in turns\b": "ping-pong",
    r"\bC leaves\b|\bLeaving\b|\bleaving\.": "epilogue store",
    r"\bpieces of C\b": "epilogue subtiles",
    r"\b(c_|is_|_)?turned\b(?! into)": "transposed",
    r"\bsmall_patch\b": "register fragments",
    r"\b(stage_copies|tile_copy)\b": "swizzled loader, predicated loader",
    r"\bSHARERS\b": "multicast peers",
    r"\bPREPARE\b|\bprepared operands?\b": "repack",
    r"\bthe thread that leads\b|\bleads = thread\b": "elected thread",
    r"\bsettles at\b": "sustained clock",
}
"""What a reader of the field had to decode -> the term."""

FORMER = re.compile(r'"(EARLY|AHEAD|PREPARE)": "\w+"')
"""Where tables of users may still have the former name of a setting."""

SPOKEN = {"tcgemm/verify/calls.py": r"\"turned\"", "tcgemm/verify/judge.py": r"\"turned\""}
"""A value that the files of drawn calls hold."""

FILES = sorted(
    path
    for folder in ("cuda_ref", "triton_kernels", "tcgemm")
    for path in (ROOT / folder).rglob("*")
    if path.suffix in (".py", ".cu", ".cuh", ".cpp", ".hpp", ".j2")
)


@pytest.mark.parametrize("former", INSTEAD)
def test_no_word_stands_for_a_term_of_the_field(former):
    found = []
    for path in FILES:
        name = str(path.relative_to(ROOT))
        for number, line in enumerate(path.read_text().splitlines(), start=1):
            kept = FORMER.sub("", line)
            kept = re.sub(SPOKEN[name], "", kept) if name in SPOKEN else kept
            if re.search(former, kept):
                found.append(f"{name}:{number}: {line.strip()}")
    assert not found, f"say {INSTEAD[former]}: {found}"


def test_the_files_are_there():
    assert len(FILES) > 200
