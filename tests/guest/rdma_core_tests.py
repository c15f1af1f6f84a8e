#!/usr/bin/env python3
"""Runs rdma-core's own tests, as its Debian package ships them, in this guest.

One line of JSON for each test: {"test", "result", "seconds", "reason"}, where result is one of ok, skipped, failed, error,
hung, crashed. Each class runs in a child of its own, and a child that crashes or hangs costs the test it was in: a new
child goes on behind it.

    rdma_core_tests.py [--only REGEX] [--but REGEX] [--pci SLOT] [--limit SECONDS]
"""

import argparse
import glob
import gzip
import importlib
import json
import os
import re
import select
import shutil
import signal
import sys
import time
import traceback
import unittest

PACKAGED = "/usr/share/doc/rdma-core/tests"
UNPACKED = "/tmp/rdma-core/tests"


def unpack():
    """The package's tests, some of them compressed, as modules that can be imported."""
    shutil.rmtree(UNPACKED, ignore_errors=True)
    os.makedirs(UNPACKED)
    for path in glob.glob(PACKAGED + "/*"):
        name = os.path.basename(path)
        if name.endswith(".gz"):
            with gzip.open(path) as packed, open(f"{UNPACKED}/{name[:-3]}", "wb") as plain:
                shutil.copyfileobj(packed, plain)
        elif name.endswith(".py"):
            shutil.copy(path, UNPACKED)


def classes(only, but):
    """(class name, [tests]) of every class, in order of the files; and one pair for each file that can't be loaded."""
    sys.path[:0] = [UNPACKED, os.path.dirname(UNPACKED)]
    for path in sorted(glob.glob(UNPACKED + "/test_*.py")):
        module = os.path.basename(path)[:-3]
        try:
            suite = unittest.defaultTestLoader.loadTestsFromModule(importlib.import_module("tests." + module))
        except Exception:
            say(module, "error", 0, traceback.format_exc())
            continue
        by_class = {}
        for test in flatten(suite):
            if only.search(test.id()) and not (but and but.search(test.id())):
                by_class.setdefault(test.id().rsplit(".", 1)[0], []).append(test)
        yield from by_class.items()


def flatten(suite):
    for item in suite:
        if isinstance(item, unittest.TestSuite):
            yield from flatten(item)
        else:
            yield item


def say(test, result, seconds, reason):
    line = {"test": test.removeprefix("tests."), "result": result, "seconds": round(seconds, 2), "reason": reason}
    print(json.dumps(line), flush=True)


class Verdict(unittest.TestResult):
    """Of one test: the worst that was heard."""

    ORDER = ["ok", "skipped", "failed", "error"]

    def __init__(self):
        super().__init__()
        self.result, self.reason = "ok", ""

    def hear(self, result, reason):
        if self.ORDER.index(result) > self.ORDER.index(self.result):
            self.result, self.reason = result, reason

    def addSkip(self, test, reason):
        self.hear("skipped", reason)

    def addFailure(self, test, err):
        self.hear("failed", self._exc_info_to_string(err, test))

    def addError(self, test, err):
        self.hear("error", self._exc_info_to_string(err, test))

    def addSubTest(self, test, subtest, err):
        if err is not None:
            self.hear("failed", self._exc_info_to_string(err, test))

    def addUnexpectedSuccess(self, test):
        self.hear("failed", "succeeded where a failure was expected")


def child(tests, pipe):
    """Runs tests, and writes a line before and after each."""
    os.setsid()
    null = os.open("/dev/null", os.O_WRONLY)
    os.dup2(null, 1)
    for test in tests:
        os.write(pipe, b"\n")
        verdict = Verdict()
        unittest.TestSuite([test]).run(verdict)
        line = json.dumps([verdict.result, verdict.reason[-3000:]]) + "\n"
        os.write(pipe, line.encode())
    os._exit(0)


class Child:
    """A process with the tests of one class, and the lines that it writes."""

    def __init__(self, tests):
        reader, writer = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(reader)
            try:
                child(tests, writer)
            except BaseException:
                traceback.print_exc()
            os._exit(1)
        os.close(writer)
        self.reader, self.text = reader, b""

    def line(self, deadline):
        """The next line; None at the end; raises TimeoutError."""
        while b"\n" not in self.text:
            ready, _, _ = select.select([self.reader], [], [], max(0, deadline - time.monotonic()))
            if not ready:
                raise TimeoutError
            more = os.read(self.reader, 65536)
            if not more:
                return None
            self.text += more
        line, self.text = self.text.split(b"\n", 1)
        return line

    def end(self):
        """Ends it with all its own children; how it ended."""
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        os.close(self.reader)
        return os.waitpid(self.pid, 0)[1]


def run(tests, limit):
    """All tests of one class."""
    while tests:
        running = Child(tests)
        try:
            while tests and running.line(time.monotonic() + limit) is not None:
                began = time.monotonic()
                line = running.line(began + limit)
                if line is None:
                    break
                result, reason = json.loads(line)
                say(tests.pop(0).id(), result, time.monotonic() - began, reason)
        except TimeoutError:
            running.end()
            say(tests.pop(0).id(), "hung", limit, f"did not end in {limit} s")
            continue
        if not tests:
            running.line(time.monotonic() + limit)
            running.end()
            return
        # The child has closed its pipe, so it is ending or has ended: let it.
        time.sleep(0.1)
        status = running.end()
        how = signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else f"exit {os.WEXITSTATUS(status)}"
        say(tests.pop(0).id(), "crashed", 0, how)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", type=re.compile, help="only tests whose name matches")
    parser.add_argument("--but", type=re.compile, help="not those whose name matches")
    parser.add_argument("--pci", help="PCI slot of an adapter for the tests over vfio-pci")
    parser.add_argument("--dev", help="RDMA device, e.g. mlx5_0")
    parser.add_argument("--limit", default=60, type=float, help="seconds for one test")
    options = parser.parse_args()
    # What is left is rdma-core's own: its parser of arguments reads sys.argv.
    sys.argv[1:] = [word for pair in (("--pci-dev", options.pci), ("--dev", options.dev)) if pair[1] for word in pair]
    unpack()
    os.chdir(UNPACKED)
    sys.path.insert(0, UNPACKED)
    importlib.import_module("args_parser").parser.parse_args()
    for _, tests in classes(options.only, options.but):
        run(tests, options.limit)


main()
