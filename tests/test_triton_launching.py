"""Replayed launches: what is replayed is what Triton would have passed, and never another binary.

On a CPU Triton's own launcher runs over a stand-in for its C function; on a GPU all of it runs.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tcgemm import accuracy, dispatch
from tcgemm.problem import Fusion

launching = import_module("tcgemm.triton_kernels.launching")
recording = import_module("tcgemm.triton_kernels.recording")
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


@pytest.fixture
def gpu(monkeypatch):
    """The module as on a GPU, with stream 5 current; nothing remembered."""
    monkeypatch.setattr(launching, "INTERPRETED", False)
    monkeypatch.setattr(launching, "check", lambda a: None)
    monkeypatch.setattr(launching, "_kinds", {})
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: 5, raising=False)


def tensor(rows=8, columns=8, dtype=torch.float16, offset=0):
    return torch.zeros(rows * columns + 64, dtype=dtype)[offset : offset + rows * columns].view(
        rows, columns
    )


def plain(a, b, c, TILE):
    return (3,), (a, b, c, a.shape[0]), {"TILE": TILE}


def described(a, b, c, TILE):
    x, y, z = (Descriptor(t.data_ptr()) for t in (a, b, c))
    return (3,), (x, y, z, a.shape[0]), {"TILE": TILE}


def call(kernel, a, b, c, arguments=plain, fusion=None, **plan):
    launching.launch(kernel, arguments, a, b, c, fusion, plan or {"TILE": 16})


@pytest.mark.parametrize("nested", [False, True])
def test_a_repeated_call_goes_the_short_way_with_its_own_addresses(gpu, nested):
    kernel, a, b, c = Kernel(nested), tensor(), tensor(), tensor()
    call(kernel, a, b, c)
    assert (len(kernel.long_way), len(kernel.short_way)) == (1, 0)
    x, y, z = tensor(), tensor(), tensor()
    call(kernel, x, y, z)
    assert (len(kernel.long_way), len(kernel.short_way)) == (1, 1)
    (passed,) = kernel.short_way
    values = list(passed[-1]) if nested else list(passed[13:])
    assert values == [x.data_ptr(), y.data_ptr(), z.data_ptr(), 8, 16]
    assert passed[:5] == (3, 1, 1, 5, 77)


def test_descriptors_are_recorded_for_each_set_of_addresses(gpu):
    kernel = Kernel(described=True)
    first, second = (tuple(tensor() for _ in range(3)) for _ in range(2))
    for operands in (first, second, first, second, second):
        call(kernel, *operands, described)
    assert len(kernel.long_way) == 2
    assert [p[13].address for p in kernel.short_way] == [
        first[0].data_ptr(), second[0].data_ptr(), second[0].data_ptr(),
    ]  # fmt: skip


CHANGES = {
    "a misaligned A": lambda: ((tensor(offset=1), tensor(), tensor()), {}),
    "a misaligned B": lambda: ((tensor(), tensor(offset=2), tensor()), {}),
    "a misaligned C": lambda: ((tensor(), tensor(), tensor(offset=4)), {}),
    "another dtype of A": lambda: ((tensor(dtype=torch.bfloat16), tensor(), tensor()), {}),
    "another dtype of C": lambda: ((tensor(), tensor(), tensor(dtype=torch.float32)), {}),
    "another shape": lambda: ((tensor(4, 8), tensor(), tensor(4, 8)), {}),
    "another N": lambda: ((tensor(), tensor(8, 4), tensor(8, 4)), {}),
    "other strides of A": lambda: ((tensor().T, tensor(), tensor()), {}),
    "other strides of B": lambda: ((tensor(), tensor().T, tensor()), {}),
    "other strides of C": lambda: ((tensor(), tensor(), tensor().T), {}),
    "another plan": lambda: ((tensor(), tensor(), tensor()), {"TILE": 32}),
    "the same tensor twice": lambda: ((t := tensor(), t, tensor()), {}),
}


@pytest.mark.parametrize("change", CHANGES)
def test_whatever_compiled_code_rests_on_is_part_of_the_guard(gpu, change):
    kernel = Kernel()
    call(kernel, tensor(), tensor(), tensor())
    operands, plan = CHANGES[change]()
    call(kernel, *operands, **plan)
    assert (len(kernel.long_way), len(kernel.short_way)) == (2, 0)
    call(kernel, tensor(), tensor(), tensor())
    call(kernel, *operands, **plan)
    assert (len(kernel.long_way), len(kernel.short_way)) == (2, 2)


def test_another_device_is_another_kind(gpu, monkeypatch):
    kernel, a = Kernel(), tensor()
    call(kernel, a, tensor(), tensor())
    monkeypatch.setattr(torch.Tensor, "get_device", lambda self: 1)
    call(kernel, a, tensor(), tensor())
    assert (len(kernel.long_way), len(kernel.short_way)) == (2, 0)


def test_plans_with_the_same_values_under_other_names_differ(gpu):
    kernel, operands = Kernel(), (tensor(), tensor(), tensor())

    def arguments(a, b, c, P, Q):
        return (P,), (a, b, c, Q), {"TILE": 1}

    call(kernel, *operands, arguments, P=2, Q=3)
    call(kernel, *operands, arguments, Q=2, P=3)
    assert len(kernel.long_way) == 2


def test_what_is_fused_is_part_of_the_guard_and_its_addresses_are_replaced(gpu):
    kernel = Kernel()

    def arguments(a, b, c, fusion, TILE):
        return (3,), (a, b, fusion.bias, c.shape[0]), {"TILE": TILE}

    operands = (tensor(), tensor(), tensor())
    for alpha, bias in ((1.0, tensor(1, 8)), (1.0, tensor(1, 8)), (2.0, tensor(1, 8)),
                        (1.0, tensor(1, 8, offset=1))):  # fmt: skip
        call(kernel, *operands, arguments, Fusion(alpha=alpha, bias=bias[0]))
    assert (len(kernel.long_way), len(kernel.short_way)) == (3, 1)
    bias = tensor(1, 8)[0]
    call(kernel, *operands, arguments, Fusion(bias=bias))
    assert kernel.short_way[-1][15] == bias.data_ptr()


def test_every_call_gets_a_workspace_of_its_own(gpu):
    kernel, follower = Kernel(), Kernel()

    def arguments(a, b, c, TILE):
        return (3,), (a, b, torch.empty(24), c.shape[0]), {"TILE": TILE}

    def second(a, b, c, args, plan):
        return follower, (1,), (args[2], c, args[2], 8), {"TILE": plan["TILE"]}

    operands = (tensor(), tensor(), tensor())
    for _ in range(2):
        launching.launch(kernel, arguments, *operands, None, {"TILE": 16}, second)
    (kind,) = launching._kinds.values()
    assert kind.workspace == 24
    (one,), (two,) = kernel.short_way, follower.short_way
    assert one[15] == two[13] == two[15], "both passes share it"
    assert one[15] not in (0, *(t.data_ptr() for t in operands))
    assert two[14] == operands[2].data_ptr()


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
    for _ in range(3):
        call(kernel, tensor(), tensor(), tensor())
    assert (len(kernel.long_way), len(kernel.short_way)) == (3, 0)


@pytest.mark.parametrize("hook", ["launch_enter_hook", "launch_exit_hook"])
def test_a_profiler_that_listens_hears_of_every_launch(gpu, monkeypatch, hook):
    kernel = Kernel()
    call(kernel, tensor(), tensor(), tensor())
    listening = SimpleNamespace(calls=[print])
    hooks = {"launch_enter_hook": None, "launch_exit_hook": None, hook: listening}
    monkeypatch.setattr(launching, "_runtime", SimpleNamespace(**hooks))
    call(kernel, tensor(), tensor(), tensor())
    assert (len(kernel.long_way), len(kernel.short_way)) == (2, 0)
    listening.calls.clear()
    call(kernel, tensor(), tensor(), tensor())
    assert (len(kernel.long_way), len(kernel.short_way)) == (2, 1)


def test_memory_is_bounded(gpu, monkeypatch):
    monkeypatch.setattr(launching, "KINDS", 3)
    monkeypatch.setattr(launching, "ADDRESSES", 2)
    kernel = Kernel(described=True)
    kept = [tuple(tensor() for _ in range(3)) for _ in range(4)]
    for operands in kept:
        call(kernel, *operands, described)
    (kind,) = launching._kinds.values()
    assert len(kind.by_address) <= 2
    for tile in range(8):
        call(kernel, *kept[0], described, TILE=tile)
    assert len(launching._kinds) <= 3


def test_a_bound_call_looks_at_addresses_alone(gpu):
    kernel, a, b, c = Kernel(), tensor(), tensor(), tensor()
    bound = launching.bind(kernel, plain, None, a, b, c, TILE=16)
    bound(a, b, c)
    assert (len(kernel.long_way), len(kernel.short_way)) == (1, 0)
    x = tensor()
    bound(x, b, c)
    assert kernel.short_way[-1][13:16] == (x.data_ptr(), b.data_ptr(), c.data_ptr())
    bound(tensor(offset=1), b, c)
    bound(b, b, c)
    assert (len(kernel.long_way), len(kernel.short_way)) == (3, 1)


@pytest.mark.parametrize("with_descriptors", [False, True])
def test_triton_s_own_launcher_is_replayed_as_it_is(monkeypatch, with_descriptors):
    """Triton's launcher class and its wrapper for descriptors, over a stand-in C function."""
    driver = import_module("triton.backends.nvidia.driver")
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
    bound = dispatch.load("triton", name).prepare(a, b, c, **row.plan(problem))
    for _ in range(3):
        a, b, c = (torch.randn(256, 256, device="cuda").half() for _ in range(3))
        for x, y in ((a, b), (a, a), (b, a)):
            bound(x, y, c.fill_(float("nan")))
            assert accuracy.error_ratio(x, y, c) <= 1


def test_tritons_own_start_is_done_beside_ours_and_kept():
    starting = import_module("tcgemm.triton_kernels.starting")
    kept = import_module("triton.runtime.cache").triton_key.cache_info
    starting.begin()
    starting.wait()
    assert kept().currsize == 1


@pytest.mark.parametrize("compute", ["tf32", "tf32x3"])
def test_a_prepared_call_copies_float32_as_the_first_call_does(monkeypatch, compute):
    """warp_specialized multiplies copies of float32 operands: a repeated call has to make them."""
    rung = import_module("tcgemm.triton_kernels.warp_specialized")
    launched = []
    monkeypatch.setattr(rung, "launch", lambda *given: launched.append(given[2:4]))
    monkeypatch.setattr(launching, "launch", lambda *given: launched.append(given[2:4]))
    for name in ("prepared", "terms"):
        monkeypatch.setattr(rung, name, lambda a, b, *_: (a + 1, b + 1))
    a, b, c = (tensor(64, 64, torch.float32) for _ in range(3))
    fusion = Fusion(compute=compute)
    plan = {} if compute == "tf32x3" else {"PREPARE": 1}
    run = dispatch.load("triton", "warp_specialized")
    run(a, b, c, fusion, **plan)
    run.prepare(a, b, c, fusion=fusion, **plan)(a, b, c)
    (first, second) = launched
    assert all(torch.equal(x, y) and x.min() == 1 for x, y in zip(first, second, strict=True))
