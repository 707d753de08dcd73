"""The pictures of docs/foundations: memory, sectors, banks, fragments, swizzles, barriers, waves."""

from __future__ import annotations

import csv
from math import log10

from . import constants, models
from .svg import A_LIGHT, B_LIGHT, BANKS, C_LIGHT, GREY, INK, LIGHT, RED, A, B, C, Svg

REPORT = constants.ROOT / "reports" / "nvidia-h200"


def _h200():
    from tcgemm import gpus

    return gpus.find("h200")


def memory_hierarchy() -> str:
    gpu = _h200()
    levels = (
        ("registers", f"{gpu.sms} x 256 KB", "one thread", "a clock or two", "accumulators", C_LIGHT, C),
        ("shared memory, L1", f"{gpu.sms} x 256 KB", "one block (cluster)", "about 30 clocks",
         "stages of A and B", A_LIGHT, A),
        ("L2", f"{gpu.l2_bytes // 2**20} MB", "all SMs", "200 to 300 clocks",
         "what blocks in flight share", B_LIGHT, B),
        ("global memory (HBM)", f"141 GB at {gpu.bandwidth_gb_s / 1000:g} TB/s", "all SMs, the host",
         "500 clocks and more", "A, B and C", LIGHT, GREY),
    )  # fmt: skip
    image = Svg(790, 300, "memory hierarchy of an H200")
    for i, (name, size, who, time, holds, fill, stroke) in enumerate(levels):
        y, indent = 40 + 64 * i, 90 - 30 * i
        image.rect(20 + indent, y, 300 - 2 * indent + 0, 50, fill, stroke)
        image.text(170, y + 22, name, 13, "middle", bold=True)
        image.text(170, y + 40, size, 12, "middle")
        image.text(350, y + 30, who, 12)
        image.text(480, y + 30, time, 12)
        image.text(620, y + 30, holds, 12)
    for x, words in ((350, "seen by"), (480, "a load takes"), (620, "a GEMM keeps there")):
        image.text(x, 24, words, 12, fill=GREY)
    return str(image)


def coalescing() -> str:
    image = Svg(760, 250, "a warp's loads and their sectors")
    cases = (
        ("neighbours: lane i loads element i of a row", 1),
        ("a column: lane i loads row i", 64),
    )
    for index, (title, stride) in enumerate(cases):
        y = 30 + 110 * index
        addresses = [2 * stride * lane for lane in range(32)]
        count = models.sectors(addresses, 2)
        image.text(20, y, title, 13, bold=True)
        image.text(20, y + 82, f"{count} sectors of 32 bytes for 64 bytes that are used: "
                   f"{100 * 64 // (32 * count)} %", 12, fill=RED if count > 2 else C)  # fmt: skip
        if stride == 1:
            for sector in range(4):
                used = sector < 2
                image.rect(20 + 180 * sector, y + 14, 176, 46, A_LIGHT if used else LIGHT, GREY)
            for lane in range(32):
                image.cell(22 + 11 * lane + (4 if lane > 15 else 0), y + 22, 10, 30, "", A)
        else:
            for lane in range(32):
                x = 20 + 22.5 * lane
                image.rect(x, y + 14, 21, 46, LIGHT, GREY)
                image.rect(x, y + 14, 3, 46, A, A)
                if lane in (0, 1, 2, 31):
                    image.text(x + 11, y + 42, lane, 10, "middle")
    return str(image)


def newspaper() -> str:
    """Four tiles of C in flight, K of four tiles: in a row, and as a column of a newspaper."""
    image = Svg(760, 290, "four tiles in a row ask for 20 tiles of A and B, a square for 16")
    for index, (rows, columns, title) in enumerate(
        ((1, 4, "row after row"), (2, 2, "in columns two wide"))
    ):
        x0, y0, side = 40 + 380 * index, 120, 28
        count = (rows + columns) * 4
        image.text(x0, 24, f"{title}: ({rows} + {columns}) x 4 = {count} loads", 13, bold=True)
        for i in range(4):
            for j in range(4):
                lit = i < rows
                image.cell(x0 + side * j, y0 + side * i, side, side, "", A if lit else LIGHT)
                lit = j < columns
                image.cell(x0 + 130 + side * j, y0 - 90 + 0 + side * i * 0.7, side, side * 0.7, "",
                           B if lit else LIGHT)  # fmt: skip
                lit = i < rows and j < columns
                number = i * columns + j if lit else ""
                image.cell(x0 + 130 + side * j, y0 + side * i, side, side, number, C if lit else LIGHT,
                           ink="#ffffff")  # fmt: skip
        image.text(x0 + 56, y0 + 132, "A", 13, "middle", A, True)
        image.text(x0 + 130 + 56, y0 + 132, "C", 13, "middle", C, True)
        image.text(x0 + 250, y0 - 50, "B", 13, "start", B, True)
        image.text(
            x0, y0 + 156, "coloured: tiles that the four blocks in flight read", 11, fill=GREY
        )
    return str(image)


def _rows_in_banks(image: Svg, x: float, title: str, row_bytes: int, xor: bool, note: str) -> None:
    """Eight rows of 64 halves, and where unit 0 of each lies: the word is the group of four banks."""
    image.text(x, 22, title, 13, bold=True)
    asked = []
    for row in range(8):
        y = 44 + 26 * row
        image.text(x - 6, y + 17, row, 10, "end", GREY)
        for unit in range(8):
            at = row * row_bytes + 16 * (unit ^ row % 8 if xor else unit)
            group = at // 16 % 8
            image.cell(x + 25 * unit, y, 24, 24, group, BANKS[group], 10)
            if unit == 0:
                asked.append(at)
                image.rect(x, y, 24, 24, "none", INK, 2)
    count = models.wavefronts(asked)
    image.text(x, 274, f"the column in black: {count} pass{'es' if count > 1 else ''}", 12,
               fill=RED if count > 1 else C)  # fmt: skip
    image.text(x, 292, note, 11, fill=GREY)


def bank_conflicts() -> str:
    pad = constants.of_source("cuda_ref/rungs/wmma_grouped.cu")["PAD"]
    image = Svg(760, 330, "a 64 x 64 half tile in the banks of shared memory")
    _rows_in_banks(image, 30, "rows of 128 bytes", 128, False, "eight rows, one group of banks")
    _rows_in_banks(
        image, 285, f"padded by {pad} halves", 128 + 2 * pad, False, "each row moves by 16 bytes"
    )
    _rows_in_banks(image, 540, "unit u at u XOR row % 8", 128, True, "no byte more; TMA does this")
    image.text(30, 318, "a cell is 8 halves, 16 bytes; its number is the group of 4 banks in which it "
               "lies (first eight rows shown)", 11, fill=GREY)  # fmt: skip
    return str(image)


def occupancy() -> str:
    with (REPORT / "ncu.csv").open(newline="") as file:
        rows = {row["rung"]: row for row in reversed(list(csv.DictReader(file)))}
    names = ("cuda/naive", "cuda/tiled", "cuda/wmma", "cuda/wmma_grouped", "cuda/wmma_any",
             "cuda/wgmma_tma", "cuda/wgmma_persistent", "cublas/cublas")  # fmt: skip
    image = Svg(760, 44 + 34 * len(names), "occupancy of kernels, and what limits it")
    for x, words, anchor in ((8, "kernel", "start"), (190, "blocks an SM holds, by limit", "start"),
                             (480, "warps of 64", "start")):  # fmt: skip
        image.text(x, 18, words, 12, anchor, GREY)
    for i, name in enumerate(names):
        row, y = rows[name], 30 + 34 * i
        threads = int(row["block"])
        limits = models.blocks_per_sm(threads, int(row["registers"]), int(row["shared_bytes"]))
        least = min(limits.values())
        by = [what for what, count in limits.items() if count == least]
        warps = least * (threads // 32)
        image.text(8, y + 17, name, 12, bold=True)
        image.text(190, y + 17, f"{least}: {' and '.join(by)}", 12)
        image.rect(480, y + 3, 200, 20, LIGHT, GREY)
        image.rect(480, y + 3, 200 * warps / 64, 20, C_LIGHT, C)
        seen = float(row["occupancy_pct"])
        image.line(480 + 2 * seen, y, 480 + 2 * seen, y + 26, RED, 2)
        image.text(690, y + 17, f"{warps}, {100 * warps / 64:.0f} %", 12)
    return str(image)


def fragments() -> str:
    image = Svg(810, 400, "which lane holds which element")
    image.text(20, 22, "mma.sync m16n8k16: C, 16 x 8", 13, bold=True)
    holders = {models.accumulator(lane, r): (lane, r) for lane in range(32) for r in range(4)}
    for (row, column), (lane, register) in holders.items():
        mine = lane == 5
        image.cell(20 + 26 * column, 34 + 20 * row, 25, 19, lane,
                   RED if mine else BANKS[lane // 4], 10, ink="#fff" if mine else INK)  # fmt: skip
        del register
    image.text(20, 372, "number: lane; red: the four of lane 5", 12)
    image.text(260, 22, "A of the same, 16 x 16: pairs along K", 13, bold=True)
    for lane in range(32):
        for register in range(4):
            row = lane // 4 + 8 * (register % 2)
            column = lane % 4 * 2 + 8 * (register // 2)
            mine = lane == 5
            image.cell(260 + 14 * column, 34 + 20 * row, 27, 19, lane,
                       RED if mine else BANKS[lane // 4], 10, ink="#fff" if mine else INK)  # fmt: skip
    image.text(260, 372, "a box: two neighbours in one register", 12)
    image.text(545, 22, "wgmma m64nNk16: C, 64 x N", 13, bold=True)
    for thread in range(128):
        for register in range(8):
            row, column = models.wgmma_accumulator(thread, register)
            mine = thread == 37
            image.rect(545 + 13 * column, 34 + 5 * row, 12, 4.4,
                       RED if mine else BANKS[thread // 32 * 2], "none")  # fmt: skip
    for warp in range(4):
        image.text(759, 34 + 80 * warp + 44, f"warp {warp}", 11)
    image.text(545, 372, "16 columns of N; red: thread 37", 12)
    image.text(20, 392, "WMMA's fragment is one of these, but which is not specified: only whole fragments "
               "may be stored.", 11, fill=GREY)  # fmt: skip
    return str(image)


def swizzles() -> str:
    image = Svg(760, 300, "a tile of 64 halves a row under the 128-byte swizzle")
    for x, title, xor in ((40, "as the program names it: row, unit", False),
                          (400, "where it lies: unit XOR row % 8", True)):  # fmt: skip
        image.text(x, 22, title, 13, bold=True)
        for row in range(8):
            image.text(x - 8, 60 + 28 * row, row, 11, "end", GREY)
            for place in range(8):
                unit = place ^ row if xor else place
                hot = unit == 2
                image.cell(x + 40 * place, 42 + 28 * row, 38, 26, f"{row},{unit}",
                           RED if hot else BANKS[place], 11, ink="#fff" if hot else INK)  # fmt: skip
    image.text(40, 286, "red: unit 2 of every row, which one ldmatrix reads. Left it is one group of banks, "
               "right it is all eight.", 12)  # fmt: skip
    return str(image)


def async_copies() -> str:
    stages = constants.of_source("cuda_ref/rungs/wgmma_specialized.cu")["NUM_STAGES"]
    image = Svg(760, 300, f"a ring of {stages} stages with two barriers each")
    image.text(20, 22, "the phase bit flips each time the ring has been walked", 13, bold=True)
    for i in range(9):
        x = 110 + 70 * i
        image.cell(x, 60, 64, 34, f"k{i}", A_LIGHT, 12, A)
        image.cell(x, 96, 64, 20, f"stage {i % stages}", BANKS[i % stages], 10)
        image.text(
            x + 32, 134, f"phase {i // stages % 2}", 11, "middle", RED if i // stages % 2 else INK
        )
    image.text(20, 82, "producer", 12)
    image.text(20, 110, "fills", 12)
    image.text(20, 134, "full: parity", 12)
    for i in range(7):
        x = 110 + 70 * (i + 1.5)
        image.cell(x, 170, 64, 34, f"k{i}", C_LIGHT, 12, C)
        image.text(x + 32, 222, f"{i // stages % 2}", 11, "middle", RED if i // stages % 2 else INK)
    image.text(20, 192, "consumer", 12)
    image.text(20, 222, "waits for full", 12)
    image.line(110 + 32, 140, 110 + 70 * 1.5 + 20, 166, arrow=True)
    image.line(
        110 + 70 * 1.5 + 50, 166, 110 + 70 * stages + 10, 58 + 60, GREY, arrow=True, dash="4 3"
    )
    image.text(20, 252, f"solid: full[0] completes when all bytes of k0 have arrived. Dashed: empty[0] "
               f"lets k{stages} overwrite k0.", 12)  # fmt: skip
    image.text(20, 272, "A wait names the parity it waits for; after the ring's end the same barrier is waited "
               "for with the other parity.", 12)  # fmt: skip
    return str(image)


def roofline() -> str:
    import numbers_of

    gpu = _h200()
    peak, bandwidth = gpu.peak_tflops["bfloat16"], gpu.bandwidth_gb_s / 1000
    image = Svg(760, 380, "roofline of an H200, bfloat16")
    left, bottom, w, h = 60, 330, 660, 290
    x_of = lambda v: left + w * (log10(v) - log10(0.2)) / (log10(4096) - log10(0.2))  # noqa: E731
    y_of = lambda v: bottom - h * log10(v) / log10(2000)  # noqa: E731
    image.line(left, bottom, left + w, bottom)
    image.line(left, bottom, left, bottom - h)
    for v in (0.5, 1, 4, 16, 64, 256, 1024, 4096):
        image.text(x_of(v), bottom + 16, f"{v:g}", 11, "middle", GREY)
    for v in (1, 10, 100, 1000):
        image.text(left - 6, y_of(v) + 4, v, 11, "end", GREY)
        image.line(left, y_of(v), left + w, y_of(v), LIGHT)
    ridge = peak / bandwidth
    image.path(
        [(x_of(1 / bandwidth), y_of(1)), (x_of(ridge), y_of(peak)), (x_of(4096), y_of(peak))]
    )
    image.text(x_of(600), y_of(peak) - 6, f"{peak:g} TFLOPS", 12)
    image.text(x_of(2.2), y_of(5 * bandwidth) - 14, f"{bandwidth:g} TB/s", 12)
    image.line(x_of(ridge), y_of(peak), x_of(ridge), bottom, GREY, dash="4 3")
    image.text(x_of(ridge) + 4, bottom - 8, f"ridge: {ridge:.0f} FLOP per byte", 11, fill=GREY)
    for name in ("naive", "tiled", "wmma_double_buffered", "wmma_grouped", "wmma_any", "wgmma_tma",
                 "wgmma_persistent"):  # fmt: skip
        row = numbers_of.result(f"cuda/{name}", "bfloat16", "nn", "4096")
        if row is None:
            continue
        have = constants.of_kernel(f"cuda/{name}")
        m, n = (1, 1) if name == "naive" else (have["BLOCK_M"], have["BLOCK_N"])
        x, y = x_of(m * n / (m + n)), y_of(numbers_of.column(row, "tflops"))
        image.rect(x - 4, y - 4, 8, 8, C, C)
        beside = name not in ("naive", "wmma_grouped", "wgmma_persistent", "wgmma_tma")
        # Below its square: beside it the name would meet the ridge.
        dx, dy = (-14, 17) if name == "wmma_double_buffered" else (8 if beside else -8, 4)
        image.text(x + dx, y + dy, name, 11, "start" if beside else "end")
    image.text(
        left + w / 2,
        bottom + 34,
        "FLOP per byte that a block's tile loads, most of it from the L2",
        12,
        "middle",
    )
    image.text(16, bottom - h / 2, "TFLOPS, 4096 cubed", 12, "middle", turned=True)
    return str(image)


def wave_quantization() -> str:
    sms = _h200().sms
    have = constants.of_kernel("cuda/wgmma_persistent")
    m, n = have["BLOCK_M"], have["BLOCK_N"]
    image = Svg(760, 330, "waves of tiles, and what the last one wastes")
    left, bottom, w, h = 60, 270, 660, 220
    image.line(left, bottom, left + w, bottom)
    image.line(left, bottom, left, bottom - h)
    sizes = range(512, 8193, 256)
    x_of = lambda size: left + w * (size - 512) / (8192 - 512)  # noqa: E731
    for share in (0.25, 0.5, 0.75, 1.0):
        image.text(left - 6, bottom - h * share + 4, f"{share:.0%}", 11, "end", GREY)
        image.line(left, bottom - h * share, left + w, bottom - h * share, LIGHT)
    points = []
    for size in sizes:
        tiles = -(-size // m) * -(-size // n)
        count, busy = models.waves(tiles, sms)
        points.append((x_of(size), bottom - h * busy))
        if size in (2048, 3072, 4096, 8192):
            image.rect(x_of(size) - 4, bottom - h * busy - 4, 8, 8, RED, RED)
            words = f"{tiles} tiles, {count} wave{'s' if count > 1 else ''}"
            image.text(x_of(size), bottom - h * busy + (-9 if busy > 0.9 else 20), words, 11,
                       "end" if size == 8192 else "middle")  # fmt: skip
    image.path(points, C, 2)
    for size in (512, 2048, 4096, 6144, 8192):
        image.text(x_of(size), bottom + 16, size, 11, "middle", GREY)
    image.text(left + w / 2, bottom + 38, f"M = N; tiles of {m} x {n} on {sms} SMs", 12, "middle")
    image.text(left, 28, "share of the SMs' time in which they have a tile", 13, bold=True)
    return str(image)


def reading_ncu() -> str:
    with (REPORT / "ncu.csv").open(newline="") as file:
        rows = {row["rung"]: row for row in reversed(list(csv.DictReader(file)))}
    names = ("cuda/wmma", "cuda/wmma_double_buffered", "cuda/wmma_any", "cuda/wgmma_tma",
             "cuda/wgmma_persistent", "triton/pipelined")  # fmt: skip
    colours = (A_LIGHT, B_LIGHT, C_LIGHT)
    image = Svg(760, 52 + 44 * len(names), "the three stalls that lead, by kernel")
    image.text(8, 22, "warp cycles an instruction waits, and for what", 13, bold=True)
    for i, name in enumerate(names):
        y = 40 + 44 * i
        stalls = [stall.split(":") for stall in rows[name]["stalls"].split()]
        total = sum(float(number) for _, number in stalls)
        image.text(8, y + 20, name, 12, bold=True)
        x = 210.0
        for (what, number), fill in zip(stalls, colours, strict=True):
            width = 530 * float(number) / total
            short = f"{what.replace('scoreboard', 'sc.')} {float(number):.1f}"
            words = f"{what} {float(number):.1f}"
            fitting = [each for each in (words, short) if len(each) * 5.8 < width]
            image.cell(x, y, width, 30, [*fitting, ""][0], fill, 11, GREY)
            x += width
    return str(image)


def walking() -> str:
    """Gannon's four missing diagrams in one: blocks over C, warps in a block, K, and the overrun."""
    have = constants.of_source("cuda_ref/rungs/wmma.cu")
    block, mma, size, depth = have["BLOCK_M"], have["MMA_M"], 100, 48
    image = Svg(790, 402, "blocks over C, warps in a block, the walk along K, and the overrun")
    scale, x0, y0 = 2.1, 130, 130
    whole = -(-size // block) * block
    image.rect(x0, y0, size * scale, size * scale, C_LIGHT, C)
    image.rect(x0 - depth * scale - 10, y0, depth * scale, size * scale, A_LIGHT, A)
    image.rect(x0, y0 - depth * scale - 10, size * scale, depth * scale, B_LIGHT, B)
    for i in range(0, whole + 1, block):
        image.line(x0 + i * scale, y0, x0 + i * scale, y0 + whole * scale, INK, 2)
        image.line(x0, y0 + i * scale, x0 + whole * scale, y0 + i * scale, INK, 2)
    for i in range(0, block, mma):
        image.line(x0 + i * scale, y0, x0 + i * scale, y0 + block * scale, C)
        image.line(x0, y0 + i * scale, x0 + block * scale, y0 + i * scale, C)
    overrun = (whole - size) * scale
    for x, y, w, h in ((x0 + size * scale, y0, overrun, whole * scale),
                       (x0, y0 + size * scale, size * scale, overrun)):  # fmt: skip
        image.rect(x, y, w, h, RED + "33", "none")
    row, column, warps = 2, 1, have["WARPS_N"]
    at_x, at_y, side = x0 + column * mma * scale, y0 + row * mma * scale, mma * scale
    image.rect(at_x, at_y, side, side, C, INK, 2)
    for k in range(depth // mma):
        image.rect(x0 - depth * scale - 10 + k * side, at_y, side, side, A, "#fff")
        image.rect(at_x, y0 - depth * scale - 10 + k * side, side, side, B, "#fff")
    image.line(x0 - depth * scale - 8, at_y + side / 2, x0 - 14, at_y + side / 2, "#fff", 2, True)
    image.line(at_x + side / 2, y0 - depth * scale - 8, at_x + side / 2, y0 - 14, "#fff", 2, True)
    notes = (
        f"black: blocks of {block} x {block},",
        "   blockIdx.x counts them row after row",
        f"green: the {have['WARPS_M']} x {warps} warps of block 0; dark: warp {row * warps + column}",
        f"   warp_row = warp / {warps} = {row}, warp_col = warp % {warps} = {column}",
        f"blue, orange: its walk along K, {mma} a step: one fragment of A,",
        "   one of B, one mma_sync",
        f"red: the overrun of a {size} x {size} C; {100 * (1 - size**2 / whole**2):.0f} % of the "
        "tiles' area",
        "   padding on the host copies A, B and C to fill it;",
        "   wmma_any loads zeros there and stores nothing",
    )
    for i, words in enumerate(notes):
        image.text(410 + 12 * words.startswith(" "), 150 + 22 * i, words.strip(), 12)
    return str(image)


DRAWINGS = (
    walking,
    memory_hierarchy, coalescing, newspaper, bank_conflicts, occupancy, fragments, swizzles,
    async_copies, roofline, wave_quantization, reading_ncu,
)  # fmt: skip


def all() -> dict[str, str]:
    return {drawing.__name__: drawing() for drawing in DRAWINGS}
