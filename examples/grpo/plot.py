"""Draws the reward per step, with and without refit, as one PNG."""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib as mpl
from results import RunResult

mpl.use("Agg")

from matplotlib import pyplot as plt

_REFITTED_COLOUR, _FROZEN_COLOUR, _GRID_COLOUR, _TEXT_COLOUR = (
    "#1f5fbf",
    "#b0571b",
    "#dddddd",
    "#333333",
)


def draw(refitted: RunResult, frozen: RunResult, path: Path) -> None:
    """Writes the chart to `path`."""
    figure, axes = plt.subplots(figsize=(7.2, 4.2), dpi=150)
    for run, colour, label in (
        (refitted, _REFITTED_COLOUR, "engine refitted every step"),
        (frozen, _FROZEN_COLOUR, "refit off"),
    ):
        steps = range(1, len(run.rewards) + 1)
        axes.plot(steps, run.rewards, color=colour, linewidth=2, marker="o", markersize=4)
        axes.annotate(
            f"{label}: {run.rewards[-1]:.2f}",
            (len(run.rewards), run.rewards[-1]),
            xytext=(0, 9 if run is frozen else -16),
            textcoords="offset points",
            ha="right",
            color=colour,
        )
    axes.set_title(
        "GRPO: trainer on JAX, rollouts by PyTorch", loc="left", color=_TEXT_COLOUR, fontsize=11
    )
    axes.set_xlabel("training step", color=_TEXT_COLOUR)
    axes.set_ylabel("mean reward (share of the chosen token)", color=_TEXT_COLOUR)
    axes.set_ylim(-0.03, 1.06)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.grid(axis="y", color=_GRID_COLOUR, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path)


def main() -> None:
    """Reads two results and draws them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("refitted", type=Path, help="result of the run with refit")
    parser.add_argument("frozen", type=Path, help="result of the control run")
    parser.add_argument("picture", type=Path, help="PNG file to write")
    arguments = parser.parse_args()
    draw(RunResult.load(arguments.refitted), RunResult.load(arguments.frozen), arguments.picture)


if __name__ == "__main__":
    main()
