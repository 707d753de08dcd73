"""The explorers' models are the project's own: figures of `tcgemm simulate order --json`."""

from __future__ import annotations

import json
import random
import re
import shutil
import subprocess
import sys
from datetime import date
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tcgemm import gpus
from tcgemm.cli import app
from tcgemm.tools.simulate.orders import order_rows
from tcgemm.tools.simulate.tile_order import visit

ROOT = Path(__file__).parent.parent
STATIC = ROOT / "docs" / "_static"
sys.path.insert(0, str(ROOT / "docs" / "site"))

from pictures import models  # noqa: E402

NODE = shutil.which("node")
needs_node = pytest.mark.skipif(NODE is None, reason="needs node, to run models.js")


def js(expression):
    code = f"const m = require({json.dumps(str(STATIC / 'models.js'))});"
    code += f"console.log(JSON.stringify({expression}))"
    done = subprocess.run([NODE, "-e", code], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


@needs_node
@pytest.mark.parametrize(("gpu", "size"), [("h200", 4096), ("a100", 2048), ("t4", 2048)])
def test_the_l2_is_that_of_simulate_order(gpu, size):
    board = gpus.find(gpu)
    rows = order_rows("triton/grouped", (size, size, size), "bfloat16", board)
    asked = [
        {"M": size, "N": size, "K": size, "blockM": row["BLOCK_M"], "blockN": row["BLOCK_N"],
         "groupM": row["GROUP_M"] or 0, "places": board.sms, "l2Bytes": board.l2_bytes}
        for row in rows
    ]  # fmt: skip
    answers = js(f"{json.dumps(asked)}.map(m.traffic)")
    assert len(rows) >= 5
    for row, answer in zip(rows, answers, strict=True):
        assert answer["readBytes"] == row["read_bytes"]
        assert answer["dramBytes"] == row["dram_bytes"]
        assert answer["waves"] == row["waves"]
        assert answer["hitRate"] == pytest.approx(row["l2_hit_rate"], rel=1e-12)


@needs_node
def test_twenty_drawn_settings_are_those_of_simulate_json():
    """What the page's knobs offer, others every day."""
    day = date.today().toordinal()
    draw = random.Random(day)
    settings = []
    for size in (2048, 4096):
        gpu = draw.choice(["h200", "a100", "t4"])
        kernel = draw.choice(["triton/grouped", "triton/naive"]) if size == 4096 else "order"
        sizes = f"{size}x{size}x{size}"
        arguments = ["simulate", kernel, "--shape", sizes, "--gpu", gpu, "--json"]
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 0, result.output
        board = gpus.find(gpu)
        settings += [(board, row) for row in json.loads(result.stdout)]
    drawn = draw.sample(settings, 20)
    asked = [
        {"M": row["M"], "N": row["N"], "K": row["K"], "blockM": row["BLOCK_M"],
         "blockN": row["BLOCK_N"], "groupM": row["GROUP_M"] or 0, "places": board.sms,
         "l2Bytes": board.l2_bytes}
        for board, row in drawn
    ]  # fmt: skip
    for one, (_, row), answer in zip(
        asked, drawn, js(f"{json.dumps(asked)}.map(m.traffic)"), strict=True
    ):
        said = (answer["readBytes"], answer["dramBytes"], answer["waves"])
        assert said == (row["read_bytes"], row["dram_bytes"], row["waves"]), (day, one)
        assert answer["hitRate"] == pytest.approx(row["l2_hit_rate"], rel=1e-12), (day, one)


@needs_node
@pytest.mark.parametrize("group", [0, 1, 4, 8])
def test_the_order_is_that_of_the_kernels(group):
    assert js(f"m.visit(5, 7, {group})") == [list(t) for t in visit(5, 7, group or None)]


@needs_node
def test_banks_are_those_of_the_pictures():
    cases = [(row, pad, xor, unit) for row in (32, 64, 128, 256) for pad in (0, 8, 16, 32)
             for xor in (False, True) for unit in range(min(8, row // 16))
             if not (xor and row < 128)]  # fmt: skip
    places_of = "[0,1,2,3,4,5,6,7].map((row) => m.placeOf(row, u, r, p, x))"
    answers = js(f"{json.dumps(cases)}.map(([r, p, x, u]) => m.passes({places_of}))")
    for (row, pad, xor, unit), answer in zip(cases, answers, strict=True):
        places = [r * (row + pad) + 16 * (unit ^ r if xor else unit) for r in range(8)]
        assert answer == models.wavefronts(places), (row, pad, xor, unit)
    assert max(answers) == 8
    assert min(answers) == 1


@needs_node
def test_a_ring_hides_copies_once_it_is_deep_enough():
    one, two, four = js("[1, 2, 4].map((stages) => m.ring(stages, 100, 6, 2))")
    assert one["end"] == 100 * 8  # one after the other
    assert two["end"] == 6 + 2 * 100 + 49 * 4  # pairs of steps wait for their copies
    assert four["end"] == 6 + 2 * 100  # only the first copy is waited for
    assert four["busy"] == pytest.approx(200 / 206)


def test_the_page_offers_the_gpus_as_they_are():
    text = (STATIC / "explore.html").read_text()
    offered = re.findall(r'<option value="(\d+),(\d+)"[^>]*>(\w+)', text)
    assert len(offered) == 3
    for sms, l2_bytes, name in offered:
        board = gpus.find(name.lower())
        assert (int(sms), int(l2_bytes)) == (board.sms, board.l2_bytes), name
    assert "http" not in text.replace("<!doctype html>", "")
