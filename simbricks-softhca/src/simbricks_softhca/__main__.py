"""`python -m simbricks_softhca`: the experiments that are shipped, and what a run gave."""

from __future__ import annotations

import pathlib
import sys

from . import results

USAGE = """usage: python -m simbricks_softhca experiment NAME    the file of that experiment, for simbricks-run
       python -m simbricks_softhca results OUT.JSON   sums over the processes of a run

experiments: {}"""


def main(args: list[str]) -> int:
    """Runs it. Returns the exit code: 0, 1 if a run failed, 2 if it was asked for something else."""
    folder = pathlib.Path(__file__).parent / "experiments"
    known = {path.stem.replace("_", "-"): path for path in sorted(folder.glob("[a-z]*.py"))}
    match args:
        case ["experiment", name] if name in known:
            print(known[name])
        case ["results", path]:
            try:
                found = results.read(path)
            except (results.RunError, OSError, ValueError) as why:
                print(f"simbricks_softhca: {why}", file=sys.stderr)
                return 1
            print(f"processes   {found.processes}\nhosts       {found.hosts}\nmessages    {found.messages}")
            for kind, value in found.hashes.items():
                print(f"{kind:<11} {value:016x}")
        case _:
            print(USAGE.format(", ".join(known)), file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
