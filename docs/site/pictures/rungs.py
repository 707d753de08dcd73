"""A picture for every kernel of both backends: its tile of C to scale, its stages, its time line.

All three are drawn from the kernel's constants (constants.py); a kernel that is added has a picture
without a line here. LANES says what its time line shows, which no constant tells.
"""

from __future__ import annotations

from . import constants
from .svg import A_LIGHT, B_LIGHT, C_LIGHT, GREY, INK, LIGHT, RED, A, B, C, Svg

WIDTH = 760
SIDE = 190
"""Pixels of the longer side of a tile of C."""

STEP = 336 / 9.7
"""Pixels of a step of K on the time line."""
LOAD, MULTIPLY, STORE, WAIT = (A_LIGHT, A), (C_LIGHT, C), (B_LIGHT, B), (LIGHT, GREY)
TRANSPOSED = ("triton/skinny",)
"""Kernels whose constants are those of C transposed: B's columns are its rows."""
Lane = tuple[str, list[tuple[float, float, str, tuple[str, str]]]]
"""Who; then (start, length, what, colours) of each box, in steps of K."""


def fits(words: str, length: float) -> bool:
    """Whether a box of that many steps has room for its words."""
    return len(words) * 5.0 < length * STEP


def serial(who: str) -> list[Lane]:
    boxes = []
    for k in range(4):
        boxes += [(2.3 * k, 1.3, f"load k{k}", LOAD), (2.3 * k + 1.3, 0.9, f"k{k}", MULTIPLY)]
    return [(who, boxes)]


def ring(stages: int) -> list[Lane]:
    """Multiplies follow each other; a stage is filled again as soon as it has been multiplied."""
    step, first = 1.15, 1.3
    lanes: list[Lane] = []
    for slot in range(stages):
        boxes = []
        for k in range(slot, 7, stages):
            start = 0.1 * k if k < stages - 1 else first + step * (k - stages + 1)
            start += 0 if k < stages - 1 else 0.05
            length = min(1.2 if stages == 2 else 1.6, first + step * k - start)
            boxes += [(start, length, f"copy k{k}" if stages > 2 else f"k{k}", LOAD)]
            boxes += [(first + step * k, step - 0.05, f"k{k}", MULTIPLY)]
        lanes.append((f"stage {slot}", boxes))
    return lanes


def blocks_in_turn(count: int) -> list[Lane]:
    lanes: list[Lane] = []
    for block in range(count):
        boxes = []
        for k in range(3):
            at = 0.9 * block + 2.8 * k
            boxes += [(at, 1.8, f"TMA k{k}", LOAD), (at + 1.8, 0.9, f"k{k}", MULTIPLY)]
        lanes.append((f"block {block}", [box for box in boxes if box[0] + box[1] <= 9.7]))
    return lanes


def two_tiles(loader: str, multipliers: list[str], next_tile: str) -> list[Lane]:
    """Two tiles of four steps each. ``next_tile`` says how the second one follows: as "another
    block"'s, after the store of the first; "loads first", under that store; wholly "under it"; or
    "not at all".
    """
    second, again = {
        "another block": ([5.6], [6.4]), "loads first": ([2.9], [5.6]), "under it": ([2.9], [4.0]),
        "not at all": ([], []),
    }[next_tile]  # fmt: skip
    loads = [(at + 0.7 * k, 0.65, f"k{k}", LOAD) for at in (0.0, *second) for k in range(4)]
    lanes: list[Lane] = [(loader, loads)]
    for who in multipliers:
        boxes = [(at + 0.8 * k, 0.75, f"k{k}", MULTIPLY) for at in (0.8, *again) for k in range(4)]
        boxes += [] if next_tile == "under it" else [(4.05, 1.4, "store C", STORE)]
        lanes.append((who, boxes))
    if next_tile == "under it":
        lanes.append(("store", [(4.05, 2.6, "first tile's C", STORE)]))
    return lanes


def specialized(consumers: int, next_tile: str) -> list[Lane]:
    return two_tiles("producer", [f"consumer {i}" for i in range(consumers)], next_tile)


def split(parts: int) -> list[Lane]:
    lanes: list[Lane] = []
    for part in range(min(parts, 3)):
        boxes = [(0.0, 4.5, f"K part {part}", MULTIPLY), (4.6, 1.2, "partial", STORE)]
        lanes.append((f"block {part}", boxes))
    lanes.append(("sum", [(6.0, 2.0, "add in order", STORE)]))
    return lanes


def ranges(tiles: int = 5, steps: int = 8, sms: int = 3) -> list[Lane]:
    """All steps of all tiles in one list, cut into equal ranges. Who has the rest of a tile stores
    its sums, and who has the first step adds them."""
    each, unit, sums = tiles * steps / sms, 0.5, 0.7
    lanes: list[Lane] = []
    for sm in range(sms):
        at, boxes, end = sm * each, [], (sm + 1) * each
        x = 0.0
        while at < end - 0.5:
            tile = int(at / steps + 1e-6)
            until = min((tile + 1) * steps, end)
            whole = until - at == steps
            rest = not whole and at > tile * steps
            words = f"tile {tile}" if whole else f"{tile}, {'rest' if rest else 'first'}"
            boxes.append((x, (until - at) * unit, words, MULTIPLY))
            x += (until - at) * unit
            if rest:
                boxes.append((x, sums, "sums", STORE))
                x += sums
            elif not whole:
                boxes.append((x, sums, "add", STORE))
            at = until
        lanes.append((f"SM {sm}", boxes))
    return lanes


def one_trip(multiply: str) -> list[Lane]:
    lanes: list[Lane] = [
        (f"warp {w}", [(0, 3.2, "load its part of K", LOAD), (3.3, 1.4, multiply, MULTIPLY),
                       (4.8, 0.9, "sums", STORE)])
        for w in range(3)
    ]  # fmt: skip
    return [*lanes, ("all", [(5.8, 1.8, "add, store C", STORE)])]


def whole_k() -> list[Lane]:
    """No steps along K: a block loads all of it, waits once, multiplies and stores."""
    boxes = [(0, 3.0, "load all of K", LOAD), (3.1, 1.6, "FMA", MULTIPLY),
             (4.8, 3.6, "store C", STORE)]  # fmt: skip
    return [("a block", boxes)]


def outer_products() -> list[Lane]:
    """No shared memory: a warp loads columns of A and rows of B, multiplies them, and loads more."""
    lanes: list[Lane] = []
    for w in range(2):
        boxes = [(0, 1.4, "load k0-3", LOAD), (1.5, 0.7, "FMA", MULTIPLY),
                 (2.3, 1.4, "load k4-7", LOAD), (3.8, 0.7, "FMA", MULTIPLY),
                 (4.6, 3.4, "store C", STORE)]  # fmt: skip
        lanes.append((f"warp {w}", boxes))
    return lanes


def streams() -> list[Lane]:
    """Each warp on its own: it copies into one of its two stages and multiplies from the other."""
    lanes: list[Lane] = []
    for w in range(2):
        at = [0.15 * w + 1.25 * k for k in range(7)]
        lanes.append((f"warp {w}", [(at[k], 1.2, f"copy k{k}", LOAD) for k in range(6)]))
        lanes.append(("multiplies", [(at[k + 1], 0.6, f"k{k}", MULTIPLY) for k in range(6)]))
    return lanes


def lanes_of(kernel: str, have: dict[str, int]) -> list[Lane]:
    backend, name = kernel.split("/")
    stages = have.get("NUM_STAGES", 1)
    if name == "naive" and backend == "cuda":
        return serial("a thread")
    if name in ("tiled", "wmma") or (backend == "triton" and name in ("naive", "grouped")):
        return serial("a warp" if name == "wmma" else "a block")
    if name == "wgmma_tma":
        return blocks_in_turn(have["BLOCKS_PER_SM"])
    if name == "wgmma_specialized":
        return specialized(have["CONSUMERS"], "another block")
    if name in ("wgmma_tile_loop", "wgmma_cluster"):
        return specialized(have["CONSUMERS"], "loads first")
    if name == "split_k":
        return split(have["SPLITS"] * have.get("GROUPS", 1))
    if name == "stream_k":
        return ranges()
    if name in ("small", "thin", "gemv_types"):
        return one_trip("mma" if name == "small" else "FMA")
    if name == "short_k":
        return whole_k() if backend == "cuda" else outer_products()
    if name == "gemv":
        return streams()
    if name == "skinny":
        return split(max(2, have["SPLITS"]))
    if name in ("persistent", "descriptor"):  # no roles: all warps copy, multiply and store
        return two_tiles("copies", ["all warps"], "loads first")
    if name == "warp_specialized" or name.startswith("wgmma"):
        return specialized(have.get("CONSUMERS", 2), "under it")
    if name == "one_wave":
        return specialized(have["BLOCK_M"] // 64, "not at all")  # a block has one tile
    return ring(stages)


def parts_of(
    kernel: str, have: dict[str, int]
) -> tuple[str, int, int, tuple[int, int, int] | None]:
    """Who shares a block's tile of C, the tile of one of them, and the instruction's m, n, k."""
    M, N = have["BLOCK_M"], have["BLOCK_N"]
    mma = (have["MMA_M"], have["MMA_N"], have["MMA_K"]) if "MMA_M" in have else None
    if "WARP_N" in have:
        return "warp", have["WARP_M"], have["WARP_N"], mma
    if kernel == "cuda/wmma":
        return "warp", have["MMA_M"], have["MMA_N"], mma
    if kernel == "cuda/wmma_types":
        return "warp", 64, 64, mma
    if "COARSEN" in have:
        return "thread", have["COARSEN"], have["COARSEN"], None
    if kernel == "cuda/naive":
        return "thread", 1, 1, None
    if kernel in ("cuda/thin", "cuda/gemv_types"):
        return "thread", M, 4, None
    if kernel == "triton/thin":
        return "warp", M, N, None
    if kernel in ("cuda/short_k", "triton/short_k"):
        return "warp", M // have.get("NUM_WARPS", 4), N, None
    if kernel in ("cuda/small", "cuda/gemv"):
        return "warp", M, N, (16, 8, 16)
    if kernel == "cuda/mma_types":
        return "warp", M // 2, N // 2, (16, 8, 8)
    if kernel == "cuda/mma_odd":
        return "warp", M // 4, N, (16, 8, 8)
    step = 32 // constants.item(kernel)
    if kernel.startswith("triton/"):
        groups = have.get("CONSUMERS", max(1, have.get("NUM_WARPS", 4) // 4))
        return "warpgroup", max(64, M // groups) if M >= 64 else M, N, (64, N, step)
    if kernel == "cuda/skinny":  # of C transposed: 64 columns of B are wgmma's m
        return "warpgroup", M, N, (64, M, step)
    return "warpgroup", min(64, M), N, (64, min(N, 256), step)


def sides(kernel: str) -> tuple[tuple[str, str, str], tuple[str, str, str]]:
    """Name and colours of the operand to the left of C, and of the one above it."""
    a, b = ("A", A_LIGHT, A), ("B", B_LIGHT, B)
    return (b, a) if kernel in TRANSPOSED else (a, b)


def picture(kernel: str) -> str:
    have = constants.of_kernel(kernel)
    if kernel == "cuda/gemv":
        have["BLOCK_K"] = constants.of_source("cuda_ref/shapes/gemv/ring.cuh")["LINES"]
    if kernel == "cuda/short_k":
        have["BLOCK_K"], have["NUM_STAGES"] = have["MOST_K"], 1
    M, N, K = have["BLOCK_M"], have["BLOCK_N"], have.get("BLOCK_K", have.get("MMA_K", 1))
    lanes = lanes_of(kernel, have)
    who, part_m, part_n, mma = parts_of(kernel, have)
    scale = SIDE / max(M, N)
    w, h = max(N * scale, 8), max(M * scale, 8)
    depth = max(min(K * scale, 60), 6)
    x0, y0 = 30 + depth + 12, 30 + depth + 12
    height = max(y0 + h + 70, 160 + 34 * len(lanes) + (190 if "grouped" in kernel else 0))
    image = Svg(WIDTH, int(height), f"{kernel}: tile, stages and time line")
    # A to the left, B above, C in the corner.
    beside, above = sides(kernel)
    flipped = " transposed" if kernel in TRANSPOSED else ""
    image.rect(x0, y0 - depth - 8, w, depth, *above[1:])
    image.rect(x0 - depth - 8, y0, depth, h, *beside[1:])
    image.text(
        x0 + w / 2, y0 - depth - 13, f"{above[0]}{flipped}: {K} x {N}", 12, "middle", above[2]
    )
    image.text(x0 - depth - 13, y0 + h / 2, f"{beside[0]}{flipped}: {M} x {K}", 12, "middle",
               beside[2], turned=True)  # fmt: skip
    image.rect(x0, y0, w, h, C_LIGHT, C)
    lines_m = list(range(0, M, part_m)) if M // part_m <= 40 else []
    lines_n = list(range(0, N, part_n)) if N // part_n <= 40 else []
    for i in lines_m[1:]:
        image.line(x0, y0 + i * scale, x0 + w, y0 + i * scale, C)
    for j in lines_n[1:]:
        image.line(x0 + j * scale, y0, x0 + j * scale, y0 + h, C)
    pw, ph = max(part_n * scale, 3), max(part_m * scale, 3)
    if mma and who != "thread":
        m, n = (mma[1], mma[0]) if kernel in ("cuda/skinny", "cuda/small") else mma[:2]
        m, n = min(m, part_m), min(n, part_n)
        inside = 4 if (m, n) == (part_m, part_n) else 0  # else the black one would hide it
        image.rect(x0 + inside, y0 + inside, n * scale - 2 * inside, m * scale - 2 * inside,
                   "#ffffff", RED, 1.5)  # fmt: skip
    image.rect(x0, y0, pw, ph, "none", INK, 2)
    below = y0 + h + 20
    image.text(
        x0 - depth, below, f"C of a block{flipped and ',' + flipped}: {M} x {N}", 13, bold=True
    )
    image.text(x0 - depth, below + 18, f"black: a {who}'s {part_m} x {part_n}", 12)
    if mma:
        shape = " x ".join(map(str, mma))
        words = f"red: one instruction, {shape}"
        words = f"red: {shape}, of C transposed" if kernel == "cuda/skinny" else words
        image.text(x0 - depth, below + 36, words, 12, fill=RED)
    _right(image, kernel, have, lanes)
    return str(image)


def _right(image: Svg, kernel: str, have: dict[str, int], lanes: list[Lane]) -> None:
    """The stages in shared memory, and below them the time line."""
    M, N, K = have["BLOCK_M"], have["BLOCK_N"], have.get("BLOCK_K", 0)
    left, width = 330, WIDTH - 330 - 20
    one = ("cuda/tiled", "cuda/wgmma_tma", "triton/naive", "triton/grouped")
    stages = have.get("NUM_STAGES", 1 if kernel in one else 0)
    item = 4 if kernel == "cuda/tiled" else constants.item(kernel)
    if stages and K:
        each = (M + N) * K * item
        title = f"shared memory: {stages} stage{'s' if stages > 1 else ''} of {each / 1024:g} KB"
        image.text(left, 24, title, 13, bold=True)
        box = min(86, (width - 6 * stages) / stages)
        beside, above = sides(kernel)
        for stage in range(stages):
            x = left + stage * (box + 6)
            part = box * M / (M + N)
            for at, length, (name, fill, stroke) in ((0, part, beside), (part, box - part, above)):
                image.cell(x + at, 34, length, 34, name if length > 12 else "", fill, stroke=stroke)
    else:
        where, note = "registers, from global memory", "no tile of A or B is shared by the block"
        if kernel == "cuda/gemv":
            where, note = "shared memory", "each warp has two stages of its own"
        elif (
            K
            and kernel
            not in ("cuda/small", "cuda/thin", "cuda/gemv_types", "triton/thin", "triton/short_k")
            and lanes[0][0] != "a thread"
            and "WARPS_M" not in have
        ):
            each = (M + N) * K * item / 1024
            where, note = "shared memory", f"a ring of stages of {each:g} KB, as many as fit"
        image.text(left, 24, f"operands: {where}", 13, bold=True)
        image.text(left, 46, note, 12, fill=GREY)
    top = 104
    image.text(left, top, "time", 13, bold=True)
    image.line(left + 38, top - 4, left + width, top - 4, arrow=True)
    label = 74
    for index, (who, boxes) in enumerate(lanes):
        y = top + 14 + 34 * index
        image.text(left, y + 17, who, 12)
        for start, length, words, (fill, stroke) in boxes:
            shown = words if fits(words, length) else ""
            image.cell(left + label + start * STEP, y, length * STEP, 26, shown, fill, 10.5, stroke)
    y = top + 26 + 34 * len(lanes)
    for x, (words, (fill, stroke)) in enumerate(
        (("load", LOAD), ("multiply", MULTIPLY), ("store, sums", STORE))
    ):
        image.rect(left + 120 * x, y, 14, 14, fill, stroke)
        image.text(left + 120 * x + 20, y + 12, words, 12)
    if "grouped" in kernel:
        _orders(image, have, left, y + 44)


def _orders(image: Svg, have: dict[str, int], left: float, top: float) -> None:
    """The tiles of C at 4096 cubed that run at one time, in both orders, and what they read."""
    side, rows = 4096 // have["BLOCK_M"], have["GROUP_M"]
    flight = min(132 * have.get("BLOCKS_PER_SM", 1), side * side)
    orders = {
        "row after row": [divmod(i, side) for i in range(flight)],
        f"in groups of {rows} tile rows": [(i % rows, i // rows) for i in range(flight)],
    }
    for index, (title, tiles) in enumerate(orders.items()):
        x, y, scale = left + 210 * index, top + 12, 128 / side
        image.text(x, top, title, 13, bold=True)
        image.rect(x, y, 128, 128, LIGHT, GREY)
        m, n = len({row for row, _ in tiles}), len({col for _, col in tiles})
        for row in range(m):  # from column 0 on, without a gap, in both orders
            width = sum(tile_row == row for tile_row, _ in tiles)
            image.rect(x, y + row * scale, width * scale, scale, C, C_LIGHT, 0.4)
        image.text(x, y + 146, f"{flight} tiles read {m} + {n} = {m + n} strips", 12)


def all() -> dict[str, str]:
    from tcgemm import dispatch

    kernels = [row.full_name for name in ("cuda", "triton") for row in dispatch.ladder(name)]
    return {kernel.replace("/", "_"): picture(kernel) for kernel in kernels}
