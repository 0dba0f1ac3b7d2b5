"""BLAS and LAPACK functions that scipy exports (docs/decisions/0015)."""

from __future__ import annotations

import ctypes
import os
import sys
from functools import cache
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from typing import Any

import torch
from torch import Tensor

BLOCK = 32  # columns that LAPACK reduces at a time


class Lapack:
    """BLAS and LAPACK functions that scipy exports; called through ctypes, they release Python's lock."""

    def __init__(self) -> None:
        from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]

        cython_blas, cython_lapack = _load_extension("cython_blas"), _load_extension("cython_lapack")
        letters = {torch.float32: "s", torch.float64: "d"}
        # half of a Gram matrix; reduction to tridiagonal form; eigenvalues of that form, eigenvectors, their rotation
        self.syrk = {dtype: _function(cython_blas, f"{letter}syrk", 10) for dtype, letter in letters.items()}
        self.sytrd = {dtype: _function(cython_lapack, f"{letter}sytrd", 10) for dtype, letter in letters.items()}
        self.sterf = _function(cython_lapack, "dsterf", 4)
        self.stein = _function(cython_lapack, "dstein", 13)
        self.ormtr = _function(cython_lapack, "sormtr", 13)
        self.pools = ThreadpoolController().select(user_api="blas")


def _load_extension(name: str) -> Any:
    """Load a module of scipy.linalg without the rest of the package, which takes a tenth of the time of torch."""
    import scipy  # type: ignore[import-untyped]

    full = f"scipy.linalg.{name}"
    spec = PathFinder.find_spec(full, [os.path.join(folder, "linalg") for folder in scipy.__path__])
    if full in sys.modules or spec is None or spec.loader is None:
        return import_module(full)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _function(module: Any, name: str, num_arguments: int) -> Any:
    """Return a function that a Cython module exports."""
    capsule = module.__pyx_capi__[name]
    get_name, get_pointer = ctypes.pythonapi.PyCapsule_GetName, ctypes.pythonapi.PyCapsule_GetPointer
    get_name.restype, get_name.argtypes = ctypes.c_char_p, [ctypes.py_object]
    get_pointer.restype, get_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    signature = get_name(capsule)
    if signature.count(b" *") != num_arguments or b"int *" not in signature or not signature.startswith(b"void ("):
        raise ImportError(f"scipy exports {name} as {signature!r}")
    function = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * num_arguments)(get_pointer(capsule, signature))
    return lambda *arguments: function(*map(_reference, arguments))


def _reference(argument: Any) -> Any:
    """Return an argument as Fortran takes it."""
    if isinstance(argument, int):
        return ctypes.byref(ctypes.c_int(argument))
    return argument.data_ptr() if isinstance(argument, Tensor) else argument


@cache
def load_lapack() -> Lapack | None:
    """Return scipy's functions, loaded at the first call; None if this scipy has none in the expected form."""
    try:
        return Lapack()
    except (ImportError, AttributeError, KeyError, ValueError):
        return None
