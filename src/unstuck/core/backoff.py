"""How long to wait before something that failed is tried again."""

from __future__ import annotations


def backoff(failures: int, first: float, most: float) -> float:
    """Seconds to wait after ``failures`` failures in a row: ``first``, doubled each time, ``most`` at last.

    However many: a control plane that was away for half an hour once ended its agents, because 2.0 to the
    power of a thousand is no number (found by the simulator: asleep for a day).
    """
    return float(min(first * 2 ** min(max(failures - 1, 0), 32), most))
