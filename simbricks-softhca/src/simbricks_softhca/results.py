"""What a run gave: sums over its processes. Imports nothing that is not of Python itself."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import typing

_KINDS = ("events", "packets", "completions")
_MASK = (1 << 64) - 1


class RunError(Exception):
    """A run that did not do what it should; why, in words."""


@dataclasses.dataclass
class Results:
    """Of all processes of softhca in a run."""

    processes: int = 0
    hosts: int = 0
    messages: int = 0
    """That came, every byte checked."""
    packets: int = 0
    """That left adapters."""
    hashes: dict[str, int] = dataclasses.field(default_factory=lambda: dict.fromkeys(_KINDS, 0))
    """Of all events, packets and completions, modulo 2^64: equal ones are equal runs, however nodes are divided among processes."""

    def add(self, report: dict[str, typing.Any]) -> None:
        """What one process printed (`softhca sim --json`)."""
        self.processes += 1
        self.hosts += report["hosts"]
        self.messages += report["messages"]
        self.packets += report["packets"]
        for kind in _KINDS:
            self.hashes[kind] = (self.hashes[kind] + (report["hashes"] or {}).get(kind, 0)) & _MASK


def read(path: str | pathlib.Path) -> Results:
    """Those of the `out.json` of a run of `simbricks-run`.

    Raises `RunError` if a process of softhca gave none: what it said instead.
    """
    out = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
    results = Results()
    for name, process in out.items():
        if not name.startswith("softhca."):
            continue
        lines = process["output"][-1]["stdout"] if process["output"] else []
        try:
            results.add(json.loads("\n".join(lines)))
        except (ValueError, KeyError) as why:
            said = "\n".join(process["output"][-1]["stderr"]) if process["output"] else ""
            raise RunError(f"{name} gave no result: {said.strip() or 'it said nothing'}") from why
    if results.processes == 0:
        raise RunError(f"{path}: no process of softhca ran")
    return results
