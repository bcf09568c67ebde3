"""What pyproject.toml cannot express: the extra "server" is the server of the same version, and the
source distribution has a copy of the golden bytes that its tests share with Go's package wire."""

import re
from pathlib import Path
from typing import List

from setuptools import setup
from setuptools.command.sdist import sdist

text = Path(__file__).with_name("muster_pg").joinpath("_version.py").read_text(encoding="utf-8")
match = re.search('^__version__ = "(.+)"$', text, re.M)
assert match is not None


class WithGoldenBytes(sdist):
    def make_release_tree(self, base_dir: str, files: List[str]) -> None:
        super().make_release_tree(base_dir, files)
        golden = Path(__file__).resolve().parents[2].joinpath("wire", "testdata", "golden.json")
        if golden.exists():  # not in a source distribution, from which a wheel is built
            self.copy_file(str(golden), str(Path(base_dir, "tests", "golden.json")))


setup(cmdclass={"sdist": WithGoldenBytes}, extras_require={"server": [f"muster-pg-server=={match[1]}"]})
