"""What deciding online costs against the batch in hindsight: ``make ratios`` prints it and draws it.

1,000 random inputs and the adversary's for each rule, through the example pipelines' own functions. The
picture is one HTML file that needs no network; the last line printed is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path

import plotly.graph_objects as go
from support.competitive_ratios import Ratios, ratios

from hindcast.settings import Settings
from hindcast.spark.session import build


def picture(found: dict[str, Ratios]) -> go.Figure:
    """One column a rule: each random input a dot, the adversary's a cross, the proven bound a line."""
    figure = go.Figure()
    for position, (rule, measured) in enumerate(found.items()):
        figure.add_trace(
            go.Violin(
                x=[rule] * len(measured.random),
                y=measured.random,
                name="random",
                points="all",
                spanmode="hard",
                showlegend=not position,
            )
        )
        adversary = {"mode": "markers", "marker": {"symbol": "x", "size": 12, "color": "firebrick"}}
        figure.add_trace(
            go.Scatter(
                x=[rule], y=[max(measured.adversary)], name="adversary", showlegend=not position, **adversary
            )
        )
        figure.add_shape(
            type="line",
            x0=position - 0.4,
            x1=position + 0.4,
            y0=measured.bound,
            y1=measured.bound,
            line={"dash": "dash"},
            label={"text": f"bound {measured.bound:g}", "textposition": "end"},
        )
    figure.update_yaxes(title="online cost / cost in hindsight", type="log")
    return figure.update_layout(title="The price of deciding online", template="plotly_white")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--to", type=Path, default=Path("competitive-ratios.html"), help="the picture")
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    settings = Settings()
    with tempfile.TemporaryDirectory(prefix="hindcast-ratios-") as folder:
        own = settings.model_copy(update={"home": Path(folder), "jars_dir": settings.spark_jars_dir})
        spark = build(own, "competitive-ratios")
        found = ratios(spark, asked.seed)
        spark.stop()
    picture(found).write_html(asked.to, include_plotlyjs=True)
    shown = {
        rule: {
            "bound": measured.bound,
            "mean": round(statistics.mean(measured.random), 4),
            "worst": round(max(measured.random), 4),
            "adversary": round(max(measured.adversary), 4),
        }
        for rule, measured in found.items()
    }
    print(  # noqa: T201
        json.dumps(
            {
                "ratios": shown,
                "inputs": len(found["first_fit"].random),
                "seed": asked.seed,
                "picture": str(asked.to),
            }
        )
    )


if __name__ == "__main__":
    main()
