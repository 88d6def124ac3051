"""Counts of each model."""

from __future__ import annotations

from dataclasses import replace

from trims_predictors.deployment.deployment import Answer
from trims_predictors.endpoint.observe.statistics import ModelStatistics


def answer(batch: int, *, cold: bool) -> Answer:
    stages = {"queue_s": 0.5, "input_s": 0.001, "preprocess_s": 0.003, "predict_s": 0.25, "postprocess_s": 0.004}
    stages["output_s"] = 0.002
    return Answer([], cold=cold, how="spare", place="cpu", warm=True, batch=batch, stages=stages)


def test_requests_runs_and_stages_are_summed_in_nanoseconds() -> None:
    counted = ModelStatistics()
    counted.answered(answer(1, cold=True), 1.0)
    for _ in range(2):
        counted.answered(answer(2, cold=False), 0.5)
    counted.failed(0.25)
    told = counted.as_json("m", "1.0.0")
    assert (told["inference_count"], told["execution_count"], told["cold_count"]) == (3, 2, 1)
    assert told["inference_stats"] == {
        "success": {"count": 3, "ns": 2_000_000_000},
        "fail": {"count": 1, "ns": 250_000_000},
        "queue": {"count": 3, "ns": 1_500_000_000},
        "compute_input": {"count": 3, "ns": 12_000_000},
        "compute_infer": {"count": 3, "ns": 750_000_000},
        "compute_output": {"count": 3, "ns": 18_000_000},
    }


def test_rows_are_counted_and_runs_by_their_rows() -> None:
    counted = ModelStatistics()
    for rows in (3, 5):  # two requests of one run of 8 rows
        counted.answered(replace(answer(2, cold=False), rows=rows, run_rows=8), 0.5)
    counted.answered(replace(answer(1, cold=False), rows=8, run_rows=8), 0.5)
    counted.answered(replace(answer(1, cold=False), rows=2, run_rows=2), 0.5)
    told = counted.as_json("m", "1.0.0")
    assert (told["inference_count"], told["execution_count"]) == (18, 3)
    assert told["inference_stats"]["success"]["count"] == 4
    assert told["batch_stats"] == [
        {
            "batch_size": rows,
            "compute_input": {"count": runs, "ns": runs * 4_000_000},
            "compute_infer": {"count": runs, "ns": runs * 250_000_000},
            "compute_output": {"count": runs, "ns": runs * 6_000_000},
        }
        for rows, runs in ((2, 1), (8, 2))
    ]


def test_a_model_that_was_never_asked_has_zeroes() -> None:
    told = ModelStatistics().as_json("m", "1.0.0")
    assert told["last_inference"] == 0
    assert set(map(tuple, (each.items() for each in told["inference_stats"].values()))) == {(("count", 0), ("ns", 0))}
