"""Source beside PTX and SASS: which line became which instruction, as a page."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tcgemm.cli import app
from tcgemm.errors import OperandError, ResultsError, UnsupportedError
from tcgemm.tools.show_kernel import lines, side_by_side

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "docs" / "site"))

import listings  # noqa: E402

PTX = """
.visible .entry _ZN12_4_my_cu_1f2emyEv(
	.param .u64 _ZN12_4_my_cu_1f2emyEv_param_0
)
{
	.reg .b32 	%r<3>;
	.loc	1 40 3
	mov.u32 	%r1, %ctaid.x;
$L__tmp0:
	.loc	2 19 3, function_name $L__info_string0, inlined_at 1 42 3
	div.s32 	%r2, %r1, %r1; // a remark
	.loc	3 7 1, function_name $L__info_string1, inlined_at 2 19 3
	ld.param.u64 	%rd1, [_ZN12_4_my_cu_1f2emyEv_param_0];
	.loc	3 8 1
	st.shared.b32 	[_ZZN12_4_my_cu_1f2emyEvE4tile], %r2;
	ret;
}
"""
FILES = '\t.file\t1 "/a/my.cu"\n\t.file\t2 "/a/order.cuh"\n\t.file\t3 "/b/other.cuh"\n'
LINED = """
\t//## File "/a/my.cu", line 40
        /*0000*/                   S2R R1, SR_CTAID.X ;
\t//## File "/a/order.cuh", line 19 inlined at "/a/my.cu", line 42
\t//## File "/a/my.cu", line 42
.L_x_1:
        /*0010*/              @P0  IMAD R2, R1, R1, RZ ;                 /* 0x00000a00ff017b82 */
\t//## File "/b/other.cuh", line 8
        /*0020*/                   EXIT ;
\t.section .nv.info
        /*0030*/                   BRA `(.L_x_9) ;
"""


def calls(name="my.cu"):
    return lines.Calls(Path("/nowhere") / name)


def test_ptx_is_led_back_to_the_kernel_s_own_file():
    found = lines.ptx_lines(PTX, FILES, calls())
    at = {text.split()[0]: line for text, line in found}
    assert (at["mov.u32"], at["div.s32"]) == (40, 42)
    assert at["ld.param.u64"] == 42  # inlined into what was inlined
    assert at["st.shared.b32"] == 0  # another file, and nothing said of who calls it
    assert at[".reg"] == at[".visible"] == 0
    text = "\n".join(text for text, _ in found)
    assert "$L__tmp" not in text
    assert ".loc" not in text
    assert "remark" not in text
    assert "[param_0]" in text
    assert "[tile]" in text
    assert ".entry my(" in text


def test_sass_is_led_back_and_ends_with_the_kernel():
    found = lines.sass_lines(LINED, calls())
    assert found == (
        ("0000  S2R R1, SR_CTAID.X ;", 40),
        (".L_x_1:", 0),
        ("0010  @P0  IMAD R2, R1, R1, RZ ;", 42),
        ("0020  EXIT ;", 0),
    )


def test_triton_s_places_stand_in_remarks():
    place = "\t.loc\t2 43 17 // standard.py:43:17 @[ naive.py:47:25 ]"
    ptx = f".visible .entry kernel(\n)\n{{\n{place}\n\tret;\n}}\n"
    assert lines.ptx_lines(ptx, "", calls("naive.py"))[-2:] == (("    ret;", 47), ("}", 47))


def test_where_the_chain_is_left_out_the_one_call_counts(tmp_path):
    other, own = tmp_path / "dot.py", tmp_path / "own.py"
    other.write_text("def twice(x):\n    return x\n\n\ndef once(x):\n    return x\n")
    own.write_text("a = twice(1)\nb = twice(2)\n\nc = once(3)\n")
    found = lines.Calls(own, f'\t.file\t2 "{tmp_path}" "dot.py"\n')
    assert found.line_of([(str(other), "6")]) == 4
    assert found.line_of([(str(other), "2")]) == 0  # two calls: nobody knows which
    assert found.line_of([(str(other), "6"), (str(own), "2")]) == 2


def listing(kernel="cuda/my"):
    return lines.Listing(
        kernel, "nvcc for sm_90a", "my.cu", ("a < b;", "</script>"), (("add", 1),), (("IADD", 1),)
    )


def test_a_page_has_all_of_it_and_needs_no_network():
    text = side_by_side.page([listing(), listing("triton/mine")])
    assert not re.search(r"https?:", text)
    assert "{{" not in text
    assert text.count("<section") == 4
    (data,) = re.findall(r"const kernels = (.*);\n", text)
    assert "</" not in data  # which would end the script
    first, second = json.loads(data)
    assert first["source"] == [["a < b;", 1], ["</script>", 2]]
    assert second["sass"] == [["IADD", 1]]
    assert lines.from_record(json.loads(json.dumps(lines.as_record(listing())))) == listing()


def test_what_cannot_be_shown_is_said(tmp_path):
    with pytest.raises(UnsupportedError, match="nvdisasm"):
        lines.listing("cuda/x", "", tmp_path / "x.cu", {"ptx": "x"})
    with pytest.raises(ResultsError, match="--side-by-side names another place"):
        side_by_side.write_page(tmp_path / "no" / "x.html", [listing()])
    for more in (["--json"], ["--stage", "ptx"]):
        arguments = ["show-kernel", "triton/naive", "--side-by-side", "x.html", *more]
        assert isinstance(CliRunner().invoke(app, arguments).exception, OperandError)


@pytest.mark.parametrize("pair", listings.PAIRS, ids=lambda pair: pair[1])
def test_records_show_the_instructions_at_the_lines_that_ask_for_them(pair):
    """They are of today's sources: scripts/pages --check."""
    triton, cuda = map(lines.from_record, listings.read(listings.record_of(pair)))
    for shown in (triton, cuda):
        asked = {
            shown.source[at - 1] for text, at in shown.sass if at and re.search("H(G?)MMA", text)
        }
        assert any(re.search("mma|multiply_add", line) for line in asked), shown.kernel
        known = sum(at > 0 for _, at in shown.sass) / len(shown.sass)
        assert known > 0.45, shown.kernel  # the rest is of what several rungs share
        assert max(at for _, at in shown.sass + shown.ptx) <= len(shown.source)


def test_a_source_that_changed_since_is_noticed(monkeypatch):
    assert listings.out_of_date() == []
    monkeypatch.setattr(listings, "read", lambda path: [])
    assert len(listings.out_of_date()) == 2 * len(listings.PAIRS)


@pytest.mark.exhaustive
def test_a_record_is_what_the_compilers_say():
    toolchain = pytest.importorskip("tcgemm.cuda_ref.build.toolchain")
    if toolchain.find_nvcc() is None:
        pytest.skip("needs nvcc")
    pair = listings.PAIRS[0]
    kept, fresh = listings.read(listings.record_of(pair)), listings.compiled(pair)
    for one, now in zip(kept, json.loads(json.dumps(fresh)), strict=True):
        if one["made"] == now["made"]:  # by the same compiler
            assert one == now
