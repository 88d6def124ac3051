"""Database of evaluations: sqlite by default, PostgreSQL by its URL. Its door is `evaluations.Evaluations`."""
