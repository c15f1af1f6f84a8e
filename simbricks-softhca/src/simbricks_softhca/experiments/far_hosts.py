"""Two adapters at one cable, and the host of each in a process of its own, over PCI Express."""

import simbricks.orchestration.helpers.instantiation as inst_helpers
import simbricks.orchestration.system as sys_conf

from simbricks_softhca import Adapter, ProgramHost, Workload, simulate

system = sys_conf.System("far-hosts")
left, right = (Adapter(system, name) for name in ("left", "right"))
left.connect(right)
hosts = [ProgramHost(system), ProgramHost(system)]
for adapter, host in zip((left, right), hosts, strict=True):
    adapter.connect_host(host)

simulation = simulate(
    "softhca-far-hosts",
    system,
    {"pl": [left], "pr": [right]},
    Workload(messages=8, size="64K"),
    hosts={"hl": hosts[:1], "hr": hosts[1:]},
)

instantiations = [inst_helpers.simple_instantiation(simulation)]
