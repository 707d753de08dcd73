"""Counts: what the documents derive, from the kernels themselves."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from tcgemm import accuracy, dispatch, gpus
from tcgemm.cli import app
from tcgemm.errors import OperandError, TcgemmError, UnknownNameError
from tcgemm.tools.simulate import command, tile_order
from tcgemm.tools.simulate.measure import ladder_names, machine, measure
from tcgemm.tools.simulate.orders import order_rows

simulator = import_module("tcgemm.cuda_ref.simulator")

SIDE, DEPTH = 256, 128
FAULTS = Path(__file__).parent / "faults"


NAMED = (
    "naive", "tiled", "wmma", "wmma_double_buffered", "wmma_grouped", "wmma_any", "wgmma_cluster",
    "thin",
)  # fmt: skip
"""Rungs of which a test says more than of all."""


@pytest.fixture(scope="module")
def ladder(thorough):
    """Every rung that takes 256 x 256 x 128 in bfloat16, once; in ``make test`` those of NAMED,
    since each is a build."""
    of = {"dtype": "bfloat16", "gpu": gpus.find("h200")}
    names = ladder_names() if thorough else NAMED
    rows = [measure(name, (SIDE, SIDE, DEPTH), **of) for name in names]
    refused = {row["kernel"] for row in rows if row["refused"]}
    assert refused == ({"mma_float64", "skinny", "stream_k", "wgmma_types"} if thorough else set())
    return {row["kernel"]: row for row in rows if not row["refused"]}


def test_flop_per_byte_of_the_ladder(ladder):
    """A tile of m x n does 2 m n operations per step of K and loads m + n elements of 2 bytes. Of a
    pair of blocks that share what they load of B it is the tile of both."""
    for name, row in ladder.items():
        m, n = {"naive": (1, 1), "thin": (4, 4), "wmma": (16, 16)}.get(
            name, (row["plan"].get("BLOCK_M"), row["plan"].get("BLOCK_N"))
        )
        m *= 2 if name in ("wgmma_cluster", "wgmma_epilogue") else 1
        assert row["flop_per_byte"] == pytest.approx(m * n / (m + n), rel=1e-6), name
    assert ladder["naive"]["flop_per_byte"] == 0.5
    assert ladder["wmma"]["flop_per_byte"] == 8
    assert ladder["wmma_double_buffered"]["flop_per_byte"] == 32
    assert ladder["wmma_grouped"]["flop_per_byte"] == 32


def test_every_rung_loads_fewer_bytes_or_conflicts_less(ladder):
    loads = [ladder[name]["load_bytes"] for name in ("naive", "wmma", "wmma_grouped", "wmma_any")]
    assert loads == sorted(loads, reverse=True)


def test_stores_are_c_once(ladder):
    for name, row in ladder.items():
        assert row["store_bytes"] == SIDE * SIDE * 2, name


def test_sectors_per_request(ladder):
    # naive: a warp is two rows of 16 threads: two elements of A in two sectors, 16 neighbours of B
    # in one.
    assert ladder["naive"]["sectors_per_load_request"] == 1.5
    # 32 lanes with 16 bytes each are 16 full sectors.
    for name in ("wmma_double_buffered", "wmma_grouped"):
        assert ladder[name]["sectors_per_load_request"] == 16, name
        assert ladder[name]["load_sectors"] * 32 == ladder[name]["load_bytes"], name
    # Past the L1 into padded rows: every other row's sectors are fetched twice.
    assert ladder["wmma_any"]["sectors_per_load_request"] == 24


# 512 cubed, float16, nn on an H200, by ncu 2025.3 (docs/simulator.md): sectors that the loads and
# copies ask for, wavefronts of shared memory. 1024 cubed has 8 times those of tiled.
BY_NCU = {
    "wmma": (2_097_152, 24_576),
    "wmma_grouped": (262_144, 286_720),
    "wmma_any": (196_608, 202_752),
    "wgmma_tma": (131_072, 49_152),
    "wgmma_specialized": (98_304, 40_960),
}


@pytest.mark.parametrize("name", BY_NCU)
def test_counts_are_those_of_ncu(name):
    row = measure(name, (512, 512, 512))
    assert (row["load_sectors"], row["shared_wavefronts"]) == BY_NCU[name]


def test_tiled_is_what_ncu_counts(ladder):
    """Of 512 cubed, 16 times as many operations."""
    assert ladder["tiled"]["load_sectors"] == 524_288 // 16
    assert ladder["tiled"]["shared_wavefronts"] == 3_538_944 // 16


def test_the_fragments_that_nvcc_keeps_are_the_difference_to_ncu():
    # Two fragments of B per step and warp that the source loads again: eight rows 128 bytes apart
    # are eight wavefronts, and there are four such parts.
    row = measure("wmma_double_buffered", (512, 512, 512))
    steps, warps = 512 // 16, 4 * (512 // 64) ** 2
    assert row["shared_wavefronts"] - 2 * 4 * 8 * steps * warps == 868_352
    assert row["load_sectors"] == 262_144


@pytest.mark.parametrize(
    ("row_bytes", "pitch", "past", "sectors", "through"),
    [
        (32, 32, 16, 16, 16),
        (32, 48, 24, 24, 20),
        (32, 80, 24, 24, 20),
        (64, 64, 8, 16, 8),
        (64, 80, 15, 24, 12),
        (64, 96, 10, 16, 12),
        (64, 112, 15, 24, 12),
        (128, 128, 4, 16, 4),
        (128, 144, 10, 24, 4),
        (128, 160, 7, 16, 4),
        (256, 272, 8, 24, 4),
        (256, 288, 6, 16, 4),
        (512, 528, 4, 16, 4),
    ],
)
def test_asynchronous_copies_cost_what_an_h200_counts(row_bytes, pitch, past, sectors, through):
    """One warp: wavefronts past the L1, sectors that they fetch, wavefronts through it, by ncu."""
    source = Path(__file__).parent / "simulated" / "copies.cu"
    memory = torch.zeros(32 * 1024 + 128, dtype=torch.float16)
    start = -memory.data_ptr() % 256 // 2
    a = memory[start : start + 32 * 1024].view(32, 1024)[: 512 // row_bytes, : row_bytes // 2]
    b = torch.zeros(row_bytes // 2, pitch // 16, dtype=torch.float16)
    counted = []
    for dtype in (torch.float16, torch.float32):
        c = torch.zeros(len(a), pitch // 16, dtype=dtype)
        counts = simulator.simulate(source, a, b, c, count=True).counts
        assert counts.load_requests == 1
        assert counts.load_bytes == 512
        counted.append((counts.shared_wavefronts, counts.load_sectors))
    assert counted == [(past, sectors), (through, 16)]


@pytest.mark.parametrize(
    ("vector_of", "loads", "stores"),
    [
        (lambda lane: lane, (2, 4), (2, 4)),
        (lambda lane: 0, (1, 2), (2, 4)),
        (lambda lane: lane // 16, (1, 2), (2, 4)),
        (lambda lane: lane // 2, (1, 2), (2, 4)),
        (lambda lane: lane // 4 * 2 + lane % 2, (1, 2), (2, 4)),
        (lambda lane: lane // 8 * 4 + lane % 4, (2, 4), (2, 4)),
        (lambda lane: lane % 16, (2, 4), (2, 4)),
        (lambda lane: 2 * lane, (4, 8), (4, 8)),
        (lambda lane: lane // 2 * 2, (2, 4), (2, 4)),
    ],
    ids=["all", "one", "half", "pairs", "xor2", "xor4", "halves", "stride2", "pairs2"],
)
def test_vectors_cost_the_wavefronts_that_an_h200_counts(vector_of, loads, stores):
    """One warp with vectors of 8 and of 16 bytes, by ncu."""
    source = Path(__file__).parent / "simulated" / "vectors.cu"
    a = torch.tensor([[float(vector_of(lane)) for lane in range(32)]])
    for dtype, expected in ((torch.float32, loads), (torch.float16, stores)):
        counted = []
        for N in (8, 16):
            c = torch.zeros(1, 64, dtype=dtype)
            b = torch.zeros(32, N)
            counts = simulator.simulate(source, a, b, c, count=True).counts
            assert counts.shared_requests == 1
            counted.append(counts.shared_wavefronts)
        assert tuple(counted) == expected, dtype


def test_padding_takes_bank_conflicts_away(ladder):
    def share(name):
        return ladder[name]["bank_conflicts"] / ladder[name]["shared_wavefronts"]

    assert share("wmma_double_buffered") > 0.5
    assert share("wmma_grouped") < 0.25
    assert ladder["naive"]["shared_wavefronts"] == 0


def test_tensor_core_instructions(ladder):
    for name, row in ladder.items():
        if name in ("naive", "tiled", "thin"):
            assert row["mma"] == {}, name
            continue
        assert row["mma_flop"] == 2 * SIDE * SIDE * DEPTH, name
        (kind,) = row["mma"]
        if name.startswith("wmma"):
            tiles = (SIDE // 16) ** 2 * DEPTH // 16
            assert row["mma"] == {"wmma m16n16k16 bf16 -> f32": tiles}, name
        elif name in ("mma_multistage", "gemv", "small"):
            assert kind == "mma.sync m16n8k16 bf16 -> f32"
        else:
            assert kind.startswith("wgmma m64n"), name


def test_a_longer_step_has_fewer_barriers(ladder):
    barriers = {name: row["barriers_per_block"] for name, row in ladder.items()}
    assert barriers["naive"] == barriers["wmma"] == 0
    assert barriers["wmma_grouped"] < barriers["wmma_double_buffered"]


def test_the_l2_reads_each_operand_once_where_it_holds_them(ladder):
    for name, row in ladder.items():
        assert row["dram_read_bytes"] == 2 * SIDE * DEPTH * 2, name
        assert row["dram_written_bytes"] == SIDE * SIDE * 2, name
        assert row["l2_hit_rate"] == pytest.approx(
            1 - row["dram_read_bytes"] / (32 * row["load_sectors"])
        ), name


def test_a_small_l2_reads_more(ladder):
    a, b = accuracy.operands(SIDE, SIDE, SIDE, torch.float16, "nn", "cpu", 0)
    c = torch.empty(SIDE, SIDE, dtype=torch.float16)
    tiny = simulator.Machine("tiny", sms=4, l2_bytes=32 * 1024, threads_per_sm=128)
    report = simulator.simulate(
        simulator.source_of("wmma_grouped"), a, b, c, count=True, machine=tiny
    )
    assert report.l2.waves > 1
    assert report.l2.dram_read > 2 * ladder["wmma_grouped"]["dram_read_bytes"]


def test_uncoalesced_loads_cost_a_sector_each():
    """B stored transposed: neighbouring threads of naive read a whole column apart."""
    row = measure("naive", (64, 64, 64), layout="nt")
    assert row["sectors_per_load_request"] == (2 + 16) / 2


def test_counts_depend_on_no_order():
    counts = [
        measure("wmma_any", (65, 130, 40), order=order, check=True)
        for order in ("forward", "reverse", "random:5")
    ]
    for other in counts[1:]:
        for key in ("load_bytes", "load_sectors", "load_requests", "shared_wavefronts", "mma",
                    "bank_conflicts", "barriers_per_block"):  # fmt: skip
            assert other[key] == counts[0][key], key


# The order of tiles.


@pytest.mark.parametrize("name", ["wmma_double_buffered", "wmma_grouped", "wmma_any"])
def test_the_modelled_order_is_the_kernels_own(name):
    """Which block wrote which tile, from the kernel; and from tile_order."""
    plan = dispatch.find("cuda", name).plan(None)
    block_m, block_n = plan["BLOCK_M"], plan["BLOCK_N"]
    tiles_m, tiles_n, K = 11, 3, plan["BLOCK_K"]
    M, N = tiles_m * block_m, tiles_n * block_n
    a, b = accuracy.operands(M, N, K, torch.float16, "nn", "cpu", 0)
    c = torch.empty(M, N, dtype=torch.float16)
    writers = torch.zeros(M, N, dtype=torch.int32)
    report = simulator.simulate(simulator.source_of(name), a, b, c, check=True, writers=writers)
    assert report.ok, report.findings
    by_tile = writers[::block_m, ::block_n]
    assert torch.equal(by_tile.repeat_interleave(block_m, 0).repeat_interleave(block_n, 1), writers)
    order = tile_order.visit(tiles_m, tiles_n, plan.get("GROUP_M"))
    assert [int(by_tile[m, n]) for m, n in order] == list(range(1, tiles_m * tiles_n + 1))


@pytest.mark.parametrize("group", [None, 1, 3, 8])
def test_every_tile_is_visited_once(group):
    tiles = list(tile_order.visit(5, 7, group))
    assert sorted(tiles) == [(m, n) for m in range(5) for n in range(7)]


def test_grouping_reads_less_from_memory():
    rows = order_rows("triton/grouped", (8192, 8192, 8192), "float16", gpus.find("h200"))
    by_group = {row["GROUP_M"]: row for row in rows}
    assert by_group[8]["dram_bytes"] < by_group[None]["dram_bytes"] / 2
    assert by_group[1]["dram_bytes"] == by_group[None]["dram_bytes"]
    assert by_group[8]["l2_hit_rate"] > by_group[None]["l2_hit_rate"]


def test_an_l2_that_holds_everything_reads_everything_once():
    model = tile_order.traffic(
        1024, 768, 512, block_m=128, block_n=128, group_m=None, places=16, l2_bytes=2**30
    )
    assert model.dram_bytes == (1024 * 512 + 512 * 768) * 2
    assert model.read_bytes == (1024 // 128) * (768 // 128) * 2 * 128 * 512 * 2
    assert model.waves == 3


# The command.


def invoke(*arguments):
    return CliRunner().invoke(app, ["simulate", *arguments], env={"COLUMNS": "240"})


def test_the_table_names_every_rung(thorough, monkeypatch):
    """In ``make test`` every rung of NAMED: see ``ladder``."""
    names = ladder_names() if thorough else list(NAMED)
    monkeypatch.setattr(command, "ladder_names", lambda: names)
    result = invoke("ladder", "--shape", "64x64x64", "--dtype", "bfloat16", "--check")
    assert result.exit_code == 0, result.output
    assert "FLOP per byte loaded" in result.output
    assert "nothing found" in result.output
    for name in names:
        assert name in result.output


def test_json_is_the_same_as_measure():
    result = invoke("wmma_any", "--shape", "64x48x32", "--dtype", "bfloat16", "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout)[0] == measure("wmma_any", (64, 48, 32), dtype="bfloat16")


def test_a_kernel_of_ones_own_with_a_fault_exits_1():
    result = invoke(str(FAULTS / "off_by_one.cu"), "--shape", "40x40x40", "--check")
    assert result.exit_code == 1
    assert "B[40," in result.output


def test_a_rung_that_refuses_says_why():
    result = invoke("wmma", "--shape", "100x100x100")
    assert result.exit_code == 2
    assert "M=100 is no multiple of 16" in result.output.replace("\n", " ")


def test_orders_of_triton():
    result = invoke("triton/naive", "--shape", "2048x2048x2048", "--gpu", "t4")
    assert result.exit_code == 0, result.output
    assert "row after row" in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nonsense"], "choose from naive"),
        (["naive", "--gpu", "abacus"], "nvidia-h200"),
        (["naive", "--shape", "4x4"], "malformed shape"),
        (["naive", "--shape", "8192x8192x8192"], "at most"),
        (["naive", "--order", "sideways"], "random:SEED"),
        (["naive", "--dtype", "float128"], "unknown dtype"),
        (["order", "--dtype", "int8"], "float16 or bfloat16"),
        (["naive", "--layout", "xy"], "nn, nt, tn or tt"),
        (["missing.cu"], "no file"),
        (["triton/persistent"], "triton/grouped"),
    ],
)
def test_mistakes_are_one_line(arguments, message):
    result = invoke(*arguments)
    assert isinstance(result.exception, TcgemmError)
    assert message in str(result.exception)


@pytest.mark.parametrize(
    ("name", "slug"), [("t4", "nvidia-t4"), ("h200", "nvidia-h200"), ("NVIDIA L4", "nvidia-l4")]
)
def test_gpus_by_short_name(name, slug):
    assert gpus.find(name).slug == slug
    assert machine(gpus.find(name)).sms > 0


@pytest.mark.spread(3, "dtype", at=1)  # each is a build of its own
@pytest.mark.parametrize("dtype", ["int8", "float32", "float64"])
def test_every_type_of_a_rung_is_simulated(dtype):
    row = measure("wmma_types", (32, 32, 32), dtype=dtype, check=True)
    assert (row["refused"], row["findings"]) == (None, [])
    assert row["error_ratio"] <= 1
    assert row["mma_flop"] >= 2 * 32**3


def test_an_ambiguous_gpu_is_the_first_of_its_name():
    assert gpus.find("a100").slug.startswith("nvidia-a100")
    with pytest.raises(UnknownNameError):
        gpus.find("")


def test_measure_refuses_what_is_too_large():
    with pytest.raises(OperandError, match="1024x1024x1024"):
        measure("naive", (4096, 4096, 4096))
