"""What the README and docs/guides/python.md show works, and each public name and file is as they say."""

from __future__ import annotations

import array
import ast
import collections
import doctest
import functools
import http
import importlib.util
import inspect
import os
import re
import unittest
import warnings
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any, Dict, List
from unittest import mock

import msgpack
import numpy as np

import muster_pg
from muster_pg import _objects

HERE = Path(__file__).parent.parent
README = (HERE / "README.md").read_text()


class Readme(unittest.TestCase):
    """Needs the command muster."""

    def test_examples(self) -> None:
        with muster_pg.Server() as server, mock.patch.dict(os.environ):
            text = README.replace("127.0.0.1:7070", server.address.replace("muster://", ""))
            examples = doctest.DocTestParser().get_doctest(text, {}, "README.md", "README.md", 0)
            report: List[str] = []
            results = doctest.DocTestRunner().run(examples, out=report.append)
        self.assertEqual(results.failed, 0, "".join(report))
        self.assertGreater(results.attempted, 30)

    def test_server(self) -> None:
        begin = "with muster_pg.Server()"
        _, _, code = README.partition("```python\n" + begin)
        exec(begin + code.partition("```")[0], {"muster_pg": muster_pg})

    def test_every_verb_is_explained(self) -> None:
        """And is in an example."""
        examples = "".join(re.findall(r"^(?:>>>|\.\.\.|muster_pg\.)(.*)$", README, re.M))
        for name in muster_pg.__all__:
            self.assertTrue(inspect.getdoc(getattr(muster_pg, name)), f"{name} has no docstring")
        verbs = [(kind, name, verb) for kind in (muster_pg.Store, muster_pg.Group, muster_pg.Lease) for name, verb in vars(kind).items() if name[0] != "_"]
        self.assertGreater(len(verbs), 30)
        for kind, name, verb in verbs:
            self.assertTrue(inspect.getdoc(getattr(kind, name)), f"{kind.__name__}.{name} has no docstring")
            if not isinstance(verb, property):
                self.assertRegex(examples, rf"\.{name}\(", kind.__name__)


class Sent(unittest.TestCase):
    def test_what_can_be_sent(self) -> None:
        """Checks each row of the table in the guide; those with torch if it is there."""
        names: Dict[str, Any] = {m.__name__: m for m in (array, collections, functools, http, re, msgpack, muster_pg)}
        names.update(datetime=datetime, timedelta=timedelta, timezone=timezone, Decimal=Decimal, np=np)
        if importlib.util.find_spec("torch"):
            names["torch"] = importlib.import_module("torch")
        table = (HERE / "../../docs/guides/python.md").read_text().partition("can be sent")[2]
        counted: Dict[bool, int] = collections.Counter()
        for examples, result in re.findall("^[|] [^|]+ [|] (.+) [|] (.+) [|]$", table, re.M)[1:]:
            if "torch" in examples and "torch" not in names:
                continue
            for example in re.findall("`(.+?)`", examples):
                counted["torch" in examples] += 1
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", PendingDeprecationWarning)  # np.matrix
                    v = eval(example, names)
                self.check(v, None if result == "refused" else result.strip("`"), names)
        self.assertGreater(counted[False], 20)
        self.assertEqual(counted[True], 4 if "torch" in names else 0)

    def check(self, v: Any, result: Any, names: Dict[str, Any]) -> None:
        """Requires that v arrives as result, a text, or is refused if that is None."""
        if result is None:
            self.assertRaises(muster_pg.Invalid, _objects.pack, v)
            return
        got, want = _objects.unpacker(v)(_objects.pack(v)), eval(result, names)
        if isinstance(want, muster_pg.Array):
            got = _objects.unpack(_objects.pack(v))
        self.assertEqual((repr(got), got.__class__), (repr(want), want.__class__))
        if isinstance(want, np.ndarray):
            self.assertEqual(got.dtype, want.dtype)


class Files(unittest.TestCase):
    def test_syntax(self) -> None:
        """Has each file parsed as one of Python 3.9."""
        files = list(HERE.rglob("*.py"))
        self.assertGreater(len(files), 10)
        for f in files:
            text = f.read_text()
            ast.parse(text, str(f), feature_version=(3, 9))
            self.assertLessEqual(text.count("\n"), 500, f"{f}: split it by what it does")


if __name__ == "__main__":
    unittest.main()
