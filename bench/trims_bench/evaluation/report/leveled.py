"""Report of leveled runs as text: layers by time and by type, and what each level costs the one above."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trims_bench.evaluation.leveled import Leveled, LevelTime

#: Layers that are shown.
MOST_LAYERS = 15
_NAME_COLUMNS = 44


def lines(leveled: Leveled, most: int = MOST_LAYERS) -> list[str]:
    """Return the tables of layers, types and levels."""
    layers = leveled.layers
    text = [f"{'layer':{_NAME_COLUMNS}} {'type':22}{'own time':>10}{'of run':>8}  inputs"] if layers.layers else []
    for layer in layers.layers[:most]:
        shapes = " ".join("x".join(map(str, shape)) for shape in layer.input_shapes)
        device = f" (device {_ms(layer.device_s)})" if layer.device_s else ""
        name = layer.name if len(layer.name) <= _NAME_COLUMNS else f"...{layer.name[3 - _NAME_COLUMNS :]}"
        line = f"{name:{_NAME_COLUMNS}} {layer.type:22.22}{_ms(layer.seconds):>10}{layer.share:8.1%}  {shapes}{device}"
        text.append(line.rstrip())
    if len(layers.layers) > most:
        left = layers.layers[most:]
        shares = sum(each.share for each in left)
        text.append(
            f"{f'{len(left)} more':{_NAME_COLUMNS}} {'':22}{_ms(sum(x.seconds for x in left)):>10}{shares:8.1%}"
        )
    if layers.layers:
        text += ["", f"{'type':34}{'layers':>8}{'time':>10}{'of run':>8}"]
        kinds = layers.kinds()[:most]
        text += [f"{each.type:34.34}{each.count:8}{_ms(each.seconds):>10}{each.share:8.1%}" for each in kinds]
        text += ["", f"accounted by id: {layers.accounted:.2%} of the time of {layers.operators} operators and kernels"]
    text += ["", f"{'deepest level':16}{'run':>12}  {'95 % interval':24}{'overhead':>12}"]
    text += [_level_line(each, leveled.levels[:number]) for number, each in enumerate(leveled.levels)]
    if leveled.answers_differ:
        text += ["", "the answers to the same inputs differ from run to run"]
    return [*text, *(f"lacks: {each}" for each in leveled.lacks)]


def _level_line(each: LevelTime, above: Sequence[LevelTime]) -> str:
    seconds = each.seconds
    interval = f"{_ms(seconds.low)} .. {_ms(seconds.high)}"
    overhead = "" if each.overhead_s is None else f"{each.overhead_s * 1e3:+.3f} ms"
    verdict = f"  no verdict: {seconds.verdict}" if seconds.verdict else ""
    if above and not verdict and seconds.low <= above[-1].seconds.high and above[-1].seconds.low <= seconds.high:
        verdict = "  within the noise"
    return f"{each.level:16}{_ms(seconds.value):>12}  {interval:24}{overhead:>12}{verdict}".rstrip()


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3f} ms"
