"""What the stream of carried partial sums is asked for, by a driver that does it at once."""

from __future__ import annotations

import ctypes
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from test_overlap import Here

from tcgemm.dist.overlap import plan as planning
from tcgemm.dist.overlap import transports
from tcgemm.dist.overlap.protocol import Rank
from tcgemm.dist.overlap.transports import GpuTransport
from tcgemm.dist.rows import rows_of


class Driver:
    """The driver as far as copies' streams need it: what is asked for happens at once, in order."""

    def __init__(self):
        self.asked = []

    def cuMemcpyAsync(self, to, source, size, stream):
        self.asked.append(("copy", to, source, size))
        ctypes.memmove(to, source, size)
        return 0

    def cuStreamBatchMemOp_v2(self, stream, count, operations, flags):
        assert (count, flags) == (2, 0)
        for each in operations:
            assert each.flags == 0  # at least
            word = ctypes.c_int32.from_address(each.address)
            self.asked.append((each.operation, each.address, each.value))
            if each.operation == transports.WRITE_VALUE_32:
                word.value = each.value
            elif word.value < each.value:
                return 999
        return 0


def a_carrier(monkeypatch, world=3, rank=1, capturing=False):
    """A rank with a stream of copies and no GPU, its slot, and the driver."""
    driver, transport = Driver(), GpuTransport.__new__(GpuTransport)
    transport.rank, transport.world, transport.marks = rank, world, None
    transport._stream = SimpleNamespace(cuda_stream=7)
    transport.beside, transport.capturing = nullcontext, lambda: capturing
    monkeypatch.setattr(transports, "_driver", lambda: driver)
    here = Rank(Here(rank, world, {}))
    slot = here.memory.take(1 << 20)
    here.transport = transport
    return here, slot, driver


def carry(here, slot, kernels=None):
    """Carry sums of 3 ranks with 70 rows in all; the plan, and where they lay."""
    M, N = 70, 40
    plan = planning.carried_plan(M, N, 3, 8, planning.INTERPRETED)
    staging = torch.randn(3, plan.chunk, N).half()
    slot.epoch.fill_(5)
    call = SimpleNamespace(staging=staging, stored=slot.stored)
    here._carry(kernels, call, plan, slot, M)
    return plan, staging


def test_a_stream_waits_for_tiles_copies_their_part_and_then_its_flag(monkeypatch):
    here, slot, driver = a_carrier(monkeypatch)
    slot.stored[:] = 9  # more tiles than there are
    plan, staging = carry(here, slot)
    sent = [slot.data[owner][: 3 * plan.chunk * 40 * 2].view(torch.float16) for owner in range(3)]
    sent = [each.view(3, plan.chunk, 40) for each in sent]
    asked = iter(driver.asked)
    for owner in (2, 0):  # this rank + 1 first
        first, behind = rows_of(70, 3, owner)
        assert torch.equal(sent[owner][1, : behind - first], staging[owner, : behind - first])
        assert not sent[owner][1, behind - first :].any()
        assert not sent[owner][::2].any()
        for part, begin, end in plan.part_rows(behind - first):
            count = slot.stored.data_ptr() + 4 * (owner * planning.MOST_PARTS + part)
            assert next(asked) == (transports.WAIT_VALUE_32, count, -(-40 // 32))
            assert next(asked) == (transports.WRITE_VALUE_32, count, 0)
            what, to, source, size = next(asked)
            assert what == "copy"
            assert to == sent[owner][1, begin:].data_ptr()
            assert source == staging[owner, begin:].data_ptr()
            assert size == (end - begin) * 40 * 2
            flag = slot.words[owner][slot.parts_at + planning.MOST_PARTS + part :]
            assert next(asked) == ("copy", flag.data_ptr(), slot.epoch.data_ptr(), 4)
            assert int(flag[0]) == 5
            assert int(slot.stored[owner * planning.MOST_PARTS + part]) == 0
    assert next(asked, None) is None
    assert len(driver.asked) == 4 * len([*plan.part_rows(24), *plan.part_rows(22)])


def test_a_wait_that_the_driver_refuses_is_an_error(monkeypatch):
    here, slot, _ = a_carrier(monkeypatch)
    with pytest.raises(RuntimeError, match="a wait for 2 stored tiles failed: CUDA driver error"):
        carry(here, slot)


@pytest.mark.parametrize(
    ("in_kernel", "in_graphs", "capturing", "waits"),
    [
        (False, False, False, False),
        (False, False, True, True),
        (False, True, True, False),
        (True, True, False, True),
    ],
)
def test_where_a_kernel_waits_for_tiles(monkeypatch, in_kernel, in_graphs, capturing, waits):
    monkeypatch.setattr(transports, "WAITS_IN_KERNEL", in_kernel)
    monkeypatch.setattr(transports, "WAITS_IN_GRAPHS", in_graphs)
    here, slot, driver = a_carrier(monkeypatch, capturing=capturing)
    slot.stored[:] = 9
    seen = []

    def await_stored(call, owner, part, count):
        seen.append((owner, part, count))

    carry(here, slot, SimpleNamespace(await_stored=await_stored))
    assert seen == ([(2, 0, 2), (0, 0, 2)] if waits else [])
    assert {what for what, *_ in driver.asked} == ({"copy"} if waits else {"copy", 1, 2})


def test_operations_lie_as_the_driver_has_them():
    """Of CUstreamBatchMemOpParams in cuda.h: a union of 48 bytes."""
    fields = ("operation", "address", "value", "flags", "alias")
    at = [getattr(transports.MemoryOperation, name).offset for name in fields]
    assert at == [0, 8, 16, 24, 32]
    assert ctypes.sizeof(transports.MemoryOperation) == 48
