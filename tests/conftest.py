"""What all tests share: the device they run on, every kernel as a parameter, the marks.

``make test`` leaves out what is marked exhaustive, ``make test-all`` (``pytest --all``) runs it
too, and docs/tests.md says what that is.
"""

from __future__ import annotations

import gc
import logging
import os
from collections import Counter, defaultdict
from collections.abc import Generator
from typing import Any

import pytest

if "PYTEST_XDIST_WORKER_COUNT" in os.environ:
    # Threads that wait for others spin, and several processes on the same cores wait for each other
    # most of the time. libgomp and OpenBLAS read this when torch and numpy are first imported.
    cores = len(os.sched_getaffinity(0)) // int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cores)))

import torch
import workers

if "PYTEST_XDIST_WORKER" in os.environ:
    workers.begin_with_different_gpus()
if not torch.cuda.is_available():
    # torch's compiler imports triton, which reads this only then.
    os.environ.setdefault("TRITON_INTERPRET", "1")

from tcgemm.cuda_ref.build import toolchain

from tcgemm import dispatch
from tcgemm.verify.calls import pairs_of

workers.keep_environment()

for logger in logging.Logger.manager.loggerDict.values():
    # pytest gives its handlers to each logger that does not propagate, several times a test, and
    # torch has forty of them.
    if isinstance(logger, logging.Logger) and logger.name.startswith("torch"):
        logger.propagate = True

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
PAIRS_ON_A_CPU = 2

LEFT_OUT = pytest.StashKey[Counter[str]]()
"""Of the tests that need a GPU, where there is none: how many there are for each reason."""

Places = defaultdict[tuple[str, str], dict[int, int]]
"""(test, parameter) -> number of a value, by its identity, in the order of their coming."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One process more than cores for two of these: a tenth of the time a test waits for something,
    such as a process that it has started."""
    return len(os.sched_getaffinity(0)) * 3 // 2


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="run what is marked exhaustive as well")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is imported and collected stays until the end: the garbage collector need not look at
    it, neither while it grows nor whenever a test makes many objects."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()
        gc.set_threshold(50_000, 20, 20)  # reports and traces make many objects and few cycles


def pytest_report_header(config: pytest.Config) -> str:
    left = "run" if config.getoption("--all") else "left to `make test-all` (pytest --all)"
    return f"exhaustive tests: {left}"


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> Generator[None, None, None]:
    places: Places = defaultdict(dict)
    for item in items:
        if DEVICE == "cpu" and is_left_by_spread(item, places):
            item.add_marker(pytest.mark.exhaustive)
    if not config.getoption("--all") and not config.getoption("-m"):
        left_out = [item for item in items if "exhaustive" in item.keywords]
        if left_out and len(left_out) < len(items):
            items[:] = [item for item in items if "exhaustive" not in item.keywords]
            config.hook.pytest_deselected(items=left_out)
    yield  # what the command line selects by -k and -m is selected now
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="needs an NVIDIA GPU, and there is none here")
    of_gpu = [item for item in items if "gpu" in item.keywords]
    for item in of_gpu:
        item.add_marker(skip)
    if of_gpu and len(of_gpu) < len(items):
        # To skip thousands one after the other takes seconds: their reasons are counted here.
        items[:] = [item for item in items if "gpu" not in item.keywords]
        config.hook.pytest_deselected(items=of_gpu)
        config.stash[LEFT_OUT] = Counter(map(why_skipped, of_gpu))
        if "PYTEST_XDIST_WORKER" in os.environ:
            config.workeroutput["left out"] = dict(config.stash[LEFT_OUT])  # type: ignore[attr-defined]


def why_skipped(item: pytest.Item) -> str:
    """The reason that pytest would give, of a test that has a mark to be skipped."""
    marks = [mark for mark in item.iter_markers("skipif") if any(mark.args)]
    mark = (*marks, *item.iter_markers("skip"))[0]
    return str(mark.kwargs["reason"])


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """Each process of pytest-xdist has collected the same tests."""
    if found := getattr(node, "workeroutput", {}).get("left out"):
        node.config.stash[LEFT_OUT] = Counter(found)


def is_left_by_spread(item: pytest.Item, places: Places) -> bool:
    """``spread(n, *names, at=0)``: of all combinations of these parameters one in n is kept, and
    each value with others in turn: where the sum of the values' places, less ``at``, divides by n.

    places: of the values seen so far, by test and parameter. pytest numbers combinations instead.
    """
    mark = item.get_closest_marker("spread")
    if mark is None:
        return False
    n, *names = mark.args
    total = -mark.kwargs.get("at", 0)
    for name in names:
        seen = places[item.nodeid.partition("[")[0], name]
        value = item.callspec.params[name]  # type: ignore[attr-defined]
        total += seen.setdefault(id(value), len(seen))
    return bool(total % n)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """``row``: every kernel that runs on this machine's device, the others skipped with reason.

    ``pair``, beside it: each of the row's type pairs, (dtype of A and B, of C, how it is summed),
    or what ``drawn_pairs`` takes of them.
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
        turn = number + sum(map(ord, metafunc.function.__name__))
        for pair, exhaustive in drawn_pairs(list(pairs_of(row)), number, turn, built_by_type(row)):
            name = f"{row.full_name}-{'-'.join(pair)}"
            of_pair = [*marks, pytest.mark.exhaustive] if exhaustive else marks
            parameters.append(pytest.param(row, pair, id=name, marks=of_pair))
    metafunc.parametrize(("row", "pair") if with_pairs else "row", parameters)


def built_by_type(row: dispatch.Kernel) -> bool:
    """Whether each type of A and B is a build of its own here, and the kernel is not there for its
    types as wmma_types and wgmma_types are, which are built by how they sum, too."""
    if DEVICE != "cpu" or row.backend != "cuda":
        return False
    macros = toolchain.built_by_case(toolchain.source(row.name))
    return "TCGEMM_IN" in macros and "TCGEMM_COMPUTE" not in macros


def drawn_pairs(
    pairs: list[tuple[str, ...]], number: int, turn: int, built_by_type: bool = False
) -> list[tuple[tuple[str, ...], bool]]:
    """The type pairs of kernel ``number`` that a test tries on this device, and which are
    exhaustive.

    On a GPU all of them. On a CPU, which takes its time, PAIRS_ON_A_CPU of them, others from
    ``turn`` to turn. ``make test`` keeps one of these at every fourth turn, so that of four tests
    a kernel passes one. What it keeps is the kernel's first pair or one other, and always the
    first where another is ``built_by_type``: other tests are there for types.
    """
    if DEVICE != "cpu":
        return [(pair, False) for pair in pairs]
    usual = (pairs[0], pairs[1 + number % (len(pairs) - 1)] if len(pairs) > 1 else pairs[0])
    kept = usual[0 if built_by_type else turn // 4 % 2]
    others = [pair for pair in pairs if pair != kept]
    others = others[turn % len(others) :][: PAIRS_ON_A_CPU - 1] if others else []
    return [(kept, turn % 4 != 0), *((pair, True) for pair in others)]


@pytest.fixture
def device() -> str:
    return DEVICE


@pytest.fixture(scope="session")
def thorough(pytestconfig: pytest.Config) -> bool:
    """Whether a test takes all of its cases: on a GPU, and with ``--all``."""
    return DEVICE == "cuda" or bool(pytestconfig.getoption("--all"))


@pytest.fixture
def no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of what surrounds a report's figures: drawing them is most of the time."""
    monkeypatch.setattr("tcgemm.report.write.draw_all", lambda name, table, gpu: [])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Why tests were skipped, once a reason instead of once a test."""
    every = Counter(
        str(
            report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        ).removeprefix("Skipped: ")
        for report in terminalreporter.stats.get("skipped", [])
    )
    reasons: Counter[str] = Counter()
    for reason, count in (every + terminalreporter.config.stash.get(LEFT_OUT, Counter())).items():
        reasons[reason.split(": ", 1)[-1]] += count
    for reason, count in reasons.most_common():
        terminalreporter.write_line(f"{count} skipped: {reason}")
