"""Builds the wheels of muster-pg-server: the command muster, for pip.

    python clients/python/server/build_wheels.py [--out dist] [--platform linux/arm64]...

Each wheel has the binary of one platform as a script, which pip puts on PATH, and no Python code.
It needs Go, in a checkout. The same sources, version of Go and zlib make the same bytes.

There is no source distribution: on other platforms pip reports that it finds no distribution.
"""

import argparse
import base64
import hashlib
import os
import re
import subprocess
import tempfile
import zipfile
from pathlib import Path
from typing import Dict, Optional, Tuple

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]

# The binary is static: it needs Linux 3.2 and no C library, or macOS 12.
PLATFORMS = {
    "linux/amd64": "manylinux_2_17_x86_64.manylinux2014_x86_64.musllinux_1_1_x86_64",
    "linux/arm64": "manylinux_2_17_aarch64.manylinux2014_aarch64.musllinux_1_1_aarch64",
    "darwin/amd64": "macosx_12_0_x86_64",
    "darwin/arm64": "macosx_12_0_arm64",
}

METADATA = """\
Metadata-Version: 2.4
Name: muster-pg-server
Version: {version}
Summary: The command muster: the store of muster-pg, a launcher, and tools
Author: The muster authors
License-Expression: Apache-2.0
License-File: LICENSE
License-File: THIRD_PARTY_LICENSES
Keywords: barrier,collective,distributed,key-value store,process group,rendezvous,TCPStore
Classifier: Development Status :: 3 - Alpha
Classifier: Environment :: Console
Classifier: Intended Audience :: Developers
Classifier: Operating System :: MacOS
Classifier: Operating System :: POSIX :: Linux
Classifier: Programming Language :: Go
Classifier: Topic :: System :: Distributed Computing
Project-URL: Homepage, https://github.com/muster-pg/muster
Project-URL: Documentation, https://github.com/muster-pg/muster/tree/main/docs#readme
Project-URL: Source, https://github.com/muster-pg/muster
Project-URL: Changelog, https://github.com/muster-pg/muster/blob/main/CHANGELOG.md
Project-URL: Issues, https://github.com/muster-pg/muster/issues
Requires-Python: >=3.9
Description-Content-Type: text/markdown

{readme}"""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("dist"), help="directory of the wheels")
    parser.add_argument(
        "--platform", action="append", choices=PLATFORMS, help="default: all; may be repeated"
    )
    parser.add_argument("--binary", type=Path, help="file to pack, instead of building one")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    for platform in args.platform or PLATFORMS:
        print(wheel(args.out, platform, args.binary))


def wheel(out: Path, platform: str, binary: Optional[Path]) -> Path:
    """Writes the wheel of a platform to the directory out, and returns its path."""
    version = read_version()
    goos, goarch = platform.split("/")
    env = {**os.environ, "GOOS": goos, "GOARCH": goarch, "CGO_ENABLED": "0"}
    with tempfile.TemporaryDirectory() as scratch:
        if binary is None:
            binary = Path(scratch, "muster")
            linker = f"-s -w -X main.release={go_version(version)}"
            build = ["go", "build", "-trimpath", "-buildvcs=false", "-ldflags", linker]
            build += ["-o", str(binary), "./cmd/muster"]
            subprocess.run(build, cwd=ROOT, env=env, check=True)
        program = binary.read_bytes()
    licenses = subprocess.check_output([str(ROOT / ".ci" / "licenses")], env=env)

    name, tag = f"muster_pg_server-{version}", f"py3-none-{PLATFORMS[platform]}"
    info = f"{name}.dist-info"
    readme = HERE.joinpath("README.md").read_text(encoding="utf-8")
    tags = "".join(f"Tag: py3-none-{p}\n" for p in PLATFORMS[platform].split("."))
    about = f"Wheel-Version: 1.0\nGenerator: muster\nRoot-Is-Purelib: false\n{tags}"
    files: Dict[str, Tuple[bytes, int]] = {
        f"{name}.data/scripts/muster": (program, 0o755),
        f"{info}/licenses/LICENSE": (ROOT.joinpath("LICENSE").read_bytes(), 0o644),
        f"{info}/licenses/THIRD_PARTY_LICENSES": (licenses, 0o644),
        f"{info}/METADATA": (METADATA.format(version=version, readme=readme).encode(), 0o644),
        f"{info}/WHEEL": (about.encode(), 0o644),
    }
    record = "".join(f"{path},{digest(data)},{len(data)}\n" for path, (data, _) in files.items())
    files[f"{info}/RECORD"] = (f"{record}{info}/RECORD,,\n".encode(), 0o644)

    path = out / f"{name}-{tag}.whl"
    with zipfile.ZipFile(path, "w") as z:
        for file, (data, mode) in files.items():
            entry = zipfile.ZipInfo(file, (1980, 1, 1, 0, 0, 0))
            entry.create_system = 3  # Unix, whose modes follow
            entry.external_attr = (0o100000 | mode) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            z.writestr(entry, data)
    return path


def read_version() -> str:
    """Returns the one version of Go and Python."""
    text = ROOT.joinpath("clients/python/muster_pg/_version.py").read_text(encoding="utf-8")
    match = re.search('^__version__ = "(.+)"$', text, re.M)
    assert match is not None
    return match[1]


def go_version(version: str) -> str:
    """Returns a version of PEP 440 as Go writes it: 0.1.0rc1 is v0.1.0-rc.1."""
    match = re.fullmatch(r"(\d+\.\d+\.\d+)(?:\.?(a|b|rc|dev)(\d+))?", version)
    assert match is not None, version
    return f"v{match[1]}" + (f"-{match[2]}.{match[3]}" if match[2] else "")


def digest(data: bytes) -> str:
    """Returns the SHA-256 of a file as RECORD has it."""
    sha = base64.urlsafe_b64encode(hashlib.sha256(data).digest())
    return "sha256=" + sha.decode().rstrip("=")


if __name__ == "__main__":
    main()
