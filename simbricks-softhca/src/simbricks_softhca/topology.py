"""Topology files of softhca, from Python. Imports nothing that is not of Python itself.

What a key means, and which there are, softhca's page on topology files says. Here it is checked only that names are names and values can be
written; the rest `softhca` says, with file and line.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Mapping, Sequence

Value = bool | int | float | str
"""What a key of a topology file may have."""

_NAME = re.compile(r"[A-Za-z0-9_-]{1,32}")
_KEY = re.compile(r"[a-z][a-z0-9_]*")


class TopologyError(Exception):
    """A topology that can't be written; why, in words."""


def name(text: str) -> str:
    """`text`, if it can be the name of a host, switch or process: 1 to 32 letters, digits, `-`, `_`.

    Raises `TopologyError` if not.
    """
    if not _NAME.fullmatch(text):
        raise TopologyError(f"{text!r} is no name: 1 to 32 letters, digits, - and _ are")
    return text


def _value(key: str, value: Value) -> str:
    """A value as TOML has it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float) and math.isfinite(value):
        return repr(value)
    if isinstance(value, str):
        # A string of JSON that has no characters beyond ASCII is one of TOML.
        return json.dumps(value)
    raise TopologyError(f"{key} = {value!r} can't be written: text, numbers, true and false can")


def _keys(keys: Mapping[str, Value | None]) -> list[str]:
    lines = []
    for key, value in keys.items():
        if not _KEY.fullmatch(key):
            raise TopologyError(f"{key!r} is no key")
        if value is not None:
            lines.append(f"{key} = {_value(key, value)}")
    return lines


def _texts(texts: Sequence[str]) -> str:
    return f"[{', '.join(json.dumps(text) for text in texts)}]"


@dataclasses.dataclass
class Host:
    """A host with one adapter, `hca0`, which a program of softhca uses, or another simulator."""

    name: str
    process: str
    """The process that simulates it."""
    options: Mapping[str, Value] = dataclasses.field(default_factory=dict)
    """Keys of `[[host.hca]]`, such as `personality` or `port_type`."""
    elsewhere: str | None = None
    """`listen:PATH`: another simulator is the host, and connects there."""
    pcie_latency_ns: int | None = None
    """How long a crossing to it takes, in ns."""


@dataclasses.dataclass
class Switch:
    """A switch."""

    name: str
    process: str
    """The process that simulates it."""
    options: Mapping[str, Value] = dataclasses.field(default_factory=dict)
    """Keys of `[[switch]]`, such as `ports` or `type`."""


@dataclasses.dataclass
class Link:
    """A cable between two ports."""

    between: Sequence[str]
    """Two of `host/hca0/PORT` and `switch/PORT`."""
    delay_ns: int
    """Propagation, in ns, without what the ports take."""
    simbricks: str | Sequence[str] | None = None
    """`listen:PATH` or `connect:PATH` of the first end, if its ends are in two processes; or of both, if something else is between."""
    options: Mapping[str, Value] = dataclasses.field(default_factory=dict)
    """Further keys of `[[link]]`, such as `rate` or `loss`."""


@dataclasses.dataclass
class Outside:
    """Something that is not softhca's, at the end of the link of an Ethernet port."""

    name: str
    role: str
    """What the process of the port does: `listen` or `connect`."""
    path: str
    """The socket."""


@dataclasses.dataclass
class Topology:
    """What is simulated, and which process simulates what."""

    processes: Sequence[str]
    hosts: Sequence[Host]
    switches: Sequence[Switch]
    links: Sequence[Link]
    fabric: Mapping[str, Value] = dataclasses.field(default_factory=dict)
    """Keys of `[fabric]`."""
    outsides: Sequence[Outside] = ()

    def to_toml(self) -> str:
        """The file's text. Raises `TopologyError`."""
        lines = ["# Written by simbricks-softhca."]
        if self.fabric:
            lines += ["[fabric]", *_keys(self.fabric)]
        for process in self.processes:
            lines += ["[[process]]", *_keys({"name": name(process)})]
        for host in self.hosts:
            lines += ["[[host]]", *_keys({"name": name(host.name), "process": host.process})]
            lines += ["[[host.hca]]", *_keys(host.options)]
            lines += _keys({"simbricks": host.elsewhere, "pcie_latency_ns": host.pcie_latency_ns})
        for switch in self.switches:
            lines += ["[[switch]]", *_keys({"name": name(switch.name), "process": switch.process})]
            lines += _keys(switch.options)
        for outside in self.outsides:
            lines += ["[[outside]]", *_keys({"name": name(outside.name), "kind": "simbricks"})]
            lines += _keys({outside.role: f"unix:{outside.path}"})
        for link in self.links:
            lines += ["[[link]]", f"between = {_texts(link.between)}", *_keys({"delay_ns": link.delay_ns})]
            if isinstance(link.simbricks, str):
                lines += _keys({"simbricks": link.simbricks})
            elif link.simbricks is not None:
                lines += [f"simbricks = {_texts(link.simbricks)}", *_keys({"framing": "ethernet"})]
            lines += _keys(link.options)
        return "\n".join(lines) + "\n"
