"""Topology files: what is written, and what can't be."""

import math
import os
import pathlib
import unittest

from simbricks_softhca.topology import Host, Link, Outside, Switch, Topology, TopologyError


def two_hosts() -> Topology:
    return Topology(
        ["left", "right"],
        [Host("a", "left"), Host("b", "right", {"personality": "connectx5"})],
        [Switch("s", "left", {"ports": 4})],
        [
            Link(["a/hca0/1", "s/1"], 5),
            Link(["s/2", "b/hca0/1"], 7, "listen:eth-1.2.3", {"loss": 0.25, "seed": 3}),
        ],
        {"training_ms": 0},
    )


TEXT = """# Written by simbricks-softhca.
[fabric]
training_ms = 0
[[process]]
name = "left"
[[process]]
name = "right"
[[host]]
name = "a"
process = "left"
[[host.hca]]
[[host]]
name = "b"
process = "right"
[[host.hca]]
personality = "connectx5"
[[switch]]
name = "s"
process = "left"
ports = 4
[[link]]
between = ["a/hca0/1", "s/1"]
delay_ns = 5
[[link]]
between = ["s/2", "b/hca0/1"]
delay_ns = 7
simbricks = "listen:eth-1.2.3"
loss = 0.25
seed = 3
"""


class Written(unittest.TestCase):
    def test_all_of_it(self) -> None:
        self.assertEqual(two_hosts().to_toml(), TEXT)

    def test_what_is_of_others(self) -> None:
        topology = two_hosts()
        topology.outsides = [Outside("net", "listen", "eth-7")]
        topology.links.append(Link(["a/hca0/1", "b/hca0/1"], 5, ["listen:x", "connect:y"]))
        written = topology.to_toml()
        self.assertIn('[[outside]]\nname = "net"\nkind = "simbricks"\nlisten = "unix:eth-7"\n', written)
        self.assertIn('delay_ns = 5\nsimbricks = ["listen:x", "connect:y"]\nframing = "ethernet"\n', written)

    def test_softhca_reads_it(self) -> None:
        """Whoever runs this with a folder in `TOPOLOGY_DIR` gets the files, to have them read by softhca."""
        folder = os.environ.get("TOPOLOGY_DIR")
        if folder is None:
            self.skipTest("TOPOLOGY_DIR is not set: nobody wants the files")
        pathlib.Path(folder, "two-hosts.toml").write_text(two_hosts().to_toml(), encoding="utf-8")

    def test_text_is_quoted(self) -> None:
        topology = two_hosts()
        topology.hosts[0].options = {"guid": 'a"b\\c\n\u00e9', "blueflame": True}
        self.assertIn('guid = "a\\"b\\\\c\\n\\u00e9"\nblueflame = true\n', topology.to_toml())

    def test_what_can_t_be_written(self) -> None:
        for name in ("", "a b", "a/b", "x" * 33, "é"):
            topology = two_hosts()
            topology.hosts[0].name = name
            with self.assertRaisesRegex(TopologyError, "is no name"):
                topology.to_toml()
        for options, words in (
            ({"a b": 1}, "is no key"),
            ({"rate": math.inf}, "can't be written"),
            ({"rate": ["edr"]}, "can't be written"),
        ):
            topology = two_hosts()
            topology.links[0].options = options
            with self.assertRaisesRegex(TopologyError, words):
                topology.to_toml()


if __name__ == "__main__":
    unittest.main()
