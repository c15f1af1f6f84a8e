"""Sums over the processes of a run."""

import json
import pathlib
import tempfile
import unittest

from simbricks_softhca.results import RunError, read


def printed(process: int) -> str:
    hashes = {"events": (1 << 63) + process, "packets": 5, "completions": process, "counts": [1, 2, 3]}
    return json.dumps({"hosts": 2, "messages": 3, "packets": 4, "hashes": hashes}, indent=2)


def output(stdout: str, stderr: str = "") -> dict[str, object]:
    return {"class": "SofthcaSim", "output": [{"stdout": stdout.split("\n"), "stderr": stderr.split("\n")}]}


class Results(unittest.TestCase):
    def read(self, out: dict[str, object]):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "out.json")
            path.write_text(json.dumps(out), encoding="utf-8")
            return read(path)

    def test_sums_are_modulo_2_to_64(self) -> None:
        found = self.read({"softhca.a": output(printed(1)), "softhca.b": output(printed(2)), "net.x": {}, "_success": True})
        self.assertEqual((found.processes, found.hosts, found.messages, found.packets), (2, 4, 6, 8))
        self.assertEqual(found.hashes, {"events": 3, "packets": 10, "completions": 3})

    def test_a_process_that_failed_is_said(self) -> None:
        with self.assertRaisesRegex(RunError, "softhca.b gave no result: Error: the link"):
            self.read({"softhca.a": output(printed(1)), "softhca.b": output("", "Error: the link")})
        with self.assertRaisesRegex(RunError, "no process of softhca ran"):
            self.read({"_success": True})


if __name__ == "__main__":
    unittest.main()
