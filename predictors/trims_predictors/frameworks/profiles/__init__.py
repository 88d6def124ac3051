"""What the frameworks' own profilers saw of one run, as events with ids; pure code, which imports no framework."""
