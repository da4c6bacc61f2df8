"""What is built for users: the source distribution and the wheel."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

PACKAGE = Path(__file__).parent.parent


def test_the_license_is_in_the_wheel_and_in_the_source_distribution(tmp_path: Path) -> None:
    license = (PACKAGE.parent.parent / "LICENSE").read_bytes()
    assert (PACKAGE / "LICENSE").read_bytes() == license
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-d", str(tmp_path)], cwd=PACKAGE, check=True)
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        assert [wheel.read(name) for name in wheel.namelist() if name.endswith("/LICENSE")] == [license]
    with tarfile.open(next(tmp_path.glob("*.tar.gz"))) as source:
        names = source.getnames()
    assert any(name.endswith("/LICENSE") and name.count("/") == 1 for name in names)
