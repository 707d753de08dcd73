"""Drawn calls over every kernel: shapes, types, layouts, offsets, factors, fusions, NaN and Inf.

The same examples every time; ``tcgemm verify --fuzz N --seed S`` draws others.
"""

from __future__ import annotations

import pytest
from conftest import built_by_type
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from promises import is_refusal

from tcgemm.tools.verify import MOST_WORK
from tcgemm.verify.calls import draw, pairs_of
from tcgemm.verify.judge import check

EXAMPLES = {"cpu": 15, "cuda": 40}
FEW = 2
"""Of those, the first that are drawn: on a CPU without ``--all``."""


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_drawn_call_is_right_or_refused(row, device, thorough):
    few_types = not thorough and built_by_type(row)

    @settings(
        max_examples=EXAMPLES[device] if thorough else FEW,
        derandomize=True,
        database=None,
        deadline=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    @given(st.data())
    def drawn(data):
        def choose(options):
            if few_types and options == pairs_of(row):
                options = options[:1]
            return data.draw(st.sampled_from(options))

        call = draw(row, choose, device, MOST_WORK[device])
        outcome = check(row, call, device)
        if outcome.status == "refused":
            is_refusal(row, call, outcome.reason)
        else:
            assert outcome.status == "ok", f"{row.full_name}: {call}: {outcome.reason}"

    drawn()
