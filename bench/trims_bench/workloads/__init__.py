"""Workloads: load against an endpoint. Doors: `scenarios.run_scenario`, `result.Workload`."""
