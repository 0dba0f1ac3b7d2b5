"""Check on one GPU what the maintainers could only run on CPUs: `make gpu-check`, about ten minutes.

Prints each check with its outcome and writes a report to attach to an issue. docs/gpu.md says what is expected.
`--device cpu` rehearses the checks that need no GPU.
"""

from __future__ import annotations

import argparse
import platform
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import nn

import tempbalance
from tempbalance import Execution, TempBalance, param_groups

SHAPES = [(128, 128), (256, 1024), (1000, 512), (64, 64, 3, 3), (512, 256, 3, 3)]
TOLERANCE = {torch.float64: 1e-9, torch.float32: 2e-5, torch.bfloat16: 2e-5, torch.float16: 2e-5}


class NotHereError(Exception):
    """A check that this machine cannot run."""


def model_on(device: str) -> nn.Sequential:
    torch.manual_seed(0)
    layers = [part for _ in range(4) for part in (nn.Linear(256, 256), nn.LayerNorm(256), nn.GELU())]
    return nn.Sequential(*layers, nn.Linear(256, 10)).to(device)


def step(model: nn.Module, optimizer: torch.optim.Optimizer, device: str) -> None:
    inputs = torch.randn(64, 256, generator=torch.Generator().manual_seed(1)).to(device)
    optimizer.zero_grad()
    model(inputs).square().mean().backward()
    optimizer.step()


def check(is_so: bool, text: str) -> str:
    if not is_so:
        raise AssertionError(text)
    return text


def needs_cuda(device: str) -> None:
    if device != "cuda":
        raise NotHereError("needs a GPU")


def rates(optimizer: torch.optim.Optimizer) -> list[float]:
    return [float(group["lr"]) for group in optimizer.param_groups]


def alphas(device: str) -> str:
    """Alpha of weights on the device equals that on the CPU, in each precision."""
    worst = 0.0
    for shape in SHAPES:
        weight = torch.randn(shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
        for dtype, tolerance in TOLERANCE.items():
            here = tempbalance.fit_tail(tempbalance.spectrum(weight.to(dtype).to(device))).alpha
            there = tempbalance.fit_tail(tempbalance.spectrum(weight.to(dtype))).alpha
            error = abs(here / there - 1)
            worst = max(worst, error)
            check(error <= tolerance, f"{shape} {dtype}: {here} on {device}, {there} on the CPU")
    return f"largest relative difference {worst:.1e}"


def training(device: str) -> str:
    """Scales after ten steps equal those of the same weights on the CPU, and the rates are the base rate times them."""
    model = model_on(device)
    optimizer = torch.optim.AdamW(param_groups(model), lr=1e-3)
    scheduler = TempBalance(optimizer, model)
    for _ in range(10):
        step(model, optimizer, device)
        scheduler.step()
    copy = model_on("cpu")
    copy.load_state_dict({name: value.cpu() for name, value in model.state_dict().items()})
    other = TempBalance(torch.optim.AdamW(param_groups(copy), lr=1e-3), copy)
    error = max(abs(scheduler.last_scales[name] - scale) for name, scale in other.last_scales.items())
    return check(error <= 1e-3, f"largest difference of a scale {error:.1e}")


def no_waiting(device: str) -> str:
    """A step without scoring does not wait for the device."""
    needs_cuda(device)
    model = model_on(device)
    optimizer = torch.optim.AdamW(param_groups(model), lr=1e-3)
    scheduler = TempBalance(optimizer, model, interval=1000)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(100):
            scheduler.step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return "100 steps without a synchronisation"


def resuming(device: str) -> str:
    """A resumed run has the learning rates of an uninterrupted one."""

    def run(cut: int | None) -> list[float]:
        def build() -> tuple[nn.Module, torch.optim.Optimizer, TempBalance]:
            model = model_on(device)
            optimizer = torch.optim.SGD(param_groups(model), lr=0.1, momentum=0.9)
            return model, optimizer, TempBalance(optimizer, model)

        parts = build()
        for number in range(6):
            if number == cut:
                states = [part.state_dict() for part in parts]
                parts = build()
                for part, state in zip(parts, states, strict=True):
                    part.load_state_dict(state)
            step(parts[0], parts[1], device)
            parts[2].step()
        return rates(parts[1])

    torch.use_deterministic_algorithms(True, warn_only=True)
    whole, resumed = run(None), run(3)
    torch.use_deterministic_algorithms(False)
    error = max(abs(one - other) for one, other in zip(whole, resumed, strict=True))
    return check(error <= 1e-9, f"largest difference of a learning rate {error:.1e}")


def optimizers(device: str) -> str:
    """Fused, foreach and capturable AdamW move the weights as plain AdamW does, with balanced rates."""

    def end(**options: object) -> torch.Tensor:
        model = model_on(device)
        rate = torch.tensor(1e-3, device=device) if options.get("capturable") else 1e-3
        optimizer = torch.optim.AdamW(param_groups(model), lr=rate, **options)  # type: ignore[arg-type]
        scheduler = TempBalance(optimizer, model)
        for _ in range(3):
            step(model, optimizer, device)
            scheduler.step()
        return model[3].weight.detach().cpu()

    plain = end(foreach=False)
    kinds = [{"fused": True}, {"foreach": True}] + ([{"capturable": True}] if device == "cuda" else [])
    for options in kinds:
        error = (end(**options) - plain).abs().max().item()
        check(error <= 1e-4, f"{options}: weights differ by {error:.1e}")
    return ", ".join(next(iter(options)) for options in kinds)


def captured(device: str) -> str:
    """A CUDA graph of the optimizer's step uses the learning rate that balancing wrote after the capture."""
    needs_cuda(device)
    model = model_on(device)
    groups = param_groups(model)
    optimizer = torch.optim.AdamW(groups, lr=torch.tensor(1e-3, device=device), capturable=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 1.0 if epoch == 0 else 0.0)
    scheduler = TempBalance(optimizer, model, schedule)
    for _ in range(3):
        step(model, optimizer, device)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        optimizer.step()

    def moved() -> float:
        before = model[3].weight.detach().clone()
        graph.replay()
        return (model[3].weight - before).abs().mean().item()

    first = moved()
    scheduler.step()  # the schedule's rate is 0 now
    second = moved()
    return check(first > 0 and second == 0, f"moved {first:.1e}, with a rate of 0 {second:.1e}")


def compiled(device: str) -> str:
    """A compiled model trains balanced."""
    if platform.system() == "Windows":
        raise NotHereError("torch.compile needs a compiler")
    model = model_on(device)
    fast = torch.compile(model)
    optimizer = torch.optim.AdamW(param_groups(fast), lr=1e-3)
    scheduler = TempBalance(optimizer, fast)
    before = rates(optimizer)
    for _ in range(3):
        step(fast, optimizer, device)
        scheduler.step()
    return check(rates(optimizer) != before, "rates changed")


def background(device: str) -> str:
    """Scoring in a thread gives the scales of scoring inline, one call later."""

    def run(execution: Execution | None) -> list[dict[str, float]]:
        model = model_on(device)
        optimizer = torch.optim.SGD(param_groups(model), lr=0.0)  # the weights stay: scales do not depend on when
        scheduler = TempBalance(optimizer, model, execution=execution)
        for _ in range(3):
            step(model, optimizer, device)
            scheduler.step()
        scheduler.wait()
        return dict(scheduler.last_scales)

    inline, thread = run(None), run(Execution(background=True))
    error = max(abs(inline[name] - thread[name]) for name in inline)
    return check(error <= 1e-3, f"largest difference of a scale {error:.1e}")


def eight_bit(device: str) -> str:
    """AdamW with 8-bit states of bitsandbytes trains at balanced rates."""
    try:
        import bitsandbytes
    except ImportError as err:
        raise NotHereError("bitsandbytes is not installed") from err
    needs_cuda(device)
    model = model_on(device)
    optimizer = bitsandbytes.optim.AdamW8bit(param_groups(model), lr=1e-3)
    scheduler = TempBalance(optimizer, model)
    before = model[3].weight.detach().clone()
    step(model, optimizer, device)
    scheduler.step()
    return check(
        not torch.equal(before, model[3].weight), f"rates {min(rates(optimizer)):.1e} to {max(rates(optimizer)):.1e}"
    )


def speed(device: str) -> str:
    """Seconds of one balancing of twelve layers of 1024 x 1024: where the weights are, and copied to the CPU."""
    model = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(14 if device == "cuda" else 4))).to(device)
    found = {}
    for name, execution in ((device, None), ("copied to the CPU", Execution(device="cpu"))):
        scheduler = TempBalance(torch.optim.SGD(param_groups(model), lr=0.1), model, execution=execution)
        start = time.perf_counter()
        scheduler.rescore()
        found[name] = time.perf_counter() - start
    return ", ".join(f"{name} {seconds:.2f} s" for name, seconds in found.items())


def command(*arguments: str, folder: Path, seconds: int = 400) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tempbalance.cli", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=seconds,
    )
    check(done.returncode == 0, f"exit code {done.returncode}: {done.stderr[-800:]}")


def lab(device: str) -> str:
    """The lab trains a balanced ResNet18, in full and in mixed precision."""
    kind = "gpu" if device == "cuda" else "cpu"
    options = [
        "train",
        "--dataset",
        "digits",
        "--model",
        "resnet18",
        "--width",
        "0.25",
        "--method",
        "tb",
        "--epochs",
        "2",
        "--device",
        kind,
    ]
    with TemporaryDirectory() as folder:
        for precision in ["32-true", "bf16-mixed"][: 2 if device == "cuda" else 1]:
            command(*options, "--precision", precision, "--out", f"run-{precision}", folder=Path(folder))
    return "exit code 0"


def study(device: str) -> str:
    """A study runs on the GPU and reports."""
    kind = "gpu" if device == "cuda" else "cpu"
    options = ["assignment", "--preset", "smoke", "--only", "model=resnet18"]
    with TemporaryDirectory() as folder:
        command("study", "run", *options, "--device", kind, folder=Path(folder))
        command("study", "report", *options, folder=Path(folder))
    return "exit code 0"


CHECKS: list[Callable[[str], str]] = [
    alphas, training, no_waiting, resuming, optimizers, captured, compiled, background, eight_bit, speed, lab, study,
]  # fmt: skip


def environment(device: str) -> list[str]:
    lines = [f"tempbalance {tempbalance.__version__}, torch {torch.__version__}, Python {platform.python_version()}"]
    lines.append(f"{platform.platform()}, device {device}")
    if device == "cuda":
        found = torch.cuda.get_device_properties(0)
        lines.append(
            f"{found.name}, {found.total_memory / 2**30:.0f} GB, CUDA {torch.version.cuda}, HIP {torch.version.hip}"
        )
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="cpu rehearses without a GPU")
    parser.add_argument("--only", default="", help="names of checks, separated by commas")
    parser.add_argument("--out", type=Path, default=Path("gpu-report.md"))
    arguments = parser.parse_args()
    if arguments.device == "cuda" and not torch.cuda.is_available():
        print("gpu-check: torch finds no GPU here; --device cpu rehearses the checks without one", file=sys.stderr)
        return 1
    wanted = [name for name in arguments.only.split(",") if name]
    known = [each.__name__ for each in CHECKS]
    if unknown := [name for name in wanted if name not in known]:
        parser.error(f"no check is called {', '.join(unknown)}: there are {', '.join(known)}")
    lines = ["# GPU check", "", *(f"- {line}" for line in environment(arguments.device)), ""]
    lines += ["| check | outcome | measured | seconds |", "| --- | --- | --- | --- |"]
    details, num_failed = [], 0
    for each in CHECKS:
        if wanted and each.__name__ not in wanted:
            continue
        start = time.perf_counter()
        try:
            outcome, measured = "pass", each(arguments.device)
        except NotHereError as err:
            outcome, measured = "not run", str(err)
        except Exception as err:  # a report of every failure is what this script is for
            outcome, measured = "FAIL", f"{type(err).__name__}: {err}"
            details += ["", f"## {each.__name__}", "", "```", traceback.format_exc().rstrip(), "```"]
            num_failed += 1
        seconds = time.perf_counter() - start
        print(f"{outcome:8}{each.__name__:12}{seconds:6.1f} s  {measured}", flush=True)
        cell = " ".join(measured.replace("|", "/").split())[:300]
        lines.append(f"| {each.__name__}: {each.__doc__} | {outcome} | {cell} | {seconds:.1f} |")
    arguments.out.write_text("\n".join([*lines, *details]) + "\n")
    print(f"report: {arguments.out}")
    return 1 if num_failed else 0


if __name__ == "__main__":
    sys.exit(main())
