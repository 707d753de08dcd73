"""PTX of an inline assembly, run lane by lane with numpy: what of it unaligned_rows.py uses."""

from __future__ import annotations

import re

import numpy as np

LANES = np.arange(32)


class Warp:
    """One warp that runs the text of an inline assembly, and stores to ``memory``."""

    def __init__(self, memory: np.ndarray, times: np.ndarray) -> None:
        """
        Args:
            memory: elements of 16 bits, of which the first is at address 0.
            times: how often each has been stored, which is counted here.
        """
        self.memory, self.times = memory, times
        self.vectors = 0

    def run(self, text: str, operands: dict[int, np.ndarray]) -> None:
        """Run it, with 32 values for each operand by its number; outputs are dropped."""
        self.values = {f"${number}": value.astype(np.int64) for number, value in operands.items()}
        jumped = np.zeros(32, bool)
        body = text.strip().removeprefix("{").removesuffix("}").strip()
        for line in re.split(r";\s*|(?<=:)\s+", body):
            if line.endswith(":"):
                jumped[:] = False
                continue
            if not line or line.startswith(".reg"):
                continue
            guard, code = re.fullmatch(r"(?:@(!?\w+) )?(.+)", line).groups()
            on = ~jumped
            if guard:
                holds = self.values[guard.strip("!")].astype(bool)
                on = on & (~holds if guard.startswith("!") else holds)
            name, _, rest = code.partition(" ")
            if name == "bra":
                jumped |= on
            elif name.startswith("st.global"):
                self.store(name, rest, on)
            else:
                target, *sources = re.findall(r"\{[^}]*\}|[^,\s]+", rest)
                self.compute(name, target, [self.read(source) for source in sources])

    def read(self, source: str) -> np.ndarray:
        if source == "%laneid":
            return LANES.copy()
        constant = re.fullmatch(r"-?\d+", source)
        return np.full(32, int(source)) if constant else self.values[source]

    def compute(self, name: str, target: str, of: list[np.ndarray]) -> None:
        kind, *modifiers = name.split(".")
        compare = {"eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal,
                   "ge": np.greater_equal}  # fmt: skip
        if kind == "setp":
            x, y = of[:2]
            if modifiers[-1] == "u32":
                x, y = x & 0xFFFFFFFF, y & 0xFFFFFFFF
            value = compare[modifiers[0]](x, y)
            value = value & of[2].astype(bool) if "and" in modifiers else value
        elif target.startswith("{"):
            low, high = target.strip("{}").split(", ")
            self.values[low], self.values[high] = of[0] & 0xFFFF, of[0] >> 16 & 0xFFFF
            return
        elif kind == "shfl":
            value, lane, packed, members = of
            assert modifiers == ["sync", "idx", "b32"]
            assert members[0] == -1
            mask = int(packed[0]) >> 8
            value = value[(LANES & mask) | (lane & ~mask & 31)]
        else:
            value = {
                "mov": lambda x: x,
                "cvt": lambda x: x & 0xFFFFFFFF,
                "and": np.bitwise_and,
                "not": lambda x: ~x.astype(bool),
                "add": np.add,
                "sub": np.subtract,
                "mad": lambda x, y, z: x * y + z,
                "bfe": lambda x, start, count: x >> start & (1 << count) - 1,
                "selp": lambda x, y, p: np.where(p, x, y),
                # The low word of two, shifted to the right by 32 at most.
                "shf": lambda low, high, by: (low | high << 32) >> np.minimum(by, 32) & 0xFFFFFFFF,
            }[kind](*of)
        self.values[target] = value

    def store(self, name: str, rest: str, on: np.ndarray) -> None:
        base, behind, sources = re.fullmatch(r"\[(\w+)(?: \+ (\d+))?\], (.*)", rest).groups()
        address = self.values[base] + int(behind or 0)
        vector = name == "st.global.v4.b32"
        assert vector or name == "st.global.b16"
        words = [self.values[source] for source in sources.strip("{}").split(", ")]
        elements = [half for x in words for half in ((x & 0xFFFF, x >> 16 & 0xFFFF)[: 1 + vector])]
        assert (address[on] % (2 * len(elements)) == 0).all(), "a store is not aligned"
        self.vectors += vector * int(on.sum())
        for number, element in enumerate(elements):
            at = address[on] // 2 + number
            self.memory[at] = element[on]
            np.add.at(self.times, at, 1)
