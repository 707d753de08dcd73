"""How right is right: two checks of a kernel on a case, against results that no tensor core made.

- **Element-wise bound.** With D the float64 product of the operands as they are stored,
  ``|C - D| <= (c sqrt(K) + r) (|A| @ |B|) + u |D| + tiny``. c is the rounding of one step of the
  running sum (a random walk of K roundings, in any order), r what the operands lose before they
  are multiplied (0 but for tf32), u the unit roundoff of C's dtype and tiny half its least
  subnormal. alpha, beta, bias and epilogue add a few float32 roundings of their terms. Operands are
  standard normal. The report is the worst ratio of error to bound: above 1 is wrong.
- **Exact integers.** Operands are integers so small that every partial sum is exact, in any order
  of summation; C must equal the exact product, rounded once to C's dtype, to the bit. Integer
  types use their whole range, and sums wrap at 2^31.

On a GPU the references come from CUDA cores: float64 matrix-vector products, over the whole matrix
where that is cheap and otherwise over a seeded sample of rows and columns that passes through every
tile; and, for the integers, products that are exact in float32 with TF32 off (in float64 where
they need more), always over the whole matrix. docs/contract.md says how the constants were found.
"""

from __future__ import annotations

from .exact import exact_product, largest_integer
from .inputs import as_dtype, batch_of_operands, operands, poisoned
from .oracle import BatchOracle, Oracle, Run, Verdict, check
from .reference import BatchReference, Reference, error_ratio, reference_of, what_is_wrong

__all__ = [
    "BatchOracle",
    "BatchReference",
    "Oracle",
    "Reference",
    "Run",
    "Verdict",
    "as_dtype",
    "batch_of_operands",
    "check",
    "error_ratio",
    "exact_product",
    "largest_integer",
    "operands",
    "poisoned",
    "reference_of",
    "what_is_wrong",
]
