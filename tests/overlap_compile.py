"""Compiles the overlapped kernels for sm_90 and prints what came of them, as one line of JSON; with
``one_shot`` those of the one-shot way alone."""

import json
import sys
from importlib import import_module
from types import SimpleNamespace

import tcgemm.triton_kernels.inspection.compile_only as compile_only
import torch

from tcgemm.dist.overlap.plan import MOST_PARTS, TILES, TILES_OF_8_BITS
from tcgemm.dist.planning import MOST_TILES


def main() -> None:
    from triton.runtime import driver

    driver.set_active(compile_only._Driver((9, 0)))
    package = "tcgemm.triton_kernels.overlap"
    gather, scatter, signals, tile, one_shot = (
        import_module(f"{package}.{name}")
        for name in ("gather", "scatter", "signals", "tile", "one_shot")
    )
    tile.programs = lambda like: 132

    def empty(*shape, dtype=torch.bfloat16):
        return torch.empty(shape, dtype=dtype, device="meta")

    def words(*shape):
        return empty(*shape, dtype=torch.int32)

    world, M, N, K = 2, 8192, 4096, 4096
    chunk = M // world
    table = empty(world, dtype=torch.int64)
    call = SimpleNamespace(
        early=False, done=words(2), rank=0, world=world, chunk=chunk, flags=words(64),
        epoch=words(1), last=words(1), trouble=words(4), limit=1000, debug=False, spare=0,
        data=table, words=table, flags_at=32, most=MOST_TILES, begins=False, done_at=-32,
        count=words(1),
    )  # fmt: skip
    call.staging = call.stored = None
    carried = SimpleNamespace(**vars(call) | {
        "staging": empty(world, chunk, N), "stored": words(world * MOST_PARTS), "most": MOST_PARTS,
    })  # fmt: skip
    b, launches = empty(N, K).mT, {}
    for tile in TILES:
        name = f"{tile.BLOCK_M}x{tile.BLOCK_N}"
        parts = {"PARTS": MOST_PARTS, "part_tiles": 8}
        rows = empty(chunk, K), empty(M, K), b, empty(M, N), empty(N), "gelu", call
        launches[f"gather {name}"] = gather.kernel, *gather.arguments(*rows, **tile.config, **parts)
        sums = empty(M, K), b, empty(chunk, N), empty(world, chunk, N), None, "", call
        launches[f"scatter {name}"] = scatter.kernel, *scatter.arguments(*sums, **tile.config)
        grid, args, constants = scatter.arguments(*sums, **tile.config)
        early = {"PDL": True, "launch_pdl": True}
        launches[f"early {name}"] = scatter.kernel, grid, args, constants | early
        launches[f"wide {name}"] = scatter.kernel, grid, args, constants | {"WIDE": True}
        launches[f"early wide {name}"] = (
            scatter.kernel, grid, args, constants | early | {"WIDE": True}
        )  # fmt: skip
        sums = *sums[:-1], carried
        launches[f"carried {name}"] = (
            scatter.kernel, *scatter.arguments(*sums, part_tiles=8, **tile.config)
        )  # fmt: skip
    eight = torch.float8_e4m3fn
    (tile,) = TILES_OF_8_BITS
    b8, scale_a, scale_b = empty(N, K, dtype=eight).mT, empty(M, dtype=torch.float32), empty(
        dtype=torch.float32
    )  # fmt: skip
    scales = {"scale_a": scale_a, "scale_b": scale_b, "ROW_SCALES_A": True}
    rows = empty(chunk, K, dtype=eight), empty(M, K, dtype=eight), b8, empty(M, N), None, "", call
    grid, args, constants = gather.arguments(*rows, **tile.config, **parts)
    launches["gather 8 bits"] = gather.kernel, grid, args, constants | scales
    sums = empty(M, K, dtype=eight), b8, empty(chunk, N), empty(world, chunk, N), None, "", call
    grid, args, constants = scatter.arguments(*sums, **tile.config)
    launches["scatter 8 bits"] = scatter.kernel, grid, args, constants | scales
    small = {"WORLD": world, "LANES": 2, "INTERPRETED": False, "num_warps": 1}
    launches["enter"] = signals.enter, (1,), (
        call.epoch, call.last, words(2), table, -32, call.trouble, 0, 9, 0
    ), small  # fmt: skip
    launches["await_stored"] = (
        signals.await_stored, (1,), (carried.stored, 8, 9, call.trouble, 9, 0, 1, 1),
        {"num_warps": 1},
    )  # fmt: skip
    ranks = {"WORLD": 4, "LANES": 4}
    flags = table, table, words(64), words(2), call.epoch, call.last, words(1)
    constants = {**ranks, "BLOCK": 2048, "INTERPRETED": False, "num_warps": 16}
    for name, scales in (("push", None), ("push with scales", empty(512, dtype=torch.float32))):
        launches[name] = one_shot.push, (128,), (
            words(512, K // 2), scales, 512, K // 8, 512, 0, 64, 32, -32, *flags, call.trouble, 9, 0
        ), constants  # fmt: skip
    constants = constants | {"EACH": 8, "BLOCK": 4096, "ACTIVATION": "gelu", "EMULATED": False}
    launches["reduce"] = one_shot.reduce, (128,), (
        empty(2048, N), empty(512, N), empty(N), 2048, N // 8, 512, 0, 64, 32, -32, *flags,
        call.trouble, 9, 0,
    ), constants | {"PDL": True, "launch_pdl": True}  # fmt: skip
    kernel, grid, args, constants = launches["reduce"]
    launches["reduce of eight"] = kernel, grid, args, constants | {"WORLD": 8, "LANES": 8}
    small = constants | {"WORLD": 2, "LANES": 2, "EACH": 4, "BLOCK": 2048, "ACTIVATION": ""}
    launches["reduce of two"] = kernel, grid, tuple(
        None if i == 2 else x.float() if i < 2 else x for i, x in enumerate(args)
    ), small  # fmt: skip
    for name in ("gather 128x256", "scatter 128x256", "scatter 128x128", "enter"):
        kernel, grid, args, constants = launches[name]
        stamps = {"stamps": empty(4, dtype=torch.int64)}
        launches[f"{name} with stamps"] = kernel, grid, args, constants | stamps
    if sys.argv[1:] == ["one_shot"]:
        first = [*launches].index("push")
        launches = {name: launches[name] for name in [*launches][first : first + 5]}
    found = {}
    for name, (kernel, grid, args, constants) in launches.items():
        built = kernel.warmup(*args, grid=grid, **constants)
        counts = compile_only._counts([(compile_only._arch(built), built.asm["cubin"])])[0]
        found[name] = {
            **compile_only._read(built, 0.0, False),
            "counts": dict(counts),
            "ptx": built.asm["ptx"],
        }
    sys.stdout.write("\n" + json.dumps(found) + "\n")


main()
