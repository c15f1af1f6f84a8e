"""What a system of SimBricks has of softhca: adapters with their hosts, switches, cables."""

from __future__ import annotations

import typing

import simbricks.orchestration.system as sys_conf
import typing_extensions as tpe
from simbricks.utils import base as utils_base

from .latency import interval
from .topology import Value, name as checked

PHY_NS = 100
"""What MAC and PHY of a port take, in ns: softhca's profiles charge as much for an adapter's port."""

CABLE_NS = 5
"""A meter of cable, in ns."""

PCIE_NS = 140
"""A crossing between an adapter and its host, in ns: what the profile of a ConnectX-4 has room for."""


class _Node(sys_conf.Component):
    """What adapters and switches have in common: a name, options, and ports by their order."""

    def __init__(self, s: sys_conf.System, name: str, options: dict[str, Value]) -> None:
        super().__init__(s)
        self.name = checked(name)
        self.options: dict[str, Value] = options

    def add_if(self, interface: sys_conf.EthInterface) -> None:
        utils_base.has_expected_type(interface, sys_conf.EthInterface)
        super().add_if(interface)

    def new_port(self) -> sys_conf.EthInterface:
        """One port more, by the order in which they are asked for: ports count from 1."""
        port = sys_conf.EthInterface(self)
        self.add_if(port)
        return port

    def port_name(self, interface: sys_conf.Interface) -> str:
        """The end of a link in a topology file."""
        raise NotImplementedError

    def is_ethernet(self) -> bool:
        """Whether its ports are Ethernet ports; else they are InfiniBand's."""
        raise NotImplementedError

    def connect(
        self, peer: sys_conf.EthInterface | _Node, latency_ns: int = PHY_NS + CABLE_NS, **options: Value
    ) -> Cable:
        """A cable from the next port here to a port, or to the next one of a node; options are keys of `[[link]]`."""
        if isinstance(peer, _Node):
            peer = peer.new_port()
        return Cable(self.new_port(), peer, latency_ns, **options)

    def connect_eth_peer_if(self, peer_i: sys_conf.EthInterface) -> Cable:
        """The same, as SimBricks' switches have it."""
        return self.connect(peer_i)

    def toJSON(self) -> dict[str, typing.Any]:
        json_obj = super().toJSON()
        json_obj["options"] = utils_base.dict_to_json(self.options)
        return json_obj

    @classmethod
    def fromJSON(cls, system: sys_conf.System, json_obj: dict[str, typing.Any]) -> tpe.Self:
        instance = super().fromJSON(system, json_obj)
        instance.options = utils_base.json_to_dict(utils_base.get_json_attr_top(json_obj, "options"))
        return instance


class Adapter(_Node):
    """An adapter, and its host without a guest: a program of softhca that sends and checks what the workload says.

    Or its host is elsewhere (`connect_host`): a guest in a simulator of SimBricks, or that program in a process of its own.

    `options` are keys of `[[host.hca]]` of a topology file: `personality="connectx5"`, `port_type="eth"`.
    """

    def __init__(self, s: sys_conf.System, name: str, **options: Value) -> None:
        super().__init__(s, name, options)

    @property
    def _pci_if(self) -> sys_conf.PCIeDeviceInterface:
        """Where its host is joined, by the name at which SimBricks' hosts look for it (`Host.connect_pcie_dev`)."""
        known = sys_conf.Interface.filter_by_type(self.ifs, sys_conf.PCIeDeviceInterface)
        if not known:
            known = [sys_conf.PCIeDeviceInterface(self)]
            self.ifs += known
        return known[0]

    def host_channel(self) -> sys_conf.PCIeChannel | None:
        """The link to its host; `None`: its host is a program in the process of the adapter."""
        for interface in sys_conf.Interface.filter_by_type(self.ifs, sys_conf.PCIeDeviceInterface):
            if isinstance(interface.channel, sys_conf.PCIeChannel):
                return interface.channel
        return None

    def connect_host(self, host: sys_conf.Host, latency_ns: int = PCIE_NS) -> sys_conf.PCIeChannel:
        """Its host is that one, `latency_ns` away, by a crossing of PCI Express: one of SimBricks, or a `ProgramHost`."""
        channel = host.connect_pcie_dev(self)
        channel.latency = interval(latency_ns)
        return channel

    def port_name(self, interface: sys_conf.Interface) -> str:
        ports = sys_conf.Interface.filter_by_type(self.ifs, sys_conf.EthInterface)
        return f"{self.name}/hca0/{ports.index(interface) + 1}"

    def is_ethernet(self) -> bool:
        return self.options.get("port_type") == "eth"


class ProgramHost(sys_conf.Host):
    """The host of adapters that are joined to it: the program of softhca that does what the workload says, in a process of its own."""

    def adapters(self) -> list[Adapter]:
        """Those that are joined to it."""
        ends = [chan.get_opposing_interface(own) for own in self.ifs if (chan := own.channel) is not None]
        return [end.component for end in ends if isinstance(end.component, Adapter)]


class Switch(_Node):
    """A switch of softhca. `options` are keys of `[[switch]]`: `ports=8`, `type="eth"`."""

    def __init__(self, s: sys_conf.System, name: str, **options: Value) -> None:
        super().__init__(s, name, options)

    def port_name(self, interface: sys_conf.Interface) -> str:
        return f"{self.name}/{self.ifs.index(interface) + 1}"

    def is_ethernet(self) -> bool:
        return self.options.get("type") == "eth"


class Cable(sys_conf.EthChannel):
    """A cable between two ports. Its latency, in ns, is that of the cable and of the PHY at one end.

    What travels is InfiniBand, unless the ports are Ethernet ports: SimBricks has one kind of network link. `options` are keys of `[[link]]`:
    `rate="fdr"`, `loss=0.01`.
    """

    def __init__(
        self,
        a: sys_conf.EthInterface,
        b: sys_conf.EthInterface,
        latency_ns: int = PHY_NS + CABLE_NS,
        **options: Value,
    ) -> None:
        super().__init__(a, b)
        self.latency = interval(latency_ns)
        self.parameters.update(options)
