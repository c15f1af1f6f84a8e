"""Latencies of SimBricks' channels: numbers of ns until 0.5, intervals with a unit from 0.6 on."""

from __future__ import annotations

import typing

import simbricks.orchestration.system as sys_conf
from simbricks.orchestration.helpers import exceptions

try:
    from simbricks.utils.time import TimeInterval
except ImportError:
    TimeInterval = None  # pyright: ignore[reportAssignmentType, reportConstantRedefinition]


def interval(ns: int) -> typing.Any:
    """So many ns, as channels of the installed version have them."""
    return ns if TimeInterval is None else TimeInterval.ns(ns)


def latency_ns(chan: sys_conf.Channel, ends: str) -> int:
    """The latency of a channel in ns. Raises `SystemConfigurationError` if that is no whole number: `ends` says whose it is."""
    latency: typing.Any = chan.latency
    if TimeInterval is None:
        return int(latency)
    if latency.picoseconds % 1000:
        raise exceptions.SystemConfigurationError(f"{ends} are {latency} apart: softhca's cables take whole ns")
    return latency.picoseconds // 1000
