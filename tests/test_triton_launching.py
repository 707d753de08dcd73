"""Replayed launches: what is replayed is what Triton would have passed, and never another binary.

On a CPU Triton's own launcher runs over a stand-in for its C function; on a GPU all of it runs.
"""

from __future__ import annotations

import contextlib
import copy
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tcgemm import accuracy, dispatch
from tcgemm.problem import Fusion

launching = import_module("tcgemm.triton_kernels.host.launching")
lent = import_module("tcgemm.triton_kernels.host.lent")
recording = import_module("tcgemm.triton_kernels.host.recording")
CUDA = torch.cuda.is_available()


@dataclass
class Launcher:
    """Like Triton's: puts its own settings between the head and the kernel's arguments."""

    launch: Any
    nested: bool = False
    global_scratch_size: int = 0
    profile_scratch_size: int = 0

    def __call__(self, x, y, z, stream, function, packed, metadata, enter, leave, *args):
        head = (x, y, z, stream, function, False, True, None, None, packed, metadata, enter, leave)
        if self.nested:
            self.launch(*head, args)
        else:
            self.launch(*head, *args)


class PyCUtensorMap:
    """The name under which Triton passes an encoded descriptor."""

    def __init__(self, address):
        self.address = address


def encoding(launcher):
    """Wraps a C function as Triton does for kernels with descriptors."""

    def inner(*args):
        launcher(*(PyCUtensorMap(a.address) if isinstance(a, Descriptor) else a for a in args))

    return inner


@dataclass
class Descriptor:
    address: int


class Kernel:
    """A function that Triton compiles: counts its own launches, and those of its C function."""

    def __init__(self, nested=False, described=False, scratch=0):
        self.arg_names = ["a", "b", "c", "M", "TILE"]
        self.long_way: list[tuple] = []
        self.short_way: list[tuple] = []
        self.compiled_for: list[tuple] = []
        launch = encoding(self.c_function) if described else self.c_function
        self.compiled = SimpleNamespace(
            run=Launcher(launch, nested, scratch), function=77, packed_metadata=(4, 1, 0)
        )

    def c_function(self, *passed):
        self.short_way.append(passed)

    def __getitem__(self, grid):
        def run(*args, **constants):
            self.long_way.append((grid, args, constants))
            return self.compiled

        return run

    def warmup(self, *args, grid, **constants):
        self.compiled_for.append((grid, args, constants))
        return self.compiled


@pytest.fixture
def gpu(monkeypatch):
    """The module as on a GPU, with stream 5 current; nothing remembered."""
    monkeypatch.setattr(launching, "INTERPRETED", False)
    monkeypatch.setattr(launching, "check", lambda a: None)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: 5, raising=False)
    monkeypatch.setattr(recording, "capturing", lambda: False)


def tensor(rows=8, columns=8, dtype=torch.float16, offset=0):
    return torch.zeros(rows * columns + 64, dtype=dtype)[offset : offset + rows * columns].view(
        rows, columns
    )


def plain(a, b, c, TILE):
    return (3,), (a, b, c, a.shape[0]), {"TILE": TILE}


def described(a, b, c, TILE):
    x, y, z = (Descriptor(t.data_ptr()) for t in (a, b, c))
    return (3,), (x, y, z, a.shape[0]), {"TILE": TILE}


def bound(kernel, arguments=plain, fusion=None, **more):
    """A function of tensors, for calls of one kind."""
    rung = launching.Rung(kernel, arguments, **more)
    return rung.bind(tensor(), tensor(), tensor(), fusion, TILE=16)


@pytest.mark.parametrize("nested", [False, True])
def test_a_repeated_call_goes_the_short_way_with_its_own_addresses(gpu, nested):
    kernel = Kernel(nested)
    call = bound(kernel)
    call(tensor(), tensor(), tensor())
    assert (len(kernel.long_way), len(kernel.short_way)) == (1, 0)
    x, y, z = tensor(), tensor(), tensor()
    call(x, y, z)
    assert (len(kernel.long_way), len(kernel.short_way)) == (1, 1)
    (passed,) = kernel.short_way
    values = list(passed[-1]) if nested else list(passed[13:])
    assert values == [x.data_ptr(), y.data_ptr(), z.data_ptr(), 8, 16]
    assert passed[:5] == (3, 1, 1, 5, 77)


def test_while_a_graph_is_captured_nothing_starts_early(gpu, monkeypatch):
    kernel = Kernel()
    call = bound(kernel)
    for capturing in (False, False, True, False):
        monkeypatch.setattr(recording, "capturing", lambda c=capturing: c)
        call(tensor(), tensor(), tensor())
    assert [passed[recording.PDL] for passed in kernel.short_way] == [True, False, True]


@pytest.mark.parametrize(
    ("how", "triggers"),
    [({"PDL": True}, True), ({"PDL": False}, False), ({"launch_pdl": True}, True)],
)
def test_while_a_graph_is_captured_a_second_launch_may_start_early(gpu, monkeypatch, how, triggers):
    """Behind a launch of the same call that lets it: who is ahead of the first is not known."""
    kernel = Kernel()

    def first(a, b, c, TILE):
        return (3,), (a, b, c, a.shape[0]), {"TILE": TILE, **how}

    def second(a, b, c, args, plan):
        return kernel, (3,), args, {"TILE": 16}

    call = bound(kernel, first, second=second)
    call(tensor(), tensor(), tensor())
    monkeypatch.setattr(recording, "capturing", lambda: True)
    call(tensor(), tensor(), tensor())
    assert [passed[recording.PDL] for passed in kernel.short_way] == [False, triggers]


@pytest.mark.parametrize("of", [plain, described])
def test_what_is_first_called_in_a_capture_is_launched_as_recorded(gpu, monkeypatch, of):
    """A capture has memory of its own, so that its addresses are mostly new; and Triton's own
    launch would ask for the edge that costs time in a graph."""
    kernel = Kernel(described=of is described)
    call = bound(kernel, of)
    monkeypatch.setattr(recording, "capturing", lambda: True)
    first, second = (tuple(tensor() for _ in range(3)) for _ in range(2))
    for operands in (first, second, first):
        call(*operands)
    assert not kernel.long_way
    assert len(kernel.compiled_for) == (2 if of is described else 1)
    assert [passed[recording.PDL] for passed in kernel.short_way] == [False] * 3
    assert [passed[recording.STREAM] for passed in kernel.short_way] == [5] * 3
    at = [p[13].address if of is described else p[13] for p in kernel.short_way]
    assert at == [x.data_ptr() for x in (first[0], second[0], first[0])]
    monkeypatch.setattr(recording, "capturing", lambda: False)
    call(*second)
    assert kernel.short_way[-1][recording.PDL]


def test_in_a_capture_what_cannot_be_recorded_is_launched_by_triton(gpu, monkeypatch):
    kernel = Kernel(scratch=16)
    call = bound(kernel)
    monkeypatch.setattr(recording, "capturing", lambda: True)
    for _ in range(2):
        call(tensor(), tensor(), tensor())
    assert (len(kernel.compiled_for), len(kernel.long_way), len(kernel.short_way)) == (1, 2, 0)


def test_in_a_capture_copies_and_parts_lie_where_they_were_made(gpu, monkeypatch):
    kernel, places = Kernel(), []

    def first(a, b, c, TILE):
        places.append(torch.zeros(64))
        return (3,), (a, b, places[-1], a.shape[0]), {"TILE": TILE}

    call = bound(kernel, first)
    monkeypatch.setattr(recording, "capturing", lambda: True)
    call(tensor(), tensor(), tensor())
    (passed,) = kernel.short_way
    assert passed[15] == places[0].data_ptr()


def test_descriptors_are_recorded_for_each_set_of_addresses(gpu):
    kernel = Kernel(described=True)
    call = bound(kernel, described)
    first, second = (tuple(tensor() for _ in range(3)) for _ in range(2))
    for operands in (first, second, first, second, second):
        call(*operands)
    assert len(kernel.long_way) == 2
    assert [p[13].address for p in kernel.short_way] == [
        first[0].data_ptr(), second[0].data_ptr(), second[0].data_ptr(),
    ]  # fmt: skip


def test_equal_addresses_that_were_none_are_not_taken_for_one(gpu):
    kernel, a, b, c = Kernel(), tensor(), tensor(), tensor()
    call = bound(kernel)
    call(a, a, c)
    call(a, b, c)
    assert (len(kernel.long_way), len(kernel.short_way)) == (2, 0)
    call(b, b, c)
    call(a, b, c)
    assert (len(kernel.long_way), len(kernel.short_way)) == (3, 1)
    assert kernel.long_way[-1][1][:3] == (a, b, c)


def test_what_is_fused_comes_with_each_call_and_its_addresses_are_replaced(gpu):
    kernel = Kernel()

    def arguments(a, b, c, fusion, TILE):
        return (3,), (a, b, fusion.bias, int(fusion.alpha)), {"TILE": TILE}

    call = bound(kernel, arguments, Fusion(alpha=2.0, bias=tensor(1, 8)[0]))
    for _ in range(2):
        bias = tensor(1, 8)[0]
        call(tensor(), tensor(), tensor(), None, bias, None, None)
    assert (len(kernel.long_way), len(kernel.short_way)) == (1, 1)
    assert kernel.short_way[-1][15:17] == (bias.data_ptr(), 2)


def test_a_bias_that_lay_in_a_is_not_taken_for_a(gpu):
    """Recorded addresses are known by their values: which of them were equal must stay so."""
    kernel = Kernel()

    def arguments(a, b, c, fusion, TILE):
        return (3,), (a, b, fusion.bias, 1), {"TILE": TILE}

    a, b, c, bias = tensor(), tensor(), tensor(), tensor(1, 8)[0]
    call = bound(kernel, arguments, Fusion(bias=a[0]))
    call(a, b, c, None, a[0], None, None)
    call(a, b, c, None, bias, None, None)
    assert (len(kernel.long_way), len(kernel.short_way)) == (2, 0)
    assert kernel.long_way[-1][1][2] is bias


def test_every_call_gets_a_workspace_of_its_own(gpu, monkeypatch):
    kernel, follower = Kernel(), Kernel()
    rooms, empty = [], torch.empty
    monkeypatch.setattr(
        torch, "empty", lambda *of, **how: rooms.append(empty(*of, **how)) or rooms[-1]
    )

    def arguments(a, b, c, TILE):
        return (3,), (a, b, torch.empty(24), c.shape[0]), {"TILE": TILE}

    def second(a, b, c, args, plan):
        return follower, (1,), (args[2], c, args[2], 8), {"TILE": plan["TILE"]}

    operands = (tensor(), tensor(), tensor())
    call = bound(kernel, arguments, second=second)
    for _ in range(2):
        call(*operands)
    assert [room.nbytes for room in rooms] == [96, 96]
    (one,), (two,) = kernel.short_way, follower.short_way
    assert one[15] == two[13] == two[15], "both passes share it"
    assert one[15] == rooms[-1].data_ptr()
    assert one[15] not in (0, *(t.data_ptr() for t in operands))
    assert two[14] == operands[2].data_ptr()


def test_memory_of_a_call_on_a_gpu_comes_the_short_way(monkeypatch):
    asked = []
    monkeypatch.setattr(lent, "_empty_strided", lambda *of: asked.append(of) or "room")
    assert lent.memory(SimpleNamespace(is_cuda=True), 96) == "room"
    assert asked == [((96,), (1,), torch.uint8)]
    on_cpu = lent.memory(tensor(), 96)
    assert (on_cpu.nbytes, on_cpu.dtype, len(asked)) == (96, torch.uint8, 1)


@pytest.fixture
def allocator(monkeypatch):
    """A stand-in for torch's: the addresses that it has lent and was given back."""
    seen = SimpleNamespace(lent=[], back=[], calls=[])

    def lend(like, size, stream):
        seen.lent.append(4096 + 512 * len(seen.lent))
        return seen.lent[-1], None

    monkeypatch.setattr(lent, "lend", lend)
    monkeypatch.setattr(lent, "give_back", seen.back.append)
    return seen


@pytest.mark.parametrize("fails", [False, True])
def test_memory_that_is_lent_is_given_back_behind_the_launches(gpu, allocator, fails):
    kernel, copying, follower = Kernel(), Kernel(), Kernel()

    def arguments(a, b, c, TILE):
        return (3,), (a, b, torch.empty(24), c.shape[0]), {"TILE": TILE}

    def second(a, b, c, args, plan):
        return follower, (1,), (args[2], c, args[2], 8), {"TILE": plan["TILE"]}

    call = bound(kernel, arguments, second=second, repack=lambda compute, plan: Copies(copying))
    operands = tensor(), tensor(), tensor()
    call(*operands)
    assert not allocator.lent, "Triton takes tensors"
    if fails:
        follower.c_function = None
        for one in call._kept.recorded[-1:]:
            one.function = lambda *passed: 1 / 0
    with pytest.raises(ZeroDivisionError) if fails else contextlib.nullcontext():
        call(*operands)
    (room,) = allocator.lent
    assert allocator.back == [room]
    (read,) = kernel.short_way
    assert read[14:16] == (room + 512, room + 1024), "the parts lie behind the copies"


def test_lent_memory_of_other_addresses_is_given_back_before_triton_launches(gpu, allocator):
    """Descriptors hold the address: Triton makes a tensor of the same memory, and records that."""
    kernel, copying = Kernel(described=True), Kernel()
    call = bound(kernel, described, repack=lambda compute, plan: Copies(copying))
    operands = tensor(), tensor(), tensor()
    for _ in range(2):
        call(*operands)
    assert len(kernel.long_way) == 2
    assert len(allocator.lent) == 1
    assert allocator.back == allocator.lent


def test_on_a_gpu_an_address_is_lent(monkeypatch):
    asked = []
    monkeypatch.setattr(lent, "_raw_alloc", lambda *of: asked.append(of) or 4096)
    assert lent.lend(SimpleNamespace(is_cuda=True), 96, 71) == (4096, None)
    assert asked == [(96, 71)]
    address, room = lent.lend(tensor(), 96, 0)
    assert (address, room.nbytes) == (room.data_ptr(), 96)


def test_torch_has_the_short_way_in_the_versions_that_are_tested():
    assert callable(lent._empty_strided)
    if lent._raw_alloc is not None:  # a build for GPUs
        assert callable(lent.give_back)


class Copies:
    """Copies B alone, behind 512 bytes of the room."""

    def __init__(self, kernel):
        self.kernel, self.rooms = kernel, []

    def room(self, a, b):
        return 512 + b.nbytes

    def steps(self, a, b, room):
        self.rooms.append(room)
        copy = room[512:].view(b.dtype).view(b.shape)
        return a, copy, [(self.kernel, (2,), (b, copy, b, 1), {"TILE": 4})]


@pytest.mark.parametrize("arguments", [plain, described])
def test_copies_are_made_on_every_call_in_memory_of_its_own(gpu, monkeypatch, arguments):
    """Launches of one kept call: nothing of Triton's or of the copies' planning in between."""
    kernel, copying = Kernel(described=arguments is described), Kernel()
    copies = Copies(copying)
    places = [torch.empty(512 + 128, dtype=torch.uint8) for _ in range(2)]
    turn = iter((0, 0, 1, 1, 0))
    monkeypatch.setattr(torch, "empty", lambda *of, **how: places[next(turn)])
    call = bound(kernel, arguments, repack=lambda compute, plan: copies)
    operands = tensor(), tensor(), tensor()
    for _ in range(5):
        call(*operands)
    a, b, c = (t.data_ptr() for t in operands)
    # To descriptors a set of addresses is new twice: that of the first call, and the room's of the
    # third. Pointers are put into one recording.
    times, turns = (2, (0, 1, 0)) if arguments is described else (1, (0, 1, 1, 0))
    assert {len(kernel.long_way), len(copying.long_way), len(copies.rooms)} == {times}
    into = [places[i].data_ptr() + 512 for i in turns]
    assert [p[13:16] for p in copying.short_way] == [(b, place, b) for place in into]
    read = [tuple(getattr(x, "address", x) for x in p[13:16]) for p in kernel.short_way]
    assert read == [(a, place, c) for place in into]


@pytest.mark.parametrize("is_described", [False, True])
def test_copies_and_a_workspace_are_each_calls_own(gpu, monkeypatch, is_described):
    """A product of copies whose K is divided: its parts lie behind the copies, in one piece of
    memory. With descriptors, which hold the copies' address, calls are known by it."""
    kernel, copying, follower = Kernel(described=is_described), Kernel(), Kernel()
    copies = Copies(copying)
    size = 512 + 128
    places = [torch.empty(1024 + 96, dtype=torch.uint8) for _ in range(2)]
    workspace = torch.empty(96, dtype=torch.uint8)
    turn = iter((0, 0, 1, 1, 0))
    asked = []

    def made(*of, **how):
        if how.get("dtype") is not torch.uint8:
            return workspace
        asked.append(of[0])
        return places[next(turn)][: of[0]]

    monkeypatch.setattr(torch, "empty", made)

    def arguments(a, b, c, TILE):
        parts = torch.empty(96)
        read = (Descriptor(a.data_ptr()), Descriptor(b.data_ptr())) if is_described else (a, b)
        return (3,), (*read, parts, a.shape[0]), {"TILE": TILE}

    def second(a, b, c, args, plan):
        return follower, (1,), (args[2], c, args[2], 8), {"TILE": plan["TILE"]}

    call = bound(kernel, arguments, second=second, repack=lambda compute, plan: copies)
    operands = tensor(), tensor(), tensor()
    for _ in range(5):
        call(*operands)
    assert asked == [size, *[1024 + 96] * 4], "one piece for both, once their size is known"
    a, b, c = (t.data_ptr() for t in operands)
    # To descriptors the room of the third call is a new set of addresses.
    times, turns = (2, (0, 1, 0)) if is_described else (1, (0, 1, 1, 0))
    assert {len(k.long_way) for k in (kernel, copying, follower)} == {times}
    into = [places[i].data_ptr() + 512 for i in turns]
    parts = [places[i].data_ptr() + 1024 for i in turns]
    assert [p[13:16] for p in copying.short_way] == [(b, place, b) for place in into]
    read = [tuple(getattr(x, "address", x) for x in p[13:16]) for p in kernel.short_way]
    assert read == [(a, place, room) for place, room in zip(into, parts, strict=True)]
    assert [p[13:16] for p in follower.short_way] == [(room, c, room) for room in parts]


def test_on_the_default_stream_what_is_known_by_its_copies_is_passed_as_it_stands(gpu, monkeypatch):
    """All addresses are known then, those of copies and parts as well: nothing is filled in."""
    kernel, copying, follower = Kernel(described=True), Kernel(), Kernel()
    copies = Copies(copying)
    place = torch.empty(1024 + 96, dtype=torch.uint8)
    monkeypatch.setattr(lent, "memory", lambda like, size: place[:size])
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: 0)

    def arguments(a, b, c, TILE):
        x, y = Descriptor(a.data_ptr()), Descriptor(b.data_ptr())
        return (3,), (x, y, torch.empty(24), 8), {"TILE": TILE}

    def second(a, b, c, args, plan):
        return follower, (1,), (args[2], c, args[2], 8), {"TILE": plan["TILE"]}

    call = bound(kernel, arguments, second=second, repack=lambda compute, plan: copies)
    operands = tensor(), tensor(), tensor()
    call(*operands)
    monkeypatch.setattr(recording.Recorded, "filled", None)
    call(*operands)
    (read,), (copied,), (added,) = kernel.short_way, copying.short_way, follower.short_way
    assert read[14].address == copied[14] == place.data_ptr() + 512
    assert read[15] == added[13] == place.data_ptr() + 1024


def test_a_recording_knows_what_memory_its_calls_need(gpu):
    """Of a thread that asked for the size of copies before another one had recorded the first call
    it is not known, and the recording is there all the same."""
    kernel, copying = Kernel(), Kernel()
    call = bound(kernel, repack=lambda compute, plan: Copies(copying))
    operands = tensor(), tensor(), tensor()
    call(*operands)
    call._room = 0
    call(*operands)
    assert [len(k.long_way) for k in (kernel, copying)] == [1, 1]
    (read,), (copied,) = kernel.short_way, copying.short_way
    assert read[14] == copied[14] != 0


def test_operands_that_need_no_copy_take_no_memory(gpu, monkeypatch):
    copies = SimpleNamespace(room=lambda a, b: 0)
    kernel = Kernel()
    call = bound(kernel, repack=lambda compute, plan: copies)
    operands = tensor(), tensor(), tensor()
    monkeypatch.setattr(torch, "empty", None)
    for _ in range(2):
        call(*operands)
    assert [len(kernel.long_way), len(kernel.short_way)] == [1, 1]


UNKNOWN = {
    "scratch memory": lambda k: setattr(k.compiled.run, "global_scratch_size", 64),
    "no C function": lambda k: setattr(k.compiled, "run", SimpleNamespace()),
    "another wrapper": lambda k: setattr(k.compiled.run, "launch", lambda *a: None),
    "another order": lambda k: setattr(k.compiled, "run", backwards(k)),
}


def backwards(kernel):
    class Backwards(Launcher):
        def __call__(self, *args):
            self.launch(*args[::-1])

    return Backwards(kernel.c_function)


@pytest.mark.parametrize("unknown", UNKNOWN)
def test_a_launcher_that_looks_otherwise_is_never_replayed(gpu, unknown):
    kernel = Kernel()
    UNKNOWN[unknown](kernel)
    call = bound(kernel)
    for _ in range(3):
        call(tensor(), tensor(), tensor())
    assert (len(kernel.long_way), len(kernel.short_way)) == (3, 0)


@pytest.mark.parametrize("hook", ["launch_enter_hook", "launch_exit_hook"])
def test_a_profiler_that_listens_hears_of_every_launch(gpu, monkeypatch, hook):
    kernel = Kernel()
    call = bound(kernel)
    call(tensor(), tensor(), tensor())
    listening = SimpleNamespace(calls=[print])
    hooks = {"launch_enter_hook": None, "launch_exit_hook": None, hook: listening}
    monkeypatch.setattr(launching, "_runtime", SimpleNamespace(**hooks))
    call(tensor(), tensor(), tensor())
    assert (len(kernel.long_way), len(kernel.short_way)) == (2, 0)
    listening.calls.clear()
    call(tensor(), tensor(), tensor())
    assert (len(kernel.long_way), len(kernel.short_way)) == (2, 1)


def test_what_is_known_by_its_addresses_is_passed_as_it_stands(gpu, monkeypatch):
    """On the default stream, of which nobody asks whether it is captured; on others it is asked."""
    kernel = Kernel(described=True)

    def arguments(a, b, c, fusion, TILE):
        x, y, z = (Descriptor(t.data_ptr()) for t in (a, b, c))
        return (3,), (x, y, z, fusion.bias, 8), {"TILE": TILE}

    kernel.arg_names = ["a", "b", "c", "bias", "M", "TILE"]
    operands, asked, current = [tensor() for _ in range(3)], [], [0]
    biases = [tensor(1, 8)[0] for _ in range(2)]
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: current[0])
    monkeypatch.setattr(recording, "capturing", lambda: asked.append(1) or True)
    call = bound(kernel, arguments, Fusion(bias=biases[0]))
    for bias in biases * 2:
        call(*operands, None, bias, None, None)
    assert (len(kernel.long_way), asked) == (2, [])
    current[0] = 9
    call(*operands, None, biases[0], None, None)
    assert asked == [1]
    assert [p[16] for p in kernel.short_way] == [biases[i].data_ptr() for i in (0, 1, 0)]
    settings = [(p[recording.STREAM], p[recording.PDL]) for p in kernel.short_way]
    assert settings == [(0, True), (0, True), (9, False)]


def test_memory_is_bounded(gpu, monkeypatch):
    monkeypatch.setattr(launching, "ADDRESSES", 2)
    kernel = Kernel(described=True)
    kept = [tuple(tensor() for _ in range(3)) for _ in range(4)]
    call = bound(kernel, described)
    for operands in kept:
        call(*operands)
    assert len(call._by_address) <= 2


@pytest.mark.parametrize("with_descriptors", [False, True])
def test_triton_s_own_launcher_is_replayed_as_it_is(monkeypatch, with_descriptors):
    """Triton's launcher class and its wrapper for descriptors, over a stand-in C function."""
    driver = import_module("triton.backends.nvidia.driver")
    monkeypatch.setattr(recording, "capturing", lambda: False)
    active = import_module("triton.runtime").driver
    encoded = []

    def fill(address, *rest):
        encoded.append(address)
        return PyCUtensorMap(address)

    utils = SimpleNamespace(fill_tma_descriptor=fill, fill_tma_descriptor_tiled=fill)
    monkeypatch.setattr(active, "_active", SimpleNamespace(utils=utils), raising=False)
    received: list[tuple] = []
    a, b, c = (torch.zeros(64, 64, dtype=torch.float16) for _ in range(3))
    launcher = object.__new__(driver.CudaLauncher)
    signature: dict = {"a": "*fp16", "b": "*fp16", "c": "*fp16", "M": "i32", "TILE": "constexpr"}
    meta = None
    args: tuple = (a, b, c, 64)
    if with_descriptors:
        describe = import_module("triton.tools.tensor_descriptor").TensorDescriptor.from_tensor
        signature.update(dict.fromkeys("abc", "tensordesc<fp16[64, 64]>"))
        meta = [
            {"swizzle": 3, "elem_size": 2, "elem_type": 6, "block_size": [64, 64],
             "fp4_padded": False}
        ] * 3  # fmt: skip
        args = (*(describe(x, [64, 64]) for x in (a, b, c)), 64)

    def c_function(*passed):
        received.append(passed)

    launcher.launch = driver.wrap_handle_tensordesc(c_function, signature, meta)
    settings = {
        "num_ctas": 1,
        "global_scratch_size": 0,
        "global_scratch_align": 1,
        "profile_scratch_size": 0,
        "profile_scratch_align": 1,
        "launch_cooperative_grid": False,
        "launch_pdl": True,
        "arg_annotations": ["annotations"],
        "kernel_signature": b"signature",
    }
    for name, value in settings.items():
        setattr(launcher, name, value)
    if not with_descriptors:
        # As compiled, the C function is no Python function.
        launcher.launch = CFunction(received)
    compiled = SimpleNamespace(run=launcher, function=99, packed_metadata=(4, 1, 0))
    kernel = SimpleNamespace(arg_names=["a", "b", "c", "M", "TILE"])
    step = (kernel, (7,), args, {"TILE": 64, "num_warps": 4})
    addresses = tuple(x.data_ptr() for x in (a, b, c))

    recorded = recording.record(compiled, step, addresses)
    assert recorded is not None
    assert not received, "recording launches nothing"
    recorded(5, addresses)
    launcher(7, 1, 1, 5, 99, (4, 1, 0), None, None, None, *args, 64)
    mine, theirs = received
    assert flat(mine) == flat(theirs)
    recorded.settle(addresses)
    assert not recorded.slots
    assert flat(recorded.filled(5, ())) == flat(theirs)


class CFunction:
    def __init__(self, received):
        self.received = received

    def __call__(self, *passed):
        self.received.append(passed)

    def __deepcopy__(self, memo):
        return copy.copy(self)


def flat(passed) -> list:
    """The arguments as the C function reads them: tensors and maps by their address."""
    values = [*passed[:-1], *passed[-1]] if isinstance(passed[-1], (list, tuple)) else passed
    return [
        x.data_ptr() if isinstance(x, torch.Tensor) else getattr(x, "address", x) for x in values
    ]


GPU_RUNGS = [row.name for row in dispatch.ladder("triton")]


@pytest.mark.gpu
@pytest.mark.parametrize("name", GPU_RUNGS)
def test_repeated_calls_are_right_whatever_changes_between_them(name):
    torch.manual_seed(4)
    for _ in range(3):
        for offset in (0, 1, 8):
            for dtype in (torch.float16, torch.bfloat16):
                for dtype_out in (dtype, torch.float32):
                    a = torch.randn(64 * 256 + 16, device="cuda").to(dtype)
                    a = a[offset : offset + 64 * 256].view(64, 256)
                    b = torch.randn(512, 256, device="cuda").to(dtype).mT
                    c = torch.full((64, 512), float("nan"), device="cuda", dtype=dtype_out)
                    row = dispatch.find("triton", name)
                    problem = dispatch.problem_of(a, b, c)
                    if row.why_not(problem) is None:
                        dispatch.load("triton", name)(a, b, c, **row.plan(problem))
                        assert accuracy.error_ratio(a, b, c) <= 1


@pytest.mark.gpu
@pytest.mark.parametrize("name", GPU_RUNGS)
def test_a_bound_call_is_right(name):
    row = dispatch.find("triton", name)
    a, b, c = (torch.randn(256, 256, device="cuda").half() for _ in range(3))
    problem = dispatch.problem_of(a, b, c)
    if row.why_not(problem) is not None:
        pytest.skip("refused")
    call = dispatch.load("triton", name).bind(a, b, c, **row.plan(problem))
    for _ in range(3):
        a, b, c = (torch.randn(256, 256, device="cuda").half() for _ in range(3))
        for x, y in ((a, b), (a, a), (b, a)):
            call(x, y, c.fill_(float("nan")))
            assert accuracy.error_ratio(x, y, c) <= 1


def test_tritons_own_start_is_done_beside_ours_and_kept():
    warm_up = import_module("tcgemm.triton_kernels.host.warm_up")
    warm_up.begin()
    warm_up.wait()
    assert import_module("triton.runtime.cache").triton_key.cache_info().currsize == 1


def test_triton_hashes_its_library_once_for_all_processes(tmp_path, monkeypatch):
    """And again where a file of it has changed, or what was kept is no such thing."""
    warm_up = import_module("tcgemm.triton_kernels.host.warm_up")
    cache = import_module("triton.runtime.cache")
    monkeypatch.setenv("TCGEMM_CACHE_DIR", str(tmp_path / "kept"))
    hashed = []
    stamp = ["first"]
    monkeypatch.setattr(warm_up, "_stamp", lambda folder: stamp[0])

    def process():
        key = lru_cache(lambda: hashed.append(1) or f"key {len(hashed)}")
        monkeypatch.setattr(cache, "triton_key", key)
        warm_up._hash()
        return cache.triton_key()

    assert [process(), process()] == ["key 1", "key 1"]
    stamp[0] = "another"
    assert [process(), process()] == ["key 2", "key 2"]
    warm_up._key_file().write_text('{"stamp": "anoth')
    assert process() == "key 3"


def test_a_changed_file_of_triton_changes_the_stamp(tmp_path):
    warm_up = import_module("tcgemm.triton_kernels.host.warm_up")
    library = tmp_path / "_C" / "libtriton.so"
    library.parent.mkdir()
    library.write_text("one")
    before = warm_up._stamp(tmp_path)
    assert warm_up._stamp(tmp_path) == before
    library.write_text("another")
    assert warm_up._stamp(tmp_path) != before


@pytest.mark.parametrize("compute", ["tf32", "tf32x3"])
def test_float32_is_repacked_for_warp_specialized(compute):
    """It multiplies copies of float32 operands: rows of K, and two terms of tf32 each."""
    run = dispatch.load("triton", "warp_specialized")
    device = "cuda" if CUDA else "cpu"
    a, b = (torch.randn(64, 32, device=device) for _ in range(2))
    plan = {} if compute == "tf32x3" else {"REPACK": 1}
    repack = run.repack(compute, plan)
    operands = a.mT.contiguous().mT, b.mT
    room = torch.empty(repack.room(*operands), dtype=torch.uint8, device=device)
    x, y, steps = repack.steps(*operands, room)
    for kernel, grid, args, constants in steps:
        kernel[grid](*args, **constants)
    assert len(steps) == 1, "one launch copies both"
    if compute == "tf32":
        assert steps[0][2][6] is None, "B lies as it has to"
        assert x.stride(1) == y.stride(0) == 1
        assert torch.equal(x, a)
        assert torch.equal(y, b.mT)
    else:
        assert (x.shape, y.shape) == ((2, 64, 32), (2, 32, 64))
        assert torch.allclose(x.sum(0), a, atol=1e-6)
        assert torch.allclose(y.sum(0), b.mT, atol=1e-6)
