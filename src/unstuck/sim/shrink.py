"""The smallest part of a schedule's faults with which something is still violated."""

from __future__ import annotations

from unstuck.sim.cases import Case, with_faults


def shrink(case: Case) -> tuple[Case, tuple[str, ...]]:
    """Leave out one fault after another. Returns the case itself and nothing where it violates nothing."""
    violations = case.run().violations
    if not violations:
        return case, ()
    for number in sorted(case.faults, reverse=True):
        smaller = with_faults(case, case.faults.keys() - {number})
        still = smaller.run().violations
        if still:
            case, violations = smaller, still
    return case, violations
