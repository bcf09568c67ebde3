"""The version of muster-pg, of muster-pg-server, and of the command in the wheels of the latter.

This is its one place, which .ci/release sets: the tag v0.1.0 is "0.1.0" here, v0.1.0-rc.1 is
"0.1.0rc1". A "dev" version has not been released.
"""

__version__ = "0.1.0.dev0"
