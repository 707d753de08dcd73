"""What wgmma_persistent fuses, tile by tile: C_in by TMA and by threads, bias, C by TMA or not."""

import math
from types import SimpleNamespace

import pytest
import torch
from tcgemm.cuda_ref import load, simulator
from tcgemm.cuda_ref.build import toolchain
from tcgemm.cuda_ref.fusion import DTYPES, TILE
from tcgemm.cuda_ref.fusion import case as fused_case
from tcgemm.cuda_ref.rungs import wgmma_persistent as tiles

from tcgemm.problem import Fusion, Problem

SOURCE = toolchain.source("wgmma_persistent")
F16, BF16, F32 = torch.float16, torch.bfloat16, torch.float32
FUSING = [tile for tile in tiles.TILES if tile.fused_rate]
WIDE = next(t for t in FUSING if t.BLOCK_N == 256)
IN_TURNS = next(t for t in FUSING if t.PINGPONG)
SIZES = {WIDE: (1500, 1304, 200), IN_TURNS: (500, 392, 584)}
SMALL = tiles.TILES[-1]
ONE_BUFFER = next(t for t in FUSING if t.CHUNK_BUFFERS == 1 and t.BLOCK_N > 64)


def ids(tile):
    return f"{tile.BLOCK_M}x{tile.BLOCK_N}x{tile.NUM_STAGES}" + "-pingpong" * tile.PINGPONG


def integers(shape, dtype, device, most=3):
    return torch.randint(-most, most + 1, shape, device=device).to(dtype)


def case(M, N, K, dtype, out, *, c_in="", bias="", place="tma", batch=(), device="cpu"):
    """A, B, C in a buffer of NaN, what is fused, and the exact result: small integers."""
    a, b = (
        integers((*batch, M, K), dtype, device),
        integers((*batch, K, -(-N // 8) * 8), dtype, device),
    )
    b = b[..., :N]
    buffer = torch.full(
        (*batch, M + 1, -(-N // 8) * 8 + 8 + (place == "odd")), math.nan, device=device
    )
    buffer = buffer.to(out)
    c = buffer[..., :M, :N]
    before = {
        "": lambda: None,
        "rows": lambda: integers((*batch, M, -(-N // 8) * 8), out, device)[..., :N],
        "shifted": lambda: integers((*batch, M, N + 1), out, device)[..., 1:],
        "columns": lambda: integers((*batch, N, M), out, device).mT,
        "one row": lambda: integers((1, N), out, device).expand(*batch, M, N),
        "in place": lambda: c.copy_(integers((*batch, M, N), out, device)),
    }[c_in]()
    terms = {"": None, "row": integers((N,), out, device, 9)}
    terms |= {"shifted": integers((N + 1,), out, device, 9)[1:]}
    terms |= {"steps": integers((2 * N,), out, device, 9)[::2]}
    fusion = Fusion(
        alpha=0.5,
        beta=2.0 if c_in else 0.0,
        c=before,
        bias=terms[bias],
        epilogue="relu",
    )
    want = a.double() @ b.double() * 0.5
    if c_in:
        want = want + 2 * before.double()
    if bias:
        want = want + terms[bias].double()
    return SimpleNamespace(
        a=a, b=b, c=c, buffer=buffer, fusion=fusion, want=want.relu().to(out), inside=c.numel()
    )


def right(x):
    return torch.equal(x.c, x.want) and int((~x.buffer.isnan()).sum()) == x.inside


WAYS = [
    {"c_in": "rows", "bias": "row"},
    {"c_in": "in place"},
    {"c_in": "columns", "bias": "steps"},
    {"c_in": "shifted", "bias": "shifted"},
    {"c_in": "rows", "place": "odd"},
    {"c_in": "one row"},
    {"bias": "row"},
]


def built_for(tile, dtype, out, tmp_path_factory):
    """A source of the tile, one for all tests, that takes these types and fuses."""
    folder = tmp_path_factory.getbasetemp() / f"{ids(tile)}-{out}"
    folder.mkdir(exist_ok=True)
    chosen = {**{key: tile.plan[key] for key in TILE if key in tile.plan}, "PLAIN": 0}
    chosen |= {"IN": DTYPES[str(dtype)[6:]], "OUT": DTYPES[str(out)[6:]]}
    source = folder / "fused.cu"
    lines = [f"#define TCGEMM_{name} {value}" for name, value in chosen.items()]
    source.write_text("\n".join([*lines, f'#include "{SOURCE.name}"\n']))
    return source


@pytest.mark.spread(14, "way", "tile")
@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize(
    ("tile", "out", "order"),
    [
        (WIDE, BF16, "reverse"),
        (IN_TURNS, BF16, "random:3"),
        (IN_TURNS, F32, "forward"),
        (ONE_BUFFER, F32, "reverse"),
    ],
    ids=lambda x: ids(x) if isinstance(x, tiles.Tile) else str(x),
)
def test_each_way_of_c_in_is_right_and_nothing_is_found(tile, out, order, way, tmp_path_factory):
    """Several tiles a block, so that buffers are used again; edges on both sides."""
    dtype = F16 if out == F32 else out
    source = built_for(tile, dtype, out, tmp_path_factory)
    x = case(*SIZES.get(tile, (500, 392, 200)), dtype, out, **way)
    report = simulator.simulate(
        source, x.a, x.b, x.c, fusion=x.fusion, check=True, order=order, timeout_s=60
    )
    assert not report.findings, [str(finding) for finding in report.findings]
    assert right(x)


@pytest.mark.parametrize("order", ["forward", "late:3", "late:7"])
def test_consumers_that_take_turns_have_several_tiles_each(tmp_path_factory, order):
    """Four tiles a block, and more steps of K in all than the ring has stages; the last warp of
    either consumer may come late."""
    source = built_for(IN_TURNS, BF16, BF16, tmp_path_factory)
    x = case(1024, 512, 136, BF16, BF16, c_in="rows")
    report = simulator.simulate(
        source, x.a, x.b, x.c, fusion=x.fusion, check=True, timeout_s=60, order=order
    )
    assert report.grid[0] * 4 == 1024 // 128 * (512 // 128)
    assert not report.findings, [str(finding) for finding in report.findings]
    assert right(x)


@pytest.mark.gpu
@pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0),
    reason="needs a GPU of compute capability 9.0",
)
@pytest.mark.parametrize("tile", [WIDE, IN_TURNS, ONE_BUFFER, SMALL], ids=ids)
def test_fused_products_are_exact_on_the_gpu(tile):
    """Edges, one and many rounds, clusters of one and two, a batch; twice to the bit."""
    run = load("wgmma_persistent")
    for shape in ((1, 8, 8), (129, 521, 328), (3000, 2312, 200), (128, 256 * 133 + 8, 64)):
        for way in WAYS[:6]:
            x = case(*shape, BF16, BF16, device="cuda", **{**way, "bias": way.get("bias") or "row"})
            for again in (2,) if way["c_in"] == "in place" else (1, 2, 1):
                run(x.a, x.b, x.c, x.fusion, **tile.plan, CLUSTER=again)
                assert right(x), (shape, way, again)
    x = case(129, 520, 200, BF16, BF16, c_in="rows", bias="row", batch=(3,), device="cuda")
    for cluster in (1, 2):
        run(x.a, x.b, x.c, x.fusion, **tile.plan, CLUSTER=cluster)
        assert right(x), cluster


def test_a_large_tile_is_built_for_what_it_fuses():
    """One row of instructions; a small one finds it out at run time, and has one build."""

    def flags(tile, fusion, batched=False):
        macros = toolchain.built_by_case(SOURCE)
        found = fused_case(BF16, fusion, BF16, batched, macros, tile.plan)
        return [flag for flag in found if "FUSES" in flag]

    bias = torch.zeros(8, dtype=BF16)
    asked = Fusion(bias=bias, epilogue="gelu")
    assert flags(WIDE, asked) == ["-DTCGEMM_FUSES=18"]
    stored = Problem.stored(64, 64, 64, "bfloat16", "bfloat16", bias=True, epilogue="gelu")
    assert flags(WIDE, stored) == flags(WIDE, asked)
    assert flags(WIDE, None, batched=True) == ["-DTCGEMM_FUSES=32"]
    assert flags(WIDE, None) == flags(SMALL, asked) == []
