"""What must hold for the files of the repository themselves."""

import re
import subprocess
from pathlib import Path

import pytest

import forebay

REPO = Path(__file__).resolve().parent.parent
LOCKS = sorted((REPO / "requirements").glob("*.txt"))
READMES = ("README.md", "README.zh-CN.md")
COMMANDS = ("make demo", "make test")

# Put together from pieces, so that this file does not name what it forbids. A longer path that only
# contains one of them is fine.
BUILD_MACHINE = re.compile(r"(?<![\w.~/-])/(?:" + "|".join(("work", "root", "tmp" + "/w")) + r")/")


def listed_files(repo: Path) -> list[Path]:
    """Return the files that are tracked or would be: everything that git does not ignore."""
    command = ["git", "-C", str(repo), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    if done.returncode:
        pytest.skip("not a git checkout")
    return [path for name in done.stdout.split("\0") if name and (path := repo / name).is_file()]


def machine_paths(files: list[Path]) -> list[str]:
    """Return one line for each text line that names a folder of a build machine."""
    faults = []
    for path in files:
        data = path.read_bytes()
        if b"\0" in data[:8192]:
            continue
        for number, line in enumerate(data.decode("utf-8", "replace").splitlines(), start=1):
            if BUILD_MACHINE.search(line):
                faults.append(f"{path.name}:{number}: {line.strip()[:80]}")
    return faults


def test_no_file_names_a_folder_of_a_build_machine() -> None:
    assert machine_paths(listed_files(REPO)) == []


def test_a_folder_of_a_build_machine_is_caught(tmp_path: Path) -> None:
    path = tmp_path / "a.md"
    here = "/" + "work"
    path.write_text(f"see {here}/main/a.py\nsee docs{here}/a\nsee https://example.org{here}/a\n")
    assert [fault.split(": ")[0] for fault in machine_paths([path])] == ["a.md:1"]


@pytest.mark.parametrize("lock", LOCKS, ids=lambda p: p.name)
def test_locks_pin_everything_and_name_no_address(lock: Path) -> None:
    text = lock.read_text(encoding="utf-8")
    assert "://" not in text
    assert not re.search(r"^--(?!hash)", text, re.MULTILINE), "a lock holds requirements, no options"
    for block in re.split(r"\n(?=\S)", text.strip()):
        assert re.match(r"[a-z0-9._-]+(\[[a-z0-9,_-]+\])?==\S+", block), block.splitlines()[0]
        assert "--hash=sha256:" in block, f"{block.splitlines()[0]} has no hash"


def test_locks_agree_with_each_other() -> None:
    assert {lock.stem for lock in LOCKS} == {"base", "demo", "dev", "build"}
    versions: dict[str, set[str]] = {}
    for lock in LOCKS:
        for name, version in re.findall(r"^([a-z0-9._-]+)==(\S+)", lock.read_text(encoding="utf-8"), re.MULTILINE):
            versions.setdefault(name, set()).add(version)
    assert {name: found for name, found in versions.items() if len(found) > 1} == {}


def test_makefile_has_its_targets() -> None:
    text = (REPO / "Makefile").read_text(encoding="utf-8")
    for target in ("demo", "test", "check", "bench", "docs", "lock", "clean"):
        assert re.search(rf"^{target}:", text, re.MULTILINE), f"no target {target}"


def test_changelog_has_this_version() -> None:
    changelog = REPO / "CHANGELOG.md"
    if not changelog.is_file():
        pytest.skip("CHANGELOG.md is not written yet")
    versions = re.findall(r"^## \[?v?(\d+\.\d+\.\d+[\w.]*)", changelog.read_text(encoding="utf-8"), re.MULTILINE)
    assert versions, "no heading such as '## 0.1.0'"
    assert versions[0] == forebay.__version__


@pytest.mark.parametrize("name", READMES)
def test_readme_shows_the_two_commands(name: str) -> None:
    readme = REPO / name
    text = readme.read_text(encoding="utf-8") if readme.is_file() else ""
    if not text.strip():
        pytest.skip(f"{name} is not written yet")
    assert [command for command in COMMANDS if command not in text] == []


def test_contributing_is_short() -> None:
    assert len((REPO / "CONTRIBUTING.md").read_text(encoding="utf-8").splitlines()) <= 80
