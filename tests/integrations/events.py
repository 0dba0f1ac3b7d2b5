"""What was written for TensorBoard."""

from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator


def read_events(folder) -> tuple[dict[str, list[tuple[int, float]]], dict[str, str]]:
    """Scalars, (step, value) by tag, and texts by tag, of all event files in a folder and below it."""
    scalars: dict[str, list[tuple[int, float]]] = {}
    texts: dict[str, str] = {}
    for path in {file.parent for file in Path(folder).rglob("events.out.*")}:
        events = EventAccumulator(str(path), size_guidance={"scalars": 0, "tensors": 0})
        events.Reload()
        for tag in events.Tags()["scalars"]:
            scalars.setdefault(tag, []).extend((each.step, each.value) for each in events.Scalars(tag))
        for tag in events.Tags()["tensors"]:
            text = events.Tensors(tag)[-1].tensor_proto.string_val[0].decode()
            texts[tag.removesuffix("/text_summary")] = text
    return scalars, texts
