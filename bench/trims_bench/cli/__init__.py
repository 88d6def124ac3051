"""Commands that measure, each of which imports what it needs when it runs. Doors: `bench`, `eval`, `report`."""
