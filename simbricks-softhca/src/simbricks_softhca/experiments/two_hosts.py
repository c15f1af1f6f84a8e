"""Two hosts at one cable, each with its adapter in a process of its own."""

import simbricks.orchestration.helpers.instantiation as inst_helpers
import simbricks.orchestration.system as sys_conf

from simbricks_softhca import Adapter, Workload, simulate

system = sys_conf.System("two-hosts")
left, right = (Adapter(system, name) for name in ("left", "right"))
left.connect(right)

simulation = simulate(
    "softhca-two-hosts",
    system,
    {"pl": [left], "pr": [right]},
    Workload(messages=8, size="64K"),
)
for sim in simulation.all_simulators():
    sim.trace = True
    sim.pcap = True

instantiations = [inst_helpers.simple_instantiation(simulation)]
