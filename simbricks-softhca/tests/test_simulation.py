"""Systems and simulations of SimBricks; needs simbricks-orchestration."""

import pathlib
import tempfile
import unittest

try:
    import simbricks.orchestration.system as sys_conf
except ImportError as why:
    raise unittest.SkipTest(f"no simbricks-orchestration: {why}") from why

import simbricks.orchestration.helpers.instantiation as inst_helpers
from simbricks.orchestration.helpers import exceptions
from simbricks.orchestration.instantiation import base as inst_base
from simbricks.orchestration.simulation import base as sim_base
from simbricks.orchestration.simulation import host as sim_host
from simbricks.orchestration.simulation import net as sim_net

from simbricks_softhca import Adapter, Channel, ProgramHost, ProgramHostSim, SofthcaSim, Switch, Workload, simulate
from simbricks_softhca.latency import TimeInterval, interval


class OthersSwitch(sim_net.NetSim):
    def run_cmd(self, inst: inst_base.Instantiation) -> str:
        return self._executable


class OthersHost(sim_host.HostSim):
    """As the simulators of guests have it: it connects to the devices of its hosts."""

    def supported_image_formats(self) -> list[str]:
        return []

    async def copy_disk_image(self, inst: inst_base.Instantiation, disk_image: object, ident: str) -> str:
        return ident

    def run_cmd(self, inst: inst_base.Instantiation) -> str:
        (host,) = self.components()
        (interface,) = host.interfaces()
        (channel,) = self.get_channels()
        socket = inst.get_socket(interface)
        return self.get_parameters_url(inst, socket, channel, latency=channel.sys_channel.latency)


def pair(**options: object) -> tuple[sys_conf.System, list[Adapter]]:
    system = sys_conf.System("pair")
    hosts = [Adapter(system, name, **options) for name in ("a", "b")]
    hosts[0].connect(hosts[1])
    return system, hosts


def instantiate(simulation: sim_base.Simulation) -> inst_base.Instantiation:
    """As `simbricks-run` does: by way of JSON."""
    inst = inst_helpers.simple_instantiation(simulation)
    inst.finalize_validate()
    system = sys_conf.System.fromJSON(simulation.system.toJSON())
    copy = inst_base.Instantiation.fromJSON(sim_base.Simulation.fromJSON(system, simulation.toJSON()), inst.toJSON())
    copy.env = inst_base.InstantiationEnvironment(pathlib.Path(tempfile.gettempdir(), "softhca-none"), None)
    copy.assigned_fragment = copy.fragments[0]
    return copy


def text(inst: inst_base.Instantiation) -> str:
    return inst.simulation.all_simulators()[0].topology(inst).to_toml()


class Systems(unittest.TestCase):
    def test_a_cable_between_two_processes(self) -> None:
        system, (a, b) = pair(personality="connectx5")
        inst = instantiate(simulate("s", system, {"left": [a], "right": [b]}, Workload(messages=3, until_ms=2.5)))
        written = text(inst)
        self.assertIn('between = ["a/hca0/1", "b/hca0/1"]\ndelay_ns = 5\nsimbricks = "connect:eth-', written)
        self.assertEqual(written.count('personality = "connectx5"'), 2)
        sims = inst.simulation.all_simulators()
        self.assertEqual([text(inst)] * 2, [sim.topology(inst).to_toml() for sim in sims])
        self.assertIn("--process left", sims[0].run_cmd(inst))
        self.assertIn("--messages 3 --size 4K --transport rc --until 2.5", sims[1].run_cmd(inst))
        self.assertEqual([type(chan) for chan in inst.simulation.get_all_channels()], [Channel] * 2)

    def test_one_process_has_no_sockets(self) -> None:
        system, hosts = pair()
        inst = instantiate(simulate("s", system, {"all": hosts}))
        self.assertNotIn("simbricks =", text(inst))

    def test_ports_count_in_the_order_of_their_cables(self) -> None:
        system = sys_conf.System("t")
        switch, a, b = Switch(system, "s", ports=4), Adapter(system, "a"), Adapter(system, "b")
        a.connect(switch, rate="fdr", loss=0.5)
        switch.connect(b, latency_ns=500)
        written = text(instantiate(simulate("s", system, {"all": [switch, a, b]})))
        self.assertIn('between = ["a/hca0/1", "s/1"]\ndelay_ns = 5\nrate = "fdr"\nloss = 0.5\n', written)
        self.assertIn('between = ["s/2", "b/hca0/1"]\ndelay_ns = 400\n', written)
        self.assertIn('name = "s"\nprocess = "all"\nports = 4\n', written)

    def test_latencies_below_simbricks_default_period(self) -> None:
        system, (a, b) = pair()
        simulation = simulate("s", system, {"left": [a], "right": [b]})
        simulation.enable_synchronization()
        (channel, _) = simulation.get_all_channels()
        self.assertEqual(
            (channel.sys_channel.latency, channel.sync_period, channel._synchronized),
            (interval(105), interval(105), True),
        )
        # And with the own one of SimBricks 0.5 it fails.
        if TimeInterval is not None:
            return
        system, (a, b) = pair()
        plain = sim_base.Simulation("s", system)
        for name, node in (("left", a), ("right", b)):
            SofthcaSim(plain, name=name).add(node)
        with self.assertRaises(AssertionError):
            plain.enable_synchronization()

    def test_hosts_in_processes_of_their_own(self) -> None:
        system, adapters = pair()
        hosts = [ProgramHost(system) for _ in adapters]
        for adapter, host in zip(adapters, hosts, strict=True):
            adapter.connect_host(host, latency_ns=120)
        inst = instantiate(simulate("s", system, {"all": adapters}, hosts={"programs": hosts}))
        written = text(inst)
        self.assertEqual(written.count('simbricks = "listen:pci-'), 2)
        self.assertEqual(written.count("pcie_latency_ns = 120\n"), 2)
        # Ports count as before: the one to the host is none of them.
        self.assertIn('between = ["a/hca0/1", "b/hca0/1"]', written)
        (programs,) = [sim for sim in inst.simulation.all_simulators() if isinstance(sim, ProgramHostSim)]
        self.assertIn("--host a --host b --run-dir", programs.run_cmd(inst))
        self.assertNotIn("--process", programs.run_cmd(inst))
        programs._executable = "another"
        self.assertTrue(programs.run_cmd(inst).startswith("another sim "))

    def test_a_host_of_others(self) -> None:
        system, (a, b) = pair()
        host = sys_conf.LinuxHost(system)
        # As for any device: SimBricks' own way, and its own latency.
        host.connect_pcie_dev(a)
        simulation = simulate("s", system, {"p": [a, b]})
        OthersHost(simulation, "qemu", "guest").add(host)
        inst = instantiate(simulation)
        written = text(inst)
        self.assertEqual(written.count("pcie_latency_ns = 500\n"), 1)
        (listens,) = [line.split("listen:")[1].rstrip('"') for line in written.splitlines() if "listen:pci" in line]
        (guest,) = [sim for sim in inst.simulation.all_simulators() if isinstance(sim, OthersHost)]
        self.assertRegex(guest.run_cmd(inst), f"^connect:.*/{listens}:sync=")
        # An adapter has one host.
        with self.assertRaisesRegex(Exception, "already connected"):
            a.connect_host(ProgramHost(system))

    def test_a_switch_of_others(self) -> None:
        for options, expected in (
            ({"port_type": "eth"}, 'kind = "simbricks"\nlisten = "unix:eth-'),
            ({}, 'delay_ns = 400\nsimbricks = ["listen:eth-'),
        ):
            system = sys_conf.System("t")
            hosts = [Adapter(system, name, **options) for name in ("a", "b")]
            switch = sys_conf.EthSwitch(system)
            for host in hosts:
                switch.connect_eth_peer_if(host.new_port())
            simulation = sim_base.Simulation("s", system)
            SofthcaSim(simulation, name="p").add(hosts[0])
            SofthcaSim(simulation, name="q").add(hosts[1])
            OthersSwitch(simulation, "switch", "net").add(switch)
            self.assertIn(expected, text(instantiate(simulation)))
        # A third port of InfiniBand there has no peer.
        third = Adapter(system, "c")
        switch.connect_eth_peer_if(third.new_port())
        simulation.all_simulators()[0].add(third)
        with self.assertRaisesRegex(exceptions.SystemConfigurationError, "two ports of softhca then, and not 3"):
            text(instantiate(simulation))

    def test_what_is_wrong_is_said(self) -> None:
        system, (a, b) = pair()
        simulation = simulate("s", system, {"left": [a], "right": [b]})
        simulation.all_simulators()[0].workload = Workload(messages=2)
        with self.assertRaisesRegex(exceptions.SimulationConfigurationError, "left and right have another workload"):
            text(instantiate(simulation))
        system, (a, b) = pair()
        a.channels()[0].latency = interval(99)
        with self.assertRaisesRegex(exceptions.SystemConfigurationError, "99 ns apart: their ports take 100 ns"):
            text(instantiate(simulate("s", system, {"all": [a, b]})))
        if TimeInterval is not None:
            a.channels()[0].latency = "105.5ns"
            with self.assertRaisesRegex(exceptions.SystemConfigurationError, "105500ps apart: .* whole ns"):
                text(instantiate(simulate("s", system, {"all": [a, b]})))
        system = sys_conf.System("t")
        programs = ProgramHostSim(sim_base.Simulation("s", system), name="h")
        with self.assertRaisesRegex(exceptions.SimulationConfigurationError, "no LinuxHost"):
            programs.add(sys_conf.LinuxHost(system))
        programs.add(ProgramHost(system))
        with self.assertRaisesRegex(exceptions.SimulationConfigurationError, "h has no adapter"):
            programs.run_cmd(instantiate(programs._simulation))
        with self.assertRaisesRegex(exceptions.SimulationConfigurationError, "no EthSwitch"):
            SofthcaSim(sim_base.Simulation("s", system)).add(sys_conf.EthSwitch(system))


if __name__ == "__main__":
    unittest.main()
