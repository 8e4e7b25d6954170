"""When a worker takes no more connections for a while. Pure.

All workers accept from one queue, so a worker that does not accept leaves the connection to the others.
"""

from typing import Final

LAG_S: Final = 0.1
"""A loop that is so late has more to do than it can."""
CALM_S: Final = 0.03
FAR_RATIO: Final = 2.0
"""So many times the mean of the workers' connections is too many; below `FEW` nothing is."""
NEAR_RATIO: Final = 1.5
FEW: Final = 32


def accepts(accepting: bool, connections: int, mean_connections: float, lag_s: float) -> bool:
    """Say whether a worker accepts connections from now on; between two marks it stays as it is.

    Args:
        accepting: whether it does.
        connections: that it has.
        mean_connections: over all workers.
        lag_s: how late its loop is, in seconds.
    """
    if lag_s > LAG_S or connections > max(FEW, FAR_RATIO * mean_connections):
        return False
    if lag_s <= CALM_S and connections <= max(FEW, NEAR_RATIO * mean_connections):
        return True
    return accepting
