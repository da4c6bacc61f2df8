"""Tests the mutants of the module, or of the core: all of them in one build, each behind a condition.

mutants.py build MUTANTS COPY: reads the list of cargo-mutants (JSON) and changes the copy of the sources until it
compiles. A mutant whose change does not compile is left out. One where the compiler must know the value, as in a
constant, is built alone. mutants.py run COPY: runs each of the module in the simulator, in more and more seeds, and
those that are left in the tests that reach their place, the ones that reach fewest places first; each of the core in
the programs of its tests, that of its file first. The first that fails ends the search. What a run has found is kept in
the copy, so a run that was interrupted can go on.
"""

import concurrent.futures
import contextlib
import dataclasses
import itertools
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import threading
import time

import tree_sitter
import tree_sitter_rust

CONDITION = """
/// Whether the process has this mutant. Writes the places that are reached to a file, if one is named.
#[doc(hidden)]
pub fn mutant(number: usize) -> bool {
    use std::io::Write;
    use std::sync::LazyLock;
    use std::sync::atomic::{AtomicBool, Ordering};
    static MUTANT: LazyLock<usize> =
        LazyLock::new(|| std::env::var("REDIS_CELL_MUTANT").map_or(0, |number| number.parse().unwrap_or(0)));
    // The simulator counts what is allocated, so the name of the file is not kept.
    static WRITES: LazyLock<bool> = LazyLock::new(|| std::env::var_os("REDIS_CELL_REACHED").is_some());
    static SEEN: [AtomicBool; 10_000] = [const { AtomicBool::new(false) }; 10_000];
    if *WRITES
        && !SEEN[number].swap(true, Ordering::Relaxed)
        && let Some(file) = std::env::var_os("REDIS_CELL_REACHED")
        && let Ok(mut file) = std::fs::OpenOptions::new().append(true).create(true).open(file)
    {
        let _ = file.write_all(format!("{number}\\n").as_bytes());
    }
    *MUTANT == number
}
"""
MODULE = "target/suite/libredis_cell.so"
OF_MODULE = ["--quiet", "--profile", "suite", "--locked", "--lib", "-p", "redis-cell"]
OF_CORE = ["--quiet", "--profile", "mutants", "--locked", "-p", "redis-cell-core"]
PARSER = tree_sitter.Parser(tree_sitter.Language(tree_sitter_rust.language()))
WRAPPED = {"BinaryOperator": ("binary_expression", "compound_assignment_expr"), "UnaryOperator": ("unary_expression",)}
Node = tree_sitter.Node
JOBS = int(os.environ.get("JOBS", os.cpu_count() or 1))
# A mutant is run in the seeds that reach its place: up to the first number, and if they do not find it, up to the next.
SEEDS = [int(count) for count in os.environ.get("SEEDS", "20 200 1500").split()]
# The suites, by the variables that name their binaries, with the parts that are run.
SUITES: dict[str, list[str]] = {"LIVE": [], "RELIABILITY": ["nested::", "clock::", "cluster::", "failover::", "holds::"]}


@dataclasses.dataclass
class Mutant:
    """A mutant, the bytes of its file that it replaces, and where its condition stands."""

    number: int
    name: str
    file: str
    genre: str
    replacement: str
    start: int
    end: int
    alone: bool = False
    const: str = ""  # the name of its function, if that is `const`
    text: str = ""
    dropped: str = ""

    def alone_in(self, text: bytes) -> bytes:
        """Returns the file with this mutant only."""
        return text[: self.start] + self.replacement.encode() + text[self.end :]


def offset(text: bytes, place: dict[str, int]) -> int:
    """Returns the byte of a line and a column, which counts characters from 1."""
    lines = text.split(b"\n")
    before = sum(len(line) + 1 for line in lines[: place["line"] - 1])
    return before + len(lines[place["line"] - 1].decode()[: place["column"] - 1].encode())


def ancestors(node: Node | None):
    """Yields the node and those around it."""
    while node:
        yield node
        node = node.parent


def function(node: Node) -> Node | None:
    """Returns the function that contains a node; None for code that the compiler computes, as in a constant."""
    kinds = ("const_item", "static_item", "function_item", "source_file")
    around = next(around for around in ancestors(node) if around.type in kinds)
    return around if around.type == "function_item" else None


def constness(function: Node) -> Node | None:
    """Returns the word `const` of a function."""
    modifiers = (child for child in function.children if child.type == "function_modifiers")
    return next((word for child in modifiers for word in child.children if word.type == "const"), None)


def place(mutant: Mutant, root: Node, text: bytes) -> tuple[int, int, str, str] | None:
    """Returns where the condition of a mutant begins and ends, what stands before it, and the other branch."""
    here = root.descendant_for_byte_range(mutant.start, mutant.start + 1)
    changed = f"{mutant.replacement} "
    if mutant.genre == "MatchArmGuard":
        # The smallest node is inside the guard if it is in parentheses or a single name.
        return mutant.start, mutant.end, "", changed
    if mutant.genre == "StructField":
        field = next(n for n in ancestors(here) if n.type in ("field_initializer", "shorthand_field_initializer"))
        base = next(n for n in field.parent.children if n.type == "base_field_initializer")
        name = (field.child_by_field_name("field") or field.named_children[0]).text.decode()
        value = field.child_by_field_name("value")
        of_base = f"({base.named_children[0].text.decode()}).{name}"
        if value:
            return value.start_byte, value.end_byte, "", of_base
        return field.start_byte, field.end_byte, f"{name}: ", of_base
    node = next((n for n in ancestors(here) if n.type in WRAPPED[mutant.genre]), None)
    # The operator must be that of the node, not of a chain with `let`, which no other operator can stand in.
    if not node or not any(c.start_byte == mutant.start and c.end_byte == mutant.end for c in node.children):
        return None
    changed = text[node.start_byte : mutant.start] + mutant.replacement.encode() + text[mutant.end : node.end_byte]
    return node.start_byte, node.end_byte, "", changed.decode()


def planted(text: bytes, mutants: list[Mutant]) -> bytes:
    """Returns a file with the conditions of its mutants, between comments that name the mutants."""
    root = PARSER.parse(text).root_node
    condition = "crate::mutant" if mutants[0].file.startswith("core/") else "redis_cell_core::mutant"
    inserts: list[tuple[int, int, int, str]] = []  # where, closing before opening, the order there
    # What functions compute in constants, they compute when they run, except for the elements of arrays.
    blocks = (root.descendant_for_byte_range(word.start(), word.end()) for word in re.finditer(rb"\bconst \{", text))
    blocks = (block for block in blocks if block.type == "const_block" and block.parent.type != "array_expression")
    words = {block.start_byte for block in blocks if function(block)}
    iterators: set[tuple[int, int]] = set()
    branches: dict[tuple[int, int, str], list[tuple[Mutant, str]]] = {}
    for mutant in mutants:
        here = f"{condition}({mutant.number})"
        if mutant.const:
            words.add(constness(function(root.descendant_for_byte_range(mutant.start, mutant.start + 1))).start_byte)
        if mutant.genre == "FnValue" and "-> impl Iterator" in mutant.name:
            # Both iterators are one type: that of the code, of which nothing is taken, and then the mutant's.
            new = f"/*<{mutant.number}*/.take(if {here} {{ 0 }} else {{ usize::MAX }})"
            new += f".chain(({mutant.replacement}).take(usize::from({here})))/*{mutant.number}>*/"
            inserts.append((mutant.end, 0, 10**8 + mutant.number, new))
            iterators.add((mutant.start, mutant.end))
        elif mutant.genre == "FnValue":
            new = f"/*<{mutant.number}*/if {here} {{ return {mutant.replacement}; }}/*{mutant.number}>*/ "
            inserts.append((mutant.start, 1, 0, new))
        elif mutant.genre == "MatchArm":
            node = root.descendant_for_byte_range(mutant.start, mutant.start + 1)
            arm = next(n for n in ancestors(node) if n.type == "match_arm")
            pattern = arm.child_by_field_name("pattern")
            guard = pattern.child_by_field_name("condition")
            new = f"/*<{mutant.number}*/!{here}/*{mutant.number}>*/"
            if not guard:
                inserts.append((pattern.end_byte, 2, 0, f" if {new}"))
            elif guard.type in ("let_condition", "let_chain"):
                inserts.append((guard.start_byte, 2, -(10**9), f"{new} && "))
            else:
                inserts.append((guard.start_byte, 2, -(10**9), f"{new} && ("))
                inserts.append((guard.end_byte, 0, 10**9, ")"))
        elif mutant.genre == "MatchArmGuard" and b"let " in text[mutant.start : mutant.end]:
            if mutant.replacement == "true":
                mutant.dropped = "a pattern without its names"
            else:
                inserts.append((mutant.start, 2, -(10**9), f"/*<{mutant.number}*/!{here}/*{mutant.number}>*/ && "))
        elif found := place(mutant, root, text):
            branches.setdefault(found[:3], []).append((mutant, found[3]))
        else:
            mutant.dropped = "a chain with let"
    for (start, end, before), changed in branches.items():
        chain = "".join(
            f"/*<{m.number}*/if {condition}({m.number}) {{ ({other}) }}/*{m.number}>*/ else " for m, other in changed
        )
        inserts.append((start, 2, start - end, f"{before}({chain}{{ ("))
        inserts.append((end, 0, end - start, ") })"))
    for start, end in iterators:
        inserts += [(start, 1, 0, "({"), (end, 0, 10**8, "})")]
    for word in words:
        text = text[:word] + b"     " + text[word + len(b"const") :]
    out, last = [], 0
    for where, _, _, new in sorted(inserts, key=lambda insert: insert[:3]):
        out += [text[last:where], new.encode()]
        last = where
    return b"".join([*out, text[last:]])


def environment(copy: pathlib.Path) -> dict[str, str]:
    """Returns the variables of a build in the copy."""
    return {**os.environ, "CARGO_TARGET_DIR": str((copy / "target").resolve())}


def errors(copy: pathlib.Path, is_core: bool) -> list[dict]:
    """Returns the errors of the compiler."""
    check = ["cargo", "check", *(OF_CORE if is_core else OF_MODULE), "--message-format", "json"]
    done = subprocess.run(check, cwd=copy, capture_output=True, text=True, env=environment(copy))
    messages = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    found = [m["message"] for m in messages if m["reason"] == "compiler-message" and m["message"]["level"] == "error"]
    if done.returncode and not found:
        sys.exit(done.stderr)
    return found


def compiled(copy: pathlib.Path, name: str, is_core: bool) -> str:
    """Builds the module NAME.so, or the programs of the core's tests into a folder; returns the error, if any."""
    command = ["cargo", "test", *OF_CORE, "--tests", "--no-run"] if is_core else ["cargo", "build", *OF_MODULE]
    command += ["--message-format", "json-render-diagnostics"]
    done = subprocess.run(command, cwd=copy, capture_output=True, text=True, env=environment(copy))
    if done.returncode:
        return done.stderr
    if not is_core:
        shutil.copy(copy / MODULE, copy / f"{name}.so")
        return ""
    (copy / name).mkdir(exist_ok=True)
    for line in done.stdout.splitlines():
        message = json.loads(line)
        if message.get("executable") and message["target"]["kind"] == ["test"]:
            shutil.copy(message["executable"], copy / name / message["target"]["name"])
    return ""


def guilty(copy: pathlib.Path, error: dict, mutants: list[Mutant]) -> set[int]:
    """Returns the numbers of the mutants in whose code an error is; none, but marks those that must stand alone, if an
    error is about the code around them: a constant, or an arm that is missing after a value that is matched."""
    around, beside, arms = set(), set(), []
    for span in error["spans"]:
        file = copy / span["file_name"]
        if not file.is_file():
            continue
        text = file.read_bytes()
        begin, last = span["byte_start"], span["byte_end"]
        found = re.finditer(rb"/\*<(\d+)\*/.*?/\*\1>\*/", text, re.DOTALL)
        marks = [(mark.start(), mark.end(), int(mark[1])) for mark in found]
        inside = {number for start, end, number in marks if start <= begin and last <= end}
        if not span["is_primary"]:
            beside |= inside  # a value that is moved there
            continue
        if inside and "in constants" not in error["message"]:
            return inside
        around |= inside or {number for start, end, number in marks if begin <= start and end <= last}
        arms += [n for start, _, n in marks if start > last and mutants[n - 1].genre == "MatchArm"]
    for number in around or beside or arms[:1]:
        mutants[number - 1].alone = True
    return set()


def build(listed: str, copy: pathlib.Path) -> None:
    """Plants the mutants of a list in the copy, those that compile, and builds it."""
    mutants, originals, fields = [], {}, set()
    for number, entry in enumerate(json.loads(pathlib.Path(listed).read_text()), 1):
        file = entry["file"]
        text = originals.setdefault(file, (copy / file).read_bytes())
        span = entry["span"]
        start, end = offset(text, span["start"]), offset(text, span["end"])
        mutants.append(Mutant(number, entry["name"], file, entry["genre"], entry["replacement"], start, end))
    for file, text in originals.items():
        root = PARSER.parse(text).root_node
        for mutant in mutants:
            if mutant.file == file:
                node = root.descendant_for_byte_range(mutant.start, mutant.start + 1)
                # A function may begin with a constant of its own.
                whole = (n for n in ancestors(node) if n.type == "function_item")
                around = next(whole, None) if mutant.genre == "FnValue" else function(node)
                mutant.alone = around is None
                mutant.const = around.child_by_field_name("name").text.decode() if around and constness(around) else ""
                # tests/live/metadata.rs reads every field of the descriptions of all commands: one mutant of each will do.
                if field := re.search(r"delete field \w+ from struct Spec expression$", mutant.name):
                    mutant.dropped = "like another one" if field[0] in fields else ""
                    fields.add(field[0])
    is_core = all(file.startswith("core/") for file in originals)
    core = copy / "core/src/lib.rs"
    core.write_text(core.read_text() + CONDITION)
    if "core/src/lib.rs" in originals:
        originals["core/src/lib.rs"] = core.read_bytes()
    while True:
        for file, text in originals.items():
            here = [m for m in mutants if m.file == file and not m.dropped and not m.alone]
            (copy / file).write_bytes(planted(text, here) if here else text)
        found = errors(copy, is_core)
        if not found:
            break
        before = sum(bool(m.dropped or m.alone) for m in mutants)
        for error in found:
            # A `const` function that constants need, as the message says: `core::Type::name`.
            needed = re.match(r"cannot call non-const .*?(\w+)(?:::<.*>)?` in ", error["message"])
            if needed and needed[1] != "mutant":
                for mutant in mutants:
                    if mutant.const == needed[1]:
                        mutant.alone, mutant.const = True, ""
                continue
            for number in guilty(copy, error, mutants):
                mutants[number - 1].dropped = error["message"]
        left_out = sum(bool(m.dropped or m.alone) for m in mutants) - before
        print(f"{len(found)} errors, {left_out} mutants left out", file=sys.stderr)
        if not left_out:
            sys.exit("\n".join(error["rendered"] for error in found))
    if error := compiled(copy, "all", is_core):
        sys.exit(error)
    for mutant in mutants:
        if mutant.alone:
            mutant.text = mutant.alone_in(originals[mutant.file]).decode()
    (copy / "mutants.json").write_text(json.dumps([dataclasses.asdict(m) for m in mutants], indent=1))


def numbers(places: pathlib.Path) -> set[int]:
    """Returns the places that a process has written to a file, which is removed."""
    if not places.exists():
        return set()
    written = {int(number) for number in places.read_text().split()}
    places.unlink()
    return written


class Run:
    """The mutants of a copy, and what has found them."""

    def __init__(self, copy: pathlib.Path) -> None:
        self.copy = copy
        self.mutants = [Mutant(**m) for m in json.loads((copy / "mutants.json").read_text())]
        self.is_core = all(m.file.startswith("core/") for m in self.mutants)
        self.keeping = threading.Lock()
        self.found: dict[str, str] = {}
        self.seconds: dict[str, float] = {}
        self.survived: dict[str, int] = {}  # how many stages
        with contextlib.suppress(FileNotFoundError):
            self.found = json.loads((copy / "found.json").read_text())
        with contextlib.suppress(FileNotFoundError):
            self.survived = json.loads((copy / "survived.json").read_text())
        lines = pathlib.Path("scripts/mutants.txt").read_text().splitlines()
        self.patterns = [line for line in lines if line and not line.startswith("#")]

    def is_listed(self, mutant: Mutant) -> bool:
        """Returns whether the list has a mutant."""
        return any(re.search(pattern, mutant.name) for pattern in self.patterns)

    def keep(self) -> None:
        """Writes which mutants do not compile."""
        (self.copy / "mutants.json").write_text(json.dumps([dataclasses.asdict(m) for m in self.mutants], indent=1))

    def build(self, mutant: Mutant) -> str:
        """Builds what has this mutant only; returns the error, if it does not compile."""
        file = self.copy / mutant.file
        text = file.read_text()
        file.write_text(mutant.text)
        error = compiled(self.copy, str(mutant.number), self.is_core)
        file.write_text(text)
        return error

    def module(self, mutant: Mutant | None) -> dict[str, str]:
        """Returns the variables by which a process has a mutant."""
        alone = mutant and mutant.alone
        module = self.copy / (f"{mutant.number}.so" if mutant and alone else "all.so")
        return {
            **os.environ,
            "REDIS_CELL_MODULE": str(module.resolve()),
            "REDIS_CELL_MUTANT": str(mutant.number if mutant else 0),
        }

    @staticmethod
    def program(command: list[str], seconds: float, env: dict[str, str], failure: str) -> str | None:
        """Runs a program until it ends, prints a line of failure, or computes for a time, however busy the machine
        is; returns what failed, or None."""
        limited = ["prlimit", f"--cpu={seconds:.0f}", "--", *command]
        process = subprocess.Popen(limited, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        found: list[str] = []

        def end() -> None:
            # This program may have been stopped for a time. What the process has started ends with it.
            if process.poll() is None:
                found.append("took too long")
                process.kill()

        timer = threading.Timer(4 * seconds, end)
        timer.start()
        assert process.stdout
        for line in process.stdout:
            if not found and re.search(failure, line):
                found.append(line.strip())
                process.kill()
        timer.cancel()
        code = process.wait()
        return found[0] if found else f"code {code}" if code else None

    def simulate(self, arguments: list[str], mutant: Mutant | None, reached: str = "") -> str | None:
        """Returns what the simulator finds in histories, of which it ends those that hang."""
        env = self.module(mutant)
        if reached:
            env["REDIS_CELL_REACHED"] = reached
        command = ["target/suite/simulate", *arguments, "--first", "--no-shrink", "--jobs", "1"]
        seconds = 60 + len(arguments)
        return self.program([*command, env["REDIS_CELL_MODULE"]], seconds, env, r"^seed \d|\.txt$|^thread")

    def histories(self) -> list[tuple[list[str], set[int]]]:
        """Returns the arguments of histories, kept ones and seeds, each with the places that it reaches."""
        file = self.copy / "histories.json"
        if file.exists():
            return [(history, set(reached)) for history, reached in json.loads(file.read_text())]
        files = sorted(pathlib.Path("verify/simulator/histories").iterdir())
        every = [["--file", str(file)] for file in files]
        every += [["--seeds", str(seed), "1"] for seed in range(1, SEEDS[-1] + 1)]

        def reach(history: list[str]) -> tuple[list[str], set[int]]:
            places = self.copy / f"reached-{history[1].replace('/', '.')}"
            if failed := self.simulate(history, None, str(places)):
                sys.exit(f"the simulator fails without a mutant: {failed}")
            return history, numbers(places)

        with concurrent.futures.ThreadPoolExecutor(JOBS) as pool:
            histories = list(pool.map(reach, every))
        file.write_text(json.dumps([(history, sorted(reached)) for history, reached in histories]))
        return histories

    def tests(self, binary: str, names: list[str], mutant: Mutant | None, reached: str = "") -> str | None:
        """Returns the first of some tests that fails, or None."""
        env = self.module(mutant)
        if reached:
            env["REDIS_CELL_REACHED"] = reached
        seconds = (60 if mutant else 600) + 3 * sum(self.seconds.get(name, 0) for name in names)
        return self.program([os.environ[binary], "--exact", *names], seconds, env, r"^test \S+ \.\.\. FAILED$")

    def note(self, mutant: Mutant, found: str) -> None:
        """Keeps what has found a mutant."""
        with self.keeping:
            self.found[mutant.name] = found
            (self.copy / "found.json").write_text(json.dumps(self.found, indent=1))
        print(f"{mutant.name}\t{found}", flush=True)

    def note_survivor(self, mutant: Mutant, stages: int) -> None:
        """Keeps in how many stages of histories a mutant was not found."""
        with self.keeping:
            self.survived[mutant.name] = stages
            (self.copy / "survived.json").write_text(json.dumps(self.survived, indent=1))

    def reach(self) -> dict[str, dict]:
        """Returns the tests of the suites, each with the places that it reaches and its seconds."""
        file = self.copy / "reach.json"
        if file.exists():
            return json.loads(file.read_text())
        names = []
        for binary, filters in SUITES.items():
            options = ["--list", "--skip", "valgrind", *filters]
            listed = subprocess.run([os.environ[binary], *options], capture_output=True, text=True, check=True)
            tests = [line.removesuffix(": test") for line in listed.stdout.splitlines() if line.endswith(": test")]
            names += [(binary, test) for test in tests]

        def one(test: tuple[str, str]) -> tuple[str, dict]:
            places = self.copy / f"reached-{test[1]}"
            begin = time.monotonic()
            failed = self.tests(test[0], [test[1]], None, str(places))
            seconds = time.monotonic() - begin
            if failed:
                print(f"fails without a mutant: {test[1]}: {failed}", file=sys.stderr, flush=True)
            reached = sorted(numbers(places))
            return test[1], {"binary": test[0], "reached": reached, "seconds": seconds, "failed": failed}

        with concurrent.futures.ThreadPoolExecutor(2 * JOBS) as pool:
            reach = dict(pool.map(one, names))
        file.write_text(json.dumps(reach))
        return reach

    def tested(self, mutant: Mutant, reach: dict[str, dict]) -> str | None:
        """Returns the test that finds a mutant, of those that reach it: the tests of a file of the same name come
        first, and then the most specific ones."""
        own = f"{pathlib.Path(mutant.file).stem}::"
        able = [(n, t) for n, t in reach.items() if not t["failed"] and (mutant.alone or mutant.number in t["reached"])]
        for binary in SUITES:
            left = [n for n, t in able if t["binary"] == binary]
            left.sort(key=lambda name: (not name.startswith(own), len(reach[name]["reached"])))
            size = 8
            while left:
                batch = left[:size]
                found = self.tests(binary, batch, mutant)
                if found and (failed := re.match(r"test (\S+)", found)):
                    # A test that fails by chance finds nothing.
                    if self.tests(binary, [failed[1]], mutant):
                        return failed[1]
                    print(f"passes when it is repeated: {failed[1]}", file=sys.stderr, flush=True)
                    left.remove(failed[1])
                elif found:
                    return found
                else:
                    left, size = left[len(batch) :], 4 * size
        return None

    def core(self) -> None:
        """Runs every mutant of the core that is not found yet."""
        # One program counts allocations, and the condition allocates when it reads the environment.
        names = [file.name for file in sorted((self.copy / "all").iterdir()) if file.name != "allocation"]
        building = threading.Lock()

        def run(name: str, mutant: Mutant | None) -> str | None:
            folder = self.copy / (str(mutant.number) if mutant and mutant.alone else "all")
            env = {**os.environ, "REDIS_CELL_MUTANT": str(mutant.number if mutant else 0)}
            return self.program([str(folder / name)], 60, env, r"^test \S+ \.\.\. FAILED$")

        if failed := [name for name in names if run(name, None)]:
            sys.exit(f"fails without a mutant: {failed}")

        def test(mutant: Mutant) -> None:
            if mutant.alone:
                with building:
                    mutant.dropped = self.build(mutant)
            own = pathlib.Path(mutant.file).stem
            for name in sorted(names, key=lambda name: name != own) if not mutant.dropped else []:
                if found := run(name, mutant):
                    self.note(mutant, f"test: {name}: {found}")
                    break
            if mutant.alone:
                shutil.rmtree(self.copy / str(mutant.number), ignore_errors=True)

        left = [m for m in self.mutants if not m.dropped and m.name not in self.found]
        with concurrent.futures.ThreadPoolExecutor(JOBS) as pool:
            list(pool.map(test, sorted(left, key=lambda mutant: mutant.alone)))

    def whole(self) -> None:
        """Runs every mutant of the module that is not found yet; those of the list only in the simulator."""
        left = [m for m in self.mutants if not m.dropped and m.name not in self.found]
        histories = self.histories()
        kept = len(histories) - SEEDS[-1]
        # The kept histories, and then the seeds up to each number.
        stages = [slice(kept), *(slice(kept + a, kept + b) for a, b in itertools.pairwise([0, *SEEDS]))]

        def simulate(mutant: Mutant, stage: int) -> None:
            if mutant.name in self.found or self.survived.get(mutant.name, 0) > stage:
                return
            able = [h for h, reached in histories[stages[stage]] if mutant.alone or mutant.number in reached]
            arguments = [argument for history in able for argument in history]
            if able and (found := self.simulate(arguments, mutant)):
                self.note(mutant, f"simulator: {found}")
            else:
                self.note_survivor(mutant, stage + 1)

        def test(mutant: Mutant) -> None:
            if found := self.tested(mutant, reach):
                self.note(mutant, f"test: {found}")

        def alone(mutant: Mutant) -> None:
            with building:
                error = self.build(mutant)
            if error:
                mutant.dropped = error
                return
            for stage in range(len(stages)):
                simulate(mutant, stage)
            if mutant.name not in self.found:
                test(mutant)
            (self.copy / f"{mutant.number}.so").unlink()

        building = threading.Lock()
        with concurrent.futures.ThreadPoolExecutor(JOBS) as pool:
            for stage in range(len(stages)):
                list(pool.map(simulate, [m for m in left if not m.alone], itertools.repeat(stage)))
                print(f"{sum(m.name not in self.found for m in left)} left", file=sys.stderr, flush=True)
        reach = self.reach()
        self.seconds = {name: test["seconds"] for name, test in reach.items()}
        with concurrent.futures.ThreadPoolExecutor(2 * JOBS) as pool:  # they mostly wait for their servers
            left = [m for m in left if m.name not in self.found and not self.is_listed(m)]
            list(pool.map(test, [m for m in left if not m.alone]))
            list(pool.map(alone, [m for m in left if m.alone]))

    def report(self) -> None:
        """Prints how many were found by what, and fails if one was not found that is not in the list."""
        runs = [m for m in self.mutants if not m.dropped]
        missed = [m for m in runs if m.name not in self.found]
        by = [self.found[m.name].split(":")[0] for m in runs if m.name in self.found]
        unknown = [m.name for m in missed if not self.is_listed(m)]
        print(
            f"{len(self.mutants)} mutants: {len(self.mutants) - len(runs)} do not compile or are like others, "
            f"{by.count('simulator')} found by the simulator, {by.count('test')} by tests, "
            f"{len(missed) - len(unknown)} in scripts/mutants.txt, {len(unknown)} not found"
        )
        if unknown:
            sys.exit("\n".join(unknown))


def main() -> None:
    """Builds or runs."""
    if sys.argv[1] == "build":
        build(sys.argv[2], pathlib.Path(sys.argv[3]).resolve())
    else:
        run = Run(pathlib.Path(sys.argv[2]).resolve())
        if run.is_core:
            run.core()
        else:
            run.whole()
        run.keep()
        run.report()


main()
