"""A fat tree of two tiers: sixteen hosts at four switches, each of which is joined to both above. Two processes share it."""

import simbricks.orchestration.helpers.instantiation as inst_helpers
import simbricks.orchestration.system as sys_conf

from simbricks_softhca import Adapter, Switch, Workload, simulate

LEAVES, SPINES, HOSTS = 4, 2, 4

system = sys_conf.System("fat-tree")
spines = [Switch(system, f"spine{i}", ports=8) for i in range(SPINES)]
leaves = [Switch(system, f"leaf{i}", ports=8) for i in range(LEAVES)]
hosts: list[Adapter] = []
for leaf in leaves:
    for _ in range(HOSTS):
        host = Adapter(system, f"h{len(hosts)}")
        host.connect(leaf)
        hosts.append(host)
    for spine in spines:
        leaf.connect(spine)

half = len(hosts) // 2
simulation = simulate(
    "softhca-fat-tree",
    system,
    {
        "west": [*hosts[:half], *leaves[: LEAVES // 2], spines[0]],
        "east": [*hosts[half:], *leaves[LEAVES // 2 :], spines[1]],
    },
    Workload(traffic="all-to-all", messages=2, size="16K"),
)
for sim in simulation.all_simulators():
    sim.fabric["routing"] = "up-down"
    sim.trace = True

instantiations = [inst_helpers.simple_instantiation(simulation)]
