"""Who simulates it: processes of `softhca sim`, each with a set of nodes."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import shlex
import typing
from collections.abc import Iterable, Mapping

import simbricks.orchestration.system as sys_conf
import typing_extensions as tpe
from simbricks.orchestration.helpers import exceptions
from simbricks.orchestration.instantiation import base as inst_base
from simbricks.orchestration.instantiation import socket as inst_socket
from simbricks.orchestration.simulation import base as sim_base
from simbricks.orchestration.simulation import channel as sim_chan
from simbricks.utils import base as utils_base

from . import topology as files
from .latency import interval, latency_ns
from .system import PHY_NS, Adapter, ProgramHost, Switch, _Node

FABRIC: Mapping[str, files.Value] = {"training_ms": 0}
"""Keys of `[fabric]`, unless told: links are up at once."""


PERIOD: typing.Any = interval(500)
"""SimBricks' default period of synchronisation."""


class Channel(sim_chan.Channel):
    """A synchronised channel of any latency. That of SimBricks 0.5 refuses those that are shorter than its default period of 500 ns."""

    def __init__(self, chan: sys_conf.Channel) -> None:
        # It asks nothing else of the latency.
        latency, chan.latency = chan.latency, max(chan.latency, PERIOD)
        try:
            super().__init__(chan)
        finally:
            chan.latency = latency
        self._synchronized = True
        self.sync_period = min(PERIOD, latency)


def make_channels(simulation: sim_base.Simulation) -> None:
    """Gives each link between two simulators its channel, also where that is shorter than 500 ns.

    To be called when all components have their simulators and before anything asks for channels, as `enable_synchronization` does.
    """
    for sim in simulation.all_simulators():
        for comp in sim.components():
            for chan in comp.channels():
                if sim._chan_needs_instance(chan) and not simulation.is_channel_instantiated(chan):
                    simulation.update_channel_mapping(sys_chan=chan, sim_chan=Channel(chan))


@dataclasses.dataclass
class Workload:
    """What the hosts of a simulation do: the same in each of its processes. `softhca sim --help` says more."""

    traffic: str = "all-to-all"
    """What hosts do: `all-to-all`, `incast`, `ring`, `ring-all-reduce`, `tree-all-reduce`, `storage-reads`, `none`."""
    messages: int = 1
    """Messages of each flow, rounds of an all-reduce, or blocks of each client and target."""
    size: str = "4K"
    """Bytes of a message, of an all-reduce's vector, or of a block: `64`, `4K`, `1M`."""
    operation: str | None = None
    """How a message gets there: `send`, `write`, `read`, `atomic`; `None`: what is usual for the traffic."""
    targets: int | None = None
    """Of storage reads: how many hosts, the first ones, have the blocks."""
    depth: int | None = None
    """Of storage reads: blocks that a client has under way at each of them."""
    transport: str = "rc"
    """`rc`: a connection to each peer; `dc`: dynamic ones."""
    peers: int | None = None
    """Of all-to-all: to how many of the next ones."""
    start_ms: float | None = None
    """When all begin to send, in ms of model time; `None`: when they are ready."""
    until_ms: float | None = None
    """When it ends, in ms of model time; `None`: when all can have come."""

    def arguments(self) -> list[str]:
        """As the command line has it."""
        args = ["--traffic", self.traffic, "--messages", str(self.messages), "--size", self.size]
        args += ["--transport", self.transport]
        optional = (
            ("--operation", self.operation),
            ("--targets", self.targets),
            ("--depth", self.depth),
            ("--peers", self.peers),
            ("--start", self.start_ms),
            ("--until", self.until_ms),
        )
        for option, value in optional:
            if value is not None:
                args += [option, str(value)]
        return args


class SofthcaSim(sim_base.Simulator):
    """One process of `softhca sim`, for any number of adapters and switches.

    All of a simulation share a topology file, which is written into the output folder; each is a process of it. A run ends when all have.
    What they print (with hashes, as JSON) is in `out.json`; their traces and captures lie beside it.
    """

    def __init__(
        self,
        simulation: sim_base.Simulation,
        executable: str = "softhca",
        name: str = "",
        workload: Workload | None = None,
    ) -> None:
        super().__init__(simulation=simulation, executable=executable, name=name)
        self.name: str = files.name(name or f"p{self.id()}")
        self.workload = workload or Workload()
        self.fabric: dict[str, files.Value] = dict(FABRIC)
        """Keys of `[fabric]`; the same in each process."""
        self.trace = False
        """Whether it writes a trace (JSON, for Perfetto)."""
        self.pcap = False
        """Whether it writes a capture of all its adapters' packets."""
        self.patience_s = 60
        """How many seconds it waits for its neighbours."""
        self.wait_terminate = True

    def full_name(self) -> str:
        return "softhca." + self.name

    def add(self, comp: sys_conf.Component) -> None:
        if not isinstance(comp, _Node):
            raise exceptions.SimulationConfigurationError(
                f"softhca simulates its own adapters and switches, and no {type(comp).__name__}"
            )
        super().add(comp)

    def supported_socket_types(self, interface: sys_conf.Interface) -> set[inst_socket.SockType]:
        # Devices listen, and hosts connect.
        if isinstance(interface, sys_conf.PCIeDeviceInterface):
            return {inst_socket.SockType.LISTEN}
        return {inst_socket.SockType.LISTEN, inst_socket.SockType.CONNECT}

    def start_delay(self) -> int:
        # Its sockets say when it is there.
        return 0

    def toJSON(self) -> dict[str, typing.Any]:
        json_obj = super().toJSON()
        json_obj["workload"] = dataclasses.asdict(self.workload)
        json_obj["fabric"] = utils_base.dict_to_json(self.fabric)
        json_obj["trace"] = self.trace
        json_obj["pcap"] = self.pcap
        json_obj["patience_s"] = self.patience_s
        return json_obj

    @classmethod
    def fromJSON(cls, simulation: sim_base.Simulation, json_obj: dict[str, typing.Any]) -> tpe.Self:
        instance = super().fromJSON(simulation, json_obj)
        get = utils_base.get_json_attr_top
        instance.workload = Workload(**get(json_obj, "workload"))
        instance.fabric = utils_base.json_to_dict(get(json_obj, "fabric"))
        instance.trace = bool(get(json_obj, "trace"))
        instance.pcap = bool(get(json_obj, "pcap"))
        instance.patience_s = int(get(json_obj, "patience_s"))
        return instance

    def _all(self) -> list[SofthcaSim]:
        """All processes of the simulation that share the topology."""
        return [sim for sim in self._simulation.all_simulators() if isinstance(sim, SofthcaSim)]

    def topology(self, inst: inst_base.Instantiation) -> files.Topology:
        """What all of them simulate: the same, whichever is asked."""
        sims = self._all()
        for sim in sims:
            if (sim.workload, sim.fabric) != (self.workload, self.fabric):
                raise exceptions.SimulationConfigurationError(
                    f"{self.name} and {sim.name} have another workload or fabric: all processes of softhca need the same"
                )
        home = {comp: sim for sim in sims for comp in sim.components()}
        nodes = sorted(home, key=lambda comp: comp.id())
        hosts: list[files.Host] = []
        switches: list[files.Switch] = []
        for node in nodes:
            process = home[node].name
            if isinstance(node, Switch):
                switches.append(files.Switch(node.name, process, node.options))
            else:
                hosts.append(files.Host(node.name, process, node.options, *_host_of(inst, node)))
        cables = [chan for node in nodes for chan in node.channels() if isinstance(chan, sys_conf.EthChannel)]
        channels = {chan.id(): chan for chan in cables}
        links: list[files.Link] = []
        outsides: list[files.Outside] = []
        halves: dict[sys_conf.Component, list[_Half]] = {}
        for _, chan in sorted(channels.items()):
            others = [end for end in (chan.a, chan.b) if end.component not in home]
            if not others:
                links.append(self._link(inst, chan, home))
                continue
            # Something of others is at one end.
            half = _Half.of(inst, chan, others[0])
            if half.node.is_ethernet():
                outside = files.Outside(f"outside{chan.id()}", half.role, half.path)
                outsides.append(outside)
                links.append(files.Link([half.port, outside.name], half.delay, None, dict(chan.parameters)))
            else:
                halves.setdefault(others[0].component, []).append(half)
        links += [_through(between, ends) for between, ends in halves.items()]
        return files.Topology([sim.name for sim in sims], hosts, switches, links, self.fabric, outsides)

    @staticmethod
    def _link(
        inst: inst_base.Instantiation, chan: sys_conf.Channel, home: Mapping[sys_conf.Component, SofthcaSim]
    ) -> files.Link:
        a, b = chan.a.component, chan.b.component
        names = [a.port_name(chan.a), b.port_name(chan.b)]
        joint = None
        if home[a] is not home[b]:
            role, path = _socket(inst, chan.a)
            joint = f"{role}:{path}"
        return files.Link(names, _delay(chan, " and ".join(names)), joint, dict(chan.parameters))

    async def prepare(self, inst: inst_base.Instantiation) -> None:
        await super().prepare(inst)
        pathlib.Path(inst.env.output_base()).mkdir(parents=True, exist_ok=True)
        pathlib.Path(self._file(inst)).write_text(self.topology(inst).to_toml(), encoding="utf-8")

    @staticmethod
    def _file(inst: inst_base.Instantiation) -> str:
        return inst.env.output_base("topology.toml")

    def command(self, inst: inst_base.Instantiation, executable: str, options: Iterable[str]) -> str:
        """A command line of `softhca sim` for this simulation; `options` say what of it the process is."""
        args = [executable, "sim", "--topology", self._file(inst), *options]
        args += ["--run-dir", inst.env.shm_base(), "--patience", str(self.patience_s), "--json"]
        return shlex.join(args + self.workload.arguments())

    def run_cmd(self, inst: inst_base.Instantiation) -> str:
        options = ["--process", self.name]
        if self.trace:
            options += ["--trace", inst.env.output_base(f"{self.full_name()}.trace.json")]
        if self.pcap:
            options += ["--pcap", inst.env.output_base(f"{self.full_name()}.pcapng")]
        return self.command(inst, self._executable, options) + (f" {self.extra_args}" if self.extra_args else "")


class ProgramHostSim(sim_base.Simulator):
    """A process of `softhca sim` that has no adapters: any number of `ProgramHost`, whose adapters are in processes of `SofthcaSim`."""

    def __init__(self, simulation: sim_base.Simulation, executable: str = "softhca", name: str = "") -> None:
        super().__init__(simulation=simulation, executable=executable, name=name)
        self.name: str = files.name(name or f"h{self.id()}")
        self.wait_terminate = True

    def full_name(self) -> str:
        return "softhca.host." + self.name

    def add(self, comp: sys_conf.Component) -> None:
        if not isinstance(comp, ProgramHost):
            raise exceptions.SimulationConfigurationError(
                f"a process of hosts runs softhca's program, and no {type(comp).__name__}"
            )
        super().add(comp)

    def supported_socket_types(self, interface: sys_conf.Interface) -> set[inst_socket.SockType]:
        return {inst_socket.SockType.CONNECT}

    def run_cmd(self, inst: inst_base.Instantiation) -> str:
        hosts = sorted(self.components(), key=lambda comp: comp.id())
        adapters = [adapter for host in hosts if isinstance(host, ProgramHost) for adapter in host.adapters()]
        sims = [sim for sim in self._simulation.all_simulators() if isinstance(sim, SofthcaSim)]
        homes = [sim for sim in sims if set(adapters) & set(sim.components())]
        if not homes:
            raise exceptions.SimulationConfigurationError(f"{self.name} has no adapter that softhca simulates")
        options = [option for adapter in adapters for option in ("--host", adapter.name)]
        return homes[0].command(inst, self._executable, options) + (f" {self.extra_args}" if self.extra_args else "")


def _host_of(inst: inst_base.Instantiation, node: _Node) -> tuple[str | None, int | None]:
    """Where the host of an adapter connects, and how long a crossing takes in ns; nothing if its host is in its own process."""
    chan = node.host_channel() if isinstance(node, Adapter) else None
    if chan is None:
        return None, None
    role, path = _socket(inst, chan.dev_if())
    return f"{role}:{path}", latency_ns(chan, f"{node.name} and its host")


def _delay(chan: sys_conf.Channel, ends: str) -> int:
    """What the cable takes of the latency of a channel, in ns."""
    latency = latency_ns(chan, ends)
    if latency < PHY_NS:
        raise exceptions.SystemConfigurationError(f"{ends} are {latency} ns apart: their ports take {PHY_NS} ns")
    return latency - PHY_NS


def _socket(inst: inst_base.Instantiation, interface: sys_conf.Interface) -> tuple[str, str]:
    """What is done at the socket of an interface, and its name in the folder of sockets."""
    socket = inst.get_socket(interface)
    assert socket is not None
    return socket._type.value, os.path.basename(socket._path)


@dataclasses.dataclass
class _Half:
    """A port of softhca whose cable leads to something of others."""

    node: _Node
    port: str
    delay: int
    role: str
    path: str
    options: dict[str, files.Value]

    @classmethod
    def of(cls, inst: inst_base.Instantiation, chan: sys_conf.Channel, there: sys_conf.Interface) -> _Half:
        here = chan.get_opposing_interface(there)
        port = here.component.port_name(here)
        role, path = _socket(inst, here)
        return cls(here.component, port, _delay(chan, f"{port} and its peer"), role, path, dict(chan.parameters))


def _through(between: sys_conf.Component, ends: list[_Half]) -> files.Link:
    """A cable of InfiniBand, in Ethernet frames, through a switch or wire of others."""
    what = f"{between.name or type(between).__name__} is of others, and InfiniBand goes through it"
    if len(ends) != 2:
        raise exceptions.SystemConfigurationError(
            f"{what}: it has two ports of softhca then, and not {len(ends)}"
        )
    a, b = ends
    if (a.delay, a.options) != (b.delay, b.options):
        raise exceptions.SystemConfigurationError(f"{what}: both its cables are the same then")
    return files.Link([a.port, b.port], a.delay, [f"{a.role}:{a.path}", f"{b.role}:{b.path}"], a.options)


def simulate(
    name: str,
    system: sys_conf.System,
    processes: Mapping[str, Iterable[_Node]],
    workload: Workload | None = None,
    executable: str = "softhca",
    hosts: Mapping[str, Iterable[ProgramHost]] | None = None,
) -> sim_base.Simulation:
    """A simulation of a system that is softhca's alone: for each process, by its name, its nodes, and for each process of hosts its hosts."""
    simulation = sim_base.Simulation(name, system)
    for process, nodes in processes.items():
        sim = SofthcaSim(simulation, executable, process, workload)
        for node in nodes:
            sim.add(node)
    for process, programs in (hosts or {}).items():
        host_sim = ProgramHostSim(simulation, executable, process)
        for program in programs:
            host_sim.add(program)
    make_channels(simulation)
    return simulation
