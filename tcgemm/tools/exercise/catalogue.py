"""The exercises by number. Imports no torch, so that ``list`` answers at once."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files

from ...errors import UnknownNameError


@dataclass(frozen=True, slots=True)
class Exercise:
    """One exercise: a starter that does not pass, and what it teaches."""

    number: int
    name: str
    """Its folder in files/, and the name of the file that a reader edits."""
    language: str
    """CUDA, Triton or Python."""
    title: str
    idea: str
    """What a failing check reminds of, in a sentence or two."""
    page: str
    """Where it is explained, below docs/."""

    @property
    def suffix(self) -> str:
        return ".cu" if self.language == "CUDA" else ".py"

    @property
    def file_name(self) -> str:
        return f"{self.number:02d}_{self.name}{self.suffix}"

    def text(self, kind: str) -> str:
        """The text of its "starter" or "solution"."""
        folder = files(__package__).joinpath("files", self.name)
        return folder.joinpath(f"{kind}{self.suffix}").read_text()


EXERCISES = (
    Exercise(1, "missing_barrier", "CUDA", "a missing barrier",
             "A tile in shared memory needs two barriers a step: one before it is read, and one "
             "before it is overwritten.", "rungs/cuda_tiled.md"),
    Exercise(2, "tail", "CUDA", "an off-by-one in a tail",
             "The last index inside of an extent E is E - 1, so a mask is index < E, in each "
             "dimension of each operand.", "rungs/cuda_wmma_any.md"),
    Exercise(3, "bank_conflicts", "CUDA", "bank conflicts to remove",
             "Lanes that read different words of one bank wait for each other. Padding moves each "
             "row to other banks.", "foundations/bank_conflicts.md"),
    Exercise(4, "grouped_order", "Python", "a grouped order of tiles",
             "Programs in flight that cover a square of C read fewer rows of A and columns of "
             "B than those of a row.", "rungs/triton_grouped.md"),
    Exercise(5, "swizzle", "Python", "a swizzle",
             "An XOR with the row's number permutes the units of each row, and gives the same "
             "unit of eight rows eight places.", "foundations/swizzles.md"),
    Exercise(6, "async_wait", "CUDA", "a copy that nobody waits for",
             "cp.async lands at the wait of the thread that started it. The wait is for one's own "
             "copies, the barrier for everybody's.", "foundations/async_copies.md"),
    Exercise(7, "coalescing", "CUDA", "loads that do not coalesce",
             "threadIdx.x runs fastest within a warp, so it has to run along the dimension whose "
             "elements are neighbours in memory.", "foundations/coalescing.md"),
    Exercise(8, "uncomputed_tiles", "CUDA", "tiles that nobody computes",
             "The last group of tile rows is lower than the others, and has to be walked by its "
             "own height.", "rungs/cuda_wmma_grouped.md"),
    Exercise(9, "race", "CUDA", "a race in a reduction",
             "A round of a tree reads what other threads wrote in the round before, so there is a "
             "barrier in every round.", "rungs/cuda_tiled.md"),
    Exercise(10, "ring_parity", "CUDA", "the parity of a ring",
             "An mbarrier flips its phase each time it completes, so the parity that is waited for "
             "flips after each walk around the ring.", "foundations/async_copies.md"),
    Exercise(11, "k_tail", "Triton", "the tail of K",
             "Past K both operands have to be zeros: a mask on one side alone multiplies zero by "
             "whatever lies there, and 0 times NaN is NaN.", "rungs/triton_naive.md"),
    Exercise(12, "num_stages", "Python", "how many stages fit",
             "A stage is (BLOCK_M + BLOCK_N) x BLOCK_K elements; the ring and the buffer of C "
             "share 227 KB.", "rungs/triton_pipelined.md"),
    Exercise(13, "roofline", "Python", "a roofline to fill in",
             "A kernel takes at least the larger of its operations over the peak and its bytes "
             "over the bandwidth.", "foundations/roofline.md"),
    Exercise(14, "accumulator", "Triton", "what to sum in",
             "Sums of many products need more bits than their factors: accumulate in float32, and "
             "narrow once, at the store.", "documents.md"),
    Exercise(15, "waves", "Python", "the tile that ends first",
             "Time is waves times the area of a tile: a larger tile loses where it needs one more "
             "wave.", "foundations/waves.md"),
)  # fmt: skip


def find(name: str) -> Exercise:
    """The exercise of a number or a name. Raises UnknownNameError, listing what exists."""
    for exercise in EXERCISES:
        if name.lstrip("0") == str(exercise.number) or name == exercise.name:
            return exercise
    raise UnknownNameError(
        f"no exercise {name!r}: choose a number from 1 to {len(EXERCISES)}, or a name of "
        f"{', '.join(exercise.name for exercise in EXERCISES)}"
    )
