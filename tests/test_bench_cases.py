"""The suites are plain data that keeps its promises."""

import subprocess
import sys

import pytest

from tcgemm.bench import cases
from tcgemm.errors import OperandError, UnknownNameError, UnsupportedError
from tcgemm.problem import COMPUTES, OUTPUTS


def shapes(suite, **options):
    return {(c.M, c.N, c.K) for c in cases.build(suite, **options)}


@pytest.mark.parametrize("suite", cases.NAMES)
def test_every_case_has_an_origin_and_no_case_comes_twice(suite):
    built = cases.build(suite)
    assert all(case.origin for case in built)
    keys = [tuple(getattr(c, name) for name in cases.CASE_COLUMNS) for c in built]
    assert len(keys) == len(set(keys))


def test_full_is_everything():
    assert shapes("full") == set().union(*(shapes(name) for name in cases.SUITES))
    assert {c.suite for c in cases.build("full")} == set(cases.SUITES)


def test_the_seeds_suite_has_the_sizes_of_all_three_documents():
    wanted = {(n, n, n) for n in (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 100, 10000)}
    wanted |= {(128, 320, 64), (4096, 128, 4096), (127, 129, 65), (1024, 2048, 512)}
    assert shapes("seeds") == wanted


def test_squares_go_from_512_to_16384():
    sides = sorted(M for M, _, _ in shapes("squares"))
    assert (sides[0], sides[-1]) == (512, 16384)
    assert {1024, 2048, 4096, 8192} <= set(sides)


def test_llm_has_decode_and_prefill_of_every_weight():
    assert {M for M, _, _ in shapes("llm")} == {1, 16, 64, 128, 4096}
    assert len(shapes("llm")) == 5 * len(cases.LLM_WEIGHTS)
    assert {c.layout for c in cases.build("llm")} == {"nn", "nt"}


def test_quick_on_a_cpu_is_tiny():
    built = cases.build("quick", device="cpu")
    assert sum(c.M * c.N * c.K for c in built) < 2e7
    assert {c.dtype_in for c in built} == {"float16", "bfloat16"}


@pytest.mark.parametrize("suite", ["squares", "seeds", "llm", "full"])
def test_large_suites_are_refused_on_a_cpu(suite):
    with pytest.raises(UnsupportedError, match="--suite quick"):
        cases.build(suite, device="cpu")


def test_shapes_by_hand_replace_the_suite():
    built = cases.build("squares", shapes=["1x2x3", " 4X5x6 "], layouts=["nt", "tn"])
    assert [str(c) for c in built] == [
        "1x2x3 bfloat16 nt", "4x5x6 bfloat16 nt", "1x2x3 bfloat16 tn", "4x5x6 bfloat16 tn",
    ]  # fmt: skip
    assert {c.suite for c in built} == {"shape"}


def test_output_dtypes_are_paired_where_they_fit():
    built = cases.build(
        shapes=["8x8x8"], dtypes=["float16", "bfloat16"], dtypes_out=["float16", "float32"]
    )
    assert [(c.dtype_in, c.dtype_out) for c in built] == [
        ("float16", "float16"), ("float16", "float32"), ("bfloat16", "float32"),
    ]  # fmt: skip
    assert str(built[1]) == "8x8x8 float16 -> float32 nn"


def test_the_types_suite_has_every_type_pair_and_every_way_to_sum():
    built = cases.build("types")
    assert {(c.dtype_in, c.compute) for c in built} == {
        (dtype, compute) for dtype, computes in COMPUTES.items() for compute in computes
    }
    assert {(c.dtype_in, c.dtype_out) for c in built if c.dtype_in[:6] != "float8"} == {
        (dtype, out) for dtype, outs in OUTPUTS.items() if dtype[:6] != "float8" for out in outs
    }
    assert {c.dtype_in for c in cases.build("types", dtypes=["int8"])} == {"int8"}


def test_the_wmma_suite_has_the_five_shapes():
    shapes = {c.mma_shape for c in cases.build("wmma")}
    assert shapes == {"16x16x16", "32x8x16", "8x32x16", "16x16x8", "8x8x4"}


def test_a_fused_case_is_named_in_one_order():
    (case,) = cases.build(shapes=["8x8x8"], fused=["gelu bias residual"])
    assert case.fused == "residual bias gelu"
    assert str(case) == "8x8x8 bfloat16 nn residual+bias+gelu"


def test_how_products_are_summed_is_part_of_a_case():
    built = cases.build(shapes=["8x8x8"], dtypes=["float32", "int8"], computes=["tf32", "int32"])
    assert [str(c) for c in built] == [
        "8x8x8 float32 by tf32 nn", "8x8x8 int8 -> int32 nn",
    ]  # fmt: skip
    with pytest.raises(OperandError, match="int8 with tf32"):
        cases.build(shapes=["8x8x8"], dtypes=["int8"], computes=["tf32"])


def test_a_pair_that_cannot_be_is_refused():
    with pytest.raises(OperandError, match="bfloat16"):
        cases.build(shapes=["8x8x8"], dtypes=["float16"], dtypes_out=["bfloat16"])


@pytest.mark.parametrize("text", ["", "8", "8x8", "8x8x8x8", "8x8x0", "8x-8x8", "axbxc", "8.0x8x8"])
def test_a_malformed_shape_is_named(text):
    with pytest.raises(OperandError, match="MxNxK") as caught:
        cases.build(shapes=[text])
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize(
    ("options", "listed"),
    [
        ({"suite": "slow"}, "squares"),
        ({"dtypes": ["float8"]}, "bfloat16"),
        ({"dtypes_out": ["int8"]}, "float32"),
        ({"layouts": ["nx"]}, "tt"),
        ({"computes": ["int4"]}, "tf32x3"),
        ({"fused": ["bias swish"]}, "silu"),
    ],
)
def test_unknown_names_are_answered_with_those_that_exist(options, listed):
    with pytest.raises(UnknownNameError, match=listed):
        cases.build(**options)


@pytest.mark.parametrize("module", ["cases", "store", "command", "timing", "telemetry"])
def test_importing_costs_no_torch(module):
    code = f"import sys, tcgemm.bench.{module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_drawn_cases_are_the_same_for_a_seed_and_as_aligned_as_they_say():
    drawn = cases.build("drawn", seed=7, count=60)
    assert drawn == cases.build("drawn", seed=7, count=60)
    assert drawn[:10] == cases.build("drawn", seed=7, count=10)
    assert drawn != cases.build("drawn", seed=8, count=60)
    assert len({(c.M, c.N, c.K, c.dtype_in, c.layout) for c in drawn}) == 60
    assert {c.layout for c in drawn} == {"nn", "nt", "tn", "tt"}
    assert {c.dtype_in for c in drawn} == {"float16", "bfloat16"}
    seen = set()
    for case in drawn:
        name, seed, alignment = case.suite.split("-")
        assert (name, seed) == ("drawn", "s7")
        alignment = int(alignment[1:])
        seen.add(alignment)
        problem = case.product()
        assert problem.flop <= 4e12
        assert max(case.M, case.N, case.K) <= 16384
        for strides in (problem.a_strides, problem.b_strides, problem.c_strides):
            row = 2 * max(strides)
            assert row % alignment == 0
            assert alignment == 128 or row % (2 * alignment)
    assert seen == {2, 16, 32, 64, 128}


def test_drawn_cases_of_one_layout_and_dtype():
    drawn = cases.build("drawn", seed=1, count=5, layouts=["tn"], dtypes=["float16"])
    assert {(c.layout, c.dtype_in) for c in drawn} == {("tn", "float16")}
    with pytest.raises(OperandError, match="float32, bias was asked for"):
        cases.build("drawn", dtypes=["int8"], dtypes_out=["float32"], fused=["bias"])


@pytest.mark.parametrize(
    ("dtype", "out", "size"),
    [("float32", "float32", 4), ("float64", "float64", 8), ("int8", "int32", 1)],
)
def test_drawn_cases_of_other_types_are_as_aligned_as_they_say(dtype, out, size):
    drawn = cases.build("drawn", seed=7, count=60, dtypes=[dtype])
    assert {(c.dtype_in, c.dtype_out) for c in drawn} == {(dtype, out)}
    seen = set()
    for case in drawn:
        alignment = int(case.suite.split("-a")[1])
        seen.add(alignment)
        problem = case.product()
        for strides in (problem.a_strides, problem.b_strides):
            row = size * max(strides)
            assert row % alignment == 0
            assert alignment == 128 or row % (2 * alignment)
    assert seen == {size, 16, 32, 64, 128}


def test_drawn_cases_are_summed_as_asked():
    drawn = cases.build("drawn", count=20, dtypes=["float32"], computes=["tf32", "tf32x3"])
    assert {c.compute for c in drawn} == {"tf32", "tf32x3"}
    assert {c.compute for c in cases.build("drawn", count=3, dtypes=["float32"])} == {"tf32x3"}
    with pytest.raises(OperandError, match="float64 are summed as float64, and tf32 was asked"):
        cases.build("drawn", dtypes=["float64"], computes=["tf32"])


def test_data_is_part_of_a_case_and_of_its_name():
    built = cases.build(None, shapes=["64x32x16"], data=["normal", "zeros"])
    assert [c.data for c in built] == ["normal", "zeros"]
    assert [str(c) for c in built] == ["64x32x16 bfloat16 nn", "64x32x16 bfloat16 nn data=zeros"]
    assert {c.data for c in cases.build("drawn", count=3, data=["ints"])} == {"ints"}


def test_unknown_data_is_refused():
    with pytest.raises(UnknownNameError, match="choose from normal, uniform, ints, zeros"):
        cases.build("quick", data=["ones"])


def test_no_figure_is_of_shapes_that_something_was_fitted_to():
    """Reports show drawn suites by the seeds in their names."""
    import csv
    import re
    from pathlib import Path

    from tcgemm.bench.drawn import FITTED
    from tcgemm.tools.warm.covering import SEED

    def fitted(suites):
        seeds = {int(m[1]) for suite in suites if (m := re.match(r"drawn-s(\d+)", suite))}
        return seeds & FITTED.keys()

    assert SEED in FITTED
    assert fitted(["squares", f"drawn-s{SEED}-a16"]) == {SEED}
    for path in (Path(__file__).parent.parent / "reports").glob("*/results.csv"):
        with path.open(newline="") as file:
            assert not fitted({row["suite"] for row in csv.DictReader(file)}), path
