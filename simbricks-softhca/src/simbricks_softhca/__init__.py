"""softhca's adapters and switches in experiments of SimBricks."""

from __future__ import annotations

import importlib
import typing

if typing.TYPE_CHECKING:
    from .simulation import Channel, ProgramHostSim, SofthcaSim, Workload, make_channels, simulate
    from .system import CABLE_NS, PCIE_NS, PHY_NS, Adapter, Cable, ProgramHost, Switch

__all__ = [
    "CABLE_NS",
    "PCIE_NS",
    "PHY_NS",
    "Adapter",
    "Cable",
    "Channel",
    "ProgramHost",
    "ProgramHostSim",
    "SofthcaSim",
    "Switch",
    "Workload",
    "make_channels",
    "simulate",
]


def __getattr__(name: str) -> typing.Any:
    # Topologies and results need nothing of SimBricks: it is imported when it is asked for.
    if name in __all__:
        for module in ("simulation", "system"):
            found = importlib.import_module(f".{module}", __name__)
            if hasattr(found, name):
                return getattr(found, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
