"""The command line's options for the fields of a recipe."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Annotated, Any, Optional

import typer

from tempbalance.lab.images.recipe import ImageRecipe
from tempbalance.lab.methods import METHODS
from tempbalance.lab.options import ASSIGNMENTS, DATASETS, MODELS, SCORES, TAILS
from tempbalance.lab.recipe import REFERENCES

RECIPE, BALANCING, METHOD, RUN, LOGGING = "Recipe", "Balancing", "Method", "Run", "Logging"  # panels of the help

# field -> (panel, help)
_TEXTS = {
    "dataset": (RECIPE, f"{', '.join(DATASETS)}; or the path of an .npz file or a folder."),
    "model": (RECIPE, f"{', '.join(MODELS)}."),
    "width": (RECIPE, "Factor on the network's channels."),
    "method": (RECIPE, f"{', '.join(METHODS)}; tb+ goes before any other too."),
    "seed": (RECIPE, "All randomness follows from it and the epoch."),
    "epochs": (RECIPE, "How long to train."),
    "stop_after": (RECIPE, "Train only the first so many of these epochs, at the rates of all."),
    "lr": (RECIPE, "Initial rate; without it the method's own, for SGD 0.1 and with VGG 0.05."),
    "batch_size": (RECIPE, "Images a step, over all devices."),
    "momentum": (RECIPE, "Of SGD and its relatives."),
    "weight_decay": (RECIPE, "Of every optimizer."),
    "limit": (RECIPE, "Use only so many images of the training and of the test set."),
    "test_limit": (RECIPE, "Use only so many images of the test set; without it as many as --limit."),
    "scale_range": (BALANCING, "Smallest and largest scale of a balanced method."),
    "tail": (BALANCING, f"How a tail is fitted: {', '.join(TAILS)}."),
    "tail_fraction": (BALANCING, "With median, how much of the spectrum is the tail."),
    "score": (BALANCING, f"What layers are ranked by: {', '.join(SCORES)}."),
    "assignment": (BALANCING, f"From scores to scales: {', '.join(ASSIGNMENTS)}."),
    "interval": (BALANCING, "Epochs between scorings."),
    "interval_steps": (BALANCING, "Steps between scorings, instead of epochs."),
    "start": (BALANCING, "Epochs before the first scoring."),
    "score_first": (BALANCING, "Score the first layer too."),
    "score_last": (BALANCING, "Score the last layer too."),
    "min_eigenvalues": (BALANCING, "Layers with fewer are skipped."),
    "reference": (BALANCING, f"What alpha is divided by: {', '.join(REFERENCES)}, that of a random matrix."),
    "windows": (BALANCING, "Pool square windows of a matrix: square, or their side."),
    "keep_mean": (BALANCING, "Divide scales by their mean, so that they average to 1."),
    "shrink": (BALANCING, "Draw uncertain scores toward the layers' mean."),
    "smooth": (BALANCING, "How much the scores of before count, 0 to 1."),
    "blend": (BALANCING, "Epochs over which new scales are reached."),
    "group_by": (BALANCING, "Layers whose names begin like this pattern, word by word, get one score."),
    "decay_range": (BALANCING, "Balance the weight decay too: scales at the smallest and the largest score."),
    "snr": (METHOD, "Strength of spectral norm regularisation, of snr and tb+snr."),
    "restart_epochs": (METHOD, "Epochs of the first cycle of sgdr; without it half of all, rounded up."),
    "restart_factor": (METHOD, "Each cycle of sgdr is so many times as long as the one before."),
    "lookahead_steps": (METHOD, "Steps of lookahead between two looks back."),
    "lookahead_alpha": (METHOD, "How far lookahead goes towards the fast weights."),
    "log_gradients": (LOGGING, "Add gradient norms to layers.jsonl."),
    "log_eigenvalues": (LOGGING, "Add spectra to layers.jsonl."),
    "log_steps": (LOGGING, "Note gradient norms, and with --log-eigenvalues spectra, every so many steps too."),
}


def with_recipe_options(
    *left_out: str, defaults: Mapping[str, str] | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command an option for each field of `ImageRecipe`; those that are given are gathered in its ``options``.

    Args:
        left_out: Fields without an option.
        defaults: What the help says of defaults that are not the recipe's own.
    """
    names = [name for name in _TEXTS if name not in left_out]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(command, eval_str=True).parameters

        def wrapped(**values: Any) -> None:
            given = {name: values.pop(name) for name in names}
            command(options={name: value for name, value in given.items() if value is not None}, **values)

        parameters = [_parameter(name, (defaults or {}).get(name)) for name in names]
        parameters += [
            each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in own.values() if each.name != "options"
        ]
        wrapped.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        wrapped.__annotations__ = {each.name: each.annotation for each in parameters}
        wrapped.__name__, wrapped.__doc__ = command.__name__, command.__doc__
        return wrapped

    return decorate


def _parameter(name: str, default: str | None) -> inspect.Parameter:
    panel, text = _TEXTS[name]
    hint: Any = Optional[ImageRecipe.hints()[name]]  # noqa: UP045
    (value,) = [field.default for field in fields(ImageRecipe) if field.name == name]
    if default is None and value is not None and not isinstance(value, bool):
        default = " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
    option = typer.Option(help=text, show_default=default or False, rich_help_panel=panel)
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[hint, option])
