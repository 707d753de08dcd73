"""What all tests share: the device they run on, every kernel as a parameter, the GPU mark."""

from __future__ import annotations

import os
from collections import Counter

import pytest
import torch

if not torch.cuda.is_available():
    # torch's compiler imports triton, which reads this only then.
    os.environ.setdefault("TRITON_INTERPRET", "1")

from tcgemm import dispatch
from tcgemm.verify.calls import pairs_of

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
PAIRS_ON_A_CPU = 2


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="needs an NVIDIA GPU, and there is none here")
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(skip)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """``row``: every kernel that runs on this machine's device, the others skipped with reason.

    ``pair``, beside it: each of the row's type pairs, (dtype of A and B, of C, how it is summed);
    on a CPU, which takes its time, PAIRS_ON_A_CPU of them, others from test to test and from row to
    row.
    """
    if "row" not in metafunc.fixturenames:
        return
    with_pairs = "pair" in metafunc.fixturenames
    parameters = []
    for number, row in enumerate(dispatch.select()):
        reason = dispatch.why_not_here(row)
        if reason is None and DEVICE not in row.devices:
            reason = f"runs on {' or '.join(row.devices)} only"
        marks = [pytest.mark.skip(reason=f"{row.full_name}: {reason}")] if reason else []
        if not with_pairs:
            parameters.append(pytest.param(row, id=row.full_name, marks=marks))
            continue
        pairs = list(pairs_of(row))
        if DEVICE == "cpu" and len(pairs) > PAIRS_ON_A_CPU:
            turn = number + sum(map(ord, metafunc.function.__name__))
            step = -(-len(pairs) // PAIRS_ON_A_CPU)
            pairs = pairs[turn % step :: step]
        for pair in pairs:
            name = f"{row.full_name}-{'-'.join(pair)}"
            parameters.append(pytest.param(row, pair, id=name, marks=marks))
    metafunc.parametrize(("row", "pair") if with_pairs else "row", parameters)


@pytest.fixture
def device() -> str:
    return DEVICE


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Why tests were skipped, once a reason instead of once a test."""
    reasons = Counter(
        str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr)
        .removeprefix("Skipped: ")
        .split(": ", 1)[-1]
        for report in terminalreporter.stats.get("skipped", [])
    )
    for reason, count in reasons.most_common():
        terminalreporter.write_line(f"{count} skipped: {reason}")
