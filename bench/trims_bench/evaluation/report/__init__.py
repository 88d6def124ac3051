"""Reports of evaluations and of two compared. Doors: `rows` (medians), `text`, `tables`, `plots`, `page`, `explain`."""
