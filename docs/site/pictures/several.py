"""The picture of docs/several_gpus.md: a layer's time with its communication exposed and hidden."""

from __future__ import annotations

from .svg import A_LIGHT, C_LIGHT, GREY, RED, A, C, Svg

M, N, K, WORLD = 4096, 10240, 8192, 4
"""The projection to q, k and v of Llama 70B over four GPUs."""
PIECES = 4


def timeline() -> str:
    from tcgemm.dist import model
    from tcgemm.dist.options import ALL_GATHER

    times = model.times(ALL_GATHER, M, N // WORLD, K, "bfloat16", WORLD, model.Host("nvidia-h200"))
    assert times is not None
    image = Svg(760, 250, "an all-gather and a product, one after the other and overlapped")
    scale = 560 / times.sequence_us

    def bar(x_us: float, y: float, us: float, words: str, fill: str, stroke: str) -> None:
        image.rect(170 + scale * x_us, y, scale * us, 30, fill, stroke)
        image.text(170 + scale * (x_us + us / 2), y + 20, words, 11, "middle")

    image.text(20, 40, "one after the other", 13, bold=True)
    image.text(20, 66, "links, by NCCL", 12)
    bar(0, 48, times.collective_us, f"{times.collective_us:.0f} us", A_LIGHT, A)
    image.text(20, 102, "tensor cores", 12)
    bar(
        times.collective_us, 84, times.gemm_us, f"all rows of A: {times.gemm_us:.0f} us", C_LIGHT, C
    )

    image.text(20, 146, "overlapped", 13, bold=True)
    image.text(20, 172, "links, by copies", 12)
    for piece in range(PIECES - 1):
        part = times.transfer_us / (PIECES - 1)
        bar(piece * part, 154, part, "", A_LIGHT, A)
    image.text(178 + scale * times.transfer_us, 174, f"{times.transfer_us:.0f} us", 11)
    image.text(20, 208, "tensor cores", 12)
    for piece in range(PIECES):
        part = times.gemm_us / PIECES
        words = "own rows" if piece == 0 else f"of peer {piece}"
        bar(piece * part, 190, part, words, C_LIGHT, C)
    for piece in range(1, PIECES):
        arrived = 170 + scale * piece * times.transfer_us / (PIECES - 1)
        begun = 170 + scale * piece * times.gemm_us / PIECES
        image.line(arrived, 184, begun, 190, RED, 1.5)
    end = 170 + scale * times.sequence_us
    image.line(end, 40, end, 232, GREY, 1, dash="3 3")
    image.line(170 + scale * times.gemm_us, 226, end, 226, RED, 2)
    saved = 100 * (1 - times.gemm_us / times.sequence_us)
    image.text(end - 4, 242, f"{saved:.0f} % of the time is hidden", 12, "end", RED)
    return str(image)


def all() -> dict[str, str]:
    """Name -> picture."""
    return {"several_gpus": timeline()}
