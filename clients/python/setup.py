"""What pyproject.toml cannot express: the extra "server" is the server of the same version."""

import re
from pathlib import Path

from setuptools import setup

text = Path(__file__).with_name("muster_pg").joinpath("_version.py").read_text(encoding="utf-8")
match = re.search('^__version__ = "(.+)"$', text, re.M)
assert match is not None

setup(extras_require={"server": [f"muster-pg-server=={match[1]}"]})
