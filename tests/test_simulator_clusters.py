"""Thread block clusters in the simulator: multicast, copies to other blocks and reads of their
shared memory, barriers of a cluster, and what is wrong where one of them is."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest
import torch

simulator = import_module("tcgemm.cuda_ref.simulator")
clusters = import_module("tcgemm.cuda_ref.simulator.clusters")

SOURCE = Path(__file__).parent / "simulated" / "clusters.cu"
ROWS, COLS = 8, 32
MULTICASTS, TRANSFERS, READS = 1, 2, 3
ORDERS = ("forward", "reverse", "random:3", "late:1")


def simulate(kernel, cluster, fault=0, clusters=2, steps=5, **options):
    """The report, and how many elements of C are wrong."""
    blocks, K = cluster * clusters, COLS * (1 if kernel == TRANSFERS else steps)
    a, b = torch.randint(-9, 10, (ROWS * blocks, K)).float(), torch.zeros(K, 1)
    c = torch.full((blocks, K), float("nan"))
    options.setdefault("check", True)
    plan = {"CLUSTER": cluster, "SPLITS": kernel, "GROUPS": fault}
    report = simulator.simulate(SOURCE, a, b, c, plan=plan, timeout_s=30, **options)
    right = a.reshape(clusters, -1, K).sum(1).repeat_interleave(cluster, 0)
    return report, int((c != right).sum())


@pytest.mark.spread(4, "cluster", "kernel", "order")
@pytest.mark.parametrize("order", [*ORDERS, "late:0", "late:5", "random:4"])
@pytest.mark.parametrize("kernel", [MULTICASTS, TRANSFERS, READS])
@pytest.mark.parametrize("cluster", [1, 2, 4, 8])
def test_right_in_every_order_and_nothing_found(cluster, kernel, order):
    report, wrong = simulate(kernel, cluster, order=order)
    assert not report.findings, [str(f) for f in report.findings]
    assert wrong == 0
    assert (report.cluster, report.grid) == (cluster, (2 * cluster, 1, 1))


@pytest.mark.parametrize("kernel", [MULTICASTS, TRANSFERS, READS])
def test_right_where_nothing_is_checked(kernel):
    report, wrong = simulate(kernel, 4, clusters=5, check=False, workers=3, order="random:1")
    assert not report.findings
    assert wrong == 0


EARLY = r"before the blocks of the cluster have met"
NONE = r"nobody has called mbarrier_init for the mbarrier at byte \d+ of shared memory of block"
LEFT = r"which has returned by then or may have"

# Kernel and fault -> kinds of which one is found, and words of its message.
FAULTS = {
    (MULTICASTS, 1): ({"misuse"}, f"{EARLY}|{NONE}"),
    (MULTICASTS, 2): ({"deadlock"}, r"waits at clusters.cu:\d+ for ever"),
    (MULTICASTS, 3): ({"async copy in flight", "race"}, r"of block \(\d, 0, 0\)"),
    (MULTICASTS, 4): ({"async copy in flight"}, r"writes 16 bytes .* block \(\d, 0, 0\), byte \d+"),
    (MULTICASTS, 5): ({"misuse"}, LEFT),
    (MULTICASTS, 6): ({"async copy in flight", "uninitialised"}, r"reads 4 bytes of shared memory"),
    (MULTICASTS, 7): ({"deadlock"}, r"waits at clusters.cu:\d+ for ever"),
    (MULTICASTS, 8): ({"misuse"}, r"block 4 of a cluster of 4 is asked for"),
    (MULTICASTS, 9): ({"misuse"}, r"of a cluster of 4 is asked for, or none"),
    (TRANSFERS, 1): ({"misuse"}, f"{EARLY}|{NONE}"),
    (TRANSFERS, 2): ({"misuse"}, r"a bulk copy reads shared memory, byte \d+, that the thread has"),
    (TRANSFERS, 3): ({"race"}, r"writes 4 bytes of shared memory, byte \d+"),
    (TRANSFERS, 4): ({"misuse"}, LEFT),
    (TRANSFERS, 5): ({"async copy in flight", "race"}, r"of shared memory of block \(\d, 0, 0\)"),
    (TRANSFERS, 6): ({"deadlock"}, r"waits at clusters.cu:\d+ for ever"),
    (TRANSFERS, 7): ({"misuse"}, r"copies a multiple of 16 bytes .* not 20 bytes"),
    (TRANSFERS, 8): ({"misuse", "async copy in flight"}, f"{LEFT}|is in flight"),
    (TRANSFERS, 9): ({"misuse"}, r"of a cluster of 4 is asked for"),
    (READS, 1): ({"race"}, r"reads 4 bytes of shared memory of block \(\d, 0, 0\)"),
    (READS, 2): ({"race", "uninitialised"}, r"of shared memory of block \(\d, 0, 0\)"),
    (READS, 3): ({"race"}, r"writes 4 bytes .* at (\S+), and block .* at (?!\1)\S+ read there"),
    (READS, 4): ({"misuse"}, LEFT),
    (READS, 5): ({"misuse"}, r"block 4 of a cluster of 4 is asked for"),
    (READS, 6): ({"misuse"}, r"take turns, and here one has come twice"),
    (READS, 7): ({"misuse"}, r"take turns, and here one has come twice"),
    (READS, 8): ({"misuse"}, LEFT),
    (READS, 9): ({"out of shared memory"}, r"reads 4 bytes at byte 1\d+"),
}  # fmt: skip


@pytest.mark.spread(4, "fault", "order")
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_a_fault_is_found_in_every_order(fault, order):
    kinds, words = FAULTS[fault]
    kernel, fault = fault
    report, _ = simulate(kernel, 4, fault, clusters=1, order=order)
    found = [f.message for f in report.findings if f.kind in kinds]
    assert any(re.search(words, message) for message in found), [str(f) for f in report.findings]


# A stage that is written too early, or read too early, or a copy's source that changes.
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    ("kernel", "fault"), [(MULTICASTS, 6), (TRANSFERS, 3), (TRANSFERS, 8), (READS, 3)], ids=str
)
def test_without_checks_a_fault_makes_c_wrong_in_every_order(kernel, fault, order):
    _, wrong = simulate(kernel, 4, fault, clusters=1, order=order, check=False)
    assert wrong > 0


def test_a_multicast_is_read_once_and_followed_in_every_block():
    machine = simulator.Machine("one", sms=8, l2_bytes=1 << 20)
    report, wrong = simulate(
        MULTICASTS, 4, count=True, machine=machine, timeline=simulator.Timeline(latency=100)
    )
    assert wrong == 0
    operand = 2 * 4 * ROWS * 5 * COLS * 4
    assert report.counts.load_bytes == operand
    assert report.counts.load_sectors == operand // 32
    assert report.l2.dram_read == operand
    for block in range(8):
        waits = [s for s in report.timeline if s.block == block and s.phase == "wait at mbarrier"]
        # The consumer has the first stage when the last block's share of it has come.
        assert min(s.end for s in waits if s.warp == 0) > 100


@pytest.mark.parametrize(("cluster", "blocks"), [(3, 6), (9, 9)], ids=str)
def test_what_a_launch_may_ask_for(cluster, blocks):
    """Up to eight blocks; and a cluster of three is one, too."""
    if cluster <= 8:
        report, wrong = simulate(READS, cluster, clusters=blocks // cluster)
        assert (report.cluster, wrong, report.findings) == (cluster, 0, ())
    else:
        with pytest.raises(simulator.SimulationError, match="9 blocks, and the simulator takes 8"):
            simulate(READS, cluster, clusters=blocks // cluster)


DECLARED = """
#include "host/gemm.cuh"
namespace {
constexpr int CLUSTER = 2;
__global__ void __cluster_dims__(CLUSTER, 1, 1) ranks(tcgemm::Gemm gemm) {
  static_cast<float*>(gemm.c.data)[blockIdx.x] = tcgemm::sm90::cluster_ctarank();
}
OTHER
}  // namespace
int tcgemm_launch(const tcgemm::Gemm& gemm, cudaStream_t stream) {
  return tcgemm::launch(ranks, dim3(gemm.c.rows), dim3(1), 0, stream, gemm);
}
"""


def ranks(folder, blocks, other="", dims="(CLUSTER, 1, 1)"):
    source = folder / "ranks.cu"
    source.write_text(DECLARED.replace("(CLUSTER, 1, 1)", dims).replace("OTHER", other))
    c = torch.full((blocks, 1), float("nan"))
    report = simulator.simulate(source, torch.ones(blocks, 1), torch.ones(1, 1), c, check=True)
    return report, c.flatten().tolist()


def test_a_kernel_declares_its_clusters(tmp_path):
    report, found = ranks(tmp_path, 6)
    assert (report.cluster, found) == (2, [0, 1, 0, 1, 0, 1])
    with pytest.raises(simulator.SimulationError, match=r"\(5, 1, 1\) .* cluster of \(2, 1, 1\)"):
        ranks(tmp_path, 5)
    with pytest.raises(RuntimeError, match="takes one kind to a file"):
        ranks(tmp_path, 6, "__global__ void __cluster_dims__(4, 1, 1) more() {}")
    with pytest.raises(RuntimeError, match="for ranks and none for more, and the simulator cannot"):
        ranks(tmp_path, 6, "__global__ void __launch_bounds__((32)) more() {}")


@pytest.mark.parametrize("dims", ["(2)", " (\n2, (1), 1)", "(sizeof(int) / 2, 1) /* (4) */"])
def test_extents_are_read_to_their_end(tmp_path, dims):
    other = "// As __cluster_dims__(4, 1, 1) would.\n/* __cluster_dims__ */"
    report, found = ranks(tmp_path, 6, other, dims)
    assert (report.cluster, found) == (2, [0, 1, 0, 1, 0, 1])


@pytest.mark.parametrize(
    ("dims", "error", "words"),
    [
        ("(1, 2, 1)", simulator.SimulationError, r"cluster of \(1, 2, 1\) .* not lie along x"),
        ("(2, 1, 4)", simulator.SimulationError, r"cluster of \(2, 1, 4\) .* not lie along x"),
        ("(16)", simulator.SimulationError, "16 blocks, and the simulator takes 8"),
        ("(2, 1, 1", RuntimeError, "that the simulator does not understand"),
        ("()", RuntimeError, "that the simulator does not understand"),
    ],
)
def test_extents_that_are_not_taken(tmp_path, dims, error, words):
    with pytest.raises(error, match=words):
        ranks(tmp_path, 16, dims=dims)


def test_extents_by_a_template_or_a_macro_are_refused(tmp_path):
    template = (
        "template <int X, int BLOCKS = 2>\n__global__ void __cluster_dims__(BLOCKS) more() {}"
    )
    with pytest.raises(RuntimeError, match="BLOCKS is a parameter of its template"):
        ranks(tmp_path, 6, template, dims="(2)")
    source = tmp_path / "pairs.cu"
    source.write_text("#define PAIRS __cluster_dims__(2)\n__global__ void PAIRS pairs() {}\n")
    with pytest.raises(RuntimeError, match="that the simulator does not understand"):
        clusters.in_clusters(source, (), tmp_path)


IN_ROWS = """
#include "host/gemm.cuh"
#include "host/select.cuh"
namespace {
using namespace tcgemm::sm90;
__global__ void __cluster_dims__(2) rows(float* c, int leaves) {
  __shared__ float x[1];
  const uint32_t rank = cluster_ctarank();
  x[0] = rank;
  const bool wrong = blockIdx.y == 1 && blockIdx.z == 2;
  if (!wrong || leaves) barrier_cluster_arrive(), barrier_cluster_wait();
  if (wrong && rank == 0) *c = ld_shared_cluster(shared_address(x), 1);
  if (!wrong || !leaves) barrier_cluster_arrive(), barrier_cluster_wait();
}
}  // namespace
int tcgemm_launch(const tcgemm::Gemm& gemm, cudaStream_t stream) {
  return tcgemm::launch(rows, dim3(4, 2, 3), dim3(1), 0, stream,
                        static_cast<float*>(gemm.c.data), tcgemm::plan_of(gemm).groups);
}
"""


@pytest.mark.parametrize(("leaves", "kind"), [(0, {"race", "uninitialised"}), (1, {"misuse"})])
def test_a_finding_names_the_whole_index_of_the_other_block(tmp_path, leaves, kind):
    source = tmp_path / "rows.cu"
    source.write_text(IN_ROWS)
    one = torch.ones(1, 1)
    report = simulator.simulate(
        source, one, one, torch.zeros(1, 1), plan={"GROUPS": leaves}, check=True
    )
    found = [f for f in report.findings if f.kind in kind]
    assert re.search(r"of block \([13], 1, 2\)", found[0].message), report.findings
