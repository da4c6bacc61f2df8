"""Plants the defects of a list in a copy of the sources, all of them, each behind a condition; prints their names."""

import pathlib
import re
import sys

PLANTED = """
/// Whether the build has this planted defect.
pub fn planted(name: &str) -> bool {
    static PLANTED: std::sync::LazyLock<String> =
        std::sync::LazyLock::new(|| std::env::var("REDIS_CELL_DEFECT").unwrap_or_default());
    *PLANTED == name
}
"""


def main() -> None:
    """Reads the list and changes the copy, the two arguments."""
    defects, copy = map(pathlib.Path, sys.argv[1:])
    for block in defects.read_text().split("\n\n"):
        lines = [line for line in block.splitlines() if line and not line.startswith("#")]
        if not lines:
            continue
        name, file = lines[0].split()
        old = " ".join(line[2:] for line in lines if line.startswith("- "))
        new = "\n".join(line[2:] for line in lines if line.startswith("+ "))
        crate = "crate" if file.startswith("core/") else "redis_cell_core"
        new = new.replace("HERE", f'{crate}::planted("{name}")')
        # Line breaks and indentation do not matter.
        pattern = r"\s+".join(map(re.escape, old.split()))
        text, count = re.subn(pattern, lambda _, new=new: new, (copy / file).read_text())
        if count != 1:
            sys.exit(f"{name}: found {count} times in {file}: {old}")
        (copy / file).write_text(text)
        print(name)
    with (copy / "core/src/lib.rs").open("a") as core:
        core.write(PLANTED)


main()
