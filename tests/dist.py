"""Check what `make dist` built: `python -m tests.dist dist [--tests]`.

Installs the wheel into an empty environment, alone and then with each extra, and uses it from outside the checkout.
`--tests` also runs the fast tests of the sdist with the present environment.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parent.parent
MOST_BYTES = 1_500_000
CHECKPOINT = """
import torch
torch.manual_seed(0)
torch.save(torch.nn.Sequential(*(torch.nn.Linear(128, 128) for _ in range(4))).state_dict(), "model.pt")
"""
STUDY = ["assignment", "--preset", "smoke", "--only", "model=resnet18", "--only", "assignment=linear"]
# what each extra must be able to do, in this order; each is installed beside those before
USES: dict[str, list[list[str]]] = {
    "": [["diagnose", "model.pt"], ["--version"]],
    "report": [["diagnose", "model.pt", "--html", "page.html"]],
    "lab": [["study", "run", *STUDY], ["study", "report", *STUDY, "--html", "study.html"]],
    "cluster": [["study", "run", *STUDY, "--dry-run"]],
}


def check_wheel(wheel: Path) -> None:
    """Refuse a wheel that is large or holds anything but the package and its metadata."""
    size = wheel.stat().st_size
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    other = [name for name in names if not re.match(r"tempbalance(/|-[\d.]+\.dist-info/)", name)]
    odd = [name for name in names if re.search(r"(^|/)(tests?|docs|benchmarks|examples)/|\.pyc$|~$", name)]
    if other or odd:
        sys.exit(f"{wheel.name} holds {', '.join(other + odd)}")
    if size > MOST_BYTES:
        sys.exit(f"{wheel.name} has {size} bytes, more than {MOST_BYTES}")
    suffixes = sorted({Path(name).suffix for name in names})
    print(f"{wheel.name}: {size / 1000:.0f} kB, {len(names)} files, {' '.join(suffixes)}")


def quick_start() -> str:
    """The README's new lines, with a model to train."""
    (change,) = re.findall(r"```diff\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    new = "\n".join(line[1:] for line in change.splitlines() if not line.startswith("-"))
    model = "torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(5)))"
    train = "optimizer.zero_grad(); model(torch.ones(4, 64)).square().mean().backward(); optimizer.step()"
    before = f"import torch\nmodel = {model}\n\ndef train_one_epoch(model, optimizer):\n    {train}\n\n"
    return before + new.replace("200", "2") + "\nprint(schedule.table())\n"


def use_wheel(wheel: Path, folder: Path) -> None:
    """Install the wheel with each extra and run what the extra is for."""
    venv.create(folder / "venv", with_pip=True)
    scripts = folder / "venv" / ("Scripts" if os.name == "nt" else "bin")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def run(*command: str) -> None:
        print("$", " ".join(command), flush=True)
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"exit code {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")

    (folder / "quick_start.py").write_text(quick_start())
    (folder / "checkpoint.py").write_text(CHECKPOINT)
    for extra, uses in USES.items():
        what = f"{wheel.resolve()}[{extra}]" if extra else str(wheel.resolve())
        pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-c", str(ROOT / "constraints.txt")]
        run(str(scripts / "python"), *pip, what)
        if not extra:
            run(str(scripts / "python"), "quick_start.py")
            run(str(scripts / "python"), "checkpoint.py")
        for use in uses:
            run(str(scripts / "tempbalance"), *use)


def test_sdist(sdist: Path, folder: Path, chosen: list[str]) -> None:
    """Run the fast tests of the unpacked sdist."""
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    (tree,) = (path for path in folder.iterdir() if path.is_dir())
    environment = {**os.environ, "PYTHONPATH": str(tree / "src")}
    command = [sys.executable, "-m", "pytest", "-n", "auto", "-m", "not slow", "-p", "no:cacheprovider", *chosen]
    if code := subprocess.run(command, cwd=tree, env=environment).returncode:
        sys.exit(f"the tests of {sdist.name} end with exit code {code}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tests", nargs="*", help="run the sdist's fast tests, or those of these files")
    arguments = parser.parse_args()
    (wheel,), (sdist,) = arguments.folder.glob("*.whl"), arguments.folder.glob("*.tar.gz")
    check_wheel(wheel)
    with TemporaryDirectory() as folder:
        use_wheel(wheel, Path(folder))
    if arguments.tests is not None:
        with TemporaryDirectory() as folder:
            test_sdist(sdist, Path(folder), arguments.tests)
    print(f"{wheel.name} and {sdist.name} work")


if __name__ == "__main__":
    main()
